"""Ids that problems had before: they stay valid wherever an id is taken."""

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import visibility_condition


async def current_problem_id(db: Database, problem_id: str) -> str:
    """Return the id that a problem has now; the given one, if it is no old one."""
    row = await db.fetch_one(
        "SELECT problem_id FROM problem_aliases WHERE alias = ? AND alias NOT IN (SELECT problem_id FROM problems)",
        (problem_id,),
    )
    return row["problem_id"] if row else problem_id


async def require_problem(db: Database, problem_id: str) -> str:
    """Return the id that a problem has now, which the current user may see.

    Raises:
        NotFound: If there is none.
    """
    current = await current_problem_id(db, problem_id)
    seen, values = visibility_condition("problem_id")
    sql = f"SELECT 1 FROM problems WHERE problem_id = ? AND {seen}"  # noqa: S608
    if await db.fetch_one(sql, (current, *values)) is None:
        raise NotFound("problem", problem_id, hint="list_problems shows those there are.")
    return current
