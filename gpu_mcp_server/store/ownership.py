"""Ownership and visibility of handles: one rule for workspaces, jobs, attempts, artifacts, problems and notes."""

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.store.database import Database, Value

EVERYBODY = "*"
"""The project that everybody is a member of."""


async def claim(db: Database, handle: str) -> None:
    """Note that a handle belongs to the current user; what the local user makes needs no note."""
    user = current_user()
    if not user.is_local:
        await db.execute("INSERT INTO owners (handle, owner) VALUES (?, ?) ON CONFLICT DO NOTHING", (handle, user.name))


def visibility_condition(column: str) -> tuple[str, tuple[Value, ...]]:
    """Return an SQL condition with its values: whether the current user may see the handle in a column.

    They own it, or it is shared with their project or with everybody, or a member of their project who shares
    everything owns it.
    """
    user = current_user()
    if user.sees_all:
        return "1", ()
    members = "SELECT name FROM users WHERE sharing AND project = ?"
    owned = f"SELECT 1 FROM owners WHERE handle = {column} AND (owner = ? OR owner IN ({members}))"  # noqa: S608
    shared = f"SELECT 1 FROM shares WHERE handle = {column} AND project IN (?, '{EVERYBODY}')"  # noqa: S608
    return f"(EXISTS ({owned}) OR EXISTS ({shared}))", (user.name, user.project, user.project)


async def is_own(db: Database, handle: str) -> bool:
    """Say whether the current user may change what a handle names: it is theirs, or they see everything."""
    user = current_user()
    if user.sees_all:
        return True
    row = await db.fetch_one("SELECT 1 FROM owners WHERE handle = ? AND owner = ?", (handle, user.name))
    return row is not None


async def require_own(db: Database, what: str, handle: str) -> None:
    """Let only the owner go on, or who sees everything.

    Raises:
        BadRequest: If it is shared with the current user, and another's.
    """
    if not await is_own(db, handle):
        raise BadRequest(
            f"The {what} {handle!r} is shared with you and is {await owner_of(db, handle) or 'the server'}'s: you may "
            "read it, not change it.",
            hint="Make one of your own, or ask its owner.",
        )


async def owner_of(db: Database, handle: str) -> str | None:
    """Return who brought something first in alphabetical order; None if it is the local user's."""
    row = await db.fetch_one("SELECT min(owner) AS owner FROM owners WHERE handle = ?", (handle,))
    return row["owner"] if row else None
