"""Anything of a job with several roles is killed at a random moment while another job waits for its lock."""

import asyncio
import os
import random
import secrets
import signal
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import PROCESSOR, GpuLocks
from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, ProcessSpec
from gpu_mcp_server.hostd.sandbox import processes
from tests.hostd.brokers import broker_pid
from tests.hostd.jobs.test_killed_processes import check_nothing_is_left, final_record, kill
from tests.hostd.laboratory import Laboratory, alive, eventually, processes_with

ROUNDS = 10
VICTIMS = ("owner", "candidate", "keeper", "supervisor", "broker", "all keepers", "keepers and supervisor")
ALONE = GpuRequest(mode="exclusive", wait_s=60.0)
TELL = "import time\nwhile True: print(time.monotonic_ns(), flush=True); time.sleep(0.002)"
"""A role that lives says so; the clock is that of the whole machine."""
ROLES = ("owner", "reference", "candidate")


def job(lab: Laboratory, marker: str) -> JobSpec:
    processes = tuple(
        ProcessSpec(("{python}", "-I", "-S", "-c", TELL), env={"MARKER": marker + role}, role=role,
                    workspace=role, trusted=role == "owner")
        for role in ROLES
    )  # fmt: skip
    return lab.spec(processes=processes, gpus=ALONE, detached=True, limits={"wall_s": 60.0})


def told(lab: Laboratory, job_id: str) -> list[int]:
    """Return when roles of a job have said that they live."""
    folder = JobFolder(str(lab.state / "jobs" / job_id))
    files = [Path(folder.stream(role, "stdout")) for role in ROLES]
    lines = [line for file in files if file.exists() for line in file.read_text().split("\n")[:-1]]
    return sorted(map(int, lines))


def victims_of(lab: Laboratory, locks: GpuLocks, what: str, job_id: str, marker: str) -> list[int]:
    noted = JobFolder(str(lab.state / "jobs" / job_id)).read_notes()
    keepers = [pid for pid, _, _ in noted.get("keepers", [])]
    return {
        "owner": processes_with(marker + "owner"),
        "candidate": processes_with(marker + "candidate"),
        "keeper": keepers[-1:],
        "all keepers": keepers,
        "keepers and supervisor": [noted["pid"], *keepers],
        "supervisor": [noted["pid"]],
        "broker": [pid for pid in [broker_pid(locks)] if pid],
    }[what]


@pytest.mark.parametrize("level", ["full", "namespaces", "landlock"])
async def test_never_two_have_a_lock_while_roles_keepers_and_brokers_are_killed(open_lab, state: Path, level: str):
    folder = str(state.parent / "locks")
    lab, locks, chance = await open_lab(level, **{LOCKS: folder}), GpuLocks(folder), random.Random(11)
    for round_ in range(ROUNDS):
        what = VICTIMS[round_] if round_ < len(VICTIMS) else chance.choice(VICTIMS)
        markers = [secrets.token_hex(8) for _ in range(2)]
        first, second = (job(lab, marker) for marker in markers)
        await lab.submit(first)
        while not told(lab, first.id):
            await asyncio.sleep(0.002)
        await lab.submit(second)
        await asyncio.sleep(chance.uniform(0, 0.1))
        while not (doomed := victims_of(lab, locks, what, first.id, markers[0])):
            await asyncio.sleep(0.002)  # one of the others may have been first to say that it lives
        for pid in doomed:
            kill(pid)
        if what in ("broker", "candidate"):  # whose death does not end the job: a trusted owner is there to judge it
            assert (await lab.record(first.id)).state == "running"
            await lab.link.call("cancel", job=first.id)
        ended = await final_record(lab, first.id)
        assert ended.status in ("broken", "failed", "cancelled"), (what, ended)
        while not told(lab, second.id):
            await asyncio.sleep(0.002)
        assert told(lab, first.id)[-1] < told(lab, second.id)[0], f"two had the lock after {what} was killed"
        assert locks.try_one(PROCESSOR, "exclusive", {}) is None
        os.kill(lab.supervisor(second.id), signal.SIGKILL)
        await final_record(lab, second.id)
        for spec, marker in zip((first, second), markers, strict=True):
            check_nothing_is_left(lab.state, spec.id, marker)


@pytest.mark.parametrize("what", ["keeper", "child of the keeper", "supervisor", "caller"])
async def test_keepers_of_a_job_that_waits_in_line_end_with_it(open_lab, state: Path, what: str):
    lab = await open_lab(**{LOCKS: str(state.parent / "locks")})
    first, second = (job(lab, secrets.token_hex(8)) for _ in range(2))
    await lab.submit(first)
    while not told(lab, first.id):
        await asyncio.sleep(0.002)
    await lab.submit(second)
    while not lab.supervisor(second.id) or (await lab.record(second.id)).state != "queued":
        await asyncio.sleep(0.002)
    supervisor = lab.supervisor(second.id)
    waiting: list[int] = []
    while len(waiting) < 3:
        await asyncio.sleep(0.002)
        keepers = processes.children(supervisor)
        waiting = [pid for each in keepers for pid in processes.children(each)]
    if what == "caller":
        await lab.link.call("cancel", job=second.id)
    else:
        kill({"keeper": keepers[0], "child of the keeper": waiting[0], "supervisor": supervisor}[what])
    await lab.link.call("cancel", job=first.id)
    ended = await final_record(lab, second.id)

    assert ended.status == ("cancelled" if what == "caller" else "broken"), ended
    if "keeper" in what:
        assert "a keeper ended before its sandbox was made" in ended.note
    assert eventually(lambda: not any(alive(pid) for pid in [*keepers, *waiting]))
    assert not told(lab, second.id)
