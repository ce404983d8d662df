"""A host as the contract uses it: requests over one link, and short ways to run a program."""

import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.hostd.protocol import (
    BOXED,
    FileRef,
    JobRecord,
    JobSpec,
    Limits,
    ProcessSpec,
    job_record_from_json,
    to_json,
)

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
PATIENCE_S = 60.0
WALL_S = 60.0


@dataclass(frozen=True)
class JobSnapshot:
    """A job as one request found it."""

    record: JobRecord
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return stdout as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        """Return the leader's exit code."""
        return self.record.leader.exit_code if self.record.leader else None


def sha256(data: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(data).hexdigest()


def new_id() -> str:
    """Return a job id that nobody has."""
    return f"contract-{secrets.token_hex(8)}"


def job(
    *argv: str,
    files: Mapping[str, bytes] | None = None,
    modes: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    wall_s: float = WALL_S,
    limits: Mapping[str, Any] | None = None,
    **more: Any,
) -> JobSpec:
    """Return the specification of a job with one process, unless `processes` names more."""
    refs = tuple(
        FileRef(name, sha256(data), len(data), (modes or {}).get(name, 0o644)) for name, data in (files or {}).items()
    )
    processes = more.pop("processes", None) or (ProcessSpec(argv=argv, env={**PATH, **(env or {})}),)
    given: dict[str, Any] = {"wall_s": wall_s, "memory_bytes": 1 << 30, **(limits or {})}
    wanted = Limits(**given)
    return JobSpec(id=new_id(), processes=processes, files={"main": refs}, limits=wanted, **more)


class ContractHost:
    """One link to a host, opened by `async with`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.link: HostdClient

    async def __aenter__(self) -> Self:
        self.link = await HostdClient.open(self.backend)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()

    @property
    def level(self) -> str:
        """Return the host's sandbox level."""
        return str(self.link.greeting["level"])

    @property
    def weaker_because(self) -> str:
        """Return what is missing for a stronger one."""
        return str(self.link.greeting["weaker_because"])

    @property
    def is_isolated(self) -> bool:
        """Say whether jobs have namespaces of their own."""
        return self.level in BOXED

    @asynccontextmanager
    async def another(self) -> AsyncGenerator["ContractHost"]:
        """Open one more link to the same host."""
        async with ContractHost(self.backend) as later:
            yield later

    def job(self, *argv: str, **more: Any) -> JobSpec:
        """Return a specification that this host's level suffices for."""
        more.setdefault("min_level", BOXED[0] if self.is_isolated else self.level)
        return job(*argv, **more)

    async def submit(self, spec: JobSpec, blobs: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Submit with contents by name of the file."""
        sent = {sha256(data): data for data in (blobs or {}).values()}
        listed = [[digest, len(data)] for digest, data in sent.items()]
        answer, _ = await self.link.call("submit", b"".join(sent.values()), spec=to_json(spec), blobs=listed)
        return answer

    async def look(self, job_id: str, **arguments: Any) -> JobSnapshot:
        """Return a job's state, waiting for its end as long as `timeout_s`."""
        answer, data = await self.link.call("wait", job=job_id, **arguments)
        return JobSnapshot(job_record_from_json(answer["record"]), data[: answer["stdout"]], data[answer["stdout"] :])

    async def run(self, *argv: str, files: Mapping[str, bytes] | None = None, **more: Any) -> JobSnapshot:
        """Run a program to its end."""
        return await self.run_job(self.job(*argv, files=files, **more), files)

    async def sh(self, script: str, **more: Any) -> JobSnapshot:
        """Run a shell script to its end."""
        return await self.run("/bin/sh", "-c", script, **more)

    async def python(self, script: str, *arguments: str, **more: Any) -> JobSnapshot:
        """Run a Python script to its end."""
        return await self.run("{python}", "-I", "-S", "-u", "-c", script, *arguments, **more)

    async def run_job(self, spec: JobSpec, files: Mapping[str, bytes] | None = None) -> JobSnapshot:
        """Submit a job with its files and wait for its end."""
        answer = await self.submit(spec, files)
        if answer != {"claimed": True}:
            raise AssertionError(f"the host did not claim the job: {answer}")
        return await self.wait_for_end(spec.id)

    async def wait_for_end(self, job_id: str) -> JobSnapshot:
        """Wait for a job's end and return all its output."""
        done = await self.look(job_id, timeout_s=PATIENCE_S)
        if done.record.state != "finished":
            raise AssertionError(f"the job has not ended in {PATIENCE_S:g} s: {done.record}")
        out, err = bytearray(done.stdout), bytearray(done.stderr)
        while len(out) < done.record.stdout_kept or len(err) < done.record.stderr_kept:
            more = await self.look(job_id, stdout_at=len(out), stderr_at=len(err))
            if not more.stdout and not more.stderr:
                break
            out += more.stdout
            err += more.stderr
        return JobSnapshot(done.record, bytes(out), bytes(err))

    async def wait_for_output(self, job_id: str, said: bytes = b"started\n") -> None:
        """Wait until a job has said a word."""
        out = b""
        while not out.endswith(said):
            seen = await self.look(job_id, timeout_s=PATIENCE_S, stdout_at=len(out), on_output=True)
            out += seen.stdout
            if seen.record.state == "finished" and not out.endswith(said):
                raise AssertionError(f"the job ended before it said {said!r}: {seen}")

    async def fetch(self, content: str) -> bytes:
        """Return a content of the host."""
        return (await self.link.call("fetch", sha256=content))[1]
