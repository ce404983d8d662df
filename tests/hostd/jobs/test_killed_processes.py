"""kill -9 of anything at any moment: one final record, nothing that lives on, nothing that stays."""
# ruff: noqa: ASYNC251  # nothing else runs on the loop of a test

import asyncio
import contextlib
import os
import random
import secrets
import time
from pathlib import Path

import pytest

from gpu_mcp_server.errors import HostUnavailable
from gpu_mcp_server.hostd.protocol import JobRecord, ProcessSpec
from gpu_mcp_server.hostd.sandbox import cgroup
from tests.hostd.laboratory import Laboratory, eventually, names, processes_with, supervisor_of, workspaces

ROUNDS = 8
SCRIPT = "echo ready; (sleep 1000 &) ; setsid sleep 1000 & head -c 100000 /dev/zero > out; sleep 1000"


def kill(pid: int) -> None:
    assert pid > 1, "pid 0 names a whole process group, and process 1 may run these tests"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def left_in_groups(job: str) -> list[str]:
    hierarchy = cgroup.own_hierarchy()
    parents = hierarchy.parents.values() if hierarchy else []
    return [str(p) for parent in parents for p in Path(parent).glob(f"{job}.*")]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def check_nothing_is_left(state: Path, job: str, marker: str) -> None:
    assert eventually(lambda: processes_with(marker) == []), processes_with(marker)
    assert eventually(lambda: workspaces(state, job) == [])
    assert eventually(lambda: names(state / "open") == [])
    assert eventually(lambda: left_in_groups(job) == []), left_in_groups(job)


async def final_record(lab: Laboratory, job: str) -> JobRecord:
    done = await lab.wait(job)
    assert done.record.state == "finished"
    folder = lab.state / "jobs" / job
    assert [p.name for p in folder.glob("record*")] == ["record.json"]
    assert await lab.record(job) == done.record
    return done.record


@pytest.mark.parametrize("victim", ["supervisor", "keeper", "sandbox", "inside"])
async def test_killing_one_of_a_job_s_processes_ends_all_of_it(any_lab: Laboratory, victim: str):
    lab = any_lab
    marker = secrets.token_hex(8)
    job = await lab.start("/bin/sh", "-c", SCRIPT, env={"MARKER": marker}, until=b"ready")
    supervisor = lab.supervisor(job)
    (keeper,) = children(supervisor)
    sandbox = children(keeper)[0]
    kill(
        {"supervisor": supervisor, "keeper": keeper, "sandbox": sandbox, "inside": min(processes_with(marker))}[victim]
    )
    record = await final_record(lab, job)
    assert record.status == ("broken" if victim in ("supervisor", "keeper") else "failed")
    if record.status == "broken":
        assert f"{victim} " in record.note
        assert "was killed" in record.note
    check_nothing_is_left(lab.state, job, marker)


async def test_the_workspace_of_a_killed_job_goes_with_the_next_start(any_lab: Laboratory, open_lab):
    lab = any_lab
    marker = secrets.token_hex(8)
    job = await lab.start("/bin/sh", "-c", SCRIPT, env={"MARKER": marker}, detached=True, until=b"ready")
    kill(lab.pid)
    kill(lab.supervisor(job))
    other = await open_lab(lab.level)
    assert (await final_record(other, job)).status == "broken"
    check_nothing_is_left(lab.state, job, marker)


async def test_a_job_that_was_cancelled_before_its_supervisor_was_killed_is_cancelled(full):
    job = await full.start("sleep", "1000")
    supervisor = full.supervisor(job)
    os.kill(supervisor, 19)
    await full.link.call("cancel", job=job)
    kill(supervisor)
    assert (await final_record(full, job)).status == "cancelled"


