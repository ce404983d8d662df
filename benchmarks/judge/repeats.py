"""Spread of one candidate's median from evaluation to evaluation: `python benchmarks/judge/repeats.py`.

The same source is judged again and again, as `evaluate_kernel` does it: in sandboxes, each time with a fresh seed. For
each shape: the medians' median, how far the farthest lies from it, the speed-ups, and what ended the rounds. Twenty
take about five minutes on an H200. On a GPU the reference is PyTorch's, so a host's `judge_python` must have it; see
--help.
"""

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

EXAMPLES = ROOT / "examples" / "softmax"
SHAPES = {
    "cuda": [{"rows": 1024, "cols": 1024}, {"rows": 8192, "cols": 8192}],
    "cpu": [{"rows": 64, "cols": 1000}, {"rows": 512, "cols": 1024}],
}
MATRIX = {"dtype": "float32", "shape": ["rows", "cols"]}


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SHAPES), default="cuda")
    parser.add_argument("--candidate", help="of examples/softmax; vectorized.cu, on the processor vectorized.c")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--precision", choices=["quick", "exact"], default="exact")
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with NumPy, on a GPU with torch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--deadline-s", type=float, default=float("inf"))
    return parser.parse_args()


async def registered(lab: Any, device: str) -> str:
    """Register softmax of rows at the shapes that are timed, and return its id."""
    from gpu_mcp_server.models.problem import TensorSpec

    info = await lab.evaluation.registry.register(
        name="softmax of rows",
        reference=(EXAMPLES / ("reference_torch.py" if device == "cuda" else "reference.py")).read_text(),
        inputs=[TensorSpec(name="x", **MATRIX)],
        outputs=[TensorSpec(name="y", **MATRIX)],
        shapes=SHAPES[device],
        rtol=1e-4,
        atol=1e-7,
        fixed_shapes=True,
        distributions="declared",
    )
    return str(info.problem_id)


async def once(lab: Any, problem_id: str, candidate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Judge once; return each shape's verdict, what empty passes took and where the time went."""
    from gpu_mcp_server.models.evaluation import TimingOptions
    from gpu_mcp_server.services.builds.candidate_source import LANGUAGES, CandidateSource

    source = CandidateSource((EXAMPLES / candidate).read_text(), LANGUAGES[Path(candidate).suffix], candidate)
    timing = TimingOptions(precision=options.precision, baseline="eager", fresh=True)
    result = await lab.evaluation.evaluator.evaluate(problem_id, source, device=options.device, timing=timing)
    if result.verdict != "correct" or not result.evidence_artifact_id:
        raise SystemExit(f"{result.status}: {result.verdict}: {result.reason}")
    whole = json.loads(await lab.store.artifacts.read(result.evidence_artifact_id))
    evidence = whole["evidence"]
    kept = {k: v for k, v in evidence.items() if "_pass_cost" in k or k in ("seconds", "start_seconds", "freeze")}
    return {"shapes": whole["shapes"], **kept}


async def measure(candidate: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Judge as often as is asked, or as there is time."""
    from tests.laboratory import laboratory

    end = time.monotonic() + options.deadline_s
    found: list[dict[str, Any]] = []
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
        problem_id = await registered(lab, options.device)
        while len(found) < options.repeats and time.monotonic() < end:
            found.append(await once(lab, problem_id, candidate, options))
            print(len(found), [s["candidate"] and s["candidate"]["median_us"] for s in found[-1]["shapes"]], flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def main() -> None:
    """Measure and print a table."""
    options = given()
    candidate = options.candidate or ("vectorized.cu" if options.device == "cuda" else "vectorized.c")
    found = asyncio.run(measure(candidate, options))
    gpu = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device = (
        subprocess.run(gpu, capture_output=True, text=True, check=True).stdout.strip()
        if options.device == "cuda"
        else "-"
    )
    where = f"{device}, Linux {platform.release()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {where}, {candidate}, {options.precision}, {len(found)} repeats")
    print(
        "| shape | timed | median of medians, us | farthest from it | speed-up, median (least to most) "
        "| half-width, median | rounds, median | stopped by |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for number, dims in enumerate(SHAPES[options.device]):
        shapes = [one["shapes"][number] for one in found]
        timed = [s["candidate"]["median_us"] for s in shapes if s["candidate"]]
        middle = statistics.median(timed) if timed else float("nan")
        ratios = [s["speedup"] for s in shapes if s["speedup"]] or [float("nan")]
        cells = [
            "x".join(str(v) for v in dims.values()),
            f"{len(timed)} of {len(shapes)}",
            f"{middle:.4g}",
            f"{max((abs(t - middle) / middle for t in timed), default=float('nan')):.2%}",
            f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})",
            f"{statistics.median(s['half_width'] for s in shapes):.2%}",
            f"{statistics.median(len(s['samples']['candidate_us']) for s in shapes):g}",
            ", ".join(f"{k} {v}" for k, v in Counter(s["stopped_by"] for s in shapes).most_common()),
        ]
        print("| " + " | ".join(cells) + " |")
        print(
            "   ",
            Counter(s["conditions"] for s in shapes).most_common(3),
            shapes[0]["samples"]["looking"],
            shapes[0]["notes"],
        )


if __name__ == "__main__":
    main()
