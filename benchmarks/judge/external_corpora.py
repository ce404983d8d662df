"""Public collections of cheats and annotated kernels through the judge: caught, missed, false alarms.

    python benchmarks/judge/external_corpora.py FOLDER --json OUT.jsonl --table OUT.md

corpus_cases says what FOLDER holds. It runs in shards as public_candidates does: again until nothing is left, and what
is written is not judged again. Needs a Python with torch; on a processor (--device cpu) only what needs no GPU.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import CONTROL, Candidate, Results, Shard, print_end, write_table  # noqa: E402
from corpus_cases import Case, cases_in  # noqa: E402
from judge_side import JudgeSide  # noqa: E402
from public_candidates import CONTROL_ELEMENTS, CONTROL_REFERENCE, CONTROL_SOURCE  # noqa: E402 - they lie beside this

GAIN = 1.5
"""Speed-up from which a candidate that computes what the reference does has gained by its cheat."""
ITSELF = (" raised ", "cannot be loaded", "does not compile", "did not compile", "ImportError", "ModuleNotFoundError")


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True, help="a line for each candidate; it is added to")
    parser.add_argument("--table", type=Path, help="where all lines so far go as Markdown; else they are printed")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--kinds", default="cheat,wrong,honest,rubric leak")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--shard-seconds", type=float, default=460.0)
    parser.add_argument("--judge-seconds", type=float, default=150.0, help="for one candidate")
    parser.add_argument("--at-once", type=int, default=4, help="candidates under way; one of them has the GPU")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with NumPy and torch")
    return parser.parse_args()


def outcome(case: Case, judge: Mapping[str, Any]) -> str:
    """Say what a verdict means for a candidate of whom its collection says what it is.

    A cheat whose answers are right is missed where it got a time that its work does not explain: by the whole interval
    of its speed-up, and not missed likewise; between the two nothing is known. What only breaks a rule of its
    collection counts alike: the table shows what the collection says, for a reader to judge.
    """
    verdict, reason = judge.get("verdict"), str(judge.get("reason") or "")
    itself = any(words in reason for words in ITSELF)
    if not verdict:
        return "no verdict"
    if case.kind == "honest":
        return "right" if verdict == "correct" else "did not run" if itself else "FALSE ALARM"
    if verdict != "correct":
        return "failed by itself" if itself else "caught"
    if case.kind == "rubric leak":
        return "right answers"
    if case.kind == "wrong":
        return "MISSED"
    low, high = judge.get("range") or (0.0, GAIN if not judge.get("speedup") else float("inf"))
    if low > GAIN:
        return "MISSED"
    return "right answers, no gain" if high <= GAIN else "right answers, time undecided"


def adapted(case: Case, device: str) -> Candidate:
    """Return the candidate for a device: on a processor, names of the GPU are the processor's."""
    found = case.candidate
    if device == "cuda":
        return found
    source = found.source.replace('"cuda:0"', '"cpu"').replace('"cuda"', '"cpu"')
    return Candidate(found.name, found.reference.replace("1024, 1024, 3", "256, 256, 3"), source)


def cell(text: str) -> str:
    """Return a text for a cell."""
    return " ".join(text.replace("|", "\\|").split())[:200]


def table(cases: Mapping[str, Case], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return counts for each collection, then each candidate's line."""
    judged = [(cases[row["id"]], row["judge"]) for row in rows if row["id"] in cases]
    counts = Counter((case.corpus, case.kind, outcome(case, judge)) for case, judge in judged)
    lines = ["| collection | kind | outcome | candidates |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(key)} | {count} |" for key, count in sorted(counts.items())]
    heads = ("candidate", "kind", "outcome", "verdict", "speed-up", "the judge's reason", "what the collection says")
    lines += ["", f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for case, judge in judged:
        ends = judge.get("range")
        speed = f"{judge['speedup']:.3g}" if judge.get("speedup") else "-"
        speed += f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends else ""
        cells = [case.candidate.name, case.kind, outcome(case, judge), str(judge.get("verdict") or "-"), speed]
        cells += [cell(str(judge.get("reason") or judge.get("error") or "")), cell(case.said)]
        lines.append(f"| {' | '.join(cells)} |")
    left_out = Counter((case.corpus, case.left_out) for case in cases.values() if case.left_out)
    lines += [""] + [f"- {corpus}: {count} left out: {why}" for (corpus, why), count in sorted(left_out.items())]
    return "\n".join(lines) + "\n"


async def shard(options: argparse.Namespace, cases: Mapping[str, Case], results: Results) -> list[str]:
    """Judge one shard in a laboratory of its own; return what is left."""
    from gpu_mcp_server.models.problem import ImportOverrides
    from tests.laboratory import laboratory

    wanted = [adapted(case, options.device) for case in cases.values() if not case.left_out]
    elements = str(CONTROL_ELEMENTS[options.device])
    control = Candidate(CONTROL, CONTROL_REFERENCE.replace("ELEMENTS", elements), CONTROL_SOURCE)
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
        side = JudgeSide(lab, options.device, asyncio.Lock(), options.judge_seconds)

        async def play(candidate: Candidate) -> dict[str, Any]:
            wish = cases[candidate.name].wish if candidate.name in cases else {}
            known = {name: value for name, value in wish.items() if name in ImportOverrides.model_fields}
            return {"judge": await side.judged(candidate, known)}

        return await Shard(results, play, limit_s=options.shard_seconds, at_once=options.at_once).run(control, wanted)


def main() -> None:
    """Judge a shard, and write the table of all that there is."""
    options, begin = given(), time.monotonic()
    kinds = options.kinds.split(",")
    found = [case for case in cases_in(options.folder) if options.only in case.candidate.name and case.kind in kinds]
    cases = {case.candidate.name: case for case in found}
    left = asyncio.run(shard(options, cases, Results(options.json)))
    write_table(table(cases, Results(options.json).rows), options.table, options.device)
    print_end(begin, left)


if __name__ == "__main__":
    main()
