"""Jobs, attempts and problems as lists that are searched, filtered and sorted, as the current user may see them."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gpu_mcp_server.models.dashboard import AttemptLine, ProblemLine, Ranking, UserLine
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.records.trust import BEST, BY_TRUST, TIMED, TRUST_EVIDENCE, trust_of
from gpu_mcp_server.services.status.dashboard_queries import DashboardQueries, JobState
from gpu_mcp_server.store.database import Database, Value
from gpu_mcp_server.store.ownership import visibility_condition

MAX_WORDS = 8
MAX_CHOICES = 100
"""Of values that one filter offers."""
LOOKED_AT = 5000
"""Newest rows whose values filters offer."""
MAX_COUNTED = 1000
"""Rows that are counted; a list says that there are more."""
ARGUMENTS = 50
OUTCOME = "iif(a.voided IS NOT NULL, 'voided', coalesce(a.verdict, a.status))"
COMMAND = "coalesce(a.evidence -> '$.argv', j.context -> '$.command')"
ARGUMENTS_OF = f"coalesce((SELECT group_concat(value, ' ') FROM json_each({COMMAND})), '')"  # noqa: S608
NOW = "strftime('%Y-%m-%dT%H:%M:%S', 'now')"
OWNER = "(SELECT min(owner) FROM owners WHERE handle = {})"


@dataclass(frozen=True)
class ListRequest:
    """Filter, order and page of a list that is asked for."""

    words: str = ""
    """Each of them stands somewhere in a row, whatever its case."""
    chosen: Mapping[str, str] = field(default_factory=dict[str, str])
    """Filter to the value it must have; names that a list does not know are ignored."""
    sort: str = ""
    """One of the list's orders; its first otherwise."""
    skip: int = 0
    limit: int = 50


@dataclass(frozen=True)
class ListedJob:
    """A job in a list."""

    state: JobState
    command: Sequence[str]
    """Program and arguments of a command; empty for other jobs."""
    problem_id: str | None
    problem: str | None
    """Name of the problem that it judges or profiles."""


@dataclass(frozen=True)
class _Table:
    """Query of a list: its columns, where they are from, what filters and orders it."""

    key: str
    """Column that names a row, the newest by the greatest."""
    columns: str
    source: str
    text: str
    """What words are looked for in."""
    filters: Mapping[str, str]
    orders: Mapping[str, str]


