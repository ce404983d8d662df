"""Answering a question: names first, then words and meaning fused, duplicates collapsed.

Plain fusion ruins exact look-ups (R@1 .95 to .68 when measured), so entries whose name was asked for stand first.
"""

import re
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpu_mcp_server.knowledge.identifiers import STOPWORDS, split, tokens
from gpu_mcp_server.knowledge.scope import EditionRow, Scope
from gpu_mcp_server.knowledge.symbols import Symbols

WEIGHTS = (6.0, 4.0, 2.0, 1.0, 3.0, 2.0)
"""Of names, title, signature, text, taken-apart names and first sentence in bm25."""
CANDIDATES = 60
"""Pieces of each channel that are fused."""
RANK_OFFSET = 60
"""Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion", SIGIR 2009."""
DENSE_WEIGHT = 0.7
"""Of meaning against words; measured: equal or better on every set of questions but one."""
SAME_FILE = 3
"""Hits from one file."""
SURE = 0.80
"""Similarity from which a misspelt name is taken to mean the nearest one."""
QUERY_CHARS = 2_000
"""Of a question that are looked at."""
QUERY_WORDS = 64

GROUPS = {
    "api": ("function", "type", "enum", "enumerator", "macro", "instruction"),
    "guide": ("guide",),
    "example": ("example",),
    "error": ("error", "enumerator"),
    "env": ("env",),
}
"""What an agent calls a kind, and what it means here."""

SYNONYMS = {
    "gpu": ("device",), "cpu": ("host",), "pinned": ("page-locked",), "warp": ("wavefront",), "wavefront": ("warp",),
    "lds": ("shared",), "gpus": ("devices",), "memcpy": ("copy",), "hang": ("deadlock",), "hangs": ("deadlock",),
    "smem": ("shared",), "ptx": ("instruction",), "sm": ("multiprocessor",), "sms": ("multiprocessors",),
}  # fmt: skip
"""Words for one thing on both sides of the field. Small on purpose: a large one raised only our own questions."""

Dense = Callable[[str, int], Sequence[int]]
"""Returns the pieces nearest in meaning to a question, best first, at most so many."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that answers."""

    entry: int
    uri: str
    kind: str
    name: str
    title: str
    signature: str
    summary: str
    place: str
    edition: EditionRow
    match: str
    """`symbol`, `code`, `similar`, `words` or `meaning`: why it is here."""
    also: tuple[str, ...] = ()
    """Other entries of the same name."""


@dataclass(frozen=True)
class Answer:
    """What was found."""

    hits: list[Hit] = field(default_factory=list[Hit])
    did_you_mean: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


