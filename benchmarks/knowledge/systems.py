"""The search against plain full text, windows of 500 tokens, and embeddings alone, over one index.

    python benchmarks/knowledge/systems.py DATA_DIR QUESTIONS... [--accepted FILE] [--library LIBRARY]

DATA_DIR was filled by `gpu-mcp-server knowledge build --vectors`. Prints R@1/R@5/MRR by kind for each system, and the
processor's time a question, as the wall clock of a shared machine says little.
"""

import argparse
import dataclasses
import os
import re
import sqlite3
import time
import tomllib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_mcp_server.knowledge.evaluation import DEPTH, Question, evaluate, read_questions
from gpu_mcp_server.knowledge.library import Library
from gpu_mcp_server.knowledge.scope import scope_of
from gpu_mcp_server.knowledge.storage import Storage
from gpu_mcp_server.knowledge.vectors import Vectors

WINDOW, OVERLAP = 375, 75
"""Words: about 500 and 100 tokens."""
Found = tuple[Sequence[int], Sequence[str]]
System = Callable[[Question], Found]


def or_query(text: str) -> str:
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(re.findall(r"\w+", text))) or '""'


class Plain:
    """Everything of an entry in one column, the default tokenizer, bm25."""

    def __init__(self, library: Library) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
        rows = library.db.execute(
            "SELECT e.id, e.title, e.signature, e.body FROM entry e JOIN edition d ON d.id = e.edition "
            "WHERE d.preferred"
        )
        self.db.executemany(
            "INSERT INTO t (rowid, text) VALUES (?, ?)",
            ((n, f"{title}\n{sig}\n{zlib.decompress(body).decode()}") for n, title, sig, body in rows),
        )

    def __call__(self, question: Question) -> Found:
        rows = self.db.execute(
            "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (or_query(question.text), DEPTH)
        )
        return [row[0] for row in rows], []


class Windows:
    """Windows over each file; one counts as any entry of which it covers at least half the words."""

    def __init__(self, library: Library) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
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

    def _cut(self, words: list[str], owners: list[int]) -> None:
        sizes = {number: owners.count(number) for number in set(owners)} if len(owners) < 200_000 else {}
        for start in range(0, len(words), WINDOW - OVERLAP):
            part = owners[start : start + WINDOW]
            counts = {number: part.count(number) for number in set(part)}
            whole = [n for n, count in counts.items() if count * 2 >= min(sizes.get(n, 1), WINDOW)]
            self.covered.append(whole)
            self.db.execute(
                "INSERT INTO t (rowid, text) VALUES (?, ?)",
                (len(self.covered), " ".join(words[start : start + WINDOW])),
            )

    def __call__(self, question: Question) -> Found:
        rows = self.db.execute(
            "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (or_query(question.text), DEPTH)
        )
        self.last = [self.covered[row[0] - 1] for row in rows]
        return [], []


def ours(library: Library, named: str | None, vectors: Vectors | None) -> System:
    dense = vectors.wait() if vectors else None

    def ask(question: Question) -> Found:
        answer = library.ask(question.text, library=named, limit=DEPTH, dense=dense)
        return [hit.entry for hit in answer.hits], answer.did_you_mean

    return ask


def meaning(library: Library, named: str | None, vectors: Vectors) -> System:
    dense, ranges = vectors.wait(), scope_of(library.editions, named, None).ranges()
    assert dense is not None, vectors.missing()

    def ask(question: Question) -> Found:
        pieces = [p for p in dense(question.text, 60) if any(a <= p <= b for a, b in ranges)]
        rows = dict(library.db.execute(f"SELECT id, entry FROM piece WHERE id IN ({','.join(map(str, pieces)) or 0})"))
        return list(dict.fromkeys(rows[piece] for piece in pieces))[:DEPTH], []

    return ask


def windowed(library: Library, windows: Windows, questions: Sequence[Question]) -> System:
    """Return windows as a system: a window's rank is that of the first accepted entry which it covers."""
    from gpu_mcp_server.knowledge.evaluation import Accepted

    accepted = Accepted(library.db)
    right = {question.text: accepted.entries(question) for question in questions}

    def ask(question: Question) -> Found:
        windows(question)
        wanted = right[question.text]
        return [next((n for n in covered if n in wanted), -rank) for rank, covered in enumerate(windows.last, 1)], []

    return ask


def row(name: str, library: Library, questions: Sequence[Question], system: System) -> None:
    times: list[float] = []

    def timed(question: Question) -> Found:
        begun = time.process_time()
        found = system(question)
        times.append((time.process_time() - begun) * 1e3)
        return found

    scores = evaluate(library.db, questions, timed).scores
    cells: list[str] = []
    for kind, score in sorted(scores.items(), key=lambda item: item[0] == "all"):
        f = score.figures()
        cells.append(f"{kind} {f['r1']:.2f}/{f['r5']:.2f}/{f['mrr']:.2f}")
    times.sort()
    wall = sorted(t for kind, score in scores.items() if kind != "all" for t in score.times_ms)
    print(
        f"| {name} | {' · '.join(cells)} | {times[len(times) // 2]:.1f} / {times[int(0.95 * len(times))]:.1f} "
        f"| {wall[len(wall) // 2]:.1f} / {wall[int(0.95 * len(wall))]:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--accepted", type=Path, help="more accepted entries by question (TOML)")
    parser.add_argument("--library")
    given = parser.parse_args()
    folder = Storage(given.data_dir).current()
    assert folder is not None, "build an index first"
    library, vectors = Library(folder), Vectors(folder, given.data_dir)
    more = tomllib.loads(given.accepted.read_text(encoding="utf-8")) if given.accepted else {}
    print(f"load {os.getloadavg()[0]:.1f}; {sum(e.entries for e in library.editions if e.preferred)} entries")
    plain, windows = Plain(library), Windows(library)
    for path in given.questions:
        questions = [dataclasses.replace(q, accept=(*q.accept, *more.get(q.text, ()))) for q in read_questions(path)]
        named = given.library
        print(f"\n{path.name}: {len(questions)} questions{', own key and guides' if more else ''}")
        print("| system | kind R@1/R@5/MRR | CPU ms p50 / p95 | wall ms p50 / p95 |\n| --- | --- | --- | --- |")
        row("plain FTS5, entries", library, questions, plain)
        row("plain FTS5, windows of 500 tokens", library, questions, windowed(library, windows, questions))
        if vectors.wait() is not None:
            row("embeddings alone, entries", library, questions, meaning(library, named, vectors))
        row("ours, lexical", library, questions, ours(library, named, None))
        if vectors.wait() is not None:
            row("ours, hybrid", library, questions, ours(library, named, vectors))


if __name__ == "__main__":
    main()
