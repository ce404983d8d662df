"""Lets others see what is one's own: the members of a project, or everybody."""

import json
import re

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.sharing import Audience, ShareResult
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import EVERYBODY, require_own, visibility_condition
from gpu_mcp_server.store.problem_aliases import current_problem_id

KINDS = {
    "w": ("workspaces", "workspace_id"),
    "j": ("jobs", "job_id"),
    "a": ("attempts", "attempt_id"),
    "b": ("artifacts", "artifact_id"),
    "p": ("problems", "problem_id"),
    "n": ("notes", "note_id"),
}
_ARTIFACT = re.compile(r"\bb-[0-9a-f]{16,64}\b")


class SharingService:
    """Says who sees a handle besides its owner."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def share(self, handle: str, audience: Audience) -> ShareResult:
        """Let others see what a handle names, and what is needed to make sense of it: or nobody any more.

        Raises:
            NotFound: If there is no such thing that the current user may see.
            BadRequest: If it is another's, or there is no project to share with.
        """
        handle = await current_problem_id(self._db, handle)
        table, column = KINDS.get(handle.partition("-")[0], ("", ""))
        seen, values = visibility_condition(column)
        sql = f"SELECT * FROM {table} WHERE {column} = ? AND {seen}"  # noqa: S608 - names of this module
        row = await self._db.fetch_one(sql, (handle, *values)) if table else None
        if row is None:
            raise NotFound("handle", handle, hint="Give a workspace, job, attempt, artifact, problem or note of yours.")
        await require_own(self._db, "handle", handle)
        project = current_user().project
        if audience == "project" and project is None:
            raise BadRequest("You are in no project.", hint="An admin can set one; or share it with everybody.")
        also = await self._also(table, json.dumps(dict(row), default=str))
        async with self._db.transaction():
            for each in (handle, *also):
                await self._db.execute("DELETE FROM shares WHERE handle = ?", (each,))
                if audience != "nobody":
                    to = EVERYBODY if audience == "everybody" else project
                    await self._db.execute("INSERT INTO shares (handle, project) VALUES (?, ?)", (each, to))
        by = f"project {project}" if audience == "project" else audience
        return ShareResult(handle=handle, seen_by=by, also=also)

    async def _also(self, table: str, text: str) -> list[str]:
        """Return what a row names that belongs to the current user too: an attempt's job, sources, evidence.

        Of a problem that is the current user's implementations.
        """
        if table == "problems":
            rows = await self._db.fetch_all(
                "SELECT handle FROM implementations WHERE problem_id = ?", (json.loads(text)["problem_id"],)
            )
            return [row["handle"] for row in rows if await self._is_ones_own(row["handle"])][:100]
        if table not in ("attempts", "jobs"):
            return []
        named = list(dict.fromkeys(_ARTIFACT.findall(text)))
        other = "job_id" if table == "attempts" else "attempt_id"
        found = json.loads(text).get(other)
        own = [each for each in (*named, found) if each and await self._is_ones_own(each)]
        return own[:100]

    async def _is_ones_own(self, handle: str) -> bool:
        sql = "SELECT 1 FROM owners WHERE handle = ? AND (owner = ? OR ?)"
        return await self._db.fetch_one(sql, (handle, current_user().name, int(current_user().sees_all))) is not None
