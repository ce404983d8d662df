"""A host as the contract tests use it: requests over one link."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.link import HostLink
from gpu_mcp_server.hostd.protocol import (
    FileRef,
    JobRecord,
    JobSpec,
    Limits,
    ProcessSpec,
    job_record_from_json,
    to_json,
)
from gpu_mcp_server.services.jobs import new_job_id

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Done:
    record: JobRecord
    stdout: bytes
    stderr: bytes


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def job(
    *argv: str,
    files: Mapping[str, bytes] | None = None,
    env: Mapping[str, str] | None = None,
    wall_s: float = 60.0,
    **more: Any,
) -> JobSpec:
    """Return the specification of a job with one process."""
    refs = tuple(FileRef(name, sha256(data), len(data)) for name, data in (files or {}).items())
    return JobSpec(
        id=new_job_id(), processes=(ProcessSpec(argv=argv, env={**PATH, **(env or {})}),), files={"main": refs},
        limits=Limits(wall_s=wall_s), **more,
    )  # fmt: skip


class TestedHost:
    """One link to a host."""

    __test__ = False

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def __aenter__(self) -> Self:
        self.link = await HostLink.open(self.backend)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()

    async def submit(self, spec: JobSpec, blobs: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Submit with contents by name of the file."""
        sent = {sha256(data): data for data in (blobs or {}).values()}
        listed = [[digest, len(data)] for digest, data in sent.items()]
        answer, _ = await self.link.call("submit", b"".join(sent.values()), spec=to_json(spec), blobs=listed)
        return answer

    async def look(self, job_id: str, **arguments: Any) -> Done:
        """Return a job's state, waiting for its end as long as `timeout_s`."""
        answer, data = await self.link.call("wait", job=job_id, **arguments)
        return Done(job_record_from_json(answer["record"]), data[: answer["stdout"]], data[answer["stdout"] :])

    async def run(self, *argv: str, files: Mapping[str, bytes] | None = None, **more: Any) -> Done:
        """Run a program to its end."""
        spec = job(*argv, files=files, **more)
        assert (await self.submit(spec, files)) == {"claimed": True}
        return await self.finished(spec.id)

    async def finished(self, job_id: str) -> Done:
        """Wait for a job's end and return all its output."""
        done = await self.look(job_id, timeout_s=60.0)
        assert done.record.state == "finished", done
        return done

    async def started(self, job_id: str, said: bytes = b"started\n") -> None:
        """Wait until a job has said a word."""
        out = b""
        while not out.endswith(said):
            seen = await self.look(job_id, timeout_s=60.0, stdout_at=len(out), on_output=True)
            assert seen.record.state != "finished", seen
            out += seen.stdout
