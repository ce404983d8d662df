"""The systems that are compared: plain full text and embeddings, of entries and of 500-token windows, and ours."""

import hashlib
import re
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import DEPTH, Accepted, Question
from gpu_mcp_server.knowledge.search.edition_scope import Scope, scope_of
from gpu_mcp_server.knowledge.search.hybrid_search import Dense, Search
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.vectors.embedding import Embedder

WINDOW, OVERLAP = 375, 75
"""Words: about 500 and 100 tokens."""
BATCH = 32
Found = tuple[Sequence[int], Sequence[str]]
System = Callable[[Question], Found]


def or_query(text: str) -> str:
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(re.findall(r"\w+", text))) or '""'


def plain(library: IndexReader) -> System:
    """Search all of an entry in one column, with the default tokenizer, by bm25."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
    rows = library.db.execute(
        "SELECT e.id, e.title, e.signature, e.body FROM entry e JOIN edition d ON d.id = e.edition WHERE d.preferred"
    )
    db.executemany(
        "INSERT INTO t (rowid, text) VALUES (?, ?)",
        ((n, f"{title}\n{sig}\n{zlib.decompress(body).decode()}") for n, title, sig, body in rows),
    )

    def ask(question: Question) -> Found:
        rows = db.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (or_query(question.text), DEPTH))
        return [row[0] for row in rows], []

    return ask


class Windows:
    """Windows over each file; one counts as any entry of which it covers at least half the words."""

    def __init__(self, library: IndexReader) -> None:
        self.texts: list[str] = []
        self.covered: list[list[int]] = []
        rows = library.db.execute(
            "SELECT e.edition, e.place, e.id, e.title, e.signature, e.body FROM entry e "
            "JOIN edition d ON d.id = e.edition WHERE d.preferred ORDER BY e.edition, e.place, e.first_line, e.id"
        )
        key, words, owners = None, list[str](), list[int]()
        for edition, place, number, title, signature, body in rows:
            if (edition, place) != key:
                self._cut(words, owners)
                key, words, owners = (edition, place), [], []
            text = f"{title}\n{signature}\n{zlib.decompress(body).decode()}".split()
            words += text
            owners += [number] * len(text)
        self._cut(words, owners)
        self._right = Accepted(library.db)

    def _cut(self, words: list[str], owners: list[int]) -> None:
        sizes: dict[int, int] = {}
        for owner in owners:
            sizes[owner] = sizes.get(owner, 0) + 1
        for start in range(0, len(words), WINDOW - OVERLAP):
            part = owners[start : start + WINDOW]
            counts = {number: part.count(number) for number in set(part)}
            self.covered.append([n for n, count in counts.items() if count * 2 >= min(sizes[n], WINDOW)])
            self.texts.append(" ".join(words[start : start + WINDOW]))

    def by_words(self) -> System:
        db = sqlite3.connect(":memory:")
        db.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
        db.executemany("INSERT INTO t (rowid, text) VALUES (?, ?)", enumerate(self.texts))

        def ask(question: Question) -> Found:
            rows = db.execute(
                "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (or_query(question.text), DEPTH)
            )
            return self._as_entries([row[0] for row in rows], question), []

        return ask

    def by_meaning(self, model: Path, kept: Path) -> System:
        """The usual recipe: MiniLM over windows. Their vectors are kept in a file, as they take minutes."""
        embedder = Embedder(model, arena=True)
        vectors = self._vectors(embedder, kept)

        def ask(question: Question) -> Found:
            likeness = vectors @ embedder.vectors([question.text])[0]
            best = np.argsort(-likeness)[:DEPTH]
            return self._as_entries([int(n) for n in best], question), []

        return ask

    def _vectors(self, embedder: Embedder, kept: Path) -> Any:
        """Return the vectors of all windows; those of texts that were seen before come from a file."""
        keys = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in self.texts]
        known: dict[str, Any] = {}
        if kept.is_file():
            with np.load(kept) as file:
                known = dict(zip(file["keys"].tolist(), file["vectors"], strict=True))
        texts = {key: text for key, text in zip(keys, self.texts, strict=True) if key not in known}
        order = sorted(texts, key=lambda key: len(texts[key]))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            known.update(zip(part, embedder.vectors([texts[key] for key in part]), strict=True))
            if start % (64 * BATCH) == 0 or start + BATCH >= len(order):
                np.savez(kept, keys=list(known), vectors=np.asarray(list(known.values()), np.float16))
                print(f"{start + len(part)} of {len(order)} windows embedded", flush=True)
        return np.stack([known[key] for key in keys]).astype(np.float32)

    def _as_entries(self, windows: Sequence[int], question: Question) -> list[int]:
        """Return for each window the accepted entry that it covers, or what is none."""
        right = self._right.entries(question)
        return [next((n for n in self.covered[w] if n in right), -1 - rank) for rank, w in enumerate(windows)]


def scope_without_ours(library: IndexReader) -> Scope:
    whole = scope_of(library.editions, None, None)
    return replace(whole, editions=tuple(e for e in whole.editions if not e.is_own_text))


def ours(library: IndexReader, scope: Scope, dense: Dense | None) -> System:
    search = Search(library.db, library.editions)

    def ask(question: Question) -> Found:
        answer = search.find(question.text, scope, limit=DEPTH, dense=dense)
        return [hit.entry for hit in answer.hits], answer.did_you_mean

    return ask


def meaning(library: IndexReader, scope: Scope, dense: Dense) -> System:
    """Embeddings of entries alone."""

    def ask(question: Question) -> Found:
        entries = dense(question.text, 60 if scope.whole else 400)[0]
        marks = ",".join(map(str, entries)) or "0"
        editions = dict(library.db.execute(f"SELECT id, edition FROM entry WHERE id IN ({marks})"))
        return [n for n in entries if scope.holds(editions[n])][:DEPTH], []

    return ask
