"""Candidates of examples/cheats that each of the judge's checks catches, and those that one check alone catches.

    python benchmarks/judge/check_ablation.py --device cpu --json OUT.json [--table OUT.md] [--part K/N] [ID ...]
    python benchmarks/judge/check_ablation.py --device cuda --json OUT.json --without fence ID ...

Every candidate is judged once in a study, in which no check ends the evaluation: what each would have said is noted.
A check that alone catches a candidate stays; one that catches nothing by itself may go. The reason's words tell which
comparison it was, the trial when it was made. A candidate that dies, that the supervisor ends, or that is caught behind
gates ends its study too. --without judges candidates plainly, with one check switched off: those that it alone catches
must pass.
OUT.json is written after each candidate, and read at the start: the same command goes on. --rows adds other shards to
the table, and with --seconds 0 only the table is made.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import part_of  # noqa: E402 - it lies beside this file

from gpu_mcp_server.cli import cheat_suite  # noqa: E402
from gpu_mcp_server.services.evaluation import judge_files, judge_job  # noqa: E402
from gpu_mcp_server.settings.server_settings import load_settings  # noqa: E402

COMPARISONS = {
    "look behind a closed gate": "outputs changed while the gate was closed",
    "inputs changed behind a gate": "behind its gate",
    "copies behind calls": "the given stream had passed|before the given stream reached",
    "machine code": "the problem requires",
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

WITHOUT = {
    "look behind a closed gate": ("timing/gated_rounds.py", "if not untouched:", "if not untouched and False:"),
    "inputs changed behind a gate": (
        "checks/isolated_calls.py",
        "Exchange(buffers, self.well, call) if call else None",
        "None",
    ),
    "fence": ("timing/rounds.py", "finished = not buffers.have_changed()", "finished = True"),
    "copies behind calls": ("checks/stream_order_rounds.py", "if misplaced:", "if misplaced and False:"),
    "interruptions": ("checks/interrupted_rounds.py", "        self.turn += 1", "        return"),
    "interruptions beside gates": ("checks/interrupted_rounds.py", "            self._change(buffers)\n", ""),
}
"""Checks of the GPU's that can be switched off: the judge's file, a text in it, and what stands in its place then."""


def switch_off(name: str) -> None:
    """Have jobs judged without a check from now on."""
    file, before, after = WITHOUT[name]
    path, plain = f"{judge_files.PACKAGE}/{file}", judge_files.judge_files

    def judge_files_without(python: str = "") -> dict[str, bytes]:
        files = dict(plain(python))
        text = files[path].decode()
        if before not in text:
            raise SystemExit(f"{file} has no {before!r} any more. Mend WITHOUT in {__file__}.")
        files[path] = text.replace(before, after).encode()
        files.pop(f"{judge_files.PACKAGE}/{judge_files.bytecode_path(file)}", None)
        return files

    judge_files.judge_files = judge_files_without  # pyright: ignore


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


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="of candidates; none: all of the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--part", default="1/1", help="K/N: every Nth candidate, from the Kth on")
    parser.add_argument("--without", choices=list(WITHOUT), help="a check that is switched off; this is no study")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="files of other shards, for the table")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none is begun that is likely to end later")
    return parser.parse_args()


async def study_shard(options: argparse.Namespace, rows: list[dict[str, Any]]) -> list[str]:
    """Study one candidate after the other while there is time, and add their rows; return the ids of what is left."""
    chosen = [
        each
        for each in cheat_suite.catalogued_candidates()
        if each.device == options.device and (not options.ids or each.id in options.ids)
    ]
    there = {row["id"] for row in rows}
    waiting = [each for each in part_of(chosen, options.part) if each.id not in there]
    end, taken = time.monotonic() + options.seconds, [0.0]
    async with cheat_suite.open_suite(load_settings()) as suite:
        while waiting and time.monotonic() + 1.5 * statistics.median(taken) < end:
            begin = time.monotonic()
            rows.append(await study(suite, waiting.pop(0)))
            taken.append(time.monotonic() - begin)
            print(rows[-1]["id"], rows[-1]["end"][:60], len(rows[-1]["caught"]), flush=True)
            options.json.write_text(json.dumps(rows, indent=1))
    return [each.id for each in waiting]


def main() -> None:
    """Study a shard, and print the table of all that there is."""
    options = given()
    if options.without:
        switch_off(options.without)
    else:
        plain = judge_job._task
        judge_job._task = lambda *about: dict(plain(*about), study=True)  # pyright: ignore
    rows: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json.exists() else []
    left = asyncio.run(study_shard(options, rows)) if options.seconds > 0 else []
    others = [row for path in options.rows for row in json.loads(path.read_text())]
    text = table([*rows, *others])
    print(text)
    print(f"left: {', '.join(left) or 'nothing'}")
    if options.table:
        options.table.write_text(text)


if __name__ == "__main__":
    main()
