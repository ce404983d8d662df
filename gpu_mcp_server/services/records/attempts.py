"""Store of attempts and their outcomes."""

import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, Unpack, get_args

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.attempt import DERIVED, NOBODYS, Attempt, AttemptKind, AttemptList, OldBoard
from gpu_mcp_server.models.history import ProblemHistory
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.services.records.problem_history import ProblemHistoryReader
from gpu_mcp_server.services.records.trust import BEST, CONTRADICTED_BY, CORRECT, RANKED, number_ranks, trust_of
from gpu_mcp_server.store.database import LARGEST_INTEGER, Database, Value
from gpu_mcp_server.store.ownership import claim, visibility_condition
from gpu_mcp_server.store.problem_aliases import require_problem
from gpu_mcp_server.text_safety import clip_middle

View = Literal["best", "recent", "ancestors", "failures"]

MAX_LISTED = 100
REASON_CHARACTERS = 300
"""Of the reason in a list; the attempt itself has all of it."""

FAILED = (
    f"(verdict IN ('incorrect', 'cheat') OR (verdict IS NULL AND status NOT IN ('running', 'ok', 'judged', {NOBODYS})))"
)
BEFORE = "(coalesce({}.evidence ->> 'generation', 0) < ?)"
"""Judged before a generation of the harness."""
RUNNING = "EXISTS (SELECT 1 FROM attempts WHERE attempt_id = ? AND status = 'running')"
FORGET = {
    "jobs": f"UPDATE jobs SET attempt_id = NULL WHERE attempt_id = ? AND {RUNNING}",  # noqa: S608
    "recipe_attempts": f"DELETE FROM recipe_attempts WHERE attempt_id = ? AND {RUNNING}",  # noqa: S608
    "owners": f"DELETE FROM owners WHERE handle = ? AND {RUNNING}",  # noqa: S608
    "attempts": f"DELETE FROM attempts WHERE attempt_id = ? AND {RUNNING}",  # noqa: S608
}
"""What takes back a running attempt, table by table; one that has ended stays."""
RESUME = "UPDATE attempts SET status = 'running', reason = NULL WHERE attempt_id = ? AND verdict IS NULL"
OF_JOB = "(? IS NULL OR attempt_id = (SELECT jobs.attempt_id FROM jobs WHERE job_id = ?))"
"""Whether a job still has a say in an attempt; see `JobTable.detach_attempt`."""
DIGITS = "0123456789abcdefghijklmnopqrstuv"


class AttemptColumns(TypedDict, total=False):
    """Columns of an attempt that may be set at its start or its end."""

    status: str
    verdict: str | None
    reason: str | None
    parent_id: str | None
    problem_id: str | None
    problem_hash: str | None
    source_hash: str | None
    source_artifact_id: str | None
    source_name: str | None
    language: str | None
    host: str | None
    device: str | None
    driver: str | None
    versions: Mapping[str, str] | None
    median_us: float | None
    speedup: float | None
    level: str | None
    job_id: str | None
    note: str | None
    flags: str | None
    entry: str | None
    target: str | None
    tier: str | None
    batch_id: str | None
    evidence: Mapping[str, Any] | None


