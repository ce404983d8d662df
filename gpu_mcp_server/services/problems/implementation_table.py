"""Known candidates of problems, by name: naive, triton, cute. They are their owners', and no part of the problem."""

import hashlib

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound
from gpu_mcp_server.models.problem import Implementation
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import claim, is_own, visibility_condition

MOST = 100
"""Implementations of one problem that one user keeps."""
MAX_NAME = 60


class Implementations:
    """Adds, replaces, removes and lists them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list_visible(self, problem_id: str) -> dict[str, Implementation]:
        """Return those of a problem that the current user may see; of two with one name their own."""
        seen, values = visibility_condition("implementations.handle")
        rows = await self._db.fetch_all(
            f"SELECT handle, name, json FROM implementations WHERE problem_id = ? AND {seen} ORDER BY seq",  # noqa: S608
            (problem_id, *values),
        )
        found: dict[str, Implementation] = {}
        for row in rows:
            if row["name"] not in found or row["handle"] == _handle(problem_id, row["name"]):
                found[row["name"]] = Implementation.model_validate_json(row["json"])
        return found

    async def put(self, problem_id: str, name: str, implementation: Implementation) -> bool:
        """Add an implementation, or replace the current user's own of this name; say whether one was replaced.

        Raises:
            BadRequest: If it cannot have this name.
            LimitExceeded: If there are too many.
        """
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable() or name == "all":
            raise BadRequest(
                f"{name[:MAX_NAME]!r} cannot name an implementation.",
                hint=f"1 to {MAX_NAME} printable characters, and not `all`.",
            )
        handle = _handle(problem_id, name)
        there = await self._db.fetch_one("SELECT 1 FROM implementations WHERE handle = ?", (handle,))
        if there is None and len(await self.list_visible(problem_id)) >= MOST:
            raise LimitExceeded(f"The problem has {MOST} implementations.", hint="Remove one first.")
        async with self._db.transaction():
            await self._db.execute(
                "INSERT INTO implementations (handle, problem_id, name, json) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (handle) DO UPDATE SET json = excluded.json",
                (handle, problem_id, name, implementation.model_dump_json()),
            )
            await claim(self._db, handle)
            if await is_own(self._db, problem_id):  # who sees the problem through its owner sees what comes with it
                await self._db.execute(
                    "INSERT INTO shares (handle, project) SELECT ?, project FROM shares WHERE handle = ? "
                    "ON CONFLICT DO NOTHING",
                    (handle, problem_id),
                )
        return there is not None

    async def remove(self, problem_id: str, name: str) -> None:
        """Remove the current user's own implementation of this name.

        Raises:
            NotFound: If they have none.
        """
        handle = _handle(problem_id, name)
        async with self._db.transaction():
            if not await self._db.execute("DELETE FROM implementations WHERE handle = ?", (handle,)):
                own = ", ".join(await self.list_visible(problem_id)) or "none"
                raise NotFound("implementation of yours", name, hint=f"The problem has {own}.")
            for table in ("owners", "shares"):
                await self._db.execute(f"DELETE FROM {table} WHERE handle = ?", (handle,))  # noqa: S608


def _handle(problem_id: str, name: str) -> str:
    user = current_user()
    return implementation_handle(problem_id, "" if user.is_local else user.name, name)


def implementation_handle(problem_id: str, owner: str, name: str) -> str:
    """Return the handle of an owner's implementation; the local user's has no owner's name."""
    return "i-" + hashlib.sha256("\0".join((problem_id, owner, name)).encode()).hexdigest()[:16]
