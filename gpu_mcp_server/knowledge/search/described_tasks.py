"""Entries by descriptions of what they are for: people ask in everyday words that no reference has.

That is document expansion (Nogueira et al., "Document Expansion by Query Prediction", 2019) with texts of our own:
a description leads to entries, and what is shown and quoted is the entry.
"""

import math
import sqlite3
from collections.abc import Mapping, Sequence, Set

from gpu_mcp_server.knowledge.search.edition_scope import Scope
from gpu_mcp_server.knowledge.search.ranking import RANK_OFFSET, words_of

LOOKED_AT = 30
"""Descriptions of each channel."""
SIMILAR = (0.35, 0.75)
"""Cosine from which a description counts, and from which it counts in full; 0.4 and 0.8 lost a tenth of paraphrases."""
COVERED = 0.6
"""Share of a question's words, weighted by rarity, from which a description counts in full."""
WORDS_ALONE, WORDS_BESIDE = 1.2, 0.5
"""Weight of shared words without and with meaning, which has 1, as the ranks found otherwise have."""
NEXT_NAME = 0.6
"""Factor from each name of a description to the next: 0.8 let three calls of one meaning fill the first places."""
KEPT, TOP = 2, 5
"""Entries ranked otherwise that stay among the first five: HIP's briefs gained two points of R@5."""

Scored = list[tuple[int, float]]
"""Descriptions, best first, each with how surely it is what was asked for, 0 to 1."""


def descriptions_by_words(db: sqlite3.Connection, query: str) -> Scored:
    """Return the descriptions that share most words with a question, rare ones counting more."""
    (count,) = db.execute("SELECT coalesce(max(id), 0) FROM description").fetchone()
    covered: dict[int, float] = {}
    total = 0.0
    for word in words_of(query):
        asked = '"' + word.replace('"', "") + '"'
        having = db.execute("SELECT rowid FROM description_words WHERE description_words MATCH ?", (asked,)).fetchall()
        rarity = math.log((count + 1) / (len(having) + 0.5))
        total += rarity
        for (number,) in having:
            covered[number] = covered.get(number, 0.0) + rarity
    best = sorted(covered.items(), key=lambda each: (-each[1], each[0]))[:LOOKED_AT]
    return [(number, min(1.0, gained / total / COVERED)) for number, gained in best]


def descriptions_by_meaning(near: Sequence[tuple[int, float]]) -> Scored:
    """Return the descriptions nearest in meaning, of pairs of description and cosine, best first."""
    least, full = SIMILAR
    return [(number, min(1.0, max(0.0, (cosine - least) / (full - least)))) for number, cosine in near[:LOOKED_AT]]


def score_described(
    db: sqlite3.Connection, words: Scored, meanings: Scored, scope: Scope, kinds: Set[str] = frozenset()
) -> dict[int, float]:
    """Return the entries that descriptions lead to, each with its score by reciprocal ranks.

    Args:
        db: The index.
        words: By shared words.
        meanings: By meaning, empty where there is none.
        scope: Editions to look in.
        kinds: Kinds of entries; otherwise all.
    """
    scores: dict[int, float] = {}
    entries = _entries(db, [number for number, _ in (*words, *meanings)], scope, kinds)
    for weight, found in ((WORDS_BESIDE if meanings else WORDS_ALONE, words), (1.0, meanings)):
        there = [(number, sure) for number, sure in found if number in entries]
        for rank, (number, sure) in enumerate(there, 1):
            scores[number] = scores.get(number, 0.0) + weight * sure / (RANK_OFFSET + rank)
    best: dict[int, float] = {}
    for number, score in scores.items():
        for entry, place in entries[number]:
            best[entry] = max(best.get(entry, 0.0), score * NEXT_NAME**place)
    return best


def _entries(
    db: sqlite3.Connection, numbers: Sequence[int], scope: Scope, kinds: Set[str]
) -> dict[int, list[tuple[int, int]]]:
    """Return the entries in scope of each description that has any, with the place of the name among those that are."""
    marks = ", ".join("?" * len(numbers))
    rows = db.execute(
        "SELECT d.description, d.place, d.entry, e.edition, e.kind FROM described d JOIN entry e ON e.id = d.entry "  # noqa: S608 - question marks
        f"WHERE d.description IN ({marks}) ORDER BY d.description, d.place, d.entry",
        tuple(numbers),
    )
    inside = {each.id for each in scope.editions}
    found: dict[int, list[tuple[int, int]]] = {}
    places: dict[int, list[int]] = {}
    for number, place, entry, edition, kind in rows:
        if edition in inside and (not kinds or kind in kinds):
            seen = places.setdefault(number, [])
            if place not in seen:
                seen.append(place)
            found.setdefault(number, []).append((entry, seen.index(place)))
    return found


def merge_described(ranked: Sequence[int], described: Mapping[int, float]) -> list[int]:
    """Return entries that were ranked otherwise and described ones in one order, by their reciprocal ranks.

    The first of those that were ranked otherwise stay among the first, as a description knows less than a text.
    """
    scores = {entry: 1 / (RANK_OFFSET + rank) for rank, entry in enumerate(ranked, 1)}
    for entry, score in described.items():
        scores[entry] = scores.get(entry, 0.0) + score
    order = sorted(scores, key=lambda entry: (-scores[entry], entry))
    kept = [entry for entry in ranked[:KEPT] if entry not in order[:TOP]]
    rest = [entry for entry in order if entry not in kept]
    place = TOP - len(kept)
    return [*rest[:place], *kept, *rest[place:]]
