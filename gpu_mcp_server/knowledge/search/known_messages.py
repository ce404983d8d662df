"""Messages that our texts explain, found in what a person pastes."""

import re
import sqlite3
from collections.abc import Sequence

from gpu_mcp_server.knowledge.search.edition_scope import Scope

MESSAGES = "messages"
"""Library of the texts that explain messages."""
HOLE = "…"
"""Mark for the part of a message that varies."""
MOST_FOUND = 2
_PLAIN = re.compile(r"[^a-z0-9]+")


class KnownMessages:
    """The messages that are explained in an index."""

    def __init__(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT e.id, e.edition, e.title FROM entry e JOIN edition d ON d.id = e.edition WHERE d.library = ?",
            (MESSAGES,),
        )
        known = [(entry, edition, parts_of_message(title)) for entry, edition, title in rows]
        self._known = sorted(known, key=lambda each: -sum(map(len, each[2])))

    def find_entries(self, query: str, scope: Scope) -> list[int]:
        """Return the entries of messages whose every fixed part stands in a text, the longest messages first."""
        text = f" {plain_words(query)} "
        found = [
            entry
            for entry, edition, parts in self._known
            if parts and all(part in text for part in parts) and scope.holds(edition)
        ]
        return found[:MOST_FOUND]


def plain_words(text: str) -> str:
    """Return a text in lower case without marks, one space between words."""
    return " ".join(_PLAIN.sub(" ", text.lower()).split())


def parts_of_message(message: str) -> Sequence[str]:
    """Return the fixed parts of a message as plain words; a space at an end tells that a word ends there.

    "cannot find -l…" goes on within a word, so it has " cannot find l", and "a … b" has " a " and " b ".
    """
    parts: list[str] = []
    pieces = message.split(HOLE)
    for place, piece in enumerate(pieces):
        words = plain_words(piece)
        if words:
            begins = " " if place == 0 or not piece[0].isalnum() else ""
            ends = " " if place == len(pieces) - 1 or not piece[-1].isalnum() else ""
            parts.append(f"{begins}{words}{ends}")
    return parts
