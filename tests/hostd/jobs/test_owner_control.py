"""A trusted role stops another, with all its threads and children, and lets it go on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gpu_mcp_server.hostd.jobs import role_process
from gpu_mcp_server.hostd.protocol import Limits, ProcessSpec
from gpu_mcp_server.hostd.sandbox import processes

RUNNERS = r"""
import os, threading, mmap, time
count = 6
fd = os.open("counters", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
page = mmap.mmap(fd, 4096)
def run(at):
    while True:
        page[at * 8:at * 8 + 8] = (int.from_bytes(page[at * 8:at * 8 + 8], "little") + 1).to_bytes(8, "little")
def forks():
    while True:
        pid = os.fork()
        if pid == 0:
            page[40:48] = (int.from_bytes(page[40:48], "little") + 1).to_bytes(8, "little")
            os._exit(0)
        os.waitpid(pid, 0)
for at in (0, 1):
    threading.Thread(target=run, args=(at,), daemon=True).start()
if os.fork() == 0:
    run(2)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        run(3)
    os._exit(0)
if os.fork() == 0:
    forks()
import ctypes
threading.Thread(target=run, args=(4,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""

OWNER = r"""
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ["LINK_SUPERVISOR"]))
link.settimeout(20)
def ask(**request):
    link.send(json.dumps(request).encode())
    return json.loads(link.recv(4096))
peer = socket.socket(fileno=int(os.environ["LINK_CANDIDATE"]))
peer.settimeout(20)
import mmap, array
data, anc, _, _ = peer.recvmsg(10, socket.CMSG_SPACE(4))
fd = array.array("i", anc[0][2])[0]
page = mmap.mmap(fd, 4096)
def moving(seconds):
    before = bytes(page)
    time.sleep(seconds)
    after = bytes(page)
    return [before[i * 8:i * 8 + 8] != after[i * 8:i * 8 + 8] for i in range(6)]
def all_move():
    end = time.monotonic() + 10
    seen = [False] * 6
    while not all(seen) and time.monotonic() < end:
        seen = [a or b for a, b in zip(seen, moving(0.05))]
    return all(seen)
said = {"first": all_move(), "rounds": []}
for _ in range(5):
    how = ask(do="freeze", role="candidate")
    still = not any(moving(0.05))
    ask(do="thaw", role="candidate")
    said["rounds"].append([how, still, all_move()])
said["owner"] = ask(do="freeze", role="owner")
said["junk"] = ask(do="fly", role="candidate")
link.send(b"\xff{")
said["garbage"] = json.loads(link.recv(4096))
said["frozen"] = ask(do="freeze", role="candidate")
said["killed"] = ask(do="kill", role="candidate")
said["exit"] = json.loads(link.recv(4096))
print(json.dumps(said))
"""

SHARE = r"""
import array, os, socket
fd = os.open("counters", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
socket.socket(fileno=int(os.environ["LINK_OWNER"])).sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
"""


async def test_a_frozen_role_stands_still_with_all_that_it_started(lab):
    two = (
        ProcessSpec(("{python}", "-c", OWNER), role="owner", trusted=True, workspace="owner"),
        ProcessSpec(("{python}", "-c", SHARE + RUNNERS), role="candidate", workspace="candidate"),
    )
    done = await lab.run(processes=two, links=(("owner", "candidate"),))
    assert done.record.status == "ok", done
    said = json.loads(done.text)
    assert said["first"]
    how = {"full": "freezer"}.get(lab.level, "sigstop")
    assert said["rounds"] == [[{"frozen": True, "how": how}, True, True]] * 5
    assert "error" in said["owner"]
    assert "error" in said["junk"]
    assert "error" in said["garbage"]
    assert (said["frozen"]["frozen"], said["killed"]) == (True, {"killed": True})
    assert (said["exit"]["event"], said["exit"]["role"]) == ("exit", "candidate")


async def test_a_job_that_ends_while_a_role_is_frozen_ends_whole(lab):
    freeze = (
        "import json, os, socket\nl = socket.socket(fileno=int(os.environ['LINK_SUPERVISOR']))\n"
        "l.send(json.dumps({'do': 'freeze', 'role': 'candidate'}).encode()); print(l.recv(99).decode())"
    )
    two = (
        ProcessSpec(("{python}", "-c", freeze), role="owner", trusted=True, workspace="owner"),
        ProcessSpec(("/bin/sh", "-c", "while :; do :; done"), role="candidate", workspace="candidate"),
    )
    done = await lab.run(processes=two)
    assert done.record.status == "ok"
    assert json.loads(done.text)["frozen"]


def test_a_process_that_is_gone_stands_still():
    assert processes.stands_still(2**22 - 1)
    assert processes.stop(2**22 - 1)


def test_a_process_does_not_stand_still_whose_thread_ended_before_it_was_looked_at(monkeypatch):
    """Its first thread may have ended, and each further one end as it starts the next."""
    ended = str(2**22 - 1)
    monkeypatch.setattr(os, "listdir", lambda _: [ended])
    assert not processes.stands_still(os.getpid())


@pytest.mark.parametrize("state", ["R", "S", "D"])
def test_a_thread_that_may_run_is_not_still(state):
    assert state not in processes.STILL


FAMILY = """
import subprocess, threading, time
run = lambda *command: subprocess.Popen(command)
threading.Thread(target=lambda: (run("sh", "-c", "sleep 60 & wait"), time.sleep(60))).start()
run("sleep", "60")
time.sleep(60)
"""


@pytest.mark.parametrize("listed", [True, False])
def test_all_below_a_process_are_found_whichever_thread_started_them(monkeypatch: pytest.MonkeyPatch, listed: bool):
    if not listed:
        monkeypatch.setattr(processes.os.path, "exists", lambda path: False)
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], start_new_session=True)
    try:
        while len(processes.descendants_of(parent.pid)) < 3:
            time.sleep(0.01)
        assert processes.tree_of(parent.pid) == processes.descendants_of(parent.pid)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_stopped_process_that_ran_meanwhile_is_seen_even_if_it_stands_still_again(goes_on):
    parent = subprocess.Popen(["sh", "-c", "while :; do :; done & wait"], start_new_session=True)

    def ran_ns():
        return sum(ns for ns, _ in processes.runs_of(parent.pid).values())

    try:
        while not (children := processes.descendants_of(parent.pid)):
            pass
        assert processes.stop(parent.pid)
        before, before_ns = processes.runs_of(parent.pid), ran_ns()
        if goes_on:
            os.kill(children[0], signal.SIGCONT)
            while ran_ns() < before_ns + 2 * processes.STOPPING_NS:
                pass
            assert processes.stop(parent.pid)
        found = processes.has_run_since(parent.pid, before)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()

    assert found == (goes_on, goes_on)


def test_many_threads_that_ran_a_little_each_ran_for_long(monkeypatch):
    counts = iter([{"1": (0, 1), "2": (0, 1)}, {"1": (400_000, 2), "2": (400_000, 2)}])
    monkeypatch.setattr(processes, "runs_of", lambda root: next(counts))
    before = processes.runs_of(0)

    assert processes.has_run_since(2**22 - 1, before) == (True, True)


def test_time_without_another_run_is_not_surely_the_process_s_own(monkeypatch):
    """A virtual machine's host takes time from a thread that is on its way to its stop."""
    counts = iter([{"1": (0, 1), "2": (0, 1)}, {"1": (900_000, 1), "2": (0, 1)}])
    monkeypatch.setattr(processes, "runs_of", lambda root: next(counts))
    before = processes.runs_of(0)

    assert processes.has_run_since(2**22 - 1, before) == (False, True)


def let_go(monkeypatch, late: list[bool]) -> list[bool]:
    """Return of each stop whether it is told as one in which the process ran, where it ran a little in some."""
    told = iter(late)
    monkeypatch.setattr(processes, "has_run_since", lambda root, before: (False, next(told)))
    stopped = subprocess.Popen(["sleep", "60"])
    role = role_process.RoleProcess("candidate")
    try:
        role.pid = stopped.pid
        return [role.freeze() == "sigstop" and role.thaw() for _ in late]
    finally:
        stopped.kill()
        stopped.wait()
        role.close(Limits())


@pytest.mark.parametrize("before", [0, 200])
def test_a_stopped_process_that_ran_a_little_is_believed_three_times_and_no_more(monkeypatch, before):
    """It may have left a child that ran for long and is gone. Stops in which it did not are not saved up for that."""
    found = let_go(monkeypatch, [False] * before + [True] * (role_process.MOST_STIRRED + 1))

    assert found == [False] * (before + role_process.MOST_STIRRED) + [True]


def test_of_many_stops_a_few_may_be_late(monkeypatch):
    """On a virtual machine one too many was the end of an evaluation."""
    assert not any(let_go(monkeypatch, [number % 20 == 0 for number in range(200)]))


def test_processes_that_are_others_at_each_look_do_not_stand_still(monkeypatch):
    looks = iter(range(10**9))
    monkeypatch.setattr(processes, "tree_of", lambda root: [2**22 + next(looks)])
    monkeypatch.setattr(processes, "STOP_S", 0.05)

    assert not processes.stop(1)
