"""Names and questions that nothing was tuned on: the tables of benchmarks/results/knowledge-unseen.md, printed.

    python benchmarks/knowledge/unseen.py LABEL=DATA_DIR [LABEL=DATA_DIR ...] [--missed] [--paraphrases | --strangers]

Each DATA_DIR holds an index (`gpu-mcp-server docs build --vectors`). The questions were written before the search was
run over them. `--missed` also prints what was missed, for looking at once everything is measured; `--paraphrases` asks
a hundred more of that kind instead, `--strangers` what public threads ask and paste.
"""

import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.knowledge.evaluation.retrieval_benchmark import answering
from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import Accepted, Question, Score, evaluate, read_questions
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.search.hybrid_search import Dense
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.vectors.vector_index import Vectors

HERE = Path(__file__).parent
NAMES, QUESTIONS = HERE / "unseen_names.toml", HERE / "unseen_questions.toml"
PARAPHRASES = HERE / "unseen_paraphrases.toml"
STRANGERS_NAMES, STRANGERS = HERE / "strangers_names.toml", HERE / "strangers_questions.toml"
RIGHT, RIGHTLY_MISSING, WRONG = "right", "rightly missing", "wrong"


@dataclass(frozen=True)
class PastedName:
    """A name as it is pasted, the entries that are right, and the library that it is of."""

    pasted: str
    accept: tuple[str, ...]
    of: str


def read_names(path: Path = NAMES) -> list[PastedName]:
    """Return the pasted names of a file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["name"]
    return [PastedName(row["pasted"], tuple(row["accept"]), row["of"]) for row in rows]


def verdict(library: IndexReader, accepted: Accepted, name: PastedName, dense: Dense | None) -> str:
    """Judge the answer to a pasted name.

    Right is the entry in the first place, with nothing called missing; rightly missing is a first sentence that names
    the library, where the index has no such entry.
    """
    entries = accepted.entries(Question(name.pasted, "name", name.accept))
    answer = library.ask(name.pasted, dense=dense)
    if entries:
        return RIGHT if answer.hits and answer.hits[0].entry in entries and not answer.missing else WRONG
    said = answer.missing[0] if answer.missing else ""
    if not name.of:
        return RIGHTLY_MISSING if said and ";" not in said else WRONG
    return RIGHTLY_MISSING if f"{name.of} " in f"{said} " else WRONG


def measured(label: str, data_dir: Path, *, missed: bool) -> list[str]:
    """Return the rows of an index, by words and by words and meaning."""
    folder = Storage(data_dir).current()
    assert folder is not None, f"no index in {data_dir}: gpu-mcp-server docs build --vectors"
    library = IndexReader(folder)
    strangers = "--strangers" in sys.argv
    questions = read_questions(STRANGERS if strangers else PARAPHRASES if "--paraphrases" in sys.argv else QUESTIONS)
    names = read_names(STRANGERS_NAMES if strangers else NAMES)
    accepted = Accepted(library.db)
    channels: dict[str, Dense | None] = {"words": None}
    if (dense := Vectors(folder, data_dir).wait()) is not None:
        channels["words and meaning"] = dense
    rows: list[str] = []
    for channel, dense in channels.items():
        judged = {name: verdict(library, accepted, name, dense) for name in names}
        counts = Counter(judged.values())
        sure = counts[RIGHT] + counts[RIGHTLY_MISSING]
        start = f"| {label}, {channel} | {sure} of {len(judged)} ({counts[RIGHT]} + {counts[RIGHTLY_MISSING]}) |"
        found = evaluate(library.db, questions, answering(library, dense))
        kinds = [found.scores.get(kind, Score()) for kind in (*kinds_asked(), "all")]
        cells = [f"{s.figures()['r1']:.2f} / {s.figures()['r5']:.2f} ({s.count})" for s in kinds]
        rows.append(f"{start} {' | '.join(cells)} | {kinds[-1].figures()['p95_ms']:.1f} ms |")
        if missed:
            rows += [f"    {n.pasted}: wrong" for n, said in judged.items() if said == WRONG]
            rows += [f"    {q.kind}: {q.text}" for q in found.missed]
            rows += [f"    left out: {q.kind}: {q.text}" for q in found.unanswerable]
    library.close()
    return rows


def kinds_asked() -> tuple[str, ...]:
    """Return the kinds of questions in the order of the table's columns."""
    return ("forum", "message", "env") if "--strangers" in sys.argv else ("paraphrase", "forum", "idiom")


def main() -> None:
    """Print the table."""
    asked = [each for each in sys.argv[1:] if not each.startswith("--")]
    print(f"| index, channels | names | {' | '.join(kinds_asked())} | all: R@1 / R@5 (n) | p95 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for each in asked:
        label, _, folder = each.partition("=")
        print("\n".join(measured(label, Path(folder), missed="--missed" in sys.argv)))


if __name__ == "__main__":
    main()
