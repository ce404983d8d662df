"""Tells users' webhooks of jobs that have ended; what is told is in the store, so a restart tells nothing twice."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.services.records.trust import CONFIRMED
from gpu_mcp_server.store.database import Database

EVERY_S = 5.0
OLDEST_S = 86_400.0
"""Jobs submitted before are not told of any more."""
PATIENCE_S = 10.0
TRIES = 3
BACK_OFF_S = 2.0

_ENDED = (
    "SELECT jobs.job_id, purpose, jobs.host, jobs.attempt_id, record ->> 'status' AS status, "  # noqa: S608 - our own
    "record ->> 'wall_s' AS wall_s, json_array_length(record, '$.gpus') AS gpus, users.name AS user, webhook, "
    f"a.verdict, CASE WHEN {CONFIRMED} AND a.voided IS NULL THEN a.speedup END AS speedup, "
    "CASE WHEN a.kind = 'confirm' THEN a.parent_id END AS confirms FROM users "
    "JOIN owners ON owners.owner = users.name JOIN jobs ON jobs.job_id = owners.handle "
    "LEFT JOIN attempts a ON a.attempt_id = jobs.attempt_id AND purpose = 'judge' "
    "WHERE webhook IS NOT NULL AND record IS NOT NULL AND owners.handle >= ? AND coalesce(a.status, '') != 'running' "
    "AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.job_id = jobs.job_id) ORDER BY jobs.seq LIMIT 20"
)
"""With what the judge said, once that is noted; a speed-up is told where it is confirmed."""

_log = structlog.get_logger()


class Webhooks:
    """Looks for jobs that have ended, and tells of each once it answers, three times at most."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run(self, settle: Callable[[], Awaitable[Any]]) -> None:
        """Tell of jobs until cancelled; `settle` asks the hosts for jobs that nobody waits for."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                if await self.is_wanted():
                    await settle()
                    await self.tell()
            except GpuMcpError as error:
                _log.warning("webhooks wait", error=str(error))

    async def is_wanted(self) -> bool:
        """Say whether any user has a webhook."""
        return await self._db.fetch_one("SELECT 1 FROM users WHERE webhook IS NOT NULL LIMIT 1") is not None

    async def tell(self) -> int:
        """Tell of all that has ended and was not told yet; returns how many."""
        since = f"j-{int((time.time() - OLDEST_S) * 1000):x}"
        rows = await self._db.fetch_all(_ENDED, (since,))
        outcomes = await asyncio.gather(*map(self._deliver, rows))
        now = datetime.now(UTC).isoformat()
        await self._db.execute_many(
            "INSERT INTO webhook_deliveries (job_id, at, outcome) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            [(row["job_id"], now, outcome) for row, outcome in zip(rows, outcomes, strict=True)],
        )
        return len(rows)

    async def _deliver(self, row: sqlite3.Row) -> str:
        import httpx2

        body = {"event": "job.finished", **{name: row[name] for name in row.keys() if name != "webhook"}}  # noqa: SIM118
        outcome = ""
        async with httpx2.AsyncClient(timeout=PATIENCE_S, follow_redirects=False) as http:
            for number in range(TRIES):
                try:
                    answer = await http.post(row["webhook"], json=body)
                    outcome = f"answered {answer.status_code}"
                    if answer.status_code < 500:
                        return outcome
                except httpx2.HTTPError as error:
                    outcome = f"failed: {type(error).__name__}"
                await asyncio.sleep(BACK_OFF_S * number)
        _log.warning("a webhook cannot be told", user=row["user"], job=row["job_id"], outcome=outcome)
        return outcome
