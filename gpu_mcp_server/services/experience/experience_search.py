"""The attempts of all problems as a memory: asked by what is known of a new one, such as an error like earlier ones."""

import asyncio
import itertools
import json
import math
import re
import secrets
import sqlite3
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.attempt import NOBODYS
from gpu_mcp_server.models.experience import FoundAttempt, FoundAttempts, Lesson, Lessons, NoteResult
from gpu_mcp_server.models.profile import BOUND_BY
from gpu_mcp_server.services.experience.scored_lessons import find_fixes, hint_effects, score_summaries
from gpu_mcp_server.services.experience.word_match import FAILURES, OPERATIONS, texts_that_match
from gpu_mcp_server.services.records.trust import BY_TRUST, FASTER, TIMED_ATTEMPTS, trust_of
from gpu_mcp_server.store.database import Database, Value
from gpu_mcp_server.store.ownership import claim, visibility_condition
from gpu_mcp_server.store.problem_aliases import require_problem

SCANNED = 2000
"""Newest attempts that an error's signature is compared with."""
SHOWN = 240
MAX_NOTE = 2000
VERIFIED = "a.verdict = 'correct' AND a.voided IS NULL"
PROFILED = (
    "(SELECT p.reason FROM attempts p WHERE p.kind = 'profile' AND p.parent_id = a.attempt_id "
    "ORDER BY p.seq DESC LIMIT 1)"
)
"""Note of the last profile of an attempt, its bound first."""
FROM = (
    f"FROM {TIMED_ATTEMPTS} a JOIN problems ON problems.problem_id = a.problem_id "
    f"WHERE a.kind = 'evaluate' AND a.status != 'running' AND a.status NOT IN ({NOBODYS})"
)
TRIED = "COALESCE(a.note, '') NOT LIKE 'audit of %'"
"""An audit judges what was tried before."""
STEPS = FROM.replace("WHERE a", f"JOIN {TIMED_ATTEMPTS} b ON b.attempt_id = a.parent_id WHERE a", 1)
PROBLEM_TEXTS = (
    "SELECT problem_id, json ->> 'name' AS name, json ->> 'description' AS about, "
    "json ->> 'reference' AS source FROM problems"
)
MATRIX_PRODUCT = re.compile(r"\w\s*@\s*\w|\b(?:matmul|einsum|tensordot|[bm]mm?|linear)\s*\(")
"""In a reference, whatever its problem is called."""
_NAMED = re.compile(r"[\"'`‘’“”][^\"'`‘’“”]{1,200}[\"'`‘’“”]")  # noqa: RUF001 - compilers' quotation marks
_PLACE = re.compile(r"[\w./-]+\.\w+:\d+(?::\d+)?:?|[\w./-]+\(\d+\):?|line \d+")
_NUMBER = re.compile(r"0x[0-9a-f]+|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


def signature(reason: str) -> str:
    """Return an error's first line without what differs from case to case: two that are equal are one error."""
    text = _NUMBER.sub("N", _NAMED.sub("X", _PLACE.sub("", reason.partition("\n")[0])))
    return " ".join(text.lower().split())[:200]


class ExperienceSearch:
    """Answers from the attempts of all problems, and keeps notes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def find(
        self,
        operation: str | None = None,
        dtype: str | None = None,
        arch: str | None = None,
        bottleneck: str | None = None,
        error: str | None = None,
        shape: str | None = None,
        limit: int = 8,
    ) -> FoundAttempts:
        """Return attempts like a new one: verified first, in the order of rankings, then failures, newest first.

        Args:
            operation: Words, all of which are in the problem's name, description or reference, by stem or another name.
            dtype: Of an input or output.
            arch: A part of the device's name, such as H200, or its architecture, such as sm_90.
            bottleneck: Words in what a profile of the attempt said.
            error: A message; those that are equal but for places, names and numbers count as one. Or words of it, or
                the kind of failure: SIGSEGV, out of memory, wrong answer.
            shape: small, medium or large: elements of the problem's largest shape, below 2^16, 2^24, or more.
            limit: How many.

        Raises:
            BadRequest: If nothing is asked.
        """
        asked = {"operation": operation, "dtype": dtype, "arch": arch, "bottleneck": bottleneck, "error": error}
        if not any((*asked.values(), shape)):
            raise BadRequest("Nothing is asked.", hint=f"Give one of {', '.join(asked)}, shape.")
        where, values = _own(*await self._conditions(operation, dtype, arch, bottleneck))
        rows = await self._db.fetch_all(
            f"SELECT a.*, problems.json ->> 'name' AS problem, problems.json ->> 'shapes' AS shapes, "
            f"{PROFILED} AS bottleneck {FROM} {where} "
            f"ORDER BY ({VERIFIED}) DESC, CASE WHEN {VERIFIED} THEN 0 ELSE -a.seq END, {BY_TRUST}, a.seq DESC LIMIT ?",
            (*values, SCANNED),
        )
        if error:
            said = {row["attempt_id"]: _failure_of(row) for row in rows}
            meant = await asyncio.to_thread(texts_that_match, error, said, FAILURES)
            wanted = signature(error)
            rows = [
                row
                for row in rows
                if row["attempt_id"] in meant or (row["reason"] and _alike(signature(row["reason"]), wanted))
            ]
        if shape:
            rows = [row for row in rows if size_class(row["shapes"]) == shape]
        return FoundAttempts(attempts=[_found(row) for row in rows[:limit]], left_out=max(len(rows) - limit, 0) or None)

    async def lessons(self, operation: str | None = None, problem_id: str | None = None, limit: int = 8) -> Lessons:
        """Return what attempts teach: steps that made a verified kernel faster, failures that came again, notes.

        Raises:
            NotFound: If there is no such problem.
        """
        where, values = await self._conditions(operation, None, None, None)
        if problem_id is not None:
            problem_id = await require_problem(self._db, problem_id)
            where, values = f"{where} AND problems.problem_id = ?", [*values, problem_id]
        own, own_values = _own(where, values)
        groups = [
            await self._notes(where, values, limit),
            await self._techniques(own, own_values, limit),
            await self._failures(own, own_values, limit),
            await find_fixes(self._db, f"{STEPS} {own}", VERIFIED, own_values, limit),
            await score_summaries(self._db, f"{FROM} {own}", VERIFIED, own_values, limit),
            await hint_effects(self._db, f"{FROM} {own}", own_values, limit),
        ]
        return Lessons(lessons=[lesson for group in fair_parts(groups, limit) for lesson in group])

    async def kindred_lessons(
        self, problem_id: str, dtype: str | None, bottleneck: str | None, limit: int = 3
    ) -> list[Lesson]:
        """Return techniques, fixes and notes of other problems with the same operation class.

        Those with the same type and bottleneck come first, then those with the same type, then any. A problem without
        a known class has no kin.

        Args:
            problem_id: Whose kin is asked for.
            dtype: Of its first output.
            bottleneck: Words of a profile, where one is known.
            limit: How many.
        """
        classes = await self._classes(problem_id)
        found: list[Lesson] = []
        for operation, narrowed in itertools.product(classes, ((dtype, bottleneck), (dtype, None), (None, None))):
            if len(found) >= limit:
                break
            where, values = await self._conditions(operation, narrowed[0], None, narrowed[1])
            where, values = f"{where} AND problems.problem_id != ?", [*values, problem_id]
            own, own_values = _own(where, values)
            groups = [
                await self._techniques(own, own_values, limit),
                await find_fixes(self._db, f"{STEPS} {own}", VERIFIED, own_values, limit),
            ]
            if narrowed == (None, None):
                noted = await self._notes(where, values, limit)
                groups.append([note for note in noted if note.problem is not None])
            found += [lesson for group in fair_parts(groups, limit) for lesson in group if lesson not in found]
        return found[:limit]

    async def _classes(self, problem_id: str) -> list[str]:
        """Return the names of the operations that a problem's name, description and reference speak of."""
        row = await self._db.fetch_one(f"{PROBLEM_TEXTS} WHERE problem_id = ?", (problem_id,))
        if row is None:
            return []
        text = {problem_id: _problem_text(row)}

        def matching_operations() -> list[str]:
            return [group[0] for group in OPERATIONS if texts_that_match(group[0], text, OPERATIONS)]

        return await asyncio.to_thread(matching_operations)

    async def recurring_failures(self, problem_id: str, limit: int = 3) -> list[Lesson]:
        """Return the failures at a problem that came more than once, the most frequent first."""
        own, values = _own(" AND problems.problem_id = ?", [problem_id])
        return [lesson for lesson in await self._failures(own, values, limit) if lesson.times > 1]

    async def confirmed_best(self, problem_id: str, *, accept_provisional: bool = False, **alike: Value) -> list[str]:
        """Return the correct attempts at a problem that a later run may start from, the fastest first.

        None is voided or unconfirmable, and the current generation of the judge decided each. Times are confirmed.

        Args:
            problem_id: The problem; its content must be what it was.
            accept_provisional: Whether times that no confirmation run has seen will do.
            alike: Columns of the attempt and their values: host, language, entry, generation ...
        """
        generation = alike.pop("generation", 0)
        conditions = " AND ".join(f"a.{name} = ?" for name in alike)
        own, own_values = _own(f" AND {conditions}" if conditions else "", [*alike.values()])
        rows = await self._db.fetch_all(
            f"SELECT a.attempt_id {FROM} AND {VERIFIED} AND a.problem_id = ? "
            "AND a.problem_hash = problems.content_hash AND NOT doubted AND (? OR NOT timed OR confirmed) "
            f"AND coalesce(a.evidence ->> 'generation', 0) >= ? {own} "
            f"ORDER BY NOT timed, {FASTER}, a.seq LIMIT ?",
            (problem_id, accept_provisional, generation, *own_values, SCANNED),
        )
        return [row["attempt_id"] for row in rows]

    async def add_note(self, text: str, attempt_id: str | None = None, problem_id: str | None = None) -> NoteResult:
        """Keep a note for who comes later.

        Raises:
            BadRequest: If it is empty or too long.
            NotFound: If it is about what is not there.
        """
        text = text.strip()
        if not 1 <= len(text) <= MAX_NOTE:
            raise BadRequest(f"The note has {len(text)} characters.", hint=f"Write 1 to {MAX_NOTE}.")
        if attempt_id is not None:
            await self._require_attempt(attempt_id)
            found = await self._db.fetch_one("SELECT problem_id FROM attempts WHERE attempt_id = ?", (attempt_id,))
            problem_id = problem_id or (found["problem_id"] if found else None)
        if problem_id is not None:
            problem_id = await require_problem(self._db, problem_id)
        note_id = f"n-{secrets.token_hex(6)}"
        await self._db.execute(
            "INSERT INTO notes (note_id, created_at, attempt_id, problem_id, text) VALUES (?, ?, ?, ?, ?)",
            (note_id, datetime.now(UTC).isoformat(), attempt_id, problem_id, text),
        )
        await claim(self._db, note_id)
        return NoteResult(note_id=note_id)

    async def rooflines(self, attempt_id: str) -> list[dict[str, Any]]:
        """Return what the last profile of an attempt measured of it under its device's roofs; none without one."""
        row = await self._db.fetch_one(
            "SELECT evidence ->> 'roofline' AS found FROM attempts WHERE kind = 'profile' AND parent_id = ? "
            "AND status = 'ok' ORDER BY seq DESC LIMIT 1",
            (attempt_id,),
        )
        return json.loads(row["found"]) if row is not None and row["found"] else []

    async def bound_of(self, attempt_id: str) -> str | None:
        """Return what the last profile of an attempt says to bound its time; None without one."""
        sql = f"SELECT {PROFILED} AS said FROM attempts a WHERE a.attempt_id = ?"  # noqa: S608
        row = await self._db.fetch_one(sql, (attempt_id,))
        said = str(row["said"] or "") if row is not None else ""
        return said.removeprefix(BOUND_BY).partition(";")[0] if said.startswith(BOUND_BY) else None

    async def _techniques(self, where: str, values: Sequence[Value], limit: int) -> list[Lesson]:
        """Return steps from parent to child, both verified on one device, by how much faster the child is at least.

        The child's time is confirmed, the parent's is in no doubt, and their intervals do not overlap. Without a
        baseline on the device the parent counts as 1.
        """
        times = "a.speedup IS NULL AND b.speedup IS NULL"
        rows = await self._db.fetch_all(
            f"SELECT a.attempt_id, a.note, problems.json ->> 'name' AS problem, "
            f"CASE WHEN {times} THEN b.median_us / a.median_us ELSE a.speedup END AS after, "
            f"CASE WHEN {times} THEN 1.0 ELSE b.speedup END AS before, "
            f"CASE WHEN {times} THEN b.low_us / a.high_us ELSE a.speedup_low / b.speedup_high END AS gain {STEPS} "
            f"{where} AND {VERIFIED} AND a.confirmed AND {TRIED} AND b.verdict = 'correct' AND b.voided IS NULL "
            "AND NOT b.doubted AND a.timed AND b.timed AND a.device = b.device AND a.problem_id = b.problem_id "
            "AND gain > 1 AND a.note IS NOT NULL ORDER BY gain DESC LIMIT ?",
            (*values, limit),
        )
        return [
            Lesson(
                kind="technique", says=row["note"][:SHOWN], problem=row["problem"], before=row["before"],
                after=row["after"], attempt_id=row["attempt_id"],
            )
            for row in rows
        ]  # fmt: skip

    async def _failures(self, where: str, values: Sequence[Value], limit: int) -> list[Lesson]:
        rows = await self._db.fetch_all(
            f"SELECT a.attempt_id, a.reason, problems.json ->> 'name' AS problem {FROM} {where} AND {TRIED} "
            "AND a.reason IS NOT NULL AND (a.verdict IS NULL OR a.verdict != 'correct') "
            "ORDER BY a.seq DESC LIMIT ?",
            (*values, SCANNED),
        )
        counted = Counter(signature(row["reason"]) for row in rows)
        newest = {signature(row["reason"]): row for row in reversed(rows)}
        return [
            Lesson(
                kind="failure", says=newest[said]["reason"][:SHOWN], problem=newest[said]["problem"], times=times,
                attempt_id=newest[said]["attempt_id"],
            )
            for said, times in counted.most_common(limit)
        ]  # fmt: skip

    async def _notes(self, where: str, values: Sequence[Value], limit: int) -> list[Lesson]:
        about = f"IN (SELECT problems.problem_id FROM problems WHERE 1 {where})"  # noqa: S608 - conditions of this module
        seen, own = visibility_condition("note_id")
        rows = await self._db.fetch_all(
            "SELECT notes.*, problems.json ->> 'name' AS problem FROM notes "  # noqa: S608
            "LEFT JOIN problems ON problems.problem_id = notes.problem_id "
            f"WHERE (notes.problem_id IS NULL OR notes.problem_id {about}) AND {seen} "
            "ORDER BY notes.seq DESC LIMIT ?",
            (*values, *own, limit),
        )
        return [
            Lesson(kind="note", says=row["text"][:SHOWN], problem=row["problem"], attempt_id=row["attempt_id"])
            for row in rows
        ]

    async def _conditions(
        self, operation: str | None, dtype: str | None, arch: str | None, bottleneck: str | None
    ) -> tuple[str, list[Value]]:
        where, values = _conditions(dtype, arch, bottleneck)
        if not operation or not operation.strip():
            return where, values
        rows = await self._db.fetch_all(PROBLEM_TEXTS)
        texts = {row["problem_id"]: _problem_text(row) for row in rows}
        meant = await asyncio.to_thread(texts_that_match, operation, texts, OPERATIONS)
        chosen = " AND problems.problem_id IN (SELECT value FROM json_each(?))"
        return where + chosen, [*values, json.dumps([*meant])]

    async def _require_attempt(self, attempt_id: str) -> None:
        seen, values = visibility_condition("attempt_id")
        sql = f"SELECT 1 FROM attempts WHERE attempt_id = ? AND {seen}"  # noqa: S608
        if await self._db.fetch_one(sql, (attempt_id, *values)) is None:
            raise NotFound("attempt", attempt_id, hint="list_attempts shows those there are.")


def fair_parts(groups: Sequence[Sequence[Lesson]], limit: int) -> list[list[Lesson]]:
    """Return the beginnings of groups, one more of each in turn, until `limit` lessons are chosen."""
    lengths = [0] * len(groups)
    for rank in range(limit):
        for number, group in enumerate(groups):
            if rank < len(group) and sum(lengths) < limit:
                lengths[number] += 1
    return [list(group[:length]) for group, length in zip(groups, lengths, strict=True)]


def size_class(shapes: str) -> str:
    """Return small, medium or large for a problem's shapes as JSON, by the product of the largest one's sizes."""
    sizes = [math.prod(v for v in dims.values() if isinstance(v, int)) for dims in json.loads(shapes or "[]")]
    largest = max(sizes, default=0)
    return "small" if largest < 1 << 16 else "medium" if largest < 1 << 24 else "large"


def _problem_text(row: sqlite3.Row) -> str:
    product = " matmul" if MATRIX_PRODUCT.search(row["source"] or "") else ""
    return f"{row['name']} {row['about'] or ''} {row['source'] or ''}{product}"


def _failure_of(row: sqlite3.Row) -> str:
    """Return in which words a failed attempt may be asked for; nothing of one that is correct."""
    if row["verdict"] == "correct" and not row["voided"]:
        return ""
    return " ".join(filter(None, (row["verdict"], row["status"], row["voided"] and "voided", row["reason"])))


def _conditions(dtype: str | None, arch: str | None, bottleneck: str | None) -> tuple[str, list[Value]]:
    where, values = "", list[Value]()
    if dtype:
        where += (
            " AND EXISTS (SELECT 1 FROM json_each(problems.json -> 'inputs') t WHERE t.value ->> 'dtype' = ? UNION "
            "SELECT 1 FROM json_each(problems.json -> 'outputs') t WHERE t.value ->> 'dtype' = ?)"
        )
        values += [dtype, dtype]
    if arch:
        where += " AND (a.device LIKE ? ESCAPE '\\' OR a.versions ->> 'arch' = ?)"
        values += [_part(arch), arch]
    for word in (bottleneck or "").split()[:10]:
        where += f" AND {PROFILED} LIKE ? ESCAPE '\\'"
        values.append(_part(word))
    return where, values


def _own(where: str, values: Sequence[Value]) -> tuple[str, list[Value]]:
    """Leave out attempts that the current user may not see."""
    seen, own = visibility_condition("a.attempt_id")
    return f"{where} AND {seen}", [*values, *own]


def _part(word: str) -> str:
    return "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def _alike(one: str, other: str) -> bool:
    return one == other or (len(other) >= 12 and other in one)


def _found(row: sqlite3.Row) -> FoundAttempt:
    outcome = "voided" if row["voided"] else row["verdict"] or row["status"]
    evidence: dict[str, Any] = json.loads(row["evidence"] or "{}")
    trust = trust_of(row["verdict"], row["voided"], evidence, timed=bool(row["timed"]))

    def short(name: str) -> str | None:
        return row[name][:SHOWN] if row[name] else None

    return FoundAttempt(
        attempt_id=row["attempt_id"], problem=row["problem"], outcome=outcome, speedup=row["speedup"],
        speedup_range=evidence.get("speedup_range"), trust=trust, device=row["device"], language=row["language"],
        idea=short("note"), reason=short("reason"), bottleneck=short("bottleneck"),
        source_artifact_id=row["source_artifact_id"],
    )  # fmt: skip
