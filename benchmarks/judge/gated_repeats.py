"""Repeat times behind gates, beside a plain harness's, on public candidates and one GPU.

    python benchmarks/judge/gated_repeats.py FILE --ids 1/53,2/63 --json OUT.jsonl

FILE is as in public_candidates.py. Each candidate is judged --evaluations times, in processes
of its own each time, and timed once by the plain harness, whose `queued_us` is a call's time behind other work of the
GPU. A run goes on where the one before ended, and stops after --shard-seconds.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import Candidate, Results, candidates_in, chosen  # noqa: E402
from judge_side import JudgeSide, Turn  # noqa: E402
from public_candidates import Plain  # noqa: E402 - they lie beside this file

HEAD = (
    "| id | device_us of the evaluations | max/min | half-width, % | speed-up | max/min | queued_us, reference and "
    "candidate | isolated_us | in a loop, us | seconds | remark |\n|" + " --- |" * 11
)


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ids", default="drawn:15", help="names with commas between them, drawn:COUNT, or all")
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True, help="a line for each candidate; it is added to")
    parser.add_argument("--shard-seconds", type=float, default=420.0)
    parser.add_argument("--limit-seconds", type=float, default=120.0, help="for one evaluation")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with torch")
    return parser.parse_args()


def line(row: dict[str, Any]) -> str:
    """Return a candidate's line of the table; of several shapes the first."""
    times = [each["shapes"][0] for each in row["judge"] if each.get("shapes")]
    timed = [each for each in times if each.get("candidate") and each["basis"] == "device"]
    remarks = {each.get("unconfirmable") or "" for each in times}
    remarks |= {"times of a loop" for each in times if each["basis"] == "call"}
    remarks |= {str(each.get("error") or each.get("reason") or "")[:120] for each in row["judge"]}
    medians = [each["candidate"]["median_us"] for each in timed]
    cells = [row["id"], ", ".join(f"{each:.4g}" for each in medians) or "none", spread(medians)]
    widths = [100 * each["half_width"] for each in timed]
    cells.append(f"{statistics.median(widths):.2g}" if widths else "")
    speeds = [each["speedup"] for each in times if each.get("speedup")]
    cells += [", ".join(f"{each:.3f}" for each in speeds), spread(speeds)]
    cells.append(", ".join(f"{each:.4g}" for each in row["plain"].get("queued_us") or []))
    cells.append(", ".join(f"{each['isolated_us']:.4g}" for each in times if each.get("isolated_us")))
    cells.append(", ".join(f"{each['in_loop']['candidate']['median_us']:.4g}" for each in times if each.get("in_loop")))
    cells.append(", ".join(f"{each['held'].get('evaluate', 0):.1f}" for each in row["judge"]))
    cells.append("; ".join(sorted(filter(None, remarks))).replace("|", "/").replace("\n", " "))
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Return the largest over the smallest."""
    return f"{max(values) / min(values):.3f}" if values else ""


async def measure(options: argparse.Namespace, candidates: Sequence[Candidate], results: Results) -> int:
    """Judge one candidate after the other until the time is up; return how many are left."""
    from tests.laboratory import laboratory

    deadline, lock = time.monotonic() + options.shard_seconds, asyncio.Lock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        plain = Plain(options.judge_python, "cuda", Path(folder))
        try:
            async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
                side = JudgeSide(lab, "cuda", lock, options.limit_seconds)
                for number, candidate in enumerate(candidates):
                    if time.monotonic() > deadline:
                        return len(candidates) - number
                    wish = {"accept_degenerate": True}
                    judged = [await side.judged(candidate, wish) for _ in range(options.evaluations)]
                    turn = Turn(lock, options.limit_seconds)
                    told = await plain.measured(candidate, turn, options.limit_seconds)
                    results.add({"id": candidate.name, "shard": results.shard, "plain": told, "judge": judged})
                    print(line(results.rows[-1]), flush=True)
        finally:
            await plain.close()
    return 0


def main() -> None:
    """Judge a shard and print the table of all so far."""
    options = given()
    results = Results(options.json)
    wanted = results.missing(chosen(candidates_in(options.file), options.ids))
    left = asyncio.run(measure(options, wanted, results))
    print(HEAD)
    for row in results.rows:
        print(line(row))
    print(f"left: {left}")


if __name__ == "__main__":
    main()
