"""Tasks: calls that were answered by the id of their job, and how they ended. Every server on the store can tell."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.jobs.server_liveness import ServerLiveness
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import is_own, visibility_condition

Status = Literal["working", "completed", "failed", "cancelled"]


COLUMNS = ("task_id", "tool", "owner", "created_at", "updated_at", "status")


@dataclass(frozen=True)
class TaskRow:
    """One task; its id is its job's."""

    task_id: str
    tool: str
    owner: str
    """The server that waits for its job."""
    created_at: str
    """ISO 8601, UTC, as the next."""
    updated_at: str
    status: Status
    outcome: dict[str, Any] | None
    """The tool's result where it is completed, the protocol's error where it failed."""


class TaskTable:
    """The tasks of every server that shares the database."""

    def __init__(self, db: Database, owner: ServerLiveness) -> None:
        self._db, self._owner = db, owner

    async def add(self, task_id: str, tool: str) -> TaskRow:
        """Note a task that this server looks after."""
        now = _now()
        row = TaskRow(task_id, tool, self._owner.register(), now, now, "working", None)
        await self._db.execute(
            "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, 'working', NULL)", (task_id, tool, row.owner, now, now)
        )
        return row

    async def get(self, task_id: str) -> TaskRow:
        """Return a task.

        Raises:
            NotFound: If no task has this id, or it is not for the current user to see.
        """
        seen, values = visibility_condition("task_id")
        query = f"SELECT * FROM tasks WHERE task_id = ? AND {seen}"  # noqa: S608 - a condition of ours
        row = await self._db.fetch_one(query, (task_id, *values))
        if row is None:
            raise NotFound("task", task_id)
        return _task(row)

    async def finish(self, task_id: str, status: Status, outcome: Mapping[str, Any] | None = None) -> bool:
        """Note how a task ended; `False` if that is known already, which then stays."""
        kept = json.dumps(outcome) if outcome is not None else None
        return await self._db.execute(
            "UPDATE tasks SET status = ?, outcome = ?, updated_at = ? WHERE task_id = ? AND status = 'working'",
            (status, kept, _now(), task_id),
        ) == 1  # fmt: skip

    async def is_own(self, task_id: str) -> bool:
        """Say whether the current user may end a task."""
        return current_user().may("run") and await is_own(self._db, task_id)

    def is_orphan(self, row: TaskRow) -> bool:
        """Say whether the server that waited for the task's job is no more."""
        return row.owner != self._owner.register() and not self._owner.is_alive(row.owner)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _task(row: sqlite3.Row) -> TaskRow:
    outcome = json.loads(row["outcome"]) if row["outcome"] else None
    return TaskRow(**{name: row[name] for name in COLUMNS}, outcome=outcome)
