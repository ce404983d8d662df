"""Jobs that were submitted, each with at most one final record; and the ids by which they are known."""

import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec, job_record_from_json, to_json
from gpu_mcp_server.runtime.tracing import job_spans
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.events import Events
from gpu_mcp_server.store.gpu_seconds import GPU_S
from gpu_mcp_server.store.ownership import claim, require_own, visibility_condition

COMMAND_ARGUMENTS, COMMAND_CHARS = 50, 200
"""Of a command that is kept with its job, and of each of its arguments."""


def new_job_id() -> str:
    """Return a job id that sorts by time."""
    return f"j-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(4)}"


def command_of(spec: JobSpec) -> dict[str, list[str]]:
    """Return program and arguments of a job, shortened, for its context; none of reservations and our own programs."""
    first = spec.processes[0] if spec.processes else None
    if first is None or first.program or first.trusted or spec.purpose == "reserve":
        return {}
    return {"command": [argument[:COMMAND_CHARS] for argument in first.argv[:COMMAND_ARGUMENTS]]}


@dataclass(frozen=True)
class JobRow:
    """One job as it was submitted, and how it ended."""

    job_id: str
    host: str
    purpose: str
    workspace_id: str | None
    attempt_id: str | None
    submitted_at: str
    """ISO 8601, UTC, this machine's clock."""
    context: dict[str, Any]
    """What whoever comes back to the job needs to make a result of it."""
    record: JobRecord | None
    """Once it is final."""


class JobTable:
    """The jobs of every server that shares the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(
        self,
        job_id: str,
        host: str,
        purpose: str,
        workspace_id: str | None = None,
        attempt_id: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> JobRow:
        """Note a job before it is submitted, unless it is noted already; return the row that is there then."""
        submitted_at = datetime.now(UTC).isoformat()
        changed = await self._db.execute(
            "INSERT INTO jobs (job_id, host, purpose, workspace_id, attempt_id, submitted_at, context) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                job_id,
                host,
                purpose,
                workspace_id,
                attempt_id,
                submitted_at,
                json.dumps(dict(context or {})),
            ),
        )
        if changed != 1:
            return await self.get(job_id)
        await claim(self._db, job_id)
        about = dict(context or {})
        return JobRow(job_id, host, purpose, workspace_id, attempt_id, submitted_at, about, None)

    async def get(self, job_id: str) -> JobRow:
        """Return a job.

        Raises:
            NotFound: If no job has this id.
        """
        seen, values = visibility_condition("job_id")
        sql = f"SELECT * FROM jobs WHERE job_id = ? AND {seen}"  # noqa: S608
        row = await self._db.fetch_one(sql, (job_id, *values))
        if row is None:
            raise NotFound("job", job_id, hint="Job ids come from run_command and evaluate_kernel.")
        return _job(row)

    async def get_own(self, job_id: str) -> JobRow:
        """Return a job that the current user may end.

        Raises:
            NotFound: If no job has this id.
            BadRequest: If it is another's, who shares it.
        """
        row = await self.get(job_id)
        await require_own(self._db, "job", job_id)
        return row

    async def detach_attempt(self, job_id: str) -> None:
        """Let a job that another one stands in for have no say in the attempt any more."""
        await self._db.execute("UPDATE jobs SET attempt_id = NULL WHERE job_id = ?", (job_id,))

    async def hand_over(self, row: JobRow, changes: Mapping[str, Any]) -> bool:
        """Change what a job's row says of its context; `False` when another server was first."""
        before, after = json.dumps(row.context), json.dumps({**row.context, **changes})
        return await self._db.execute(
            "UPDATE jobs SET context = ? WHERE job_id = ? AND context = ?", (after, row.job_id, before)
        ) == 1  # fmt: skip

    async def finish(self, job_id: str, record: JobRecord) -> bool:
        """Keep the final record; `False` if one is kept already, which then stays as it is.

        Raises:
            NotFound: If no job has this id.
        """
        changed = await self._db.execute(
            "UPDATE jobs SET record = ? WHERE job_id = ? AND record IS NULL", (json.dumps(to_json(record)), job_id)
        )
        if not changed:
            await self.get(job_id)
        else:
            job_spans(record)
            await Events(self._db).publish("resource", f"job://{job_id}")
        return changed == 1

    async def unfinished_jobs(self, limit: int = 50) -> list[JobRow]:
        """Return the newest jobs of which no final record is known here, or whose attempt was not told of it."""
        seen, values = visibility_condition("job_id")
        rows = await self._db.fetch_all(
            f"SELECT * FROM jobs WHERE {seen} AND (record IS NULL "  # noqa: S608
            "OR attempt_id IN (SELECT attempt_id FROM attempts WHERE status = 'running')) ORDER BY seq DESC LIMIT ?",
            (*values, limit),
        )
        return [_job(row) for row in rows]

    async def gpu_seconds(self, attempt_ids: Sequence[str]) -> float:
        """Return the GPU seconds that the finished jobs of some attempts took."""
        row = await self._db.fetch_one(
            f"SELECT coalesce(sum({GPU_S}), 0) AS gpu_s "  # noqa: S608
            "FROM jobs WHERE record IS NOT NULL AND attempt_id IN (SELECT value FROM json_each(?))",
            (json.dumps([*attempt_ids]),),
        )
        return float(row["gpu_s"]) if row is not None else 0.0

    async def recent(self, limit: int = 20) -> list[JobRow]:
        """Return the jobs submitted last, newest first."""
        seen, values = visibility_condition("job_id")
        sql = f"SELECT * FROM jobs WHERE {seen} ORDER BY seq DESC LIMIT ?"  # noqa: S608
        rows = await self._db.fetch_all(sql, (*values, limit))
        return [_job(row) for row in rows]


def _job(row: sqlite3.Row) -> JobRow:
    return JobRow(
        job_id=row["job_id"],
        host=row["host"],
        purpose=row["purpose"],
        workspace_id=row["workspace_id"],
        attempt_id=row["attempt_id"],
        submitted_at=row["submitted_at"],
        context=json.loads(row["context"]),
        record=job_record_from_json(json.loads(row["record"])) if row["record"] is not None else None,
    )
