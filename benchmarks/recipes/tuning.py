"""What does it save to time the dominated points of a sweep no further, and is the same point the fastest?

    python benchmarks/recipes/tuning.py [--json PATH]

Twelve points of one C candidate, 1 to 12 passes over its data, on the processor. First mode tune: all points with wide
intervals, those that are not dominated once more. Then all points at the judge's usual precision, in one call.
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

from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.run.tuning_space import with_parameters
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

POINTS = 12
NAME = "kernel.c"
PROBLEM = """name = "twice plus one NAME"
reference = "def reference(x):\\n    return 2 * x + 1\\n"
rtol = 1e-5
atol = 1e-6
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 1_000_000 }]
"""
SOURCE = """#include <stdint.h>
#define PASSES 1
int launch(const float *x, float *y, int64_t n) {
    for (volatile int pass = 0; pass < PASSES; pass++)
        for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + 1;
    return 0;
}
"""


async def measured() -> dict[str, Any]:
    """Return seconds, points that were dominated, and the fastest point of both ways."""
    async with Lab.open(Settings()) as lab:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "p.toml").write_text(PROBLEM.replace("NAME", secrets.token_hex(4)))
            (folder / "k.c").write_text(SOURCE)
            values: dict[str, Any] = {
                "name": "tuning", "mode": "tune", "problem": "p.toml", "language": "c", "fresh": True,
                "tune": {"PASSES": [*range(1, POINTS + 1)]}, "tuning": {"source": "k.c"},
            }  # fmt: skip
            runs = Runs(lab)
            began = time.monotonic()
            state = await runs.go(runs.create(plan_of(values, folder)))
            swept_s = time.monotonic() - began
        points: list[Point] = [{"PASSES": n} for n in range(1, POINTS + 1)]
        entrants = [
            NamedCandidate(
                str(p["PASSES"]), CandidateSource(with_parameters(SOURCE, "c", p), "c", "kernel.c"), fresh=True
            )
            for p in points
        ]
        began = time.monotonic()
        table = await lab.evaluation.batches.compare(str(state.problem_id), entrants, wait_s=3600)
        return {
            "swept_s": swept_s, "exact_s": time.monotonic() - began,
            "dominated": sum(point.dominated_by is not None for point in state.tuned),
            "fastest_swept": state.tuned[0].parameters["PASSES"], "fastest_exact": int(table.rows[0].name),
        }  # fmt: skip


def main() -> None:
    """Measure once; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measured())
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    about["load"] = f"{os.getloadavg()[0]:.1f}"
    print(json.dumps({**about, **found}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({**about, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
