"""Count how often `compare` finds a kernel that became some per cent slower, and takes an unchanged one for changed.

    python benchmarks/judge/planted_slowdowns.py --device cuda --planted 100 --null 200 --json OUT

A kernel iterates to the square root of x * x + 1. It has converged long before the end, so more iterations change the
time and not the answer: the slower one makes `--percent` more. Each comparison is one of `gpu-mcp-server compare`, of
two folders; comparisons with a planted slow-down and without take turns. `--json` is written after each comparison and
read at the start, so a call that ends early goes on. Besides the counts with their intervals, the report says how often
random sets of all pairs of turns would have said so: those sets overlap, so that is no count.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpu_mcp_server.models.suite import Proportion  # noqa: E402 - after the path
from gpu_mcp_server.recipes.kernel_comparison import TURNS, compare_kernels, decide_by_looks  # noqa: E402

ITERATIONS = 400
"""With 3 % more, 412, it is a multiple of four too: compilers unroll by that, and 206 took 3.9 % longer than 200."""
STEPS = (
    "float a = x[i] * x[i] + 1, v = a;\n        for (int k = 0; k < {0}; k++) v = 0.5f * (v + a / v);"
    "\n        y[i] = v;"
)
KERNELS = {
    "cpu": ("c", "#include <stdint.h>\nint launch(const float *x, float *y, int64_t n) {{\n"
            "    for (int64_t i = 0; i < n; i++) {{\n        " + STEPS + "\n    }}\n    return 0;\n}}\n"),
    "cuda": ("cuda", "#include <cstdint>\n__global__ void root(const float *x, float *y, int64_t n) {{\n"
             "    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;\n    if (i < n) {{\n        " + STEPS +
             "\n    }}\n}}\nextern \"C\" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {{\n"
             "    root<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);\n    return cudaGetLastError();\n}}\n"),
}  # fmt: skip
PROBLEM = """name = "root of x squared plus one"
reference = "import {0} as np\\n\\ndef reference(x):\\n    return np.sqrt(x * x + 1)\\n"
rtol = 1e-5
atol = 1e-6
inputs = [{{ name = "x", dtype = "float32", shape = ["n"] }}]
outputs = [{{ name = "y", dtype = "float32", shape = ["n"] }}]
shapes = [{{ n = {1} }}]
trials = {{ fixed_shapes = true, distributions = "declared" }}
implementations.newton = {{ language = "{2}", path = "{3}" }}
"""
SIZES = {"cpu": 2000, "cuda": 2_097_152}
DRAWS = 10_000


def given() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(KERNELS), default="cuda")
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--null", type=int, default=200)
    parser.add_argument("--percent", type=float, default=3.0, help="by which the planted kernel does more")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--judge-python", default=sys.executable, help="a Python with NumPy, on a GPU with torch")
    parser.add_argument("--deadline-s", type=float, default=math.inf)
    parser.add_argument("--json", type=Path, default=Path("planted-slowdowns.json"))
    return parser.parse_args()


def write_tree(folder: Path, device: str, iterations: int, mark: str) -> str:
    """Write a folder with the problem and its kernel; `mark` makes its text another one, which compiles once."""
    language, text = KERNELS[device]
    name = "newton.cu" if device == "cuda" else "newton.c"
    folder.mkdir()
    (folder / name).write_text(f"// {mark}\n{text.format(iterations)}")
    library = "torch" if device == "cuda" else "numpy"
    (folder / "problem.toml").write_text(PROBLEM.format(library, SIZES[device], language, name))
    return str(folder)


async def compare_once(lab: Any, options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Compare once; return the row, the seconds and the pairs' ratios."""

    async def unheard(_: str) -> None: ...

    with tempfile.TemporaryDirectory() as folder:
        base = write_tree(Path(folder, "base"), options.device, ITERATIONS, "base")
        iterations = round(ITERATIONS * (1 + options.percent / 100)) if kind == "planted" else ITERATIONS
        head = write_tree(Path(folder, "head"), options.device, iterations, f"head {kind}")
        began = time.monotonic()
        found = await compare_kernels(lab, base, head, tell=unheard, turns=options.turns)
    (row,) = found.rows
    return {"kind": kind, "seconds": time.monotonic() - began, **row.model_dump()}


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Make the comparisons that are missing, as far as there is time."""
    from tests.laboratory import laboratory

    rows: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json.exists() else []
    end, longest = time.monotonic() + options.deadline_s, 0.0
    wanted = {"planted": options.planted, "null": options.null}
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": options.judge_python}}) as lab:
        while time.monotonic() + longest < end:
            left = {kind: most - sum(row["kind"] == kind for row in rows) for kind, most in wanted.items()}
            kind = max(left, key=lambda one: left[one] / max(wanted[one], 1))
            if left[kind] <= 0:
                break
            rows.append(await compare_once(lab, options, kind))
            longest = max(longest, rows[-1]["seconds"])
            options.json.write_text(json.dumps(rows, indent=1))
            said = {name: rows[-1][name] for name in ("kind", "status", "speed", "low", "high", "seconds", "note")}
            print(json.dumps(said), flush=True)
    return rows


def redrawn(ratios: Sequence[float], turns: int) -> Counter[str]:
    """Return what random sets of pairs would have said, without replacement within a set; the sets overlap."""
    draw = random.Random(38)
    drawn = (draw.sample(ratios, turns) for _ in range(DRAWS if len(ratios) >= 2 * turns else 0))
    return Counter(decide_by_looks(each, turns) for each in drawn)


def report(rows: Sequence[dict[str, Any]], turns: int) -> str:
    """Return the counts as Markdown."""
    lines = ["| comparisons | of | slower | faster | same | unknown | other | speed, median | pair's spread |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    further: list[str] = []
    for kind in ("planted", "null"):
        own = [row for row in rows if row["kind"] == kind]
        count = Counter(row["status"] for row in own)
        known = [count[status] for status in ("slower", "faster", "same", "unknown")]
        ratios = [value for row in own for value in row["log_ratios"]]
        speeds = [row["speed"] for row in own if row["speed"]]
        middle = f"{statistics.median(speeds):.4f}" if speeds else "-"
        spread = f"{100 * statistics.stdev(ratios):.2f} %" if len(ratios) > 1 else "-"
        cells = [kind, len(own), *known, len(own) - sum(known), middle, spread]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        hits = count["slower"] if kind == "planted" else count["slower"] + count["faster"]
        said = "found" if kind == "planted" else "false alarms"
        further.append(f"- {said}: {Proportion.from_counts(hits, len(own)).text()}")
        drawn = redrawn(ratios, turns)
        shares = ", ".join(f"{status} {100 * n / DRAWS:.1f} %" for status, n in drawn.most_common())
        further += [f"- {kind}, random sets of {turns} of {len(ratios)} pairs: {shares}"] if drawn else []
    if rows:
        further.append(f"- seconds of a comparison: {statistics.median(row['seconds'] for row in rows):.1f} (median)")
        turns_made = Counter(row["turns"] for row in rows)
        said = ", ".join(f"{count} times {number}" for number, count in sorted(turns_made.items()))
        further += [f"- turns until it was decided: {said}", f"- device: {rows[0]['device']}"]
    return "\n".join([*lines, "", *further])


def main() -> None:
    """Measure and print a table."""
    options = given()
    print(report(asyncio.run(measure(options)), options.turns))


if __name__ == "__main__":
    main()
