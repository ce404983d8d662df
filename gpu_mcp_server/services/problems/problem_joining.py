"""Gives problems that an earlier rule named their ids of today, and joins the histories of those that are one."""

from pydantic import ValidationError

from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.implementation_table import implementation_handle
from gpu_mcp_server.services.problems.problem_identity import RULE, name_by_content
from gpu_mcp_server.store.database import Database


async def join_renamed_problems(db: Database) -> int:
    """Rename what an earlier version registered; return how many got another id.

    The oldest of several that are one keeps its name and description. Attempts, notes, owners and shares move to it,
    and each old id becomes an alias.
    """
    renamed = 0
    for row in await db.fetch_all("SELECT problem_id, json FROM problems WHERE rule < ? ORDER BY seq", (RULE,)):
        try:
            problem = Problem.model_validate_json(row["json"])
        except ValidationError:  # it cannot be judged by any version of ours: it stays as it is
            continue
        async with db.transaction():
            renamed += await _rename(db, problem)
    return renamed


async def _rename(db: Database, old: Problem) -> bool:
    new = name_by_content(old.model_copy(update={"implementations": {}}))
    if await db.fetch_one("SELECT 1 FROM problems WHERE problem_id = ? AND rule < ?", (old.problem_id, RULE)) is None:
        return False  # another process was first
    there = await db.fetch_one("SELECT rule FROM problems WHERE problem_id = ?", (new.problem_id,))
    if there is not None and new.problem_id != old.problem_id:
        await db.execute("DELETE FROM problems WHERE problem_id = ?", (old.problem_id,))
    else:
        await db.execute(
            "UPDATE problems SET problem_id = ?, content_hash = ?, json = ?, rule = ? WHERE problem_id = ?",
            (new.problem_id, new.content_hash, new.model_dump_json(), RULE, old.problem_id),
        )
    await _move_implementations(db, old, new.problem_id)
    await _move_history(db, old, new)
    return new.problem_id != old.problem_id


async def _move_history(db: Database, old: Problem, new: Problem) -> None:
    await db.execute(
        "UPDATE attempts SET problem_id = ?, problem_hash = iif(problem_hash = ?, ?, problem_hash) "
        "WHERE problem_id = ?",
        (new.problem_id, old.content_hash, new.content_hash, old.problem_id),
    )
    if new.problem_id == old.problem_id:
        return
    await db.execute("UPDATE notes SET problem_id = ? WHERE problem_id = ?", (new.problem_id, old.problem_id))
    for table, column in (("owners", "owner"), ("shares", "project")):
        await db.execute(
            f"INSERT INTO {table} (handle, {column}) SELECT ?, {column} FROM {table} "  # noqa: S608
            "WHERE handle = ? ON CONFLICT DO NOTHING",
            (new.problem_id, old.problem_id),
        )
        await db.execute(f"DELETE FROM {table} WHERE handle = ?", (old.problem_id,))  # noqa: S608
    await db.execute(
        "INSERT INTO problem_aliases (alias, problem_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (old.problem_id, new.problem_id),
    )


async def _move_implementations(db: Database, old: Problem, problem_id: str) -> None:
    """Give what lay in the problem to its owners, and to those that the problem was shared with."""
    owned = await db.fetch_all("SELECT owner FROM owners WHERE handle = ?", (old.problem_id,))
    for owner in [row["owner"] for row in owned] or [""]:
        for name, implementation in old.implementations.items():
            handle = implementation_handle(problem_id, owner, name)
            await db.execute(
                "INSERT INTO implementations (handle, problem_id, name, json) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (handle, problem_id, name, implementation.model_dump_json()),
            )
            if owner:
                await db.execute(
                    "INSERT INTO owners (handle, owner) VALUES (?, ?) ON CONFLICT DO NOTHING", (handle, owner)
                )
            await db.execute(
                "INSERT INTO shares (handle, project) SELECT ?, project FROM shares WHERE handle = ? "
                "ON CONFLICT DO NOTHING",
                (handle, old.problem_id),
            )
