"""A judged kernel in a copy of a program, with the real torch: it answers what it was judged at, and gradients stay."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.profilers import hotspots
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import PROBLEM, laboratory
from tests.services.programs.test_problem_capture import GPT, IMAGES, NORM, PYTHON, capture, judge, needs_torch

SQUARED = """
#include <stdint.h>
int launch(const float *x, float *y) {
    for (int i = 0; i < 8 * 4 * 32; i++) y[i] = x[i] > 0 ? x[i] * x[i] : 0;
    return 0;
}
"""

RETURNS = "import torch\n\n\ndef run(x):\n    return torch.relu(x).square()\n"
"""A launcher of public suites, which takes neither outputs nor dimensions."""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


@needs_torch
@pytest.mark.timeout(1500)
async def test_a_kernel_trains_a_copy_as_the_program_itself_does_and_is_counted(lab: Lab):
    found = await capture(lab, GPT, "__main__:squared_relu", "2", "8", "4")
    assert found.problem, found.summary()
    verdict = await judge(lab, found.problem.problem_id, SQUARED)
    assert verdict.verdict == "correct", verdict.summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": GPT})).workspace_id
    applied = await lab.programs.overlays.apply(verdict.attempt_id, workspace)
    latin = (await lab.store.workspaces.write(None, {"program.py": "# placeholder"})).workspace_id
    blobs = await lab.store.artifacts.put_blobs([f"# -*- coding: latin-1 -*-\n# \xe9\n{GPT}".encode("latin-1")])
    sha256, size = next(iter(blobs))
    await lab.store.workspaces.place(latin, latin, [FileRef("program.py", sha256, size)])
    with pytest.raises(BadRequest, match=r"program\.py is no UTF-8"):
        await lab.programs.overlays.apply(verdict.attempt_id, latin)
    assert (await lab.store.workspaces.read_bytes(workspace, "program.py")).decode() == GPT, "the user's file stays"
    patch = (await lab.store.artifacts.read(applied.patch)).decode()
    assert "+squared_relu = getattr(" in patch and "candidate.so" in patch
    async with lab.store.workspaces.laid_out(applied.workspace_id) as folder:

        def run(**more: str) -> str:
            argv = [PYTHON, "program.py", "2", "8", "4"]
            env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **more}
            return subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout

        plain = await asyncio.to_thread(run)
        counts = str(folder / "counts")
        overlay = str(folder / "speedup_overlay")
        with_it = await asyncio.to_thread(run, PYTHONPATH=overlay, GPU_MCP_OVERLAY_COUNTS=counts)
        told = [json.loads(path.read_text()) for path in folder.glob("counts.*")]
    assert with_it == plain and told == [{"calls": 4, "passed_on": 0}], "two layers, two steps, the same loss"


@needs_torch
@pytest.mark.timeout(1500)
async def test_a_kernel_answers_modules_with_weights_in_the_mode_that_costs_most(lab: Lab, monkeypatch):
    text = IMAGES.replace("for _ in range(batches):", "for at in range(batches):\n            model.train(at == 0)")
    found = await capture(lab, text, "Sequential.*.norm", "3", "16")
    assert found.problem and [(s.calls, s.inputs) for s in found.sets] == [(6, ["x float32[4, 32, 8, 8]"])]
    assert "3 calls of modules in training mode are left out" in found.summary()
    verdict = await judge(lab, found.problem.problem_id, NORM.replace(", int64_t rows", "").replace("rows", "8"))
    assert verdict.verdict == "correct", verdict.summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": text})).workspace_id
    applied = await lab.programs.overlays.apply(verdict.attempt_id, workspace)
    async with lab.store.workspaces.laid_out(applied.workspace_id) as folder:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "speedup_overlay")}
        env["GPU_MCP_OVERLAY_COUNTS"] = str(folder / "counts")
        argv = [PYTHON, "program.py", "3", "16"]
        await asyncio.to_thread(subprocess.run, argv, cwd=folder, env=env, check=True)
        told = [json.loads(path.read_text()) for path in folder.glob("counts.*")]
    assert told == [{"calls": 6, "passed_on": 3}], "three norms; one batch of three is in training mode"
    with pytest.raises(BadRequest, match="a copy holds one kernel"):
        await lab.programs.overlays.apply(verdict.attempt_id, applied.workspace_id)
    command = [PYTHON, "program.py", "3", "16"]
    monkeypatch.setattr(hotspots, "LEAST_SHARE", 0.0)  # list every operator, also those that a shared machine ranks low
    monkeypatch.setattr(hotspots, "MOST_HOTSPOTS", 1000)
    plain, fast = [await lab.programs.hotspots.find(command, at) for at in (workspace, applied.workspace_id)]
    assert "note: the kernel that apply_attempt put in was switched on" in fast.summary() and plain.operators_us
    roots = [sum(h.calls for h in report.hotspots if h.name == "aten::sqrt") for report in (plain, fast)]
    assert roots == [9, 3], fast.summary()


@needs_torch
@pytest.mark.timeout(1500)
async def test_a_launcher_that_returns_is_called_as_the_judge_calls_it(lab: Lab):
    found = await capture(lab, GPT, "__main__:squared_relu", "1", "8", "4")
    assert found.problem, found.summary()
    verdict = await lab.evaluation.evaluator.evaluate(
        found.problem.problem_id,
        CandidateSource(RETURNS, "launcher", "kernel.py"),
        timing=TimingOptions(tier="correctness"),
        wait_s=1200,
    )
    assert verdict.verdict == "correct", verdict.summary()
    workspace = (await lab.store.workspaces.write(None, {"program.py": GPT})).workspace_id
    applied = await lab.programs.overlays.apply(verdict.attempt_id, workspace)
    async with lab.store.workspaces.laid_out(applied.workspace_id) as folder:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder / "speedup_overlay")}
        argv = [PYTHON, "program.py", "1", "8", "4"]
        env["GPU_MCP_OVERLAY_COUNTS"] = str(folder / "counts")
        await asyncio.to_thread(subprocess.run, argv, cwd=folder, env=env, check=True)
        told = [json.loads(path.read_text()) for path in folder.glob("counts.*")]
    assert told == [{"calls": 2, "passed_on": 0}]


async def test_only_correct_attempts_at_captured_problems_are_put_in(lab: Lab):
    problem = await lab.evaluation.registry.register(**PROBLEM)
    attempt = await lab.store.experience.start("evaluate", problem_id=problem.problem_id, host="local")
    workspace = (await lab.store.workspaces.write(None, {"a.py": "pass\n"})).workspace_id
    with pytest.raises(BadRequest, match="not captured from a program"):
        await lab.programs.overlays.apply(attempt, workspace)