_JOBS = _Table(
    key="j.seq",
    columns=f"j.job_id, p.problem_id, p.json ->> 'name' AS problem, {COMMAND} AS argv",
    source="jobs j LEFT JOIN attempts a ON a.attempt_id = j.attempt_id AND {attempt} "
    "LEFT JOIN problems p ON p.problem_id = a.problem_id AND {problem}",
    text="j.job_id || ' ' || coalesce(j.attempt_id, '') || ' ' || coalesce(j.workspace_id, '') || ' ' || j.host || ' ' "
    f"|| j.purpose || ' ' || coalesce({OWNER.format('j.job_id')}, '') || ' ' || coalesce(p.json ->> 'name', '') || ' ' "
    f"|| {ARGUMENTS_OF}",
    filters={
        "state": "coalesce(j.record ->> 'status', 'unfinished')",
        "user": f"coalesce({OWNER.format('j.job_id')}, 'local')",
        "host": "j.host",
        "purpose": "j.purpose",
    },
    orders={
        "newest": "j.seq DESC",
        "oldest": "j.seq",
        "longest": "j.record ->> 'wall_s' DESC NULLS LAST, j.seq DESC",
        "user": f"{OWNER.format('j.job_id')}, j.seq DESC",
        "host": "j.host, j.seq DESC",
        "state": "coalesce(j.record ->> 'status', ''), j.seq DESC",
    },
)
_ATTEMPTS = _Table(
    key="a.seq",
    columns=f"a.attempt_id, a.kind, a.created_at, {OUTCOME} AS outcome, p.problem_id, p.json ->> 'name' AS problem, "
    f"{OWNER.format('a.attempt_id')} AS user, a.language, a.host, a.device, a.speedup, a.median_us, "
    "a.evidence ->> '$.speedup_range[0]' AS speedup_low, a.evidence ->> '$.speedup_range[1]' AS speedup_high, "
    "a.evidence ->> '$.time_range_us[0]' AS time_low_us, a.evidence ->> '$.time_range_us[1]' AS time_high_us, "
    f"a.evidence ->> 'timed_at' AS shape, a.source_artifact_id, a.verdict, a.voided, {TIMED} AS timed, "
    f"{TRUST_EVIDENCE}, "
    "substr(coalesce(a.voided, a.reason, a.note), 1, 400) AS said",
    source="attempts a LEFT JOIN problems p ON p.problem_id = a.problem_id AND {problem}",
    text="a.attempt_id || ' ' || a.kind || ' ' || coalesce(a.note, '') || ' ' || coalesce(a.reason, '') || ' ' "
    "|| coalesce(a.device, '') || ' ' || coalesce(a.language, '') || ' ' || coalesce(p.json ->> 'name', '')",
    filters={
        "outcome": OUTCOME,
        "kind": "a.kind",
        "language": "a.language",
        "device": "a.device",
        "user": f"coalesce({OWNER.format('a.attempt_id')}, 'local')",
        "problem": "a.problem_id",
    },
    orders={
        "newest": "a.seq DESC",
        "oldest": "a.seq",
        "speed-up": f"coalesce({BEST}, 0) DESC, {BY_TRUST}, a.seq DESC",
        "time": "a.median_us ASC NULLS LAST, a.seq DESC",
        "outcome": f"{OUTCOME}, a.seq DESC",
        "problem": "p.json ->> 'name', a.seq DESC",
    },
)
_PROBLEMS = _Table(
    key="p.seq",
    columns="p.problem_id, p.created_at, p.json ->> 'name' AS name, count(a.seq) AS evaluations, "
    "coalesce(sum(a.verdict = 'correct'), 0) AS correct, max(a.created_at) AS last_at",
    source="problems p LEFT JOIN attempts a ON a.problem_id = p.problem_id AND a.kind = 'evaluate' AND {attempt}",
    text="p.problem_id || ' ' || (p.json ->> 'name') || ' ' || coalesce(p.json ->> 'description', '')",
    filters={"framework": "p.json ->> 'framework'"},
    orders={
        "last": "coalesce(max(a.created_at), p.created_at) DESC",
        "name": "lower(p.json ->> 'name'), p.seq",
        "evaluations": "count(a.seq) DESC, p.seq DESC",
        "correct": "coalesce(sum(a.verdict = 'correct'), 0) DESC, p.seq DESC",
    },
)
ORDERS = {"jobs": tuple(_JOBS.orders), "attempts": tuple(_ATTEMPTS.orders), "problems": tuple(_PROBLEMS.orders)}
FILTERS = {"jobs": tuple(_JOBS.filters), "attempts": tuple(_ATTEMPTS.filters), "problems": tuple(_PROBLEMS.filters)}


