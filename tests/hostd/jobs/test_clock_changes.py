"""The wall clock is set back and forward while jobs run: limits hold, and records say how long it took."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import GpuRequest

DAY_S = 86400

# Comes before the C library: the wall clock is off by what a file says, the monotonic one is not.
OTHER_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && !done) {
        char text[32] = ""; int file = open(getenv("CLOCK_IS_OFF_BY"), O_RDONLY | O_CLOEXEC);
        if (file >= 0) { if (read(file, text, 31) > 0) now->tv_sec += atol(text); close(file); }
    }
    return done;
}
"""

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@pytest.fixture
async def clock(state: Path, open_lab):
    """Return a hostd and a function that sets its clock, and that of all that it forks, by seconds."""
    told = state.parent / "clock"

    def turn(by_s: int) -> None:
        partial = told.with_suffix(".new")
        partial.write_text(f"{by_s:+d}\n")
        partial.rename(told)

    turn(0)
    (state.parent / "clock.c").write_text(OTHER_CLOCK)
    library = state.parent / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, state.parent / "clock.c"], check=True)
    more = {"LD_PRELOAD": str(library), "CLOCK_IS_OFF_BY": str(told), LOCKS: str(state.parent / "locks")}
    return await open_lab("full", **more), turn


@pytest.mark.parametrize("by_s", [-10 * DAY_S, 10 * DAY_S])
async def test_limits_and_records_hold_while_the_clock_is_set(clock, by_s: int):
    lab, turn = clock
    began = time.time()
    timed_out = await lab.start("/bin/sh", "-c", "echo ready; sleep 1000", until=b"ready", limits={"wall_s": 2.0})
    through = await lab.start(
        "/bin/sh", "-c", "echo ready; sleep 1; echo x > out; exit 3", until=b"ready", outputs=("out",)
    )
    turn(by_s)
    ended = [(await lab.wait(job)).record for job in (timed_out, through)]
    assert [record.status for record in ended] == ["timeout", "failed"]
    assert ended[0].note == "wall limit of 2 s"
    assert [o.path for o in ended[1].outputs] == ["out"]
    assert 2.0 <= ended[0].wall_s < 15.0
    assert 1.0 <= ended[1].wall_s < 15.0
    assert all(abs(record.submitted_at - began) < DAY_S for record in ended)
    assert all(abs(record.ended_at - began - by_s) < DAY_S for record in ended), (
        "the clock was set, or this proves nothing"
    )
    for record in ended:
        assert await lab.record(record.id) == record
        assert [p.name for p in (lab.state / "jobs" / record.id).glob("record*")] == ["record.json"]
    after = await lab.sh("echo after")
    assert (after.record.status, after.text) == ("ok", "after\n")


@pytest.mark.parametrize("by_s", [-10 * DAY_S, 10 * DAY_S])
async def test_who_waits_for_the_processor_has_its_turn_though_the_clock_is_set(clock, by_s: int):
    lab, turn = clock
    alone = GpuRequest(mode="exclusive", wait_s=20.0)
    first = await lab.start("/bin/sh", "-c", "echo ready; sleep 1", until=b"ready", gpus=alone)
    second = lab.spec("/bin/sh", "-c", "echo mine", gpus=alone)
    await lab.submit(second)
    turn(by_s)
    assert (await lab.wait(first)).record.status == "ok"
    done = await lab.wait(second.id)
    assert (done.record.status, done.text) == ("ok", "mine\n"), done.record
