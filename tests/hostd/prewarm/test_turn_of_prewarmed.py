"""Processes made ahead of a job that waits for a GPU: the GPU is a line in a file, all else is real."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.gpus.head_start import SPARE
from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, ProcessSpec
from tests.hostd.brokers import broker_pid
from tests.hostd.conftest import Opener
from tests.hostd.laboratory import Laboratory, eventually, names
from tests.hostd.prewarm.test_prewarm_pool import took_one, until
from tests.hostd.prewarm.test_prewarmed_roles import announced, ran

ALONE = GpuRequest(1, "exclusive", wait_s=60.0)
RUNS = f"run{os.getpid()}"
"""Name of the owner's process once it has its job."""
SOURCE = """
import ctypes, json, os, signal, socket
state = []
def prepare():
    if MARK:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        ctypes.CDLL(None).prctl(15, MARK.encode())
        signal.sigwait([signal.SIGUSR1])
    state.append("prepared")
def link(name):
    return socket.socket(fileno=int(os.environ["LINK_" + name]))
def main(arguments):
    if arguments == ["player"]:
        link("OWNER").send(b"here")
        return
    ctypes.CDLL(None).prctl(15, RUNS.encode())
    supervisor = link("SUPERVISOR")
    supervisor.send(json.dumps({"do": "turn", "role": ""}).encode())
    link("PLAYER").recv(64)
    supervisor.send(json.dumps({"do": "ready", "role": ""}).encode())
    print(state, json.loads(supervisor.recv(4096)), flush=True)
"""


def job(lab: Laboratory, mark: str = "", priority: str = "interactive") -> JobSpec:
    """Return an owner and a player, of which the player imports until it gets a signal, if it has a mark."""

    def role(name: str, mark: str) -> ProcessSpec:
        program = f"MARK, RUNS = {mark!r}, {RUNS!r}\n{SOURCE}"
        return ProcessSpec(
            ("role", name), name, trusted=name == "owner", workspace=name, program=program, python="/usr/bin/python3"
        )

    gpus = ALONE._replace(ahead=True, priority=priority)
    return lab.spec(processes=(role("owner", ""), role("player", mark)), links=(("owner", "player"),), gpus=gpus)


def pid_of(mark: str) -> int:
    """Return the process of that name, 0 before there is one."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == mark:
                return int(path.parent.name)
        except OSError:
            continue
    return 0


@pytest.fixture
async def lab(open_lab: Opener, state: Path) -> AsyncIterator[Laboratory]:
    (state.parent / "gpus.json").write_text('[{"uuid": "GPU-0"}]')
    locks = state.parent / "locks"
    own = {"GPU_MCP_HOSTD_GPUS": str(state.parent / "gpus.json"), LOCKS: str(locks), SPARE: "1"}
    yield await open_lab("full", **own)
    broker = broker_pid(GpuLocks(str(locks)))
    if broker is not None:
        os.kill(broker, signal.SIGKILL)


async def submit_while_importing(lab: Laboratory, mark: str) -> JobSpec:
    """Submit a job whose prewarmed process still imports; return it when it says that it waits for that."""
    spec = job(lab, mark)
    await announced(lab, spec, [])
    assert eventually(lambda: bool(pid_of(mark)))
    await lab.submit(spec)
    while "own processes are not ready" not in (await lab.record(spec.id)).note:
        await asyncio.sleep(0.005)
    return spec


async def test_a_job_whose_processes_still_import_holds_no_gpu(lab: Laboratory):
    """Another has the GPU meanwhile, and ends."""
    mark = f"pre{os.getpid()}"
    spec = await submit_while_importing(lab, mark)
    passed = await lab.run("true", gpus=ALONE)
    os.kill(pid_of(mark), signal.SIGUSR1)
    done = await lab.wait(spec.id)

    assert took_one(lab, spec.id)
    assert (passed.record.status, passed.record.gpus) == ("ok", ("GPU-0",)), passed.record
    assert (done.record.status, done.text) == ("ok", "['prepared'] {'turn': True}\n"), done
    assert (passed.record.ended_at or 0.0) < (done.record.started_at or 0.0)


async def test_a_job_that_still_imports_can_be_cancelled(lab: Laboratory):
    mark = f"can{os.getpid()}"
    spec = await submit_while_importing(lab, mark)
    ours = pid_of(mark)
    await lab.link.call("cancel", job=spec.id)
    assert (await lab.wait(spec.id)).record.status == "cancelled"
    assert not Path(f"/proc/{ours}").exists()


async def test_a_job_whose_processes_have_imported_has_a_free_gpu_at_once(lab: Laboratory):
    spec = job(lab)
    await announced(lab, spec, [])
    await until(lab, 1)
    done = await ran(lab, spec, [])
    assert (done.record.status, done.text) == ("ok", "['prepared'] {'turn': True}\n"), done
    assert took_one(lab, spec.id)
    assert broker_pid(GpuLocks(str(lab.state.parent / "locks"))) is None, "no job waited"


async def test_prepared_processes_begin_while_their_job_is_in_line(lab: Laboratory):
    """The owner asks for its turn before the GPU is free, and answers when it has it."""
    holder = await lab.start("/bin/sh", "-c", "echo on; sleep 60", until=b"on", gpus=ALONE, limits={"wall_s": 90.0})
    spec = job(lab)
    await announced(lab, spec, [])
    await until(lab, 1)
    await lab.submit(spec)
    assert eventually(lambda: bool(pid_of(RUNS)))
    assert (await lab.record(spec.id)).state == "queued"
    await lab.link.call("cancel", job=holder)
    done = await lab.wait(spec.id)
    assert (done.record.status, done.text) == ("ok", "['prepared'] {'turn': True}\n"), done
    assert took_one(lab, spec.id)


async def test_what_runs_in_the_background_leaves_them_to_who_is_waited_for(lab: Laboratory):
    spec, behind = job(lab), job(lab, priority="background")
    await announced(lab, spec, [])
    await until(lab, 1)
    cold = await ran(lab, behind, [])
    done = await ran(lab, spec, [])
    assert (cold.record.status, cold.text, took_one(lab, behind.id)) == ("ok", "[] {'turn': True}\n", False), cold
    assert (done.record.status, done.text) == ("ok", "['prepared'] {'turn': True}\n"), done
    assert took_one(lab, spec.id)


async def test_none_are_made_beside_a_line_whose_jobs_import_there(lab: Laboratory):
    holder = await lab.start("/bin/sh", "-c", "echo on; sleep 60", until=b"on", gpus=ALONE, limits={"wall_s": 90.0})
    line = [job(lab), job(lab)]
    await asyncio.gather(*(lab.submit(spec) for spec in line))
    later = job(lab)
    await announced(lab, later, [])
    for spec in line:
        while not (await lab.record(spec.id)).note.startswith("position"):
            await asyncio.sleep(0.005)
    assert names(lab.state / "nests") == []
    await lab.link.call("cancel", job=holder)
    assert [(await lab.wait(spec.id)).record.status for spec in line] == ["ok", "ok"]
    assert not any(took_one(lab, spec.id) for spec in line)
    await until(lab, 1)
    assert (await ran(lab, later, [])).text == "['prepared'] {'turn': True}\n"
    assert took_one(lab, later.id)
