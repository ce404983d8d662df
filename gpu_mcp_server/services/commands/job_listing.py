"""The latest jobs as people look for them: command, user, age, duration, host."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import visibility_condition

INTERNAL = ("probe", "documentation")
"""Purposes of jobs that the server runs to look around; nobody asked for them."""


@dataclass(frozen=True)
class JobListing:
    """One job in a list."""

    job_id: str
    host: str
    purpose: str
    command: str
    """What runs: the command line, the note of what is judged, else the purpose."""
    user: str | None
    """None for what the local user asked for."""
    state: str
    status: str | None
    submitted_at: str
    age_s: float
    duration_s: float | None
    """From the first process's start to its end, or so far; None if it has not begun, as far as is known here."""


async def list_jobs(
    db: Database, limit: int, *, internal: bool = False, states: Mapping[str, str] = MappingProxyType({})
) -> list[JobListing]:
    """Return the jobs submitted last that the current user may see, newest first.

    Args:
        db: The store.
        limit: How many.
        internal: Whether the server's own probes are among them.
        states: Of jobs that have not ended, by their ids, as their hosts say; without a word they count as running.
    """
    seen, values = visibility_condition("jobs.job_id")
    marks = ", ".join("?" for _ in INTERNAL)
    asked = "1" if internal else f"jobs.purpose NOT IN ({marks})"
    sql = (
        "SELECT jobs.*, attempts.note, attempts.evidence, "  # noqa: S608 - no text of others
        "(SELECT min(owner) FROM owners WHERE handle = jobs.job_id) AS owner "
        "FROM jobs LEFT JOIN attempts ON attempts.attempt_id = jobs.attempt_id "
        f"WHERE {seen} AND {asked} ORDER BY jobs.seq DESC LIMIT ?"
    )
    rows = await db.fetch_all(sql, (*values, *(() if internal else INTERNAL), limit))
    now = datetime.now(UTC)
    return [_listing(dict(row), now, states.get(row["job_id"], "running")) for row in rows]


def _listing(row: dict[str, Any], now: datetime, unfinished: str) -> JobListing:
    record: dict[str, Any] = json.loads(row["record"]) if row["record"] else {}
    evidence: dict[str, Any] = json.loads(row["evidence"]) if row["evidence"] else {}
    argv: list[str] = evidence.get("argv") or []
    submitted = datetime.fromisoformat(row["submitted_at"])
    return JobListing(
        job_id=row["job_id"],
        host=row["host"],
        purpose=row["purpose"],
        command=" ".join(argv) or (f"{row['purpose']}: {row['note']}" if row["note"] else row["purpose"]),
        user=row["owner"],
        state=record.get("state") or unfinished,
        status=record.get("status"),
        submitted_at=row["submitted_at"],
        age_s=(now - submitted).total_seconds(),
        duration_s=record.get("wall_s"),
    )
