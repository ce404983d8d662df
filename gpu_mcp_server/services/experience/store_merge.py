"""Merges a private store into a team's: what was sent belongs to who sent it, and is judged nowhere by that."""

import json
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Literal, TypeVar

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import DERIVED, Attempt
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.store_merge import MOST, Merged, SentNote, StoreExport
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.problems.problem_identity import is_what_its_id_says, name_by_content
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database, Value
from gpu_mcp_server.store.ownership import claim, visibility_condition
from gpu_mcp_server.store.problem_aliases import current_problem_id

T = TypeVar("T")

ATTEMPT_ID = re.compile(r"a-[0-9a-v]{14}")
ARTIFACT = re.compile(r"\bb-[0-9a-f]{16,64}\b")
NOT_JUDGED_HERE = "judged on another server, by {}'s word; evaluate its source here for a verdict that counts"
SAME = "Push with the version of gpu-mcp-server that the team's server has."
PART = 100
"""Attempts that travel at once."""


class Merging:
    """Gives the store's memory in parts, and takes those of others."""

    def __init__(self, db: Database, artifacts: Artifacts) -> None:
        self._db, self._artifacts = db, artifacts
        self._problems, self._experience = Problems(db), AttemptStore(db)

    async def parts(self) -> AsyncGenerator[StoreExport]:
        """Return problems, then ended attempts at them, oldest first, then notes."""
        rows = await self._db.fetch_all("SELECT problem_id FROM problems ORDER BY seq")
        for some in _chunks([await self._problems.get(row["problem_id"]) for row in rows], PART):
            yield StoreExport(problems=some)
        rows = await self._db.fetch_all(
            "SELECT attempt_id FROM attempts WHERE problem_id IS NOT NULL AND status != 'running' ORDER BY seq"
        )
        for some in _chunks([row["attempt_id"] for row in rows], PART):
            yield StoreExport(attempts=[await self._experience.get(each) for each in some])
        rows = await self._db.fetch_all(
            "SELECT note_id, created_at, attempt_id, problem_id, text FROM notes ORDER BY seq"
        )
        for some in _chunks([SentNote(**dict(row)) for row in rows], MOST):
            yield StoreExport(notes=some)

    async def take(self, bundle: StoreExport) -> Merged:
        """Keep a part for the current user; what is here already stays as it is.

        Raises:
            BadRequest: If a problem is not what its id says, or an id is none.
        """
        for problem in bundle.problems:
            if not is_what_its_id_says(problem):
                raise BadRequest(f"Problem {problem.problem_id} is not what its id says.", hint=SAME)
        new = [await self._take_problem(problem) for problem in bundle.problems]
        attempts = [attempt for attempt in bundle.attempts if await self._take_attempt(attempt)]
        notes = [note for note in bundle.notes if await self._take_note(note)]
        sent = len(bundle.attempts) + len(bundle.notes)
        return Merged(
            problems=new.count("new"),
            attempts=len(attempts),
            notes=len(notes),
            left_out=sent - len(attempts) - len(notes),
            wanted=await self._wanted(bundle.attempts),
        )

    async def take_artifact(self, artifact_id: str, content: bytes, name: str) -> None:
        """Keep an artifact for the current user.

        Raises:
            BadRequest: If it is not what its id says.
        """
        kept = await self._artifacts.put(content, name=name[:200])
        if kept != artifact_id:
            raise BadRequest(f"This is artifact {kept}, not {artifact_id}.", hint=SAME)

    async def _take_problem(self, sent: Problem) -> Literal["new", "already"]:
        """Keep a problem; one that an older version named is kept under its id of today, and its own is an alias."""
        problem = name_by_content(sent)
        if problem.problem_id != sent.problem_id:
            await self._db.execute(
                "INSERT INTO problem_aliases (alias, problem_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (sent.problem_id, problem.problem_id),
            )
        return await self._problems.add(problem)

    async def _renamed(self, attempt: Attempt) -> Attempt:
        """Return an attempt with its problem's id and hash of today."""
        if attempt.problem_id is None:
            return attempt
        current = await current_problem_id(self._db, attempt.problem_id)
        if current == attempt.problem_id:
            return attempt
        row = await self._db.fetch_one("SELECT content_hash FROM problems WHERE problem_id = ?", (current,))
        return attempt.model_copy(
            update={"problem_id": current, "problem_hash": row["content_hash"] if row else attempt.problem_hash}
        )

    async def _take_attempt(self, attempt: Attempt) -> bool:
        if not ATTEMPT_ID.fullmatch(attempt.attempt_id):
            raise BadRequest(f"{attempt.attempt_id!r} is no attempt's id.", hint=SAME)
        if attempt.problem_id is None or attempt.status == "running":
            return False
        attempt = await self._renamed(attempt)
        if await self._seen("problems", "problem_id", attempt.problem_id) is None:
            return False
        user = current_user()
        voided = attempt.voided or (None if user.sees_all else NOT_JUDGED_HERE.format(user.name))
        values = {**attempt.model_dump(mode="json", exclude=set(DERIVED)), "voided": voided, "job_id": None}
        return await self._insert("attempts", attempt.attempt_id, values)

    async def _take_note(self, note: SentNote) -> bool:
        about = await current_problem_id(self._db, note.problem_id) if note.problem_id else None
        seen = {
            "problem_id": await self._seen("problems", "problem_id", about),
            "attempt_id": await self._seen("attempts", "attempt_id", note.attempt_id),
        }
        return await self._insert("notes", note.note_id, {**note.model_dump(mode="json"), **seen})

    async def _seen(self, table: str, column: str, handle: str | None) -> str | None:
        """Return a handle if the current user may see what it names."""
        seen, values = visibility_condition(column)
        sql = f"SELECT 1 FROM {table} WHERE {column} = ? AND {seen}"  # noqa: S608 - names of this module
        return handle if await self._db.fetch_one(sql, (handle, *values)) is not None else None

    async def _insert(self, table: str, handle: str, values: dict[str, Any]) -> bool:
        """Add a row and claim it; one that is there already is nobody's by being sent again."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        row: list[Value] = [json.dumps(v) if isinstance(v, dict) else v for v in values.values()]
        async with self._db.transaction():
            new = await self._db.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608 - fields of models
                row,
            )
            if new == 1:
                await claim(self._db, handle)
        return new == 1

    async def _wanted(self, attempts: Iterable[Attempt]) -> list[str]:
        named = dict.fromkeys(each for a in attempts for each in ARTIFACT.findall(a.model_dump_json()))
        return [each for each in named if await self._seen("artifacts", "artifact_id", each) is None]


def _chunks(items: Sequence[T], size: int) -> Iterable[list[T]]:
    return (list(items[i : i + size]) for i in range(0, len(items), size))
