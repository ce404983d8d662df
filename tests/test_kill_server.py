"""The server ends in the middle of judging, by every way a process ends: one job, one final record, nothing alive."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest

from tests.commands import Commands
from tests.laboratory import HONEST, PROBLEM

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="jobs run on Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]

SERVER = [sys.executable, "-m", "gpu_mcp_server"]
ENDLESS = "int launch(void) { for (volatile long i = 0;; i++) { } }"
PATIENCE_S = 60


@dataclass(frozen=True)
class Laboratory:
    """A data folder, and the server's programs upon it."""

    folder: Path
    commands: Commands

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GPU_MCP_DATA_DIR": str(self.folder / "data"),
            "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*SERVER, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self.environment,
            cwd=self.folder,
            text=True,
        )

    def ask(self, *arguments: str) -> dict[str, Any]:
        done = self.commands.run(*arguments, "--json", env=self.environment, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("call", tool, "--args", json.dumps(arguments))


@pytest.fixture(scope="module")
def laboratory(commands: Commands) -> Iterator[Laboratory]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        laboratory = Laboratory(Path(name), commands)
        level = laboratory.ask("status")["hosts"][0].get("level")
        if level not in ("full", "namespaces"):
            pytest.skip(f"jobs cannot run here: sandbox level {level}")
        yield laboratory


@pytest.fixture(scope="module")
def problem_id(laboratory: Laboratory) -> str:
    return laboratory.call("register_problem", **PROBLEM)["problem_id"]


@dataclass(frozen=True)
class Judging:
    """A server of its own that is judging a candidate which never ends."""

    process: subprocess.Popen[str]
    job_id: str
    alive: tuple[int, ...]
    """Handles of all processes that the call made."""

    def all_ended(self) -> bool:
        """Wait until none of them is left."""
        return all(select.select([handle], [], [], PATIENCE_S)[0] for handle in self.alive)


def endless() -> str:
    """Return a candidate of this test's own: of another's that ended there would be a verdict."""
    return f"{ENDLESS} // {uuid4()}"


@contextmanager
def judging(process: subprocess.Popen[str], progress: IO[str]) -> Iterator[Judging]:
    """Read the progress until the candidate runs; in the end let go of what is held, and of the server."""
    held: list[int] = []
    try:
        job_id = until_it_runs(progress)
        made = {*below(process.pid), *of_job(job_id)}
        assert len(made) > 3, "hostd, supervisor, sandboxes"
        held += handles(made)
        yield Judging(process, job_id, tuple(held))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for handle in held:
            os.close(handle)


def until_it_runs(progress: IO[str]) -> str:
    """Return the job whose candidate is at its first call."""
    job_id, heard = "", ""
    for heard in progress:
        job_id = (re.findall(r"judging, job (j-[0-9a-f-]+)", heard) or [job_id])[0]
        if "first call" in heard or '"result"' in heard or '"error"' in heard:
            break
    assert job_id and "first call" in heard, f"it ended first: {heard}"
    return job_id


def below(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    found, children = {pid}, parents()
    while new := {child for child, parent in children.items() if parent in found} - found:
        found |= new
    return found


def parents() -> dict[int, int]:
    """Return each process's parent."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def of_job(job_id: str) -> set[int]:
    """Return the processes in a job's cgroups."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if job_id in path.read_text():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def handles(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        try:
            yield os.pidfd_open(pid)
        except ProcessLookupError:
            continue


@pytest.fixture
def a_call(laboratory: Laboratory, problem_id: str) -> Iterator[Judging]:
    """`call evaluate_kernel` in a process of its own, in the middle of judging."""
    arguments = {"problem_id": problem_id, "source": endless(), "language": "c"}
    process = laboratory.start("call", "evaluate_kernel", "--args", json.dumps(arguments), "--json")
    assert process.stderr
    with judging(process, process.stderr) as one:
        yield one


@pytest.fixture
def a_server(laboratory: Laboratory, problem_id: str) -> Iterator[Judging]:
    """A server over stdio, in the middle of judging for its client."""
    process = laboratory.start()
    assert process.stdin and process.stdout
    me = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}
    call = {
        "name": "evaluate_kernel",
        "arguments": {"problem_id": problem_id, "source": endless(), "language": "c"},
        "_meta": {"progressToken": 1},
    }
    for message in (
        {"id": 1, "method": "initialize", "params": me},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        if message.get("id") == 1:
            process.stdout.readline()
    with judging(process, process.stdout) as one:
        yield one


def settled(laboratory: Laboratory, one: Judging) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask new servers about the job, twice; return its one record and its attempt."""
    first = laboratory.call("job_status", job_id=one.job_id, wait_s=PATIENCE_S)
    second = laboratory.call("job_status", job_id=one.job_id)
    assert first == second
    assert (first["job_id"], first["state"]) == (one.job_id, "finished")
    assert one.all_ended()
    assert of_job(one.job_id) == set()
    listed = [job for job in laboratory.ask("jobs")["jobs"] if job["job_id"] == one.job_id]
    assert [(job["state"], job["status"]) for job in listed] == [("finished", first["status"])]
    (attempt,) = laboratory.call("list_attempts", attempt_id=first["attempt_id"])["attempts"]
    return first, attempt


def test_a_killed_call_leaves_one_job_with_one_final_record(laboratory: Laboratory, problem_id: str, a_call: Judging):
    a_call.process.kill()
    record, attempt = settled(laboratory, a_call)

    assert record["status"] == "caller_lost"
    assert (attempt["status"], attempt.get("verdict")) == ("caller_lost", None)
    honest = {"source": HONEST, "language": "c", "timing": {"tier": "correctness"}}
    after = laboratory.call("evaluate_kernel", problem_id=problem_id, **honest)
    assert after["verdict"] == "correct"


def test_a_terminated_call_cancels_its_job(laboratory: Laboratory, a_call: Judging):
    a_call.process.terminate()
    record, attempt = settled(laboratory, a_call)

    assert a_call.process.wait() == 130
    assert (record["status"], attempt["status"]) == ("cancelled", "cancelled")


def test_a_client_that_hangs_up_cancels_its_job(laboratory: Laboratory, a_server: Judging):
    assert a_server.process.stdin
    a_server.process.stdin.close()
    a_server.process.stdin = None
    record, attempt = settled(laboratory, a_server)

    assert a_server.process.wait() == 0
    assert (record["status"], attempt["status"]) == ("cancelled", "cancelled")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_server_that_is_stopped_leaves_one_job_with_one_final_record(
    laboratory: Laboratory, a_server: Judging, number: signal.Signals
):
    a_server.process.send_signal(number)
    record, attempt = settled(laboratory, a_server)

    assert record["status"] in ("caller_lost", "cancelled")
    assert attempt["status"] in ("caller_lost", "cancelled")
