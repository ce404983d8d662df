"""Audit log: user, action, handle, address and outcome of each call."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime

import structlog

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.user import User
from gpu_mcp_server.store.database import Database

EVERY_S = 1.0
MOST = 10_000
"""Entries that wait for a store that takes none; older ones are only in the log then."""

_log = structlog.get_logger("gpu_mcp_server.audit")


@dataclass(frozen=True)
class AuditEntry:
    """One thing that was done."""

    at: str
    """ISO 8601, UTC."""
    user: str
    token_id: str | None
    action: str
    handle: str | None
    """The job, or what else it was done to."""
    outcome: str
    address: str | None


class AuditLog:
    """Entries in the store and in the log; written once a second, so that no call waits for it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: deque[AuditEntry] = deque(maxlen=MOST)
        self._writing = asyncio.Lock()
        """Two that write at once would write the same entries."""

    def note(self, user: User, action: str, handle: str | None, outcome: str, address: str | None) -> None:
        """Note what was done."""
        entry = AuditEntry(datetime.now(UTC).isoformat(), user.name, user.token_id, action, handle, outcome, address)
        self._waiting.append(entry)
        _log.info(action, user=user.name, token=user.token_id, handle=handle, outcome=outcome, address=address)

    @asynccontextmanager
    async def run_writer(self) -> AsyncGenerator[None]:
        """Write entries as long as the block runs, and the rest at its end."""
        writing = asyncio.create_task(self._write_on(), name="audit")
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await self.write()

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write what waits; a store that takes nothing is tried again with the next."""
        async with self._writing:
            await self._write_batch()

    async def _write_batch(self) -> None:
        batch = list(self._waiting)
        if not batch:
            return
        names = ", ".join(field.name for field in fields(AuditEntry))
        try:
            await self._db.execute_many(
                f"INSERT INTO audit_log ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [astuple(entry) for entry in batch],
            )
        except GpuMcpError as error:
            _log.warning("the audit log cannot be written", error=str(error), waiting=len(batch))
            return
        for _ in batch:
            self._waiting.popleft()

    async def recent(self, user: str | None = None, limit: int = 100) -> Sequence[AuditEntry]:
        """Return the newest entries, newest first."""
        names = ", ".join(field.name for field in fields(AuditEntry))
        rows = await self._db.fetch_all(
            f"SELECT {names} FROM audit_log WHERE ? IS NULL OR user = ? ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (user, user, limit),
        )
        return [AuditEntry(*row) for row in rows]
