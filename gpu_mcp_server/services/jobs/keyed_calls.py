"""Calls with a key of their client's, by which the same call is known when it comes again after its line was lost."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.store.database import Database

KEPT = timedelta(days=1)
"""So long a call can come again."""


@dataclass(frozen=True)
class KeyedCall:
    """Job and outcome of a call with a key, as far as known."""

    job_id: str | None
    """That does its work, if it got so far."""
    outcome: dict[str, Any] | None
    """What it was answered."""


class KeyedCallTable:
    """The calls of every server that shares the database; each user has keys of their own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def begin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> KeyedCall:
        """Note a call and return what is known of it.

        Raises:
            BadRequest: If the key was used for another call.
        """
        content = _digest(tool, json.dumps(arguments, sort_keys=True))
        now = datetime.now(UTC)
        await self._db.execute("DELETE FROM keyed_calls WHERE created_at < ?", ((now - KEPT).isoformat(),))
        sql = "INSERT INTO keyed_calls VALUES (?, ?, ?, NULL, NULL) ON CONFLICT DO NOTHING"
        if await self._db.execute(sql, (_named(key), content, now.isoformat())):
            return KeyedCall(None, None)
        row = await self._db.fetch_one("SELECT * FROM keyed_calls WHERE call_key = ?", (_named(key),))
        if row is None or row["content"] != content:
            raise BadRequest("This Idempotency-Key was another call's.", hint="Make a new key for each call.")
        return KeyedCall(row["job_id"], json.loads(row["outcome"]) if row["outcome"] else None)

    async def note_job(self, key: str, job_id: str) -> None:
        """Note the job that will do a call's work, before it exists."""
        await self._db.execute("UPDATE keyed_calls SET job_id = ? WHERE call_key = ?", (job_id, _named(key)))

    async def finish(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Keep the answer of a call."""
        sql = "UPDATE keyed_calls SET outcome = ? WHERE call_key = ?"
        await self._db.execute(sql, (json.dumps(outcome), _named(key)))

    async def forget(self, key: str) -> None:
        """Let a call begin anew when it comes again: it did not happen."""
        await self._db.execute("DELETE FROM keyed_calls WHERE call_key = ?", (_named(key),))


def _named(key: str) -> str:
    return _digest(current_user().name, key)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
