"""Events between servers on one store: something that clients may have subscribed to has changed."""

from dataclasses import dataclass
from typing import Literal

from gpu_mcp_server.store.database import Database

Kind = Literal["resource", "tools"]
KEPT = 10_000
"""Events; who has not read one until then has missed it, as a client that was away has."""


@dataclass(frozen=True)
class StoreEvent:
    """One change."""

    seq: int
    kind: Kind
    uri: str | None
    """Of the resource; absent for lists."""


class Events:
    """The events of every server that shares the database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def publish(self, kind: Kind, uri: str | None = None) -> None:
        """Tell every server, this one too."""
        await self._db.execute_all(
            [
                ("INSERT INTO events (kind, uri) VALUES (?, ?)", (kind, uri)),
                ("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", (KEPT,)),
            ]
        )

    async def last(self) -> int:
        """Return the number of the newest event, 0 if there is none."""
        row = await self._db.fetch_one("SELECT coalesce(max(seq), 0) AS seq FROM events")
        return row["seq"] if row else 0

    async def since(self, seq: int) -> list[StoreEvent]:
        """Return what came after an event, in order."""
        rows = await self._db.fetch_all("SELECT seq, kind, uri FROM events WHERE seq > ? ORDER BY seq", (seq,))
        return [StoreEvent(**dict(row)) for row in rows]
