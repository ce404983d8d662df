"""Confirmation runs that attempts owe, and their state: a row of the store each, so that it outlives its server.

owed -> running -> done, void or failed; a better attempt turns what is owed for being the best into replaced.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.services.records.trust import BEST, CONFIRMED, CONFIRMED_BY, DOUBTED, FASTEST
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import visibility_condition

Why = Literal["best", "target", "asked", "audit"]
State = Literal["owed", "running", "done", "void", "failed", "replaced"]

MOST_TRIES = 3
"""Runs without a verdict after which an attempt stays provisional."""
MOST_S = 600.0
"""At most so many seconds count for a run without an outcome; no server may have run in the others."""
MOST_NEWS = 5
LISTED = "SELECT c.*, a.problem_id, a.host AS at_host FROM confirmations c JOIN attempts a USING (attempt_id)"


@dataclass(frozen=True)
class Confirmation:
    """One attempt's confirmation run."""

    attempt_id: str
    why: Why
    state: State
    said: str
    requested_at: str
    """ISO 8601, UTC."""
    started_at: str | None
    host: str
    server: str | None
    tries: int

    def waited_s(self) -> float:
        """Return for how long it is owed."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.requested_at)).total_seconds()

    def needs_two(self, run: str | None) -> bool:
        """Say whether a slower time of a run voids nothing yet: the machine may have been busy, or another run decides.

        An audit decides at once.
        """
        return self.started_at != run or (self.why != "audit" and self.tries == 0)


class Confirmations:
    """The table, shared by all servers on a store.

    Attributes:
        on_owed: Called when something is owed in this process.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.on_owed: Callable[[], None] = lambda: None

    async def owe(self, attempt_id: str, why: Why) -> None:
        """Note that an attempt owes a run, unless one is owed, runs, or had its end."""
        await self._db.execute(
            "INSERT INTO confirmations (attempt_id, why, state, requested_at) VALUES (?, ?, 'owed', ?) "
            "ON CONFLICT (attempt_id) DO UPDATE SET why = excluded.why, "
            "state = CASE WHEN state = 'replaced' THEN 'owed' ELSE state END "
            "WHERE state IN ('owed', 'replaced')",
            (attempt_id, why, _now()),
        )
        self.on_owed()

    async def owe_best(self, attempt_id: str) -> None:
        """Let an attempt owe a run if it is the best of its problem and device; it takes the place of those before it.

        The best has the greatest speed-up at least, confirmed or not; of two that are alike it is the first.
        """
        row = await self._db.fetch_one(
            f"SELECT attempt_id, {CONFIRMED} AS confirmed FROM attempts WHERE {BEST} AND NOT {DOUBTED} AND "  # noqa: S608
            f"EXISTS (SELECT 1 FROM attempts mine WHERE mine.attempt_id = ? AND {_board('attempts', 'mine')}) "
            f"ORDER BY {FASTEST} LIMIT 1",
            (attempt_id,),
        )
        if row is None or row["confirmed"] or row["attempt_id"] != attempt_id:
            return
        await self._db.execute(
            "UPDATE confirmations SET state = 'replaced', ended_at = ?, said = 'by ' || ? "  # noqa: S608
            "WHERE state = 'owed' AND why = 'best' AND attempt_id IN (SELECT other.attempt_id FROM attempts other, "
            f"attempts mine WHERE mine.attempt_id = ? AND {_board('other', 'mine')} AND other.attempt_id != ?)",
            (_now(), attempt_id, attempt_id, attempt_id),
        )
        await self.owe(attempt_id, "best")

    async def owe_next(self, voided_id: str) -> None:
        """Let the best that is left where an attempt was voided owe a run."""
        row = await self._db.fetch_one(
            f"SELECT attempt_id FROM attempts WHERE {BEST} AND NOT {DOUBTED} AND EXISTS "  # noqa: S608
            f"(SELECT 1 FROM attempts mine WHERE mine.attempt_id = ? AND {_board('attempts', 'mine')}) "
            f"ORDER BY {FASTEST} LIMIT 1",
            (voided_id,),
        )
        if row is not None:
            await self.owe_best(row["attempt_id"])

    async def begin(self, attempt_id: str, why: Why, server: str, host: str) -> str:
        """Note that a run begins now, owed before or not; return that time, by which the run is known."""
        now = _now()
        await self._db.execute(
            "INSERT INTO confirmations (attempt_id, why, state, requested_at, started_at, server, host) "
            "VALUES (?, ?, 'running', ?, ?, ?, ?) ON CONFLICT (attempt_id) DO UPDATE SET state = 'running', "
            "why = excluded.why, started_at = excluded.started_at, server = excluded.server, host = excluded.host, "
            "ended_at = NULL",
            (attempt_id, why, now, now, server, host),
        )
        return now

    async def claim(self, attempt_id: str, server: str, host: str, *, was: str | None = None) -> str | None:
        """Begin an owed run, or take over one whose server `was` another; return when, None if another was first.

        A run that is taken over has begun before.
        """
        state, mine = ("owed", "1") if was is None else ("running", "server = ?")
        now = _now()
        changed = await self._db.execute(
            "UPDATE confirmations SET state = 'running', said = '', server = ?, host = ?, "  # noqa: S608
            f"started_at = coalesce(?, started_at) WHERE attempt_id = ? AND state = ? AND {mine}",
            (server, host, now if was is None else None, attempt_id, state, *([was] if was is not None else [])),
        )
        return now if changed == 1 else None

    async def note(self, attempt_id: str, said: str) -> None:
        """Note why an owed run is not made for now."""
        await self._db.execute(
            "UPDATE confirmations SET said = ? WHERE attempt_id = ? AND state = 'owed'", (said[:500], attempt_id)
        )

    async def release(
        self, attempt_id: str, run: str | None, said: str = "", *, counted: bool = False, seconds: float | None = None
    ) -> bool:
        """Owe a run again that did not come to a decision; return whether it was counted too often and has failed.

        Nothing is noted where another run has begun since `run`, the time at which that one did.
        """
        await self._db.execute(
            "UPDATE confirmations SET tries = tries + ?, said = ?, server = NULL, ended_at = ?, seconds = ?, "
            "state = CASE WHEN tries + ? >= ? THEN 'failed' ELSE 'owed' END "
            "WHERE attempt_id = ? AND state = 'running' AND started_at IS ?",
            (counted, said[:500], _now(), seconds, counted, MOST_TRIES, attempt_id, run),
        )
        self.on_owed()
        found = await self.get(attempt_id)
        return found is not None and found.state == "failed"

    async def release_left(self, attempt_id: str, server: str, run: str | None) -> None:
        """Owe a run again that a server holds as running although it works on it no more; nothing for any other."""
        await self._db.execute(
            "UPDATE confirmations SET state = 'owed', server = NULL, ended_at = ?1, "
            "seconds = min((julianday(?1) - julianday(started_at)) * 86400, ?4) "
            "WHERE attempt_id = ?2 AND state = 'running' AND server = ?3 AND started_at IS ?5",
            (_now(), attempt_id, server, MOST_S, run),
        )

    async def finish(self, attempt_id: str, state: State, said: str, seconds: float) -> None:
        """Note how a run ended."""
        await self._db.execute(
            "UPDATE confirmations SET state = ?, said = ?, ended_at = ?, seconds = ?, server = NULL "
            "WHERE attempt_id = ? AND state IN ('running', 'owed')",
            (state, said[:500], _now(), seconds, attempt_id),
        )

    async def confirm(self, attempt: Attempt, again: Attempt) -> None:
        """Put the figures of the evaluation that confirmed an attempt in place of the first ones, which are kept."""
        before, now = dict(attempt.evidence or {}), dict(again.evidence or {})
        first = before.get("first") or {
            "speedup": attempt.speedup,
            "median_us": attempt.median_us,
            **{name: before.get(name) for name in ("speedup_range", "time_range_us", "verdict_artifact", "judge_s")},
        }
        before.pop("unconfirmable", None)
        evidence = {**before, **now, CONFIRMED_BY: again.attempt_id, "first": first}
        await self._db.execute(
            "UPDATE attempts SET speedup = ?, median_us = ?, level = ?, reason = ?, evidence = ? WHERE attempt_id = ?",
            (again.speedup, again.median_us, again.level, again.reason, json.dumps(evidence), attempt.attempt_id),
        )

    async def list_owed(self) -> Sequence[Confirmation]:
        """Return what is owed, the longest first; for what a run waits goes before."""
        rows = await self._db.fetch_all(f"{LISTED} WHERE state = 'owed' ORDER BY why = 'best', requested_at LIMIT 100")
        return [_confirmation(row) for row in rows]

    async def list_running(self) -> Sequence[Confirmation]:
        """Return what runs, or ran when its server ended."""
        return [_confirmation(row) for row in await self._db.fetch_all(f"{LISTED} WHERE state = 'running'")]

    async def get(self, attempt_id: str) -> Confirmation | None:
        """Return how an attempt's run stands; None if it never owed one."""
        row = await self._db.fetch_one(f"{LISTED} WHERE c.attempt_id = ?", (attempt_id,))
        return None if row is None else _confirmation(row)

    async def describe_states(self, attempt_ids: Sequence[str]) -> Mapping[str, str]:
        """Return in words how the runs of attempts stand, of those that are to come or failed."""
        if not attempt_ids:
            return {}
        marks = ", ".join("?" * len(attempt_ids))
        rows = await self._db.fetch_all(
            f"{LISTED} WHERE c.attempt_id IN ({marks}) AND state IN ('owed', 'running', 'failed')", (*attempt_ids,)
        )
        return {row["attempt_id"]: _text(_confirmation(row)) for row in rows}

    async def with_states(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return attempts, provisional ones with how their runs stand."""
        said = await self.describe_states(
            [attempt.attempt_id for attempt in attempts if attempt.trust == "provisional"]
        )
        return [
            a.model_copy(update={"confirmation": said[a.attempt_id]}) if a.attempt_id in said else a for a in attempts
        ]

    async def rest_s(self, host: str, times: float) -> float:
        """Return for how long no run may begin on a host, so that runs take so many times less than all the time."""
        row = await self._db.fetch_one(
            "SELECT ended_at, seconds FROM confirmations WHERE host = ? AND seconds > 0 ORDER BY ended_at DESC LIMIT 1",
            (host,),
        )
        if row is None:
            return 0.0
        ended_s = (datetime.now(UTC) - datetime.fromisoformat(row["ended_at"])).total_seconds()
        return times * float(row["seconds"]) - ended_s

    async def job_of(self, attempt_id: str, since: str | None) -> str | None:
        """Return the job of an attempt's run that began at a time or later; None where it came to none."""
        row = await self._db.fetch_one(
            "SELECT job_id FROM jobs WHERE attempt_id IN (SELECT attempt_id FROM attempts WHERE kind = 'confirm' "
            "AND parent_id = ? AND created_at >= ?) ORDER BY seq DESC LIMIT 1",
            (attempt_id, since or ""),
        )
        return row["job_id"] if row is not None else None

    async def list_news(self, problem_id: str, *, take: bool = True) -> list[str]:
        """Say which attempts at a problem were voided and no answer has told yet; with `take`, this one tells."""
        seen, values = visibility_condition("a.attempt_id")
        rows = await self._db.fetch_all(
            "SELECT a.attempt_id, a.voided FROM confirmations c JOIN attempts a USING (attempt_id) "  # noqa: S608
            f"WHERE c.state = 'void' AND NOT c.told AND a.problem_id = ? AND {seen} ORDER BY c.ended_at LIMIT ?",
            (problem_id, *values, MOST_NEWS),
        )
        for row in rows if take else []:
            await self._db.execute("UPDATE confirmations SET told = 1 WHERE attempt_id = ?", (row["attempt_id"],))
        return [f"attempt {row['attempt_id']} was voided: {row['voided']}" for row in rows]


def _board(one: str, other: str) -> str:
    """Return the condition under which the attempts of two tables may be compared with each other."""
    return " AND ".join(f"{one}.{name} IS {other}.{name}" for name in ("problem_id", "problem_hash", "device"))


def _text(found: Confirmation) -> str:
    if found.state == "failed":
        return f"failed {found.tries} times: {found.said}"
    return found.state + (f" ({found.said})" if found.said else "")


def _confirmation(row: sqlite3.Row) -> Confirmation:
    return Confirmation(
        attempt_id=row["attempt_id"], why=row["why"], state=row["state"], said=row["said"],
        requested_at=row["requested_at"], started_at=row["started_at"], host=row["host"] or row["at_host"],
        server=row["server"], tries=row["tries"],
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat()
