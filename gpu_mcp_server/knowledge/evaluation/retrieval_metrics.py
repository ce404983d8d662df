"""Metrics of the search over questions with accepted entries: recall, mean reciprocal rank, latency."""

import json
import re
import sqlite3
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.index.identifiers import normalize_name

DEPTH = 10
"""Hits that are looked at."""
WRONG = "wrong"
"""Kind of questions that name what does not exist; the right name must be offered, or found at once."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what answers it."""

    text: str
    kind: str
    accept: tuple[str, ...]
    """Names; or `PLACE | TITLE`, two patterns: entries of files whose place and title match."""
    library: str = ""


@dataclass
class Score:
    """Of one kind of questions."""

    count: int = 0
    first: int = 0
    fifth: int = 0
    reciprocal: float = 0.0
    times_ms: list[float] = field(default_factory=list[float])

    def add(self, rank: int | None, milliseconds: float) -> None:
        """Count a question whose first accepted hit stands at `rank`."""
        self.count += 1
        self.times_ms.append(milliseconds)
        if rank is not None:
            self.first += rank == 1
            self.fifth += rank <= 5
            self.reciprocal += 1 / rank

    def figures(self) -> dict[str, float]:
        """Return the score as figures: r1, r5, mrr, p50_ms, p95_ms, n."""
        times = sorted(self.times_ms)
        return {
            "n": self.count,
            "r1": round(self.first / max(1, self.count), 3),
            "r5": round(self.fifth / max(1, self.count), 3),
            "mrr": round(self.reciprocal / max(1, self.count), 3),
            "p50_ms": round(times[len(times) // 2], 1) if times else 0.0,
            "p95_ms": round(times[min(len(times) - 1, int(0.95 * len(times)))], 1) if times else 0.0,
        }


@dataclass
class RetrievalScores:
    """Scores by kind, `all` among them, and what was missed."""

    scores: dict[str, Score] = field(default_factory=dict[str, Score])
    missed: list[Question] = field(default_factory=list[Question])
    unanswerable: list[Question] = field(default_factory=list[Question])
    """Nothing that answers them is indexed; they are not counted."""


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file: TOML as in knowledge_base/questions, or JSON lines.

    Raises:
        BadRequest: If the file is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            rows = cast("list[dict[str, Any]]", tomllib.loads(text).get("question", []))
        else:
            rows = [cast("dict[str, Any]", json.loads(line)) for line in text.splitlines() if line.strip()]
        return [_question(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{path} holds no questions: {error}.") from error


def _question(row: dict[str, Any]) -> Question:
    accepted = [str(each).removeprefix("sym:") for each in row["accept"]]
    accepted = [re.sub(r"^src:((?:[^|(]|\([^)]*\))*)\|?(.*)$", r"\1 | \2", each) for each in accepted]
    kind = str(row["kind"]).replace("wrong-name", WRONG)
    return Question(str(row.get("question") or row["text"]), kind, tuple(accepted), str(row.get("library", "")))


Answering = Callable[[Question], "tuple[Sequence[int], Sequence[str]]"]
"""Returns the entries found for a question, best first, and the names that are offered instead."""


def evaluate(db: sqlite3.Connection, questions: Sequence[Question], answering: Answering) -> RetrievalScores:
    """Ask every question that can be answered, and score the answers."""
    accepted = Accepted(db)
    found = RetrievalScores()
    for question in questions:
        right = accepted.entries(question)
        if not right:
            found.unanswerable.append(question)
            continue
        begun = time.perf_counter()
        hits, offered = answering(question)
        milliseconds = (time.perf_counter() - begun) * 1e3
        if question.kind == WRONG:
            names = {normalize_name(name) for name in question.accept}
            rank = next((n for n, name in enumerate(offered, 1) if normalize_name(name) in names), None)
            rank = 1 if hits and hits[0] in right else rank
        else:
            rank = next((n for n, entry in enumerate(hits[:DEPTH], 1) if entry in right), None)
        for kind in (question.kind,) if question.kind == WRONG else (question.kind, "all"):
            found.scores.setdefault(kind, Score()).add(rank, milliseconds)
        if rank is None or rank > 5:
            found.missed.append(question)
    return found


class Accepted:
    """Finds the entries that a question accepts."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sections: list[tuple[int, str, str]] | None = None

    def entries(self, question: Question) -> set[int]:
        """Return every entry that is a right answer."""
        found: set[int] = set()
        for each in question.accept:
            found |= self._placed(each) if " | " in each else self._named(each)
        return found

    def _named(self, name: str) -> set[int]:
        rows = self._db.execute(
            "SELECT entry FROM symbol WHERE norm = ? AND name = ? AND (place = 0 OR entry IN "
            "(SELECT id FROM entry WHERE kind != 'instruction')) UNION SELECT id FROM entry WHERE name = ?",
            (normalize_name(name), name, name),
        )
        return {row[0] for row in rows}

    def _placed(self, pattern: str) -> set[int]:
        if self._sections is None:
            rows = self._db.execute(
                "SELECT e.id, d.library || '/' || e.place, e.title || char(10) || e.headings FROM entry e "
                "JOIN edition d ON d.id = e.edition"
            )
            self._sections = [(row[0], row[1], row[2]) for row in rows]
        place, _, title = pattern.partition(" | ")
        placed, titled = re.compile(place.strip()), re.compile(title.strip() or ".")
        return {number for number, where, said in self._sections if placed.search(where) and titled.search(said)}


def table(evaluation: RetrievalScores) -> list[list[str]]:
    """Return the scores as rows: kind, n, R@1, R@5, MRR, p50, p95."""
    rows: list[list[str]] = []
    for kind, score in sorted(evaluation.scores.items(), key=lambda item: item[0] == "all"):
        f = score.figures()
        rows.append(
            [kind, f"{f['n']:.0f}", *(f"{f[key]:.2f}" for key in ("r1", "r5", "mrr"))]
            + [f"{f[key]:.1f}" for key in ("p50_ms", "p95_ms")]
        )
    return rows
