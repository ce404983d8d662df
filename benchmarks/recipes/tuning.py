"""Time a sweep with and without its dominated points, and compare the fastest point of both.

    python benchmarks/recipes/tuning.py [--language c|cuda] [--json PATH]

Six points of one candidate, 1 to 6 passes over its data: in C on the processor, in CUDA on the host's GPU. First mode
tune: all points with wide intervals, those that are not dominated once more. Then all points at the judge's usual
precision, in one call. Neither way has its best confirmed. About 14 judgements: two minutes on a GPU.
"""

import argparse
import asyncio
import json
import os
import platform
import secrets
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.run.tuning_space import with_parameters
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

POINTS = 6
PROBLEM = """name = "twice plus one NAME"
reference = "def reference(x):\\n    return 2 * x + 1\\n"
rtol = 1e-5
atol = 1e-6
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 1_000_000 }]
"""
SOURCES: dict[CandidateLanguage, str] = {
    "c": """#include <stdint.h>
#define PASSES 1
int launch(const float *x, float *y, int64_t n) {
    for (volatile int pass = 0; pass < PASSES; pass++)
        for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + 1;
    return 0;
}
""",
    "cuda": """#include <cstdint>
#define PASSES 1
__global__ void work(const volatile float *x, volatile float *y, int64_t n) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    for (int pass = 0; pass < PASSES && i < n; pass++) y[i] = 2 * x[i] + 1;
}
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
    work<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
""",
}
SIZES: dict[CandidateLanguage, int] = {"c": 1_000_000, "cuda": 20_000_000}


async def measured(language: CandidateLanguage) -> dict[str, Any]:
    """Return seconds, points that were dominated, and the fastest point of both ways."""
    async with Lab.open(Settings()) as lab:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            problem = PROBLEM.replace("NAME", secrets.token_hex(4)).replace("1_000_000", str(SIZES[language]))
            (folder / "p.toml").write_text(problem)
            (folder / "kernel").write_text(SOURCES[language])
            values: dict[str, Any] = {
                "name": "tuning", "mode": "tune", "problem": "p.toml", "language": language, "fresh": True,
                "accept_provisional": True,
                "tune": {"PASSES": [*range(1, POINTS + 1)]}, "tuning": {"source": "kernel"},
            }  # fmt: skip
            runs = Runs(lab)
            began = time.monotonic()
            state = await runs.go(runs.create(plan_of(values, folder)))
            swept_s = time.monotonic() - began
        points: list[Point] = [{"PASSES": n} for n in range(1, POINTS + 1)]
        sources = [with_parameters(SOURCES[language], language, point) for point in points]
        entrants = [
            NamedCandidate(str(point["PASSES"]), CandidateSource(source, language, NAMES[language]), fresh=True)
            for point, source in zip(points, sources, strict=True)
        ]
        began = time.monotonic()
        table = await lab.evaluation.batches.compare(str(state.problem_id), entrants, wait_s=3600)
        return {
            "stopped": state.why, "swept_s": swept_s, "exact_s": time.monotonic() - began,
            "judgements": sum(len(found["verdicts"]) for found in runs.journal(state.run_id) if "verdicts" in found),
            "dominated": sum(point.dominated_by is not None for point in state.tuned),
            "points": [point.line_text() for point in state.tuned],
            "fastest_swept": state.tuned[0].parameters["PASSES"], "fastest_exact": int(table.rows[0].name),
        }  # fmt: skip


def main() -> None:
    """Measure once; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=SOURCES, default="c")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measured(arguments.language))
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    about["load"] = f"{os.getloadavg()[0]:.1f}"
    print(json.dumps({**about, **found}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({**about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
