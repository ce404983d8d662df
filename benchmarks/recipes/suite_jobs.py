"""Time eight problems against two, when four are worked on at once.

    python benchmarks/recipes/suite_jobs.py [--jobs 4] [--think 10] [--json PATH]

Each problem is registered, specified, answered once and judged at tier smoke, in a suite of its own name. The scripted
agent thinks for `--think` seconds a call, as a model does, and answers rightly. Candidates are C and judged on the
processor: no GPU is leased, so this measures the suite and not the pool.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.suites import Suites
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

PROBLEM = """name = "add NUMBER"
reference = "def reference(x):\\n    return x + NUMBER\\n"
rtol = 1e-5
atol = 1e-5
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 10_000 }]
"""
AGENT = """import json, re, sys, time
prompt = sys.stdin.read()
time.sleep(THINK)
if "You write the specification" in prompt:
    print("```json\\n" + json.dumps({"operation": "a sum", "plan": ["one loop"]}) + "\\n```")
else:
    number = re.search(r"return x \\+ (\\d+)", prompt)[1]
    print("one loop\\n```c\\n#include <stdint.h>\\nint launch(const float *x, float *y, int64_t n) {"
          "for (int64_t i = 0; i < n; i++) y[i] = x[i] + " + number + "; return 0; }\\n```")
"""


async def timed(lab: Lab, folder: Path, numbers: range, jobs: int) -> float:
    """Return the seconds that a suite of new problems takes; each must reach its target."""
    problems: dict[str, Path] = {}
    for number in numbers:
        problems[f"p{number}"] = folder / f"p{number}.toml"
        problems[f"p{number}"].write_text(PROBLEM.replace("NUMBER", str(number)))
    agent = {"command": ["/usr/bin/python3", "agent.py"], "files": {"agent.py": "agent.py"}}
    plan = plan_of({"name": "jobs", "problem": "none", "language": "c", "tier": "smoke", "agent": agent}, folder)
    began = time.monotonic()
    report = await Suites(lab).over(plan, f"suite-{numbers.start}", problems, jobs=jobs)
    assert [row.stopped for row in report.rows] == ["target"] * len(numbers), report.summary()
    return time.monotonic() - began


async def measured(jobs: int, think_s: float) -> dict[str, Any]:
    """Return the times of one problem (to warm up), two and eight."""
    with tempfile.TemporaryDirectory(prefix="suite-jobs-") as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT.replace("THINK", str(think_s)))
        async with Lab.open(Settings(data_dir=folder / "data", index_documentation=False)) as lab:
            await timed(lab, folder, range(1, 2), 1)
            two = await timed(lab, folder, range(10, 12), jobs)
            eight = await timed(lab, folder, range(20, 28), jobs)
    return {"two_s": round(two, 2), "eight_s": round(eight, 2), "ratio": round(eight / two, 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--think", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {
        "jobs": given.jobs, "think_s": given.think, **asyncio.run(measured(given.jobs, given.think)),
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "machine": platform.machine(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
