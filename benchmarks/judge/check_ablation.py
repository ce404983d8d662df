"""Candidates of examples/cheats that each of the judge's checks catches, and those that one check alone catches.

    python benchmarks/judge/check_ablation.py --device cpu --json OUT.json [--table OUT.md] [ID ...]

Every candidate is judged once in a study, in which no check ends the evaluation: what each would have said is noted.
A check that alone catches a candidate stays; one that catches nothing by itself may go. The reason's words tell which
comparison it was, the trial when it was made. A candidate that dies, or that the supervisor ends, ends its study too.
"""

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from gpu_mcp_server.cli import cheat_suite  # noqa: E402
from gpu_mcp_server.services.evaluation import judge_job  # noqa: E402
from gpu_mcp_server.settings.server_settings import load_settings  # noqa: E402

COMPARISONS = {
    "look at done": "finished after it said done",
    "replay detector": "repeats an earlier answer",
    "poison": "returned without computing|no output was written",
    "guards": "wrote outside|changed its inputs",
    "launcher's code": "the launcher returned",
    "calls ahead": "worked on a call before it was called",
    "calls put off": "put a call off",
    "precision": "strict precision",
    "process": "crashed|exited|killed|link|ran while it was stopped|ran out of memory|cannot be stopped",
    "full check": "",
}
"""Which comparison a reason is of: the first whose words it has."""


def comparison_of(reason: str) -> str:
    """Return the comparison that gave a reason."""
    return next(name for name, words in COMPARISONS.items() if re.search(words, reason))


async def study(suite: cheat_suite.CheatSuite, candidate: cheat_suite.CheatCandidate) -> dict[str, Any]:
    """Judge a candidate in a study; return what caught it, and how the evaluation ended."""
    row: dict[str, Any] = {"id": candidate.id, "kind": candidate.kind, "caught": []}
    try:
        found = await suite._evaluated(candidate)
    except Exception as error:
        return dict(row, end=str(error)[:200])
    row["end"] = f"{found.verdict or found.status} {found.reason}".strip()[:300]
    if found.evidence_artifact_id:
        whole = json.loads(await suite.lab.store.artifacts.read(found.evidence_artifact_id))
        for trial, verdict, reason in whole["evidence"].get("caught", []):
            row["caught"].append([trial, comparison_of(reason), verdict])
    if found.verdict in ("incorrect", "cheat"):
        row["caught"].append(["the end", comparison_of(found.reason), found.verdict])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the matrix as Markdown: by trial and comparison, how many it catches, and which ones it alone does."""
    catches: Counter[tuple[str, str]] = Counter()
    alone: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        kinds = {(trial, comparison) for trial, comparison, _ in row["caught"]}
        catches.update(kinds)
        if len(kinds) == 1:
            alone.setdefault(kinds.pop(), []).append(row["id"])
    lines = ["| trial | comparison | catches | alone |", "| --- | --- | --- | --- |"]
    for kind, count in sorted(catches.items()):
        lines.append(f"| {kind[0]} | {kind[1]} | {count} | {', '.join(f'`{each}`' for each in alone.get(kind, []))} |")
    free = [row["id"] for row in rows if not row["caught"] and row["kind"] == "cheat"]
    lines += ["", f"{len(rows)} candidates; caught by nothing: {', '.join(free) or 'none'}"]
    return "\n".join(lines) + "\n"


async def main() -> None:
    """Study the candidates, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="of candidates; none: all of the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    plain = judge_job._task
    judge_job._task = lambda *about: dict(plain(*about), study=True)  # pyright: ignore
    rows: list[dict[str, Any]] = []
    async with cheat_suite.open_suite(load_settings()) as suite:
        for candidate in cheat_suite.catalogued_candidates():
            if candidate.device != given.device or (given.ids and candidate.id not in given.ids):
                continue
            rows.append(await study(suite, candidate))
            print(candidate.id, rows[-1]["end"][:60], len(rows[-1]["caught"]), flush=True)
            given.json.write_text(json.dumps(rows, indent=1))
    text = table(rows)
    print(text)
    if given.table:
        given.table.write_text(text)


if __name__ == "__main__":
    asyncio.run(main())
