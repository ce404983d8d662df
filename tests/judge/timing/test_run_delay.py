"""A while for somebody else to go on: other processes on the cores are no part of it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu_mcp_judge.timing import run_delay

from tests.judge.harness import edited
from tests.judge.test_candidates_cpu import SMALL, launcher
from tests.judge_package import packages


@pytest.mark.parametrize(
    ("delayed_s", "lasted_s"),
    [(0.0, 0.05), (0.9, 0.5), (0.99, 5.0), (1.0, 5.0)],
    ids=["alone", "busy", "at most", "no core at all"],
)
def test_what_a_thread_waits_for_a_core_is_no_part_of_a_while(monkeypatch, delayed_s, lasted_s):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(run_delay, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(run_delay, "run_delay_s", lambda: 7.0 + delayed_s * now.s)
    one = run_delay.While(0.05, at_most_s=5.0)
    while one.lasts():
        now.s += 0.001

    assert now.s - 100.0 == pytest.approx(lasted_s, abs=0.002)


BESIDE = """
import os, subprocess, sys, time
from gpu_mcp_judge.timing.run_delay import While, run_delay_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
others = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(2)]
one = While(0.2, at_most_s=60.0)
while one.lasts():
    pass
delayed_s = run_delay_s() - one.delayed_s
print(time.monotonic() - one.begin, delayed_s)
for other in others:
    other.kill()
    other.wait()
"""


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count it")
def test_the_kernel_says_how_long_a_thread_waited_for_its_core():
    ran = subprocess.run([sys.executable, "-c", BESIDE], cwd=packages(), capture_output=True, timeout=90, check=True)
    lasted_s, delayed_s = map(float, ran.stdout.split())

    assert delayed_s > 0
    assert lasted_s - delayed_s >= 0.2


def test_work_after_done_is_seen_on_a_machine_so_busy_that_it_takes_seconds(court):
    busy = edited("timing/run_delay.py", ("return int(text.read().split()[1]) / 1e9", "return 0.99 * time.monotonic()"))
    late = """
    struct work { const float *x; float *y; int64_t rows, cols; };
    static void *later(void *p) { struct work w = *(struct work *)p; sleep(1); softmax(w.x, w.y, w.rows, w.cols); return 0; }
    """
    body = """
    struct work *w = malloc(sizeof *w);
    *w = (struct work){x, y, rows, cols};
    pthread_t t; pthread_create(&t, 0, later, w); pthread_detach(t);
    """
    source = launcher(body).replace("int launch", late + "int launch")
    verdict = court(source, shapes=SMALL, owner_files=busy).verdict

    assert verdict["verdict"] == "cheat"
    assert "finished after it said done" in verdict["reason"]
