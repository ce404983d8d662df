"""The users of a shared server."""

import json
import re
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.user import LOCAL, NAME, Quotas, Scope, User
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.events import Events

COLUMNS = ("weight", "toolsets", "project", "sharing", "quotas", "webhook")


class Users:
    """Users of the server, and the settings of each."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(self, name: str, **changes: Any) -> None:
        """Make a user, or change what is given of one: weight, toolsets, project, sharing, quotas, webhook.

        Raises:
            BadRequest: If a name cannot be one, or a value is out of range.
        """
        if not re.fullmatch(NAME, name) or name == LOCAL.name:
            raise BadRequest(
                f"{name!r} cannot be a user's name.",
                hint=f"Letters, digits and ._@- up to 64; {LOCAL.name!r} is the user that starts the program.",
            )
        given = {key: value for key, value in changes.items() if value is not None}
        if given.get("weight", 1.0) <= 0:
            raise BadRequest(f"weight is {given['weight']}.", hint="Give more than 0; 1 is usual.")
        if not re.fullmatch(NAME, given.get("project", "p")):
            raise BadRequest(f"{given['project']!r} cannot be a project's name.", hint="Letters, digits and ._@-.")
        if "toolsets" in given:
            given["toolsets"] = json.dumps(list(given["toolsets"]))
        if "quotas" in given:
            given["quotas"] = Quotas.model_validate(given["quotas"]).model_dump_json(exclude_none=True)
        if not re.fullmatch(r"https?://\S+", given.get("webhook", "http://x")):
            raise BadRequest(f"{given['webhook']!r} is no http or https address.", hint="Say where to POST to.")
        async with self._db.transaction():
            await self._db.execute(
                "INSERT INTO users (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (name, datetime.now(UTC).isoformat()),
            )
            for column in COLUMNS:
                if column in given:
                    await self._db.execute(
                        f"UPDATE users SET {column} = ? WHERE name = ?",  # noqa: S608 - names of this module
                        (given[column], name),
                    )
            if "webhook" in given:  # it is told of what ends from now on
                await self._db.execute(
                    "INSERT INTO webhook_deliveries (job_id, at, outcome) SELECT job_id, ?, 'before' FROM owners "
                    "JOIN jobs ON job_id = handle WHERE owner = ? AND record IS NOT NULL ON CONFLICT DO NOTHING",
                    (datetime.now(UTC).isoformat(), name),
                )
            if "toolsets" in given:
                await Events(self._db).publish("tools")

    async def get(self, name: str) -> User:
        """Return a user, with every scope.

        Raises:
            NotFound: If there is none of that name.
        """
        row = await self._db.fetch_one("SELECT * FROM users WHERE name = ?", (name,))
        if row is None:
            raise NotFound("user", name, hint="gpu-mcp-server token list shows the users.")
        return user_of(row)

    async def worker(self, name: str) -> User:
        """Return a user as whoever works for them without a token: they see what is theirs, not everything.

        Raises:
            NotFound: If there is none of that name.
        """
        return (await self.get(name)).model_copy(update={"scopes": ("run",)})

    async def names(self) -> Sequence[str]:
        """Return all names, in order."""
        return [row["name"] for row in await self._db.fetch_all("SELECT name FROM users ORDER BY name")]


def user_of(
    row: sqlite3.Row, scopes: Sequence[Scope] = ("admin",), token_id: str | None = None, expires_at: str | None = None
) -> User:
    """Return the user that a row of the table describes."""
    toolsets = json.loads(row["toolsets"]) if row["toolsets"] else None
    return User(
        name=row["name"],
        scopes=tuple(scopes),
        weight=row["weight"],
        toolsets=tuple(toolsets) if toolsets is not None else None,
        project=row["project"],
        quotas=Quotas.model_validate_json(row["quotas"]),
        token_id=token_id,
        expires_at=expires_at,
    )
