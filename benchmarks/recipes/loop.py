"""Count what a recipe puts into the model's context; time the structured loop beside agent and judge.

    python benchmarks/recipes/loop.py [--language cuda] [--rounds 3] [--json PATH]

Context: the tools that the files of analyst, coder and tester name, in their order, once each, as one round of one
problem has them; counted as a client shows them. Loop: a run of a scripted agent that answers at once (never right,
tier smoke); of the run's wall time what is left beside the agents' own processes and the judge's evaluations, by step.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client

from gpu_mcp_server.mcp_api.server import server_from_settings
from gpu_mcp_server.recipes.agents.agent_jobs import Agents
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

ROOT = Path(__file__).parents[2]
SOFTMAX = ROOT / "examples" / "softmax"
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}
PROBLEM = {
    "name": "softmax", "reference": (SOFTMAX / "reference.py").read_text(), "inputs": [{"name": "x", **TENSOR}],
    "outputs": [{"name": "y", **TENSOR}], "shapes": [{"rows": 32, "cols": 1000}, {"rows": 1024, "cols": 4096}],
    "rtol": 1e-4, "atol": 1e-6,
}  # fmt: skip
AGENT = """
import json, re, sys
prompt = sys.stdin.read()
if "You write the specification" in prompt:
    print("```json\\n" + json.dumps({"operation": "softmax"}) + "\\n```")
else:
    number = re.search(r"This is candidate (\\d+)", prompt)[1]
    print("```c\\n#include <stdint.h>\\nint launch(const float *x, float *y, int64_t r, int64_t c) { return 0 * "
          + number + "; }\\n```")
"""


def shown_of(result: Any) -> int:
    """Return the characters that a client shows its model."""
    if result.structured_content is not None and not result.is_error:
        return len(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    return sum(len(getattr(block, "text", "")) for block in result.content)


async def context(settings: Settings, language: str) -> dict[str, list[tuple[str, int]]]:
    """Return by role which tool put how many characters before the model."""
    told: dict[str, list[tuple[str, int]]] = {"analyst": [], "coder": [], "tester": []}
    source = (SOFTMAX / ("naive.cu" if language == "cuda" else "naive.c")).read_text()
    async with Client(server_from_settings(settings)) as client:

        async def call(role: str, tool: str, **given: Any) -> dict[str, Any]:
            result = await client.call_tool(tool, given)
            told[role].append((tool, shown_of(result)))
            return result.structured_content or {}

        await call("analyst", "gpu_status")
        await call("analyst", "list_problems")
        await call("analyst", "search_docs", query="warp reduction shuffle max")
        problem_id = (await call("analyst", "register_problem", **PROBLEM))["problem_id"]
        await call("coder", "list_problems")
        await call("coder", "list_attempts", view="failures", problem_id=problem_id)
        await call("coder", "list_attempts", view="best", problem_id=problem_id)
        await call("coder", "compile_kernel", source=source, language=language)
        judged = await call("coder", "evaluate_kernel", problem_id=problem_id, source=source, language=language)
        await call("tester", "check_memory", target={"attempt_id": judged["attempt_id"]})
        test = "#!/bin/sh\necho 'rows 1: PASS'; echo 'rows 129: FAIL, expected 0.25, found 0.5 at [128, 3]'; exit 1\n"
        written = await call("tester", "write_files", files={"test.sh": test})
        await call("tester", "run_command", command=["sh", "test.sh"], workspace_id=written["workspace_id"])
    return told


async def loop(settings: Settings, folder: Path, rounds: int) -> list[dict[str, float]]:
    """Return for each run its steps, its wall time, and what agents and judge had of it."""
    found: list[dict[str, float]] = []
    own = {"agents": 0.0, "judge": 0.0}
    answered = Agents._answer

    async def counted(self: Agents, done: Any) -> Any:
        own["agents"] += done.record.wall_s or 0.0
        return await answered(self, done)

    Agents._answer = counted  # type: ignore[method-assign]  # the record is seen nowhere else
    async with Lab.open(settings) as lab:
        problem_id = (await lab.store.problems.list())[0].problem_id
        evaluate = lab.evaluation.evaluator.evaluate

        async def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await evaluate(*given, **named)
            finally:
                own["judge"] += time.perf_counter() - began

        lab.evaluation.evaluator.evaluate = timed  # type: ignore[method-assign]
        for number in range(rounds):
            own.update(agents=0.0, judge=0.0)
            plan = plan_of(
                {
                    "name": f"loop{number}", "problem": problem_id, "language": "c", "tier": "smoke",
                    "agent": {"command": ["{python}", "agent.py"], "files": {"agent.py": "agent.py"}},
                    "iterations": {"correctness": 5},
                },
                folder,
            )  # fmt: skip
            runs = Runs(lab)
            run_id = runs.create(plan)
            began = time.perf_counter()
            state = await runs.go(run_id)
            wall = time.perf_counter() - began
            found.append({"steps": len(state.steps), "wall_s": wall, **own})
    return found


def measured(language: str, rounds: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-bench-"))
    folder.chmod(0o711)
    (folder / "agent.py").write_text(AGENT)
    try:
        settings = Settings(data_dir=folder / "data", index_documentation=False)
        told = asyncio.run(context(settings, language))
        return {"context": told, "loop": asyncio.run(loop(settings, folder, rounds))}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--language", choices=["c", "cuda"], default="c")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    result = measured(asked.language, asked.rounds)
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, load {load:.1f}, {os.cpu_count()} cores, Python {platform.python_version()}")
    total = 0
    for role, calls in result["context"].items():
        characters = sum(count for _, count in calls)
        total += characters
        print(f"{role}: {characters:,} characters ({', '.join(f'{tool} {count:,}' for tool, count in calls)})")
    print(f"analyst, coder and tester: {total:,} characters (goal <= 12,000)")
    a_step = [(run["wall_s"] - run["agents"] - run["judge"]) / run["steps"] * 1000 for run in result["loop"]]
    spread = f"{min(a_step):.0f} to {max(a_step):.0f}"
    steps = result["loop"][0]["steps"]
    print(f"loop beside agent and judge: {statistics.median(a_step):.0f} ms a step ({spread}; {steps:.0f} steps a run)")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
