"""How much the median of one candidate moves from evaluation to evaluation: `python benchmarks/judge/repeats.py`.

The same library is judged again and again in processes of its own, each time with a fresh seed. For each shape: the
medians' median, how far the farthest lies from it, and what ended the rounds. Takes about two minutes on an H200.
"""

import argparse
import dataclasses
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.services.harness import EFFORTS  # noqa: E402
from tests.judge.harness import EXAMPLES, build, judge  # noqa: E402

SHAPES = {
    "cuda": [{"rows": 1024, "cols": 1024}, {"rows": 8192, "cols": 8192}],
    "cpu": [{"rows": 64, "cols": 1000}],
}


def once(library: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Judge once; return each shape's verdict, and what empty passes took."""
    torch = options.device == "cuda" and importlib.util.find_spec("torch") is not None
    reference = EXAMPLES / ("reference_torch.py" if torch else "reference.py")
    with tempfile.TemporaryDirectory() as folder:
        task = {"framework": "torch" if torch else "numpy", "device": options.device, "rtol": 1e-4}
        task |= {"shapes": SHAPES[options.device], "fixed_shapes": True, "distributions": "declared"}
        task |= dataclasses.asdict(EFFORTS[options.precision])
        outcome = judge(Path(folder), reference, library, timeout_s=300, **task)
    if outcome.exit_code or outcome.verdict["verdict"] != "correct":
        raise SystemExit(f"{outcome.stderr} {outcome.verdict.get('reason')}")
    costs = {k: v for k, v in outcome.verdict["evidence"].items() if "_pass_cost" in k}
    return {"shapes": outcome.verdict["shapes"], **costs}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SHAPES), default="cuda")
    parser.add_argument("--candidate", help="vectorized.cu, on the processor vectorized.c")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--precision", choices=list(EFFORTS), default="exact")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--deadline-s", type=float, default=float("inf"))
    options = parser.parse_args()
    end = time.monotonic() + options.deadline_s
    candidate = options.candidate or ("vectorized.cu" if options.device == "cuda" else "vectorized.c")
    with tempfile.TemporaryDirectory() as top:
        library = build(EXAMPLES / candidate, Path(top))
        found: list[dict[str, Any]] = []
        while len(found) < options.repeats and time.monotonic() < end:
            found.append(once(library, options))
            print(len(found), [s["candidate"] and s["candidate"]["median_us"] for s in found[-1]["shapes"]], flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    gpu = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device = (
        subprocess.run(gpu, capture_output=True, text=True, check=True).stdout.strip()
        if options.device == "cuda"
        else "-"
    )
    where = f"{device}, Linux {platform.release()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {where}, {candidate}, {options.precision}, {len(found)} repeats")
    print(
        "| shape | timed | median of medians, us | farthest from it | half-width, median | rounds, median "
        "| stopped by |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for number, dims in enumerate(SHAPES[options.device]):
        shapes = [one["shapes"][number] for one in found]
        timed = [s["candidate"]["median_us"] for s in shapes if s["candidate"]]
        middle = statistics.median(timed) if timed else float("nan")
        cells = [
            "x".join(str(v) for v in dims.values()),
            f"{len(timed)} of {len(shapes)}",
            f"{middle:.4g}",
            f"{max((abs(t - middle) / middle for t in timed), default=float('nan')):.2%}",
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
