"""Measuring the index in use with files of questions."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import (
    DEPTH,
    Question,
    RetrievalScores,
    evaluate,
    read_questions,
    table,
)
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.readers.sources import content_folder
from gpu_mcp_server.knowledge.search.hybrid_search import Dense
from gpu_mcp_server.knowledge.search.index_reader import IndexReader


@dataclass
class Measured:
    """Scores, and by which channels."""

    evaluation: RetrievalScores
    hybrid: bool

    @property
    def note(self) -> str:
        """Say what was measured."""
        count = len(self.evaluation.unanswerable)
        channels = "words and meaning" if self.hybrid else "words only"
        return f"{channels}; {count} questions left out, as nothing that answers them is indexed"

    def rows(self) -> list[list[str]]:
        """Return the table."""
        return table(self.evaluation)

    def figures(self) -> dict[str, Any]:
        """Return the scores as data."""
        scores = {kind: score.figures() for kind, score in self.evaluation.scores.items()}
        return {"hybrid": self.hybrid, "scores": scores, "left_out": len(self.evaluation.unanswerable)}

    def results_below(self, floor: Path) -> list[str]:
        """Return what is worse than a floor allows: kind, measure, both values.

        Raises:
            BadRequest: If the floor cannot be read.
        """
        try:
            least = cast("dict[str, dict[str, float]]", tomllib.loads(floor.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise BadRequest(f"{floor} is no floor: {error}.") from error
        worse: list[str] = []
        for kind, wanted in least.items():
            score = self.evaluation.scores.get(kind)
            got = score.figures() if score else {}
            worse += [
                f"{kind} {name} is {got.get(name, 0.0)}, not {value}"
                for name, value in wanted.items()
                if got.get(name, 0.0) < value
            ]
        return worse


def our_questions() -> list[Path]:
    """Return the files of questions that come with the server."""
    folder = content_folder()
    return sorted((folder / "questions").glob("*.toml")) if folder else []


def measure(data_dir: Path, files: Sequence[Path] | None = None, *, dense: bool = True) -> Measured:
    """Ask the index in use.

    Raises:
        BadRequest: If there is no index, or a file holds no questions.
        ConfigError: If the index cannot be opened.
    """
    folder = Storage(data_dir).current()
    if folder is None:
        raise BadRequest("Nothing is indexed yet.", hint="gpu-mcp-server docs build")
    questions = [question for path in files or our_questions() for question in read_questions(path)]
    library = IndexReader(folder)
    try:
        channel = _channel(folder, data_dir) if dense else None
        return Measured(evaluate(library.db, questions, answering(library, channel)), channel is not None)
    finally:
        library.close()


def answering(library: IndexReader, dense: Dense | None = None) -> Any:
    """Return how a question is answered: without any filter, ten hits."""

    def answer(question: Question) -> tuple[Sequence[int], Sequence[str]]:
        found = library.ask(question.text, limit=DEPTH, dense=dense)
        return [hit.entry for hit in found.hits], found.did_you_mean

    return answer


def _channel(folder: Path, data_dir: Path) -> Dense | None:
    from gpu_mcp_server.knowledge.vectors.vector_index import Vectors

    return Vectors(folder, data_dir).wait()
