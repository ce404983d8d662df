"""Honest kernels in forms of every day, judged on a GPU: is each verdict right, and can its time be confirmed?

    python benchmarks/judge/honest_kernels.py --json OUT.jsonl [--part K/N] [--seconds S] [ID ...]

The kernels and their problems are in honest_kernels/index.toml beside this file. Each row is written as soon as it is
known; a kernel with a row is not judged again. Ends with exit code 1 if a verdict was wrong, or some are left. Needs a
GPU of compute capability 9.0, nvcc, and a Python with torch, Triton and CuPy.
"""

import argparse
import asyncio
import statistics
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from candidate_shards import Results, part_of  # noqa: E402 - it lies beside this file

from gpu_mcp_server.models.evaluation import Evaluation  # noqa: E402
from gpu_mcp_server.models.problem import TensorSpec  # noqa: E402
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource  # noqa: E402
from gpu_mcp_server.services.lab import Lab  # noqa: E402
from tests.laboratory import laboratory  # noqa: E402

FOLDER = Path(__file__).with_suffix("")
AT_ONCE = 4
"""Kernels under way: one has the GPU, and others are compiled or import."""
HEAD = "| kernel | verdict | speed-up, interval | trust | judge, s |\n|" + " --- |" * 5


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="of kernels; none: all")
    parser.add_argument("--json", type=Path, required=True, help="a line for each kernel; it is added to")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth kernel, from the Kth on")
    parser.add_argument("--seconds", type=float, default=450.0, help="none is begun later")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with torch")
    return parser.parse_args()


def read_index() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the problems by name, and the kernels."""
    index = tomllib.loads((FOLDER / "index.toml").read_text())
    return index["problems"], [{"id": each["file"], **each} for each in index["kernels"]]


async def register(lab: Lab, name: str, about: Mapping[str, Any]) -> str:
    """Return the id of a problem."""
    info = await lab.evaluation.registry.register(
        name=name, reference=about["reference"], framework="torch", entry=about["entry"], shapes=about["shapes"],
        inputs=[TensorSpec.model_validate(each) for each in about["inputs"]],
        outputs=[TensorSpec.model_validate(each) for each in about["outputs"]],
        rtol=about["rtol"], atol=about["atol"],
    )  # fmt: skip
    return info.problem_id


def row_of(kernel: Mapping[str, Any], found: Evaluation) -> dict[str, Any]:
    """Return an evaluation's figures."""
    shape = found.shapes[0] if found.shapes else None
    interval = [shape.speedup_low, shape.speedup_high] if shape else None
    return {
        "id": kernel["id"], "what": kernel["what"], "verdict": found.verdict or found.status,
        "wanted": kernel.get("expect", "correct"), "reason": found.reason[:600], "speedup": found.speedup,
        "interval": interval, "trust": found.trust, "unconfirmable": found.unconfirmable(),
        "judge_s": found.seconds.get("judge"), "summary": found.summary(),
    }  # fmt: skip


def line(row: Mapping[str, Any]) -> str:
    """Return a kernel's line of the table."""
    verdict = row["verdict"] if row["verdict"] == row["wanted"] else f"**{row['verdict']}**, not {row['wanted']}"
    speed = f"{row['speedup']:.3g} [{row['interval'][0]:.3g}, {row['interval'][1]:.3g}]" if row["speedup"] else "-"
    judge = f"{row['judge_s']:.1f}" if row["judge_s"] else ""
    return f"| {row['what']} (`{row['id']}`) | {verdict} | {speed} | {row['trust'] or row['reason'][:160]} | {judge} |"


async def judge(options: argparse.Namespace, results: Results, kernels: Sequence[dict[str, Any]]) -> None:
    """Judge all that have no row, several under way at a time."""
    problems, _ = read_index()
    there = {row["id"] for row in results.rows}
    waiting = [each for each in kernels if each["id"] not in there]
    end, places = time.monotonic() + options.seconds, asyncio.Semaphore(AT_ONCE)
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
        names = dict.fromkeys(each["problem"] for each in waiting)
        ids = {name: await register(lab, name, problems[name]) for name in names}

        async def one(kernel: dict[str, Any]) -> None:
            language = "cuda" if kernel["file"].endswith(".cu") else kernel.get("language", "triton")
            text = (FOLDER / kernel["file"]).read_text().replace(*kernel.get("replace", ("", "")))
            source = CandidateSource(text, language, NAMES[language])
            async with places:
                if time.monotonic() > end:
                    return
                found = await lab.evaluation.evaluator.evaluate(
                    ids[kernel["problem"]], source, device="cuda", flags=kernel.get("flags", ()), wait_s=300
                )
            results.add({"shard": results.shard, **row_of(kernel, found)})
            print(line(results.rows[-1]), flush=True)

        await asyncio.gather(*map(one, waiting))


def main() -> None:
    """Judge a shard; print the table of all that was judged so far."""
    options = given()
    kernels = [each for each in read_index()[1] if not options.ids or each["id"] in options.ids]
    results, mine = Results(options.json), part_of(kernels, options.part)
    asyncio.run(judge(options, results, mine))
    rows = results.rows
    print("\n".join([HEAD, *map(line, rows)]))
    wrong = [row["id"] for row in rows if row["verdict"] != row["wanted"]]
    left = [each["id"] for each in mine if each["id"] not in {row["id"] for row in rows}]
    timed = [row for row in rows if row["speedup"]]
    unconfirmable = sum(bool(row["unconfirmable"]) for row in timed)
    middle = statistics.median(row["judge_s"] for row in timed) if timed else 0.0
    print(f"{len(rows)} kernels, {len(wrong)} wrong verdicts: {', '.join(wrong) or 'none'}")
    print(f"{len(timed)} with a time, {unconfirmable} of them unconfirmable; judge {middle:.1f} s in the median")
    print(f"left: {', '.join(left) or 'nothing'}")
    raise SystemExit(1 if wrong or left else 0)


if __name__ == "__main__":
    main()