async def test_killing_hostd_ends_its_attached_jobs_and_frees_the_next_to_say_so(any_lab, open_lab):
    lab = any_lab
    marker = secrets.token_hex(8)
    jobs = [await lab.start("/bin/sh", "-c", SCRIPT, env={"MARKER": marker}, until=b"ready") for _ in range(3)]
    kill(lab.pid)
    assert eventually(lambda: processes_with(marker) == [])
    other = await open_lab(lab.level)
    for job in jobs:
        assert (await final_record(other, job)).status in ("caller_lost", "broken")
        check_nothing_is_left(lab.state, job, marker)


@pytest.mark.parametrize("victims", ["supervisor", "both"])
async def test_killing_at_any_moment_of_a_job_s_life_leaves_one_record_and_nothing_else(any_lab, open_lab, victims):
    """From the submit through the laying of files, the start, the run and the conclusion, at random moments."""
    lab = any_lab
    chance = random.Random(7)
    contents = {f"f{i}": os.urandom(2000) for i in range(30)}
    script = "cat f* > all; (setsid sleep 1000 &); sleep 0.03; exit 0"
    for round_ in range(ROUNDS):
        marker = secrets.token_hex(8)
        spec = lab.spec("/bin/sh", "-c", script, env={"MARKER": marker}, outputs=("*",), detached=round_ % 2 == 0)
        submitting = asyncio.create_task(lab.submit(spec, contents))
        delay = chance.uniform(0, 0.09)
        began = time.monotonic()
        while time.monotonic() - began < delay or not supervisor_of(lab.state, spec.id):
            await asyncio.sleep(0.0005)
            if victims == "both" and time.monotonic() - began > delay:
                break
        if victims == "both":
            kill(lab.pid)
        kill(supervisor_of(lab.state, spec.id) or 2**22 - 1)
        with contextlib.suppress(HostUnavailable):
            await submitting
        if victims == "both":
            lab = await open_lab(lab.level)
        if (lab.state / "jobs" / spec.id).exists():
            record = await final_record(lab, spec.id)
            assert record.status in ("ok", "broken", "caller_lost")
        check_nothing_is_left(lab.state, spec.id, marker)


async def test_a_sandbox_that_lost_its_outer_half_while_it_was_made_is_found_and_killed(boxed, open_lab):
    """bubblewrap asks to die with its parent only late: kill supervisor, keeper and bubblewrap in its first moments."""
    for round_ in range(12):
        marker = secrets.token_hex(8)
        spec = boxed.spec("sleep", "1000", env={"MARKER": marker}, detached=True)
        await boxed.submit(spec)
        while not supervisor_of(boxed.state, spec.id):
            await asyncio.sleep(0)
        supervisor = boxed.supervisor(spec.id)
        listing = Path(f"/proc/{supervisor}/task/{supervisor}/children")
        children: list[str] = []
        while not children:
            children = listing.read_text().split()
        time.sleep(0.0006 * round_)
        outer = Path(f"/proc/{children[0]}/task/{children[0]}/children").read_text().split()
        for pid in [supervisor, *map(int, children), *map(int, outer)]:
            kill(pid)
        assert (await final_record(boxed, spec.id)).status == "broken"
        assert eventually(lambda m=marker: processes_with(m) == []), processes_with(marker)
        assert left_in_groups(spec.id) == []


async def test_a_trusted_leader_hears_of_a_role_that_was_killed_for_its_memory(lab):
    owner = (
        "import json, os, socket\ns = socket.socket(fileno=int(os.environ['LINK_SUPERVISOR']))\n"
        "said = json.loads(s.recv(4096)); print(said['event'], said['role'], said['oom'])"
    )
    hog = "held = []\nwhile True: held.append(bytearray(b'x') * (4 << 20))"
    processes = (
        ProcessSpec(("{python}", "-c", owner), role="owner", trusted=True, workspace="owner"),
        ProcessSpec(("{python}", "-c", hog), role="candidate", workspace="candidate"),
    )
    done = await lab.run(processes=processes, limits={"memory_bytes": 64 << 20})
    assert (done.record.status, done.text) == ("ok", "exit candidate True\n")
    assert "role candidate" in done.record.note
