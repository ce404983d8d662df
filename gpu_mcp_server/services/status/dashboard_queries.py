"""The store at a glance, for pages: rankings, what surrounds an attempt, jobs as they stand, what was used."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.hostd.protocol import JobRecord
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.dashboard import AttemptContext, DayUse, Ranking
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.trust import BEST, RANKED, number_ranks, trust_of
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.gpu_seconds import GPU_S
from gpu_mcp_server.store.ownership import claim, is_own, owner_of, require_own, visibility_condition
from gpu_mcp_server.team.users import Users

PATIENCE_S = 2.0
"""For a host to say how its jobs stand; one that does not leaves them as they were known."""
CHILDREN = 50
MAX_BOARDS = 200
Right = Literal["none", "sees", "own"]
FAILED = "json_extract(record, '$.status') NOT IN ('ok', 'cancelled')"
WALL_S = "coalesce(json_extract(record, '$.wall_s'), 0)"
OUTSIDE_S = f"iif(context ->> 'lease' IS NULL, {GPU_S}, 0)"
"""GPU seconds; jobs within a reservation are counted by it, as in quotas."""


@dataclass(frozen=True)
class JobState:
    """A job as its host knows it now, or as it ended."""

    row: JobRow
    record: JobRecord | None
    """None where the host did not say."""
    user: str = ""
    """Whose it is; empty for who runs the server."""


class DashboardQueries:
    """Reads the store as the current user may."""

    def __init__(self, db: Database, table: JobTable, jobs: JobRunner, experience: AttemptStore) -> None:
        self._db, self._table, self._jobs, self._experience = db, table, jobs, experience

    async def boards(self, problem_id: str) -> Sequence[Ranking]:
        """Return the rankings of a problem, those with most evaluations first."""
        seen, values = visibility_condition("attempt_id")
        rows = await self._db.fetch_all(
            f"SELECT *, {BEST} AS ranks FROM (SELECT *, count(*) OVER board AS evaluations, "  # noqa: S608
            "coalesce(sum(verdict = 'correct') OVER board, 0) AS correct, row_number() OVER "
            f"(PARTITION BY problem_hash, device, driver ORDER BY coalesce({BEST}, 0) DESC, {RANKED}) AS place "
            f"FROM attempts WHERE kind = 'evaluate' AND device IS NOT NULL AND problem_id = ? AND {seen} "
            "WINDOW board AS (PARTITION BY problem_hash, device, driver)) "
            "WHERE place = 1 ORDER BY evaluations DESC, device LIMIT ?",
            (problem_id, *values, MAX_BOARDS),
        )
        return [_board(row) for row in rows]

    async def ranking(self, board: Ranking, problem_id: str, limit: int = 50) -> Sequence[Attempt]:
        """Return the correct evaluations of one board, by trust and the speed-up that each has at least."""
        seen, values = visibility_condition("attempt_id")
        rows = await self._db.fetch_all(
            f"SELECT attempt_id FROM attempts WHERE {BEST} AND problem_id = ? AND device = ? AND driver IS ? "  # noqa: S608
            f"AND problem_hash IS ? AND {seen} ORDER BY {RANKED} LIMIT ?",
            (problem_id, board.device, board.driver, board.problem_hash, *values, limit),
        )
        return number_ranks(await self._attempts([row["attempt_id"] for row in rows]))

    async def attempt_context(self, attempt_id: str) -> AttemptContext:
        """Return profiles, checks and descendants of an attempt, and the run that it is from."""
        seen, values = visibility_condition("attempt_id")
        rows = await self._db.fetch_all(
            f"SELECT attempt_id, kind FROM attempts WHERE parent_id = ? AND {seen} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (attempt_id, *values, 3 * CHILDREN),
        )
        of: defaultdict[str, list[str]] = defaultdict(list)
        for row in rows:
            of[row["kind"]].append(row["attempt_id"])
        run = await self._db.fetch_one("SELECT run_id FROM recipe_attempts WHERE attempt_id = ?", (attempt_id,))
        return AttemptContext(
            profiles=await self._attempts(of["profile"][:5]),
            checks=await self._attempts(of["check"][:5]),
            children=await self._attempts(of["evaluate"][:CHILDREN]),
            run_id=run["run_id"] if run else None,
        )

    async def _attempts(self, ids: Sequence[str]) -> list[Attempt]:
        return [await self._experience.get(each) for each in ids]

    async def job(self, job_id: str) -> JobState:
        """Return how a job stands.

        Raises:
            NotFound: If there is none that the current user may see.
        """
        return await self.standing(await self._table.get(job_id))

    async def standing(self, row: JobRow) -> JobState:
        """Return how a job stands, asking its host unless it has ended."""
        user = await owner_of(self._db, row.job_id) or ""
        if row.record is not None:
            return JobState(row, row.record, user)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return JobState(row, (await self._jobs.poll(row.job_id, row.host)).record, user)
        except (GpuMcpError, TimeoutError):
            return JobState(row, None, user)

    async def owners(self, handles: Iterable[str]) -> Mapping[str, str]:
        """Return whose jobs and reservations these are, of those that belong to a user; who may see them or not."""
        found = {handle: await owner_of(self._db, handle) for handle in handles}
        return {handle: owner for handle, owner in found.items() if owner is not None}

    async def right(self, job_id: str) -> Right:
        """Say what the current user may do with a job or a reservation: nothing, look, or end it."""
        seen, values = visibility_condition("job_id")
        if await self._db.fetch_one(f"SELECT 1 FROM jobs WHERE job_id = ? AND {seen}", (job_id, *values)) is None:  # noqa: S608
            return "none"
        return "own" if await is_own(self._db, job_id) else "sees"

    async def daily_usage(self, days: int = 14) -> Sequence[DayUse]:
        """Return what the current user's finished jobs took on each day, the newest first."""
        seen, values = visibility_condition("job_id")
        rows = await self._db.fetch_all(
            "SELECT substr(submitted_at, 1, 10) AS day, sum(purpose != 'reserve') AS jobs, "  # noqa: S608
            f"sum({OUTSIDE_S}) AS gpu_s, sum(iif(purpose = 'reserve', 0, {WALL_S})) AS wall_s, "
            f"sum(purpose != 'reserve' AND {FAILED}) AS failed FROM jobs "
            f"WHERE record IS NOT NULL AND {seen} GROUP BY day ORDER BY day DESC LIMIT ?",
            (*values, days),
        )
        return [DayUse(**dict(row)) for row in rows]

    async def seen_runs(self) -> frozenset[str] | None:
        """Return the headless runs that are the current user's or of which they see an attempt; None: they see all."""
        seen, values = visibility_condition("attempt_id")
        if seen == "1":
            return None
        theirs, more = visibility_condition("handle")
        rows = await self._db.fetch_all(
            f"SELECT run_id FROM recipe_attempts WHERE {seen} "  # noqa: S608 - conditions of ours
            f"UNION SELECT handle FROM owners WHERE handle GLOB 'r-*' AND {theirs}",
            (*values, *more),
        )
        return frozenset(row["run_id"] for row in rows)

    async def runs_worker(self, run_id: str) -> User:
        """Return for whom a headless run is done: who began it, the current user if nobody has.

        Raises:
            BadRequest: If it is another's, and not for the current user to go on with.
        """
        user, owner = current_user(), await owner_of(self._db, run_id)
        if owner is None:
            await claim(self._db, run_id)
            return user
        await require_own(self._db, "run", run_id)
        return await Users(self._db).worker(owner)


def _board(first: sqlite3.Row) -> Ranking:
    """Return a board by the attempt that its ranking begins with, or by any where none ranks."""
    board = Ranking(**{name: first[name] for name in ("problem_hash", "device", "driver", "evaluations", "correct")})
    if not first["ranks"]:
        return board
    evidence = json.loads(first["evidence"] or "{}")
    told = {
        "best": first["speedup"],
        "best_us": first["median_us"] if first["speedup"] is None else None,
        "best_trust": trust_of(first["verdict"], first["voided"], evidence, timed=True),
    }
    return board.model_copy(update=told)
