"""A short way to run jobs on a real hostd over a real channel."""

import asyncio
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.jobs.job_folder import JobFolder
from gpu_mcp_server.hostd.protocol import (
    FileRef,
    JobRecord,
    JobSpec,
    Limits,
    ProcessSpec,
    job_record_from_json,
    to_json,
)

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Done:
    record: JobRecord
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")


class Laboratory:
    def __init__(self, link: HostdClient, state: Path) -> None:
        self.link, self.state = link, state
        self.level = str(link.greeting["level"])
        self.weaker_because = str(link.greeting["weaker_because"])
        self.pid = int(link.greeting["pid"])

    @classmethod
    async def open(cls, state: Path, level: str = "full", more: Mapping[str, str] | None = None) -> "Laboratory":
        python = wrapped(state, {"GPU_MCP_HOSTD_LEVEL": level, **(more or {})})
        return cls(await HostdClient.open(LocalBackend(python=str(python), state_dir=str(state))), state)

    async def close(self) -> None:
        await self.link.close()

    async def warm_up(self) -> None:
        """Wait until a sandbox waits for a job."""
        await self.run("true")
        await self.until_warm()

    async def until_warm(self) -> None:
        """Wait until a sandbox of the last job's shape waits."""
        for _ in range(2000):
            if (await self.link.call("hello"))[0]["warm"]:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("no sandbox was made ahead")

    def spec(self, *argv: str, env: Mapping[str, str] | None = None, **fields: Any) -> JobSpec:
        limits = fields.pop("limits", {})
        processes = fields.pop("processes", (ProcessSpec(argv=argv, env=env or {}),))
        fields.setdefault("min_level", self.level)
        wanted = Limits(**{"wall_s": 15.0, "memory_bytes": 1 << 30, "processes": 128, **limits})
        return JobSpec(id=new_id(), processes=processes, limits=wanted, **fields)

    async def submit(self, spec: JobSpec, contents: Mapping[str, bytes] | None = None) -> Any:
        if contents:
            refs = tuple(FileRef(p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in contents.items())
            spec = spec._replace(files={"main": refs})
        blobs = {hashlib.sha256(d).hexdigest(): d for d in (contents or {}).values()}
        listed = [[s, len(d)] for s, d in blobs.items()]
        answer, _ = await self.link.call("submit", b"".join(blobs.values()), spec=to_json(spec), blobs=listed)
        return answer

    async def wait(self, job: str, timeout_s: float = PATIENCE_S, **more: Any) -> Done:
        answer, data = await self.link.call("wait", job=job, timeout_s=timeout_s, **more)
        cut = answer["stdout"]
        return Done(job_record_from_json(answer["record"]), data[:cut], data[cut:])

    async def run(self, *argv: str, contents: Mapping[str, bytes] | None = None, **fields: Any) -> Done:
        spec = self.spec(*argv, **fields)
        answer = await self.submit(spec, contents)
        assert answer == {"claimed": True}
        done = await self.wait(spec.id)
        assert done.record.state == "finished", done
        return done

    async def sh(self, script: str, **fields: Any) -> Done:
        return await self.run("/bin/sh", "-c", script, **fields)

    async def python(self, script: str, *arguments: str, **fields: Any) -> Done:
        return await self.run("{python}", "-I", "-S", "-u", "-c", script, *arguments, **fields)

    async def start(self, *argv: str, until: bytes = b"", **fields: Any) -> str:
        """Submit a job and return its id once it has written `until`."""
        spec = self.spec(*argv, **fields)
        assert await self.submit(spec) == {"claimed": True}
        seen = b""
        done = await self.wait(spec.id, timeout_s=0)
        while until not in seen or done.record.state != "running":
            done = await self.wait(spec.id, timeout_s=PATIENCE_S if until else 0, stdout_at=len(seen), on_output=True)
            seen += done.stdout
            assert done.record.state != "finished", done
        return spec.id

    async def record(self, job: str) -> JobRecord:
        answer, _ = await self.link.call("record", job=job)
        return job_record_from_json(answer["record"])

    def supervisor(self, job: str) -> int:
        return supervisor_of(self.state, job) or 0


def wrapped(state: Path, env: Mapping[str, str], prefix: str = "", python: str = sys.executable) -> Path:
    """Return an interpreter that starts with more environment, or behind another program."""
    folder = state.parent / "python"
    folder.mkdir(exist_ok=True, mode=0o755)
    path = folder / secrets.token_hex(4)
    words = " ".join(f"{k}='{v}'" for k, v in env.items())
    path.write_text(f'#!/bin/sh\nexport {words}\nexec {prefix} {python} "$@"\n')
    path.chmod(0o755)
    return path


def new_id() -> str:
    return "t-" + secrets.token_hex(8)


def supervisor_of(state: Path, job: str) -> int | None:
    """Return the pid of a job's supervisor once it is known."""
    return JobFolder(str(state / "jobs" / job)).read_notes().get("pid")


def workspaces(state: Path, *jobs: str) -> list[str]:
    """Return the workspaces of jobs that are still there."""
    noted = [JobFolder(str(state / "jobs" / job)).read_notes() for job in jobs]
    return [w for about in noted for w in about.get("workdirs", []) if Path(w).exists()]


def names(folder: Path) -> list[str]:
    """Return what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def processes_with(marker: str) -> list[int]:
    """Return the processes of this machine with a text in their arguments or environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in text and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def eventually(check: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Say whether something becomes true in time."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
