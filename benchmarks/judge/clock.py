"""The judge's clock against CUDA events: `python benchmarks/judge/clock.py` where a GPU, nvcc and torch are.

Each shape is judged by the whole judge, then the same library runs in a plain process of its own, with as many buffers
in turn as the judge had calls in a round, timed by CUDA events. Ratio: the judge's median over that of the events.
Rounds go on until the interval is 0.5 %, 200 rounds or 5 s, as `timing.precision: exact` has it; the calls are made
by the compiled loop. Takes about two minutes on an H200.
"""

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.judge.harness import EXAMPLES, build_cuda, judge  # noqa: E402

SHAPES = [{"rows": rows, "cols": cols} for rows, cols in ((64, 1000), (1024, 1024), (4096, 4096), (8192, 8192))]
PLAIN = r"""
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <vector>
typedef int (*Launch)(const float *, float *, int64_t, int64_t, cudaStream_t);
__global__ void fill(float *x, int64_t n, unsigned seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u ^ seed; h ^= h >> 15; h *= 2246822519u; h ^= h >> 13;
        x[i] = (int)h * 1e-9f;
    }
}
int main(int, char **argv) {
    Launch launch = (Launch)dlsym(dlopen(argv[1], RTLD_NOW), "launch");
    int64_t rows = atoll(argv[2]), cols = atoll(argv[3]); int sets = atoi(argv[4]), rounds = atoi(argv[5]);
    std::vector<float *> x(sets), y(sets);
    for (int i = 0; i < sets; i++) {
        if (cudaMalloc(&x[i], rows * cols * 4) || cudaMalloc(&y[i], rows * cols * 4)) return 1;
        fill<<<1024, 256>>>(x[i], rows * cols, i);
    }
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    for (int r = -3; r < rounds; r++) {
        cudaDeviceSynchronize();
        auto begin = std::chrono::steady_clock::now();
        cudaEventRecord(a);
        for (int i = 0; i < sets; i++) if (launch(x[i], y[i], rows, cols, 0)) return 2;
        cudaEventRecord(b); cudaEventSynchronize(b);
        double host = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
        float ms; cudaEventElapsedTime(&ms, a, b);
        if (r >= 0) printf("%g %g\n", ms * 1e3 / sets, host / sets);
    }
}
"""


def said_by(*command: str) -> str:
    """Return what a command prints, a dash if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "-"


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return median and 95 % interval as the judge computes them."""
    spec = importlib.util.spec_from_file_location("stats", ROOT / "gpu_mcp_server/judge/numerics/stats.py")
    assert spec and spec.loader
    stats: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stats)
    return stats.median_interval(values)


def plainly(program: Path, library: Path, dims: dict[str, int], sets: int, rounds: int) -> list[tuple[float, ...]]:
    """Return microseconds a call of each round, by CUDA events and by the host's clock."""
    command = [str(program), str(library), *(str(v) for v in dims.values()), str(sets), str(rounds)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [tuple(float(word) for word in line.split()) for line in printed.splitlines()]


def measured(top: Path, dims: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """Judge one shape and time it plainly."""
    folder = Path(tempfile.mkdtemp(dir=top))
    library = build_cuda(EXAMPLES / options.candidate, folder)
    torch = importlib.util.find_spec("torch") is not None
    reference = EXAMPLES / ("reference_torch.py" if torch else "reference.py")
    task = {"framework": "torch" if torch else "numpy", "overhead_s": options.overhead, "round_ms": options.round_ms}
    effort = {"budget_s": 5.0, "max_rounds": 200, "half_width": 0.005}
    task = {**task, **effort, "device": "cuda", "shapes": [dims], "rtol": 1e-4}
    outcome = judge(folder, reference, library, timeout_s=300, compiled_calls=not options.python_loop, **task)
    if outcome.exit_code or outcome.verdict["verdict"] != "correct":
        raise SystemExit(f"{dims}: {outcome.stderr} {outcome.verdict.get('reason')}")
    shape = outcome.verdict["shapes"][0]
    if not shape["candidate"]:
        raise SystemExit(f"{dims}: not timed: {shape['notes']}")
    sets = shape["candidate"]["calls_per_round"]
    plain = plainly(top / "plain", library, dims, sets, shape["candidate"]["rounds"])
    return {
        "dims": dims, "shape": {k: v for k, v in shape.items() if k != "samples"}, "judge": shape["candidate"],
        "reference": shape["reference"], "notes": shape["notes"],
        "events": interval([p[0] for p in plain]), "host": interval([p[1] for p in plain]),
        "looking": shape["samples"]["looking"], "samples": {**shape["samples"], "events_us": [p[0] for p in plain]},
        "evidence": outcome.verdict["evidence"],
    }  # fmt: skip


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidate", default="vectorized.cu")
    parser.add_argument("--overhead", type=float, default=30.0, help="overhead_s of the task: how many rounds")
    parser.add_argument(
        "--python-loop", action="store_true", help="the calls are made by Python, as without a compiler"
    )
    parser.add_argument("--round-ms", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        (top / "plain.cu").write_text(PLAIN)
        command = ["nvcc", "-O3", "-arch=native", "-o", str(top / "plain"), str(top / "plain.cu"), "-ldl"]
        subprocess.run(command, check=True)
        found = [measured(top, dims, options) for dims in SHAPES]
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {gpu}, Linux {platform.release()}, Python {platform.python_version()}")
    head = ["softmax float32", "calls x rounds", "judge, us", "half-width", "stopped by", "CUDA events, us"]
    head += ["plain host clock, us", "judge / events"]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for one in found:
        j, e, h = one["judge"], one["events"], one["host"]
        cells = [
            "x".join(str(v) for v in one["dims"].values()),
            f"{j['calls_per_round']} x {j['rounds']}",
            f"{j['median_us']:.4g} ({j['low_us']:.4g}-{j['high_us']:.4g})",
            f"{one['shape']['half_width']:.2%}",
            one["shape"]["stopped_by"],
            *(f"{m:.4g} ({a:.4g}-{b:.4g})" for m, a, b in (e, h)),
            f"{j['median_us'] / e[0]:.3f}",
        ]
        print("| " + " | ".join(cells) + " |")
    for one in found:
        said = [one["shape"].get(name) for name in ("conditions", "cache", "roof")]
        print(one["dims"], said, one["looking"], one["notes"], one["evidence"]["seconds"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
