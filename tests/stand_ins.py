"""A laboratory with the real store and stand-ins for what needs hosts: they record calls and answer as told."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.host import HostStatus, LabStatus
from gpu_mcp_server.models.job import JobResult
from gpu_mcp_server.services.evaluation.attempt_listing import AttemptListing
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.store.database import Database


class Gpus:
    """Knows one host, unless told to fail."""

    failure: BaseException | None = None

    async def status(self, host: str | None) -> LabStatus:
        if self.failure:
            raise self.failure
        return LabStatus(hosts=[HostStatus(host=host or "local", kind="local", reachable=True, level="full")])


class Compiler:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, dict[str, Any]]] = []

    async def compile(self, source: Any, wish: Any = None, **options: Any) -> CompileResult:
        self.given.append((source, {**options, **(wish.model_dump() if wish else {})}))
        return CompileResult(status="ok", language=source.language, compiler="gcc 12.2.0", host="local")


class Runner:
    """A job that runs until it is released or cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.stdout = "done\n"
        self.given: dict[str, Any] = {}

    async def run(self, argv: list[str], **options: Any) -> JobResult:
        self.given = {"argv": argv, **options}
        self.started.set()
        try:
            if argv[0] == "sleep":
                await options["progress"]("building part 1")
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.result("j-1", "ok")

    async def status(self, job_id: str, **_: Any) -> JobResult:
        return self.result(job_id, "ok")

    async def refresh_running_jobs(self) -> None:
        """Nothing is left of an earlier server."""

    async def cancel(self, job_id: str) -> JobResult:
        return self.result(job_id, "cancelled")

    async def recent(self, limit: int) -> list[JobResult]:
        return [self.result("j-1", "ok")][:limit]

    def result(self, job_id: str, status: str) -> JobResult:
        return JobResult(
            job_id=job_id,
            host="local",
            purpose="run",
            state="finished",
            status=status,
            exit_code=0 if status == "ok" else None,
            stdout=self.stdout,
        )


class Baselines:
    """Stands for what measures torch.compile: nothing is known."""

    async def attempt_with_compiled(self, attempt: Any) -> Any:
        return attempt


class Laboratory:
    """Stand-in for the laboratory from which tools get their services."""

    def __init__(self, db: Database, root: Path) -> None:
        self.store = Store.create(root, db)
        self.commands = Runner()
        self.status = SimpleNamespace(gpus=Gpus())
        self.builds = SimpleNamespace(compiler=Compiler())
        listing = AttemptListing(
            self.store.experience, cast("Any", Baselines()), self.store.artifacts, Confirmations(db)
        )
        self.evaluation = SimpleNamespace(listing=listing)


class Opener:
    """Opens the laboratory and counts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = 0
        self.closed = 0
        self.failure: Exception | None = None
        self.lab: Laboratory | None = None
        self.prepare: Callable[[Laboratory], None] = lambda _: None

    def __call__(self) -> AbstractAsyncContextManager[Any]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Laboratory]:
        self.opened += 1
        if self.failure:
            raise self.failure
        db = await Database.open(self.root / "lab.db")
        async with asyncio.TaskGroup():  # a cancel scope, as the real one has: it must close in the task that opened it
            self.lab = Laboratory(db, self.root)
            self.prepare(self.lab)
            try:
                yield self.lab
            finally:
                await db.close()
                self.closed += 1
