"""Channels of a search: entries by shared words, and their fusion with entries by meaning."""

import re
import sqlite3
from collections.abc import Mapping, Sequence, Set

from gpu_mcp_server.knowledge.index.identifiers import STOPWORDS, split, tokens
from gpu_mcp_server.knowledge.search.edition_scope import FAMILY_WORDS, Scope

WEIGHTS = (6.0, 4.0, 2.0, 1.0, 3.0, 2.0)
"""Of names, title, signature, text, taken-apart names and first sentence in bm25."""
CANDIDATES = 60
"""Entries of each channel that are fused."""
PIECES = 150
"""Pieces by words that are looked at for them."""
PIECES_NARROW = 2_000
"""Where a kind was named, as most of them are of others."""
RANK_OFFSET = 10
"""Of reciprocal rank fusion. Lower than the usual 60 as our lists are short: on both halves of six sets of questions
R@5 rose from .815 to .838 (Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion", SIGIR 2009, for the method)."""
DENSE_WEIGHTS = (0.4, 0.3)
"""Of texts and of what they are about, against 1 of words; 0.5 and 0.3, 0.35 and 0.35 measured much alike."""
KIND_WEIGHTS = {"enumerator": 0.78, "type": 0.78, "enum": 0.78, "macro": 0.78, "guide": 0.87, "example": 0.87}
"""Against 1 of functions, instructions, variables, errors and our own texts: who asks in words wants what to call
rather than one value of many. By words alone R@5 of our paraphrases rose from .60 to .67, of MPICH's
briefs from .91 to .93, of HIP's from .95 to .96."""
MEANT = 1.3
"""Factor for libraries whose family a question names ("in Triton", "MPI"); 1.15 to 2 measured much alike."""
QUERY_WORDS = 64

SYNONYMS = {
    "gpu": ("device",), "cpu": ("host",), "pinned": ("page-locked",), "warp": ("wavefront",), "wavefront": ("warp",),
    "lds": ("shared",), "gpus": ("devices",), "memcpy": ("copy",), "hang": ("deadlock",), "hangs": ("deadlock",),
    "smem": ("shared",), "ptx": ("instruction",), "sm": ("multiprocessor",), "sms": ("multiprocessors",),
}  # fmt: skip
"""Words for one thing on both sides of the field. Small on purpose: a large one raised only our own questions, and one
made from the corpora by the embedding model, like feedback from the first hits, lowered the others."""


def rank_by_bm25(db: sqlite3.Connection, query: str, scope: Scope, kinds: Set[str] = frozenset()) -> list[int]:
    """Return the entries that share words with a question, by bm25 of their best piece."""
    wanted = words_of(query)
    ranges = scope.ranges()
    if not wanted or not ranges:
        return []
    expression = " OR ".join('"' + word.replace('"', "") + '"' for word in wanted)
    inside = " OR ".join("rowid BETWEEN ? AND ?" for _ in ranges)
    weights = ", ".join(map(str, WEIGHTS))
    best = (
        f"SELECT rowid AS number, bm25(words, {weights}) AS score FROM words "  # noqa: S608 - ours, and question marks
        f"WHERE words MATCH ? AND ({inside}) ORDER BY score LIMIT ?"
    )
    rows = db.execute(
        f"SELECT p.entry, e.edition, e.kind, e.name, w.score FROM ({best}) w "  # noqa: S608
        "JOIN piece p ON p.id = w.number JOIN entry e ON e.id = p.entry ORDER BY w.score",
        (expression, *(bound for pair in ranges for bound in pair), PIECES if not kinds else PIECES_NARROW),
    )
    meant, ours = _meant(query, scope), {each.id for each in scope.editions if each.is_guide}
    scores: dict[int, float] = {}
    for entry, edition, kind, name, score in rows:
        if kinds and kind not in kinds:
            continue
        whole = edition in ours or (kind == "enumerator" and "error" in name.lower())
        weight = 1.0 if whole else KIND_WEIGHTS.get(kind, 1.0)
        scores.setdefault(entry, -score * weight * (MEANT if edition in meant else 1.0))
    return sorted(scores, key=lambda entry: -scores[entry])[:CANDIDATES]


def _meant(query: str, scope: Scope) -> set[int]:
    """Return the editions whose family a question names; our guides are about all of them."""
    words = set(re.findall(r"[a-z]+", query.lower()))
    families = {family for word, named in FAMILY_WORDS.items() if word in words for family in named}
    return {e.id for e in scope.editions if e.family in families or e.library in families} | (
        {e.id for e in scope.editions if e.is_guide} if families else set[int]()
    )


def fuse_ranks(words: Sequence[int], meanings: Sequence[Sequence[int]]) -> tuple[dict[int, float], dict[int, str]]:
    """Return the score of each entry by reciprocal rank fusion, and the channel that ranked it best.

    Args:
        words: Entries by shared words, best first.
        meanings: Entries by meaning: of whole texts, of what they are about.
    """
    scores: dict[int, float] = {}
    best: dict[int, tuple[float, str]] = {}
    channels = [("words", 1.0, words), *(("meaning", *pair) for pair in zip(DENSE_WEIGHTS, meanings, strict=False))]
    for name, weight, entries in channels:
        for rank, entry in enumerate(entries, 1):
            score = weight / (RANK_OFFSET + rank)
            scores[entry] = scores.get(entry, 0.0) + score
            best[entry] = max(best.get(entry, (0.0, "")), (score, name))
    return scores, {entry: channel for entry, (_, channel) in best.items()}


def sort_by_score(scores: Mapping[int, float]) -> list[int]:
    """Return entries, best first."""
    return sorted(scores, key=lambda entry: (-scores[entry], entry))


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