class Search:
    """Questions to one index."""

    def __init__(self, db: sqlite3.Connection, editions: Sequence[EditionRow]) -> None:
        self._db = db
        self._editions = {each.id: each for each in editions}
        self.symbols = Symbols(db)

    def find(
        self, query: str, scope: Scope, *, kinds: Sequence[str] = (), limit: int = 5, dense: Dense | None = None
    ) -> Answer:
        """Return the best entries for a question.

        Args:
            query: Name, misspelt name, question, error code, or a message.
            scope: Editions to look in.
            kinds: Kinds of entries; otherwise all.
            limit: Most hits.
            dense: The channel of meaning, if it can be had.
        """
        query = query[:QUERY_CHARS]
        named, _, missed = self.symbols.named(query, scope)
        coded = self.symbols.coded(query, scope)
        suggestions, similar, notes = self._of_missed(missed, scope, bool(named))
        first = dict.fromkeys(coded, "code") | dict.fromkeys(named, "symbol") | dict.fromkeys(similar, "similar")
        ranked = self._fused(query, scope, dense, 2 * CANDIDATES)
        order = [*first, *(entry for entry in ranked if entry not in first)]
        hits = self._hits(order, {**ranked, **first}, kinds, limit)
        return Answer(hits, suggestions, [*scope.notes, *notes])

    def _of_missed(self, missed: Sequence[str], scope: Scope, found: bool) -> tuple[list[str], list[int], list[str]]:
        """Return for names that are not there: what they may have meant, entries that are surely meant, notes."""
        suggestions: list[str] = []
        similar: list[int] = []
        notes: list[str] = []
        for name in missed[:2]:
            versions = [self._editions[e] for e in self.symbols.elsewhere(name, scope)]
            if versions:
                there = ", ".join(f"{e.library} {e.version}" for e in versions[:3])
                here = next((e.version for e in scope.editions if e.source == versions[0].source), "the version here")
                notes.append(f"{name} exists in {there}, not in {here}.")
            near = self.symbols.alike(name, scope)
            suggestions += [other for other, _, _ in near if other not in suggestions]
            if not found:
                similar += [entry for _, entry, likeness in near[:2] if likeness >= SURE]
        return suggestions[:5], similar, notes

    def _fused(self, query: str, scope: Scope, dense: Dense | None, limit: int) -> dict[int, str]:
        """Return entries by fused rank, each with the channel that ranked it best."""
        channels = [("words", 1.0, self.by_words(query, scope, CANDIDATES))]
        if dense is not None:
            ranges = scope.ranges()
            near = [p for p in dense(query, CANDIDATES) if any(a <= p <= b for a, b in ranges)]
            channels.append(("meaning", DENSE_WEIGHT, near))
        scores: dict[int, float] = {}
        best: dict[int, tuple[float, str]] = {}
        for name, weight, pieces in channels:
            for rank, piece in enumerate(pieces, 1):
                score = weight / (RANK_OFFSET + rank)
                scores[piece] = scores.get(piece, 0.0) + score
                if score > best.get(piece, (0.0, ""))[0]:
                    best[piece] = (score, name)
        order = sorted(scores, key=lambda piece: (-scores[piece], piece))[:limit]
        found: dict[int, str] = {}
        for piece, entry in self._entries_of(order):
            found.setdefault(entry, best[piece][1])
        return found

    def _entries_of(self, pieces: Sequence[int]) -> list[tuple[int, int]]:
        marks = ", ".join("?" * len(pieces))
        rows = self._db.execute(f"SELECT id, entry FROM piece WHERE id IN ({marks})", tuple(pieces))  # noqa: S608
        entries = dict(rows.fetchall())
        return [(piece, entries[piece]) for piece in pieces if piece in entries]

    def by_words(self, query: str, scope: Scope, limit: int) -> list[int]:
        """Return the pieces that share words with a question, by bm25."""
        wanted = words_of(query)
        ranges = scope.ranges()
        if not wanted or not ranges:
            return []
        expression = " OR ".join('"' + word.replace('"', "") + '"' for word in wanted)
        inside = " OR ".join("rowid BETWEEN ? AND ?" for _ in ranges)
        weights = ", ".join(map(str, WEIGHTS))
        rows = self._db.execute(
            f"SELECT rowid, bm25(words, {weights}) AS score FROM words WHERE words MATCH ? AND ({inside}) "  # noqa: S608
            "ORDER BY score LIMIT ?",
            (expression, *(bound for pair in ranges for bound in pair), limit),
        )
        return [row[0] for row in rows]

    def _hits(self, order: Sequence[int], why: dict[int, str], kinds: Sequence[str], limit: int) -> list[Hit]:
        rows = self._rows(order)
        allowed = {kind for group in kinds for kind in GROUPS.get(group, (group,))}
        hits: list[Hit] = []
        names: dict[tuple[str, str], int] = {}
        files: dict[tuple[int, str], int] = {}
        for number in order:
            row = rows.get(number)
            if row is None or (allowed and row[1] not in allowed):
                continue
            uri, kind, name, title, signature, summary, place, edition_id = row
            edition = self._editions[edition_id]
            same = (name.lower() if kind not in ("guide", "example") else uri, edition.family)
            if same in names:
                elder = hits[names[same]]
                hits[names[same]] = _with_also(elder, uri)
                continue
            file = (edition_id, place)
            sure = why[number] in ("symbol", "code", "similar")
            if len(hits) >= limit or (not sure and files.get(file, 0) >= SAME_FILE and kind in ("guide", "example")):
                continue
            files[file] = files.get(file, 0) + 1
            names[same] = len(hits)
            hits.append(Hit(number, uri, kind, name, title, signature, summary, place, edition, why[number]))
        return hits

    def _rows(self, entries: Sequence[int]) -> dict[int, tuple[str, str, str, str, str, str, str, int]]:
        marks = ", ".join("?" * len(entries))
        rows = self._db.execute(
            f"SELECT id, uri, kind, name, title, signature, summary, place, edition FROM entry WHERE id IN ({marks})",  # noqa: S608 - question marks
            tuple(entries),
        )
        return {row[0]: row[1:] for row in rows}

    def text_of(self, entry: int) -> str:
        """Return the whole text of an entry."""
        (body,) = self._db.execute("SELECT body FROM entry WHERE id = ?", (entry,)).fetchone()
        return zlib.decompress(body).decode()


def words_of(query: str) -> list[str]:
    """Return what is looked for in the full text: words, parts of names, and what else they are called."""
    found: dict[str, None] = {}
    for token in tokens(query)[:QUERY_WORDS]:
        if token.lower() in STOPWORDS:
            continue
        parts = split(token)
        more = [part for part in re.split(r"[.:]+", token) if part] if re.search(r"[.:]", token) else []
        found.update(dict.fromkeys([token, *(parts if len(parts) > 1 else []), *more]))
        found.update(dict.fromkeys(SYNONYMS.get(token.lower(), ())))
        found.update(dict.fromkeys(_american(token)))
    return list(found)[:QUERY_WORDS]


def _american(word: str) -> list[str]:
    """Return a British spelling as the headers have it."""
    changed = re.sub(r"is(e[sd]?|ing|ation|ations)$", r"iz\1", re.sub(r"(col|behavi|neighb)our", r"\1or", word))
    return [changed] if changed != word and len(word) > 5 else []


def _with_also(hit: Hit, uri: str) -> Hit:
    return Hit(
        *(hit.entry, hit.uri, hit.kind, hit.name, hit.title, hit.signature, hit.summary, hit.place, hit.edition),
        match=hit.match,
        also=(*hit.also, uri)[:3],
    )
