"""Seconds to a verdict on this machine's processor, and whether its time could be confirmed.

    python benchmarks/judge/verdict_seconds.py [--times 5] [--rows 64] [--cols 256]

A softmax in plain C is judged again and again, each time as a new source, under your account: as an ordinary user
without a control group the candidate is stopped by signals. Prints a line a verdict and a summary as JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from gpu_mcp_server.models.problem import TensorSpec  # noqa: E402
from gpu_mcp_server.services.builds.candidate_source import CandidateSource  # noqa: E402
from tests.laboratory import laboratory  # noqa: E402

SOURCE = (ROOT / "examples" / "softmax" / "naive.c").read_text()
REFERENCE = (ROOT / "examples" / "softmax" / "reference.py").read_text()
MATRIX = {"shape": ["rows", "cols"], "dtype": "float32"}


async def main() -> None:
    """Judge it, and say what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cols", type=int, default=256)
    given = parser.parse_args()
    seconds: list[float] = []
    confirmed = timed = 0
    async with laboratory() as lab:
        problem = await lab.evaluation.registry.register(
            name="softmax", reference=REFERENCE, entry="softmax", rtol=1e-4, atol=1e-5,
            inputs=[TensorSpec.model_validate({"name": "x", **MATRIX})],
            outputs=[TensorSpec.model_validate({"name": "y", **MATRIX})],
            shapes=[{"rows": given.rows, "cols": given.cols}],
        )  # fmt: skip
        for number in range(given.times):
            source = CandidateSource(f"{SOURCE}\n// {number}\n", "c", "softmax.c")
            begin = time.monotonic()
            found = await lab.evaluation.evaluator.evaluate(problem.problem_id, source)
            whole = time.monotonic() - begin
            seconds.append(found.seconds["judge"])
            timed += found.speedup is not None
            confirmed += found.speedup is not None and not found.unconfirmable()
            print(
                f"{found.verdict} {whole:.1f} s, judge {seconds[-1]:.1f} s: {found.shapes[0].line_text()}", flush=True
            )
    middle, load = statistics.median(seconds), os.getloadavg()[0]
    about = {"uid": os.getuid(), "cores": os.cpu_count(), "load": round(load, 1), "level": found.level}
    print(json.dumps({**about, "judge_s": round(middle, 2), "timed": timed, "confirmed": confirmed, "of": given.times}))


if __name__ == "__main__":
    asyncio.run(main())
