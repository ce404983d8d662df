"""All tables of benchmarks/results/knowledge.md, written into it between its marks.

    python benchmarks/knowledge/measure.py DATA_DIR QUESTIONS_DIR

DATA_DIR holds the corpus of manifest.toml, indexed with vectors (`gpu-mcp-server docs build --vectors`);
QUESTIONS_DIR the development questions (main_dev.jsonl, forum_a.jsonl, hip_to_cuda.jsonl), which are not in this
repository. The vectors of windows are made once, in about 10 minutes, and kept in DATA_DIR.
"""

import datetime
import os
import platform
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from pathlib import Path

from cost import answers, first_answers, rebuilt
from systems import System, Windows, meaning, ours, plain, scope_without_ours

from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import (
    WRONG,
    Question,
    RetrievalScores,
    evaluate,
    read_questions,
)
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.search.edition_scope import scope_of
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.vectors.embedding import model_folder
from gpu_mcp_server.knowledge.vectors.vector_index import Vectors

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "knowledge.md"
OURS = HERE.parents[1] / "knowledge_base" / "questions"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SYSTEMS = (
    "plain FTS5, entries", "plain FTS5, windows", "embeddings, windows", "embeddings, entries", "ours, lexical",
    "ours, hybrid",
)  # fmt: skip

TIMES: dict[str, list[float]] = {"ours, lexical": [], "ours, hybrid": []}
"""Milliseconds of every question that was asked of ours."""


def shown(evaluation: RetrievalScores, kind: str) -> str:
    score = evaluation.scores.get(kind)
    if score is None:
        return ""
    f = score.figures()
    return f"{f['r1']:.2f} / {f['r5']:.2f} / {f['mrr']:.2f}"


def rows(
    title: str, library: IndexReader, questions: list[Question], systems: dict[str, System], kinds: list[str]
) -> str:
    found = {name: evaluate(library.db, questions, system) for name, system in systems.items()}
    for name in TIMES:
        TIMES[name] += [ms for kind, s in found[name].scores.items() if kind != "all" for ms in s.times_ms]
    lines: list[str] = []
    for kind in kinds:
        counts = [e.scores[kind].count for e in found.values() if kind in e.scores]
        if counts:
            cells = [shown(found[name], kind) if name in found else "" for name in SYSTEMS]
            lines.append(f"| {title}: {kind} ({counts[0]}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def quality(data_dir: Path, asked: Path) -> str:
    folder = Storage(data_dir).current()
    assert folder is not None, "build an index first"
    library = IndexReader(folder)
    dense = Vectors(folder, data_dir).wait()
    model = model_folder(data_dir)
    assert dense is not None and model is not None, "no vectors: docs model install, docs build --vectors"
    whole, windows = scope_of(library.editions, None, None), Windows(library)
    others: dict[str, System] = {
        "plain FTS5, entries": plain(library),
        "plain FTS5, windows": windows.by_words(),
        "embeddings, windows": windows.by_meaning(model, data_dir / "windows.npz"),
        "embeddings, entries": meaning(library, whole, dense),
    }
    own = {"ours, lexical": ours(library, whole, None), "ours, hybrid": ours(library, whole, dense)}
    without, cuda = scope_without_ours(library), scope_of(library.editions, "cuda-runtime", None)
    bare = {"ours, lexical": ours(library, without, None), "ours, hybrid": ours(library, without, dense)}
    hip = {"ours, lexical": ours(library, cuda, None), "ours, hybrid": ours(library, cuda, dense)}
    hip["embeddings, entries"] = meaning(library, cuda, dense)
    more = tomllib.loads((HERE / "accepted.toml").read_text(encoding="utf-8"))
    main, forum = read_questions(asked / "main_dev.jsonl"), read_questions(asked / "forum_a.jsonl")
    kinds = ["exact", "mangled", "paraphrase", "idiom", "all", WRONG]
    lines: list[str] = []
    for name, questions, of in (("main", main, kinds), ("forum", forum, ["all"])):
        wider = [replace(q, accept=(*q.accept, *more.get(q.text, ()))) for q in questions]
        lines.append(rows(f"{name}, their key", library, questions, {**others, **own}, of))
        lines.append(rows(f"{name}, guides count too", library, wider, {**others, **own}, ["all"]))
        lines.append(rows(f"{name}, no guides indexed", library, questions, bare, ["all"]))
    lines.append(rows("HIP briefs, within CUDA", library, read_questions(asked / "hip_to_cuda.jsonl"), hip, ["all"]))
    for path in sorted(OURS.glob("*.toml")):
        questions = read_questions(path)
        of = [*dict.fromkeys(q.kind for q in questions if q.kind != WRONG), "all", WRONG]
        lines.append(rows(f"`{path.name}`", library, questions, {**others, **own}, of))
    head = "| questions | " + " | ".join(SYSTEMS) + " |\n| --- |" + " --- |" * len(SYSTEMS)
    entries = sum(e.entries for e in library.editions)
    preferred = sum(e.entries for e in library.editions if e.preferred)
    say = f"{entries:,} entries, of which {preferred:,} in preferred versions; {len(windows.texts):,} windows."
    return f"{say}\n\n{head}\n" + "\n".join(line for line in lines if line)


def cost(data_dir: Path) -> str:
    lines = ["| cost | measured | goal |", "| --- | --- | --- |"]
    for name, goal in (("ours, lexical", 20), ("ours, hybrid", 50)):
        times = sorted(TIMES[name])
        p50, p95 = times[len(times) // 2], times[int(0.95 * len(times))]
        lines.append(f"| a question, {name}, p50 / p95 of {len(times)} | {p50:.1f} / {p95:.1f} ms | p95 <= {goal} ms |")
    for kind, goal in (("lexical", "0.3 s; 60 MB above the server's"), ("hybrid", "2.5 s; 300 MB")):
        first, resident = first_answers(data_dir, kind)
        lines.append(
            f"| first answer of a process, {kind}; its memory | {first:.2f} s; {resident:.0f} MB | <= {goal} |"
        )
    with tempfile.TemporaryDirectory() as aside:
        count, seconds, cpu_s = rebuilt(data_dir, Path(aside))
        before, after, sizes = answers(data_dir, Path(aside) / "served")
    lines.append(f"| reading and indexing {count:,} entries anew | {seconds:.1f} s wall, {cpu_s:.1f} s CPU | <= 20 s |")
    lines.append(f"| the server's memory, and after four lexical searches | {before:.0f}, {after:.0f} MB | +60 MB |")
    lines.append(f"| four answers with `limit` 10 | {min(sizes):,} to {max(sizes):,} characters | 700 tokens (2,100) |")
    return "\n".join(lines)


def main() -> None:
    data_dir, asked = Path(sys.argv[1]), Path(sys.argv[2])
    begun, load = time.monotonic(), os.getloadavg()[0]
    told = [quality(data_dir, asked), cost(data_dir)]
    day = datetime.datetime.now(datetime.UTC).date()
    busy = f"load {load:.1f} to {os.getloadavg()[0]:.1f}"
    where = f"{day}, Python {platform.python_version()}, {os.cpu_count()} cores, {busy}"
    text = RESULT.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    RESULT.write_text(f"{head}{BEGIN}\n\n{where}. " + "\n\n".join(told) + f"\n\n{tail}", encoding="utf-8")
    print(f"{RESULT} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
