"""Score entries that the found sections name, too: people ask in a guide's words, not in a header's."""

import math
import sqlite3
import zlib
from collections.abc import Mapping, Sequence

from gpu_mcp_server.knowledge.index.identifiers import IDENTIFIER, compound, normalize_name
from gpu_mcp_server.knowledge.readers.entries import API_KINDS, SECTION_KINDS
from gpu_mcp_server.knowledge.search.edition_scope import Scope

LOOKED_AT = 20
"""Entries, best first, among which sections are read."""
SECTIONS = 6
"""Sections that are read."""
NAMES = 40
"""Entries that one section names, the first ones."""
READ_CHARS = 12_000
"""Of a section."""
BEHIND = 0.999
"""Of its section's score that an entry reaches by being named: it stands after the section, not before it."""


def cited_entries(db: sqlite3.Connection, ranked: Sequence[int], scope: Scope) -> dict[int, list[int]]:
    """Return the first sections among `ranked`, each with the entries that it names, in their order."""
    asked = tuple(ranked[:LOOKED_AT])
    marks, kinds = ", ".join("?" * len(asked)), ", ".join(f"'{kind}'" for kind in SECTION_KINDS)
    rows = db.execute(f"SELECT id, body FROM entry WHERE id IN ({marks}) AND kind IN ({kinds})", asked)  # noqa: S608
    bodies: dict[int, bytes] = dict(rows.fetchall())
    found: dict[int, list[int]] = {}
    for section in [entry for entry in asked if entry in bodies][:SECTIONS]:
        text = zlib.decompress(bodies[section]).decode()[:READ_CHARS]
        names = [word for word in dict.fromkeys(IDENTIFIER.findall(text)) if compound(word)]
        found[section] = _entries(db, names, scope)[:NAMES]
    return found


def _entries(db: sqlite3.Connection, names: Sequence[str], scope: Scope) -> list[int]:
    """Return the entries of names, in their order, each once; of several entries of a name the first."""
    if not names:
        return []
    known: dict[str, int] = {}
    asked = [(normalize_name(name), name) for name in names[: 8 * NAMES]]
    marks, kinds = ", ".join("(?, ?)" for _ in asked), ", ".join(f"'{kind}'" for kind in API_KINDS)
    rows = db.execute(
        f"WITH asked (norm, name) AS (VALUES {marks}) "  # noqa: S608 - question marks
        "SELECT s.name, s.entry, e.edition FROM asked a JOIN symbol s ON s.norm = a.norm AND s.name = a.name "
        f"JOIN entry e ON e.id = s.entry WHERE s.place = 0 AND e.kind IN ({kinds}) ORDER BY s.entry",
        [value for pair in asked for value in pair],
    )
    for name, entry, edition in rows:
        if scope.holds(edition):
            known.setdefault(name, entry)
    return list(dict.fromkeys(known[name] for name in names if name in known))


def add_citation_scores(scores: Mapping[int, float], named: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Return scores to which each section added its own for what it names, less for each the more that is.

    Args:
        scores: Of all entries found.
        named: Sections, each with the entries that it names.
    """
    gains: dict[int, float] = {}
    most: dict[int, float] = {}
    for section, entries in named.items():
        for entry in entries:
            gains[entry] = gains.get(entry, 0.0) + scores[section] / math.sqrt(len(entries))
            most[entry] = max(most.get(entry, 0.0), scores[section] * BEHIND)
    raised = {e: max(scores.get(e, 0.0), min(scores.get(e, 0.0) + gain, most[e])) for e, gain in gains.items()}
    return {**scores, **raised}
