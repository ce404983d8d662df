"""Candidates of examples/cheats, judged as `selftest` does, in shards that go on where the one before ended.

    python benchmarks/judge/cheats.py --device cuda --json OUT.jsonl [--part K/N] [--seconds S] [ID ...]

Each row is written as soon as it is known; a candidate with a row is not judged again. Ends with exit code 1 if a cheat
was missed, an honest candidate was not found correct, or some are left.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import Results, part_of  # noqa: E402

from gpu_mcp_server.cli import cheat_suite  # noqa: E402
from gpu_mcp_server.settings.server_settings import load_settings  # noqa: E402


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="of candidates; none: all of the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--json", type=Path, required=True, help="a line for each candidate; it is added to")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth candidate, from the Kth on")
    parser.add_argument("--seconds", type=float, default=450.0, help="none is begun that is likely to end later")
    return parser.parse_args()


def wanted(options: argparse.Namespace) -> list[cheat_suite.CheatCandidate]:
    """Return the candidates of this shard.

    Raises:
        SystemExit: If no candidate of the device has one of the ids.
    """
    known = {each.id: each for each in cheat_suite.catalogued_candidates() if each.device == options.device}
    if missing := [name for name in options.ids if name not in known]:
        raise SystemExit(f"No candidate for {options.device} is called {', '.join(missing)}.")
    chosen = [known[name] for name in options.ids] or list(known.values())
    return part_of(chosen, options.part)


def data_of(row: cheat_suite.CheatRow, seconds: float) -> dict[str, Any]:
    """Return a row as it is written."""
    return {
        **row.data(), "reason": row.reason[:600], "speedup": row.speedup, "gain": row.gain,
        "missed": row.was_missed, "false_alarm": row.false_alarm, "seconds": round(seconds, 1),
    }  # fmt: skip


async def judge(options: argparse.Namespace, results: Results) -> list[str]:
    """Judge one candidate after the other while there is time; return the ids of what is left."""
    there = {row["id"] for row in results.rows}
    waiting = [each for each in wanted(options) if each.id not in there]
    end, taken = time.monotonic() + options.seconds, [0.0]
    async with cheat_suite.open_suite(load_settings()) as suite:
        while waiting and time.monotonic() + 1.5 * statistics.median(taken) < end:
            begin = time.monotonic()
            row = await suite.judge(waiting[0])
            waiting.pop(0)
            taken.append(time.monotonic() - begin)
            results.add({"shard": results.shard, **data_of(row, taken[-1])})
            word = "MISSED" if row.was_missed else "ALARM" if row.false_alarm else "ok"
            print(f"{word:<6} {row.candidate.id}: {row.verdict} {row.caught_by} ({taken[-1]:.0f} s)", flush=True)
    return [each.id for each in waiting]


def main() -> None:
    """Judge a shard; count all that was judged so far."""
    options = given()
    results = Results(options.json)
    left = asyncio.run(judge(options, results))
    cheats = [row for row in results.rows if row["kind"] == "cheat"]
    honest = len(results.rows) - len(cheats)
    missed = sum(row["missed"] for row in results.rows)
    alarms = sum(row["false_alarm"] for row in results.rows)
    print(f"{len(cheats)} cheats, {missed} missed; {honest} honest candidates, {alarms} false alarms")
    print(f"left: {', '.join(left) or 'nothing'}")
    raise SystemExit(1 if missed or alarms or left else 0)


if __name__ == "__main__":
    main()
