"""Quotas of users on a shared server, and their use so far."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_mcp_server.errors import GpuMcpError, QuotaExceeded
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.gpu_seconds import GPU_S

Refresh = Callable[[str, str], Awaitable[Any]]

_JOBS = "FROM owners JOIN jobs ON jobs.job_id = owners.handle WHERE owner = ? AND handle >= ?"
_TAKEN = (
    "coalesce(sum(CASE WHEN jobs.context ->> 'lease' IS NOT NULL THEN 0 "
    "WHEN record IS NULL THEN coalesce(jobs.context ->> 'gpus', 0) "
    "* max(0, unixepoch('now') - unixepoch(submitted_at)) "
    f"ELSE {GPU_S} END), 0)"
)
"""GPU seconds. Jobs within a reservation are counted by it; others since their submission until they end."""
_KEPT = (
    "SELECT coalesce((SELECT sum(size_bytes) FROM artifacts JOIN owners ON handle = artifact_id WHERE owner = ?), 0) "
    "+ coalesce((SELECT sum(size_bytes) FROM workspace_files JOIN owners ON handle = workspace_id WHERE owner = ?), 0) "
    "+ coalesce((SELECT sum(size_bytes) FROM uploads WHERE owner = ?), 0)"
)


@dataclass(frozen=True)
class QuotaUsage:
    """Use of a user's quotas."""

    gpu_s_today: float
    """Since midnight, UTC."""
    unfinished_jobs: int
    disk_bytes: int


class QuotaService:
    """Compares what users take with their quotas."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._turns: dict[str, asyncio.Lock] = {}

    async def usage_of(self, user: str) -> QuotaUsage:
        """Return what a user has taken."""
        since = int(_midnight().timestamp() * 1000)
        today = 0.0
        for kind in ("j", "l"):  # jobs and reservations, whose ids begin with their time in milliseconds
            row = await self._db.fetch_one(
                f"SELECT {_TAKEN} AS gpu_s {_JOBS} AND handle < ?",
                (user, f"{kind}-{since:x}", f"{kind}-~"),
            )
            today += row["gpu_s"] if row else 0.0
        (kept,) = await self._db.fetch_all(_KEPT, (user, user, user))
        return QuotaUsage(today, len(await self._unfinished(user)), kept[0])

    @asynccontextmanager
    async def job(self, gpus: int, refresh: Refresh) -> AsyncGenerator[None]:
        """Let the current user note a job within the block.

        Args:
            gpus: That it wants.
            refresh: Asks a host how a job stands, by job and host, and keeps that it has ended.

        Raises:
            QuotaExceeded: If they have as many jobs, GPU seconds or bytes as they may.
        """
        user = current_user()
        async with self._turns.setdefault(user.name, asyncio.Lock()):
            await self._check_jobs(user, refresh)
            taken = await self.usage_of(user.name)
            limit = user.quotas.gpu_s_per_day
            if gpus and limit is not None and taken.gpu_s_today >= limit:
                ends = _midnight() + timedelta(days=1)
                raise QuotaExceeded(
                    f"Your quota of GPU time is used up: {taken.gpu_s_today:.0f} of {limit:g} GPU seconds a day "
                    f"(gpu_s_per_day), until {ends:%Y-%m-%d %H:%M} UTC.",
                    hint="Work without a GPU until then, or ask an admin for more.",
                )
            self._check_disk(user, taken.disk_bytes, 0)
            yield

    async def check_disk(self, more_bytes: int) -> None:
        """Let the current user keep more.

        Raises:
            QuotaExceeded: If that would be more than they may.
        """
        user = current_user()
        if not user.is_local and user.quotas.disk_bytes is not None:
            self._check_disk(user, (await self.usage_of(user.name)).disk_bytes, more_bytes)

    def _check_disk(self, user: User, kept: int, more: int) -> None:
        limit = user.quotas.disk_bytes
        if limit is not None and kept + more > limit:
            raise QuotaExceeded(
                f"Your quota of disk is used up: {kept} of {limit} bytes (disk_bytes), until something of yours is "
                "pruned.",
                hint="An admin prunes with gpu-mcp-server store prune, or gives more.",
                retryable=False,
            )

    async def _check_jobs(self, user: User, refresh: Refresh) -> None:
        limit = user.quotas.concurrent_jobs
        if limit is None:
            return
        unfinished = await self._unfinished(user.name)
        if len(unfinished) >= limit:  # perhaps some have ended, and nobody has asked
            await asyncio.gather(*(_quietly(refresh(job_id, host)) for job_id, host in unfinished))
            unfinished = await self._unfinished(user.name)
        if len(unfinished) >= limit:
            raise QuotaExceeded(
                f"You have {len(unfinished)} jobs that are queued or run; your quota is {limit} (concurrent_jobs), "
                f"until one of them ends: {', '.join(job_id for job_id, _ in unfinished[:5])}.",
                hint="Wait for one with job_status, or end one with cancel_job.",
            )

    async def _unfinished(self, user: str) -> list[tuple[str, str]]:
        rows = await self._db.fetch_all(
            f"SELECT job_id, host {_JOBS} AND record IS NULL ORDER BY jobs.seq LIMIT 200",
            (user, ""),
        )
        return [(row["job_id"], row["host"]) for row in rows]


async def _quietly(asking: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(5.0):
            await asking
    except (GpuMcpError, TimeoutError):
        return


def _midnight() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