class Listings:
    """Reads lists; a page of each, with how many rows match: exactly up to MAX_COUNTED, else more than that."""

    def __init__(self, db: Database, overview: DashboardQueries) -> None:
        self._db, self._overview = db, overview

    async def jobs(self, request: ListRequest) -> tuple[Sequence[ListedJob], int]:
        """Return jobs and how many match; hosts are asked for those that have not ended."""
        rows, matching = await self._read(_JOBS, request, seen="j.job_id")
        states = await asyncio.gather(*(self._overview.job(row["job_id"]) for row in rows))
        found = [
            ListedJob(state, _arguments(row["argv"]), row["problem_id"], row["problem"])
            for row, state in zip(rows, states, strict=True)
        ]
        return found, matching

    async def attempts(self, request: ListRequest) -> tuple[Sequence[AttemptLine], int]:
        """Return attempts and how many match."""
        rows, matching = await self._read(_ATTEMPTS, request, seen="a.attempt_id")
        return [_attempt_line(row) for row in rows], matching

    async def problems(self, request: ListRequest) -> tuple[Sequence[ProblemLine], int]:
        """Return problems, each with its boards, and how many match."""
        rows, matching = await self._read(_PROBLEMS, request, seen="p.problem_id", group="GROUP BY p.seq")
        boards: defaultdict[str, list[Ranking]] = defaultdict(list)
        for row in rows:
            boards[row["problem_id"]] += await self._overview.boards(row["problem_id"])
        names = [name for name in ProblemLine.model_fields if name != "boards"]
        found = [ProblemLine(**{name: row[name] for name in names}, boards=boards[row["problem_id"]]) for row in rows]
        return found, matching

    async def command(self, job_id: str) -> Sequence[str]:
        """Return program and arguments of a job; empty where it is no command."""
        rows, _ = await self._read(replace(_JOBS, text="j.job_id"), ListRequest(words=job_id, limit=1), seen="j.job_id")
        return _arguments(rows[0]["argv"]) if rows else []

    async def choices(self, name: str) -> Mapping[str, Sequence[str]]:
        """Return the values that each filter of a list (jobs, attempts, problems) has in its newest rows."""
        table, seen = _TABLES[name]
        visible, values = visibility_condition(seen)
        source, more = _joined(table.source)
        found: dict[str, Sequence[str]] = {}
        for label, expression in table.filters.items():
            if expression == "a.problem_id":
                continue
            newest = f"SELECT {expression} AS value FROM {source} WHERE {visible} ORDER BY {table.key} DESC LIMIT ?"  # noqa: S608
            rows = await self._db.fetch_all(
                f"SELECT DISTINCT value FROM ({newest}) WHERE value IS NOT NULL ORDER BY value LIMIT ?",  # noqa: S608
                (*more, *values, LOOKED_AT, MAX_CHOICES),
            )
            found[label] = [str(row["value"]) for row in rows]
        return found

    async def users(self) -> Sequence[UserLine]:
        """Return the users: all for a user who sees everything, else the current one alone."""
        user = current_user()
        where, which = ("1", ()) if user.sees_all else ("users.name = ?", (user.name,))
        tokens = "FROM tokens WHERE tokens.user = users.name"
        active = f"kind != 'session' AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {NOW})"
        owned = "FROM owners JOIN {} ON {} = handle WHERE owner = users.name"
        jobs, attempts = owned.format("jobs", "job_id"), owned.format("attempts", "attempt_id")
        rows = await self._db.fetch_all(
            f"SELECT name, project, weight, created_at, (SELECT count(*) {tokens} AND {active}) AS tokens, "  # noqa: S608
            f"(SELECT max(last_used_at) {tokens}) AS last_used_at, "
            f"(SELECT count(*) {jobs} AND purpose != 'reserve') AS jobs, "
            f"(SELECT count(*) {jobs} AND purpose != 'reserve' AND record IS NULL) AS unfinished_jobs, "
            f"(SELECT count(*) {attempts}) AS attempts FROM users WHERE {where} ORDER BY name",
            which,
        )
        return [UserLine(**dict(row)) for row in rows]

    async def _read(
        self, table: _Table, request: ListRequest, *, seen: str, group: str = ""
    ) -> tuple[Sequence[Any], int]:
        visible, values = visibility_condition(seen)
        source, more = _joined(table.source)
        where: list[str] = [visible]
        parameters: list[Value] = [*more, *values]
        for name, value in request.chosen.items():
            if value and name in table.filters:
                where.append(f"{table.filters[name]} = ?")
                parameters.append(value)
        for word in request.words.split()[:MAX_WORDS]:
            where.append(f"instr(lower({table.text}), ?)")
            parameters.append(word.lower())
        counting = list(parameters)
        order = table.orders.get(request.sort) or next(iter(table.orders.values()))
        matching = f"FROM {source} WHERE {' AND '.join(where)} {group}"
        some = f"{matching} ORDER BY {order} LIMIT ? OFFSET ?"
        if not group:  # the columns of those rows alone are read that are shown
            some = f"FROM {source} WHERE {table.key} IN (SELECT {table.key} {some}) ORDER BY {order}"
            parameters = [*more, *parameters]
        rows = await self._db.fetch_all(
            f"SELECT {table.columns} {some}", (*parameters, request.limit + 1, request.skip)
        )
        if len(rows) <= request.limit:
            return rows, request.skip + len(rows) if rows else 0
        counted = await self._db.fetch_one(
            f"SELECT count(*) AS number FROM (SELECT 1 {matching} LIMIT ?)",  # noqa: S608
            (*counting, MAX_COUNTED + 1),
        )
        least = request.skip + len(rows)
        return rows[: request.limit], max(least, counted["number"] if counted else 0)


_TABLES = {
    "jobs": (_JOBS, "j.job_id"),
    "attempts": (_ATTEMPTS, "a.attempt_id"),
    "problems": (_PROBLEMS, "p.problem_id"),
}


def _joined(source: str) -> tuple[str, list[Value]]:
    """Return what is read from, with joined rows only where the current user may see them, and the values for that."""
    values: list[Value] = []
    for name, column in (("{attempt}", "a.attempt_id"), ("{problem}", "p.problem_id")):
        if name in source:
            seen, more = visibility_condition(column)
            source = source.replace(name, seen)
            values += more
    return source, values


def _attempt_line(row: sqlite3.Row) -> AttemptLine:
    told = {name: row[name] for name in AttemptLine.model_fields if name != "trust"}
    trust = trust_of(row["verdict"], row["voided"], json.loads(row["trust_evidence"]), timed=bool(row["timed"]))
    return AttemptLine(**told, trust=trust)


def _arguments(argv: str | None) -> Sequence[str]:
    found: Any = json.loads(argv) if argv else []
    words = cast("list[Any]", found) if isinstance(found, list) else []
    return [str(each) for each in words[:ARGUMENTS]]