class AttemptStore:
    """A row for every compile, run and evaluation."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def start(self, kind: AttemptKind, **columns: Unpack[AttemptColumns]) -> str:
        """Note an attempt, as running unless its status says how it ended, and return its id; ids sort by time.

        Raises:
            NotFound: If `parent_id` names no attempt.
        """
        if kind not in get_args(AttemptKind):
            raise BadRequest(f"{kind!r} is no kind of attempt.", hint=f"Known are {', '.join(get_args(AttemptKind))}.")
        parent_id = columns.get("parent_id")
        if parent_id is not None:
            await self._require(parent_id)
        values = {"kind": kind, "created_at": datetime.now(UTC).isoformat(), "status": "running", **_values(columns)}
        names = ", ".join(["attempt_id", *values])
        marks = ", ".join("?" * (len(values) + 1))
        sql = f"INSERT INTO attempts ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - keys are AttemptColumns
        while True:
            attempt_id = _new_id()
            if await self._db.execute(sql, (attempt_id, *values.values())):
                await claim(self._db, attempt_id)
                return attempt_id

    async def finish(self, attempt_id: str, *, by_job: str | None = None, **columns: Unpack[AttemptColumns]) -> bool:
        """Note how an attempt ended; `False` if that is noted already, or another job stands in for `by_job` meanwhile.

        Raises:
            NotFound: If no attempt has this id.
        """
        values = _values(columns)
        if values.get("status", "running") == "running":
            raise BadRequest("An attempt ends with a status other than running.", hint="Say how it ended.")
        changes = ", ".join(f"{name} = ?" for name in values)
        sql = f"UPDATE attempts SET {changes} WHERE attempt_id = ? AND status = 'running' AND {OF_JOB}"  # noqa: S608
        changed = await self._db.execute(sql, (*values.values(), attempt_id, by_job, by_job))
        if not changed:
            await self._require(attempt_id)
        return changed == 1

    async def resume(self, attempt_id: str) -> None:
        """Have an attempt run on that ended without a verdict: it is judged again."""
        await self._db.execute(RESUME, (attempt_id,))

    async def add_evidence(self, attempt_id: str, name: str, value: str) -> None:
        """Add a text to the evidence of an attempt."""
        await self._db.execute(
            "UPDATE attempts SET evidence = json_set(coalesce(evidence, '{}'), '$.' || ?, ?) WHERE attempt_id = ?",
            (name, value, attempt_id),
        )

    async def forget(self, attempt_id: str) -> None:
        """Take back an attempt that is running: it turned out that nothing was tried. Its job stays listed."""
        for table in ("jobs", "recipe_attempts", "owners", "attempts"):
            await self._db.execute(FORGET[table], (attempt_id, attempt_id))

    async def explain(self, attempt_id: str, reason: str) -> None:
        """Give an attempt that was found incorrect another reason; no verdict changes."""
        sql = "UPDATE attempts SET reason = ? WHERE attempt_id = ? AND verdict = 'incorrect'"
        await self._db.execute(sql, (reason, attempt_id))

    async def abandon(self, older_than_s: float = 6 * 3600) -> int:
        """End attempts that a killed server left running and that have no job to ask; return how many."""
        before = datetime.fromtimestamp(time.time() - older_than_s, UTC).isoformat()
        return await self._db.execute(
            "UPDATE attempts SET status = 'abandoned', reason = 'its server ended before it did' "
            "WHERE status = 'running' AND created_at < ? "
            "AND attempt_id NOT IN (SELECT attempt_id FROM jobs WHERE attempt_id IS NOT NULL AND record IS NULL)",
            (before,),
        )

    async def of_batch(self, batch_id: str) -> Sequence[tuple[Attempt, str | None]]:
        """Return the attempts of one call, oldest first, each with its job while that is known to run for it."""
        seen, values = visibility_condition("attempt_id")
        rows = await self._db.fetch_all(
            "SELECT *, (SELECT job_id FROM jobs WHERE jobs.attempt_id = attempts.attempt_id "  # noqa: S608
            f"ORDER BY seq DESC LIMIT 1) AS own_job FROM attempts WHERE batch_id = ? AND {seen} ORDER BY seq",
            (batch_id, *values),
        )
        return [(_attempt(row), row["own_job"]) for row in rows]

    async def evaluations_of(self, problem_id: str) -> Sequence[Attempt]:
        """Return the finished evaluations of a problem that have a source, oldest first.

        Raises:
            NotFound: If there is no such problem.
        """
        problem_id = await require_problem(self._db, problem_id)
        rows = await self._db.fetch_all(
            "SELECT * FROM attempts WHERE problem_id = ? AND kind = 'evaluate' AND status != 'running' "
            "AND source_artifact_id IS NOT NULL ORDER BY seq",
            (problem_id,),
        )
        return [_attempt(row, whole=True) for row in rows]

    async def keep_prompt(self, attempt_id: str, run_id: str, step: str, prompt_artifact_id: str) -> None:
        """Keep with an attempt which step of which run asked for it, in what words."""
        await self._db.execute(
            "INSERT INTO recipe_attempts (attempt_id, run_id, step, prompt_artifact_id) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (attempt_id, run_id, step, prompt_artifact_id),
        )

    async def void(self, attempt_id: str, why: str, by: str | None = None) -> None:
        """Mark an attempt as voided, `by` the attempt that contradicts it; the row stays.

        Raises:
            NotFound: If no attempt has this id.
        """
        await self._require(attempt_id)
        await self._db.execute("UPDATE attempts SET voided = ? WHERE attempt_id = ?", (why, attempt_id))
        if by is not None:
            await self.add_evidence(attempt_id, CONTRADICTED_BY, by)

    async def older(self, generation: int, problem_id: str | None = None) -> list[OldBoard]:
        """Return the correct verdicts before a generation that no audit has judged again, best first, by ranking.

        Raises:
            NotFound: If there is no such problem.
        """
        if problem_id is not None:
            problem_id = await require_problem(self._db, problem_id)
        seen, values = visibility_condition("a.attempt_id")
        rows = await self._db.fetch_all(
            "SELECT a.*, (SELECT p.json ->> 'name' FROM problems p WHERE p.problem_id = a.problem_id) AS name "  # noqa: S608
            f"FROM attempts a WHERE {CORRECT} AND {BEFORE.format('a')} "
            f"AND {seen} AND (? IS NULL OR a.problem_id = ?) AND NOT EXISTS (SELECT 1 FROM attempts b "
            "WHERE b.parent_id = a.attempt_id AND b.note = 'audit of ' || a.attempt_id "
            f"AND b.source_hash = a.source_hash AND b.verdict = a.verdict AND NOT {BEFORE.format('b')}) "
            f"ORDER BY name, problem_id, problem_hash, device, driver, {RANKED}",
            (generation, *values, problem_id, problem_id, generation),
        )
        boards: dict[tuple[Value, ...], OldBoard] = {}
        for row in rows:
            key = tuple(row[name] for name in ("problem_id", "problem_hash", "device", "driver"))
            about = {name: row[name] for name in ("problem_id", "problem_hash", "device", "driver")}
            board = boards.setdefault(key, OldBoard(name=row["name"] or row["problem_id"], **about))
            board.attempts.append(_attempt(row))
        return [*boards.values()]

    async def is_beaten_since(self, generation: int, board: OldBoard, attempt: Attempt) -> bool:
        """Say whether the ranking has a verdict of a generation or later before an attempt."""
        row = await self._db.fetch_one(
            f"SELECT attempt_id FROM attempts WHERE {BEST} AND (attempt_id = ? OR NOT {BEFORE.format('attempts')}) "  # noqa: S608
            f"AND problem_id IS ? AND problem_hash IS ? AND device IS ? AND driver IS ? ORDER BY {RANKED} LIMIT 1",
            (attempt.attempt_id, generation, board.problem_id, board.problem_hash, board.device, board.driver),
        )
        return row is not None and row["attempt_id"] != attempt.attempt_id

    async def get(self, attempt_id: str) -> Attempt:
        """Return an attempt with its evidence.

        Raises:
            NotFound: If no attempt has this id.
        """
        seen, values = visibility_condition("attempt_id")
        sql = f"SELECT * FROM attempts WHERE attempt_id = ? AND {seen}"  # noqa: S608
        row = await self._db.fetch_one(sql, (attempt_id, *values))
        if row is None:
            raise _no_attempt(attempt_id)
        return (await Confirmations(self._db).with_states([_attempt(row, whole=True)]))[0]

    async def describe(self, view: View, attempt_id: str | None, **chosen: Any) -> AttemptList:
        """Return one attempt with its evidence, or a list as `list` does; `ancestors` is always a list.

        Raises:
            BadRequest, NotFound: As `get` and `list` do.
        """
        if attempt_id is not None and view != "ancestors":
            return AttemptList(view="one", attempts=[await self.get(attempt_id)])
        return await self.list(view, attempt_id=attempt_id, **chosen)

    async def history(self, problem_id: str, device: str | None = None, **board: Any) -> ProblemHistory:
        """Return the course of the work on a problem; see `ProblemHistoryReader.read_history`."""
        return await ProblemHistoryReader(self._db).read_history(problem_id, device, **board)

    async def list(
        self,
        view: View = "best",
        problem_id: str | None = None,
        attempt_id: str | None = None,
        device: str | None = None,
        limit: int = 10,
        offset: int = 0,
        kind: AttemptKind | None = None,
    ) -> AttemptList:
        """List attempts.

        Args:
            view: `best`: correct evaluations on one device, by trust and the speed-up that each has at least, those
                without a time last; `recent`: newest first;
                `ancestors`: `attempt_id`, its parent, and so on; `failures`: newest first.
            problem_id: Only attempts at this problem.
            attempt_id: Where `ancestors` starts.
            device: Only attempts on it; `best` takes the one with most attempts if it is not given.
            limit: How many, 100 at most.
            offset: How many to skip.
            kind: Only compile, run or evaluate.

        Raises:
            BadRequest: If the view is unknown, or `ancestors` has no attempt to start from.
            NotFound: If `attempt_id` names no attempt, or `problem_id` no problem.
        """
        if not 1 <= limit <= MAX_LISTED:
            raise BadRequest(f"limit is {limit}.", hint=f"Choose 1 to {MAX_LISTED}.")
        if view not in get_args(View):
            raise BadRequest(f"There is no view {view!r}.", hint=f"Known are {', '.join(get_args(View))}.")
        if view == "ancestors":
            return await self._ancestors(attempt_id, limit, offset)
        if problem_id is not None:
            problem_id = await require_problem(self._db, problem_id)
        wanted = {"problem_id": problem_id, "kind": kind}
        seen, own = visibility_condition("attempt_id")
        where = [seen, *(f"{name} = ?" for name, value in wanted.items() if value is not None)]
        values: list[Value] = [*own, *(value for value in wanted.values() if value is not None)]
        devices = await self._devices(where, values)
        if view == "best" and device is None and devices:
            device = devices[0]
        if device is not None:
            where, values = [*where, "device = ?"], [*values, device]
        order = "seq DESC"
        if view == "best":
            where, order = [*where, CORRECT], RANKED
        elif view == "failures":
            where = [*where, FAILED]
        return await self._select(view, where, values, order, (limit, offset), devices)

    async def _select(
        self,
        view: View,
        where: Sequence[str],
        values: Sequence[Value],
        order: str,
        page: tuple[int, int],
        devices: Sequence[str],
    ) -> AttemptList:
        limit, offset = page
        rows = await self._db.fetch_all(
            "SELECT *, count(*) OVER () AS matching FROM attempts "  # noqa: S608 - conditions are this module's
            f"WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?",
            (*values, min(offset + limit, LARGEST_INTEGER)),
        )
        total = rows[0]["matching"] if rows else 0
        attempts = [_attempt(row) for row in rows]
        # Those that are skipped are read too, as a rank begins with the first that it is shared with.
        shown = (number_ranks(attempts) if view == "best" else attempts)[offset:]
        shown = await Confirmations(self._db).with_states(shown)
        return AttemptList(view=view, attempts=shown, devices=[*devices], offset=offset or None, total=total)

    async def _ancestors(self, attempt_id: str | None, limit: int, offset: int) -> AttemptList:
        if attempt_id is None:
            raise BadRequest("ancestors needs an attempt_id.", hint="Give the attempt whose parents you want.")
        await self._require(attempt_id)
        seen, values = visibility_condition("attempt_id")
        rows = await self._db.fetch_all(
            """
            WITH RECURSIVE chain (seq, parent_id) AS (
                SELECT seq, parent_id FROM attempts WHERE attempt_id = ?
                UNION
                SELECT a.seq, a.parent_id FROM attempts a JOIN chain c ON a.attempt_id = c.parent_id
            )
            SELECT attempts.* FROM chain JOIN attempts USING (seq) WHERE """  # noqa: S608
            + f"{seen} ORDER BY seq DESC",
            (attempt_id, *values),
        )
        return AttemptList(
            view="ancestors",
            attempts=[_attempt(row) for row in rows[offset : offset + limit]],
            offset=offset or None,
            total=len(rows),
        )

    async def _devices(self, where: Sequence[str], values: Sequence[Value]) -> Sequence[str]:
        """Return the devices: those with a correct evaluation first, then by number of attempts."""
        rows = await self._db.fetch_all(
            f"SELECT device FROM attempts WHERE {' AND '.join(where)} AND device IS NOT NULL GROUP BY device "  # noqa: S608
            f"ORDER BY max({BEST}) DESC, count(*) DESC, device",
            values,
        )
        return [row["device"] for row in rows]

    async def _require(self, attempt_id: str) -> None:
        seen, values = visibility_condition("attempt_id")
        sql = f"SELECT 1 FROM attempts WHERE attempt_id = ? AND {seen}"  # noqa: S608
        if await self._db.fetch_one(sql, (attempt_id, *values)) is None:
            raise _no_attempt(attempt_id)


def _no_attempt(attempt_id: str) -> NotFound:
    return NotFound("attempt", attempt_id, hint="list_attempts with view recent shows those there are.")


def _new_id() -> str:
    """Return microseconds since 1970 as eleven digits to base 32, and three digits of chance."""
    number = time.time_ns() // 1000 << 15 | secrets.randbits(15)
    return "a-" + "".join(DIGITS[number >> shift & 31] for shift in range(65, -1, -5))


def _values(columns: AttemptColumns) -> dict[str, Value]:
    unknown = set(columns) - set(AttemptColumns.__annotations__)
    if unknown:
        raise TypeError(f"an attempt has no {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {**columns}
    return {name: json.dumps(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _attempt(row: sqlite3.Row, *, whole: bool = False) -> Attempt:
    values = {name: row[name] for name in Attempt.model_fields if name not in DERIVED}
    for name in ("versions", "evidence"):
        values[name] = json.loads(values[name]) if values[name] is not None else None
    evidence: dict[str, Any] = values["evidence"] or {}
    timed = values["speedup"] is not None or evidence.get("ranked_by") == "time"
    values["trust"] = trust_of(values["verdict"], values["voided"], evidence, timed=timed)
    values |= {name: evidence.get(name) for name in ("robust", "speedup_range", "time_range_us")}
    values["shape"] = evidence.get("timed_at")
    reason = values["reason"]
    if not whole:
        values["evidence"] = None
        if reason is not None:
            values["reason"] = clip_middle(reason, REASON_CHARACTERS)
    return Attempt(**values)
