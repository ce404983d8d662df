"""A judged kernel in a copy of a program, with the real torch: it answers what it was judged at, and gradients stay."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.program_speed import ApplyReport
from gpu_mcp_server.profilers import hotspots
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.git_patch import git_patch
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
    assert "+squared_relu = getattr(" in patch and f"{verdict.attempt_id}.so" in patch
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
    assert with_it == plain and told == [[{"calls": 4, "passed_on": 0}]], "two layers, two steps, the same loss"


@needs_torch
@pytest.mark.timeout(1500)
async def test_a_kernel_answers_modules_with_weights_in_the_mode_that_costs_most(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
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
    assert told == [[{"calls": 6, "passed_on": 3}]], "three norms; one batch of three is in training mode"
    again = await lab.programs.overlays.apply(verdict.attempt_id, applied.workspace_id)
    script = (await lab.store.workspaces.read_bytes(again.workspace_id, "program.py")).decode()
    assert script.count("ChannelNorm = getattr(") == 1
    assert again.kernels == [verdict.attempt_id] and f"takes the place of {verdict.attempt_id}" in again.summary()
    command = [PYTHON, "program.py", "3", "16"]
    monkeypatch.setattr(hotspots, "LEAST_SHARE", 0.0)  # list every operator, also those that a shared machine ranks low
    monkeypatch.setattr(hotspots, "MOST_HOTSPOTS", 1000)
    plain, fast = [await lab.programs.hotspots.find(command, at) for at in (workspace, applied.workspace_id)]
    assert "note: the kernels that apply_attempt put in were switched on" in fast.summary() and plain.operators_us
    isolated = await lab.programs.hotspots.find([PYTHON, "-I", *command[1:]], applied.workspace_id)
    assert "note: the kernels that apply_attempt put in were off: the interpreter's options -E" in isolated.summary()
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
    assert told == [[{"calls": 2, "passed_on": 0}]]


async def test_only_correct_attempts_at_captured_problems_are_put_in(lab: Lab):
    problem = await lab.evaluation.registry.register(**PROBLEM)
    attempt = await lab.store.experience.start("evaluate", problem_id=problem.problem_id, host="local")
    workspace = (await lab.store.workspaces.write(None, {"a.py": "pass\n"})).workspace_id
    with pytest.raises(BadRequest, match="not captured from a program"):
        await lab.programs.overlays.apply(attempt, workspace)


ROWS = """import sys

import torch


def squared(x):
    return x * x


def run(rows):
    x = torch.linspace(-1, 1, rows * 64).reshape(rows, 64)
    print(f"{float(torch.tanh(squared(x)).sum()):.3f}")


for rows in sys.argv[1:]:
    run(int(rows))
"""
EACH = """#include <math.h>
int launch(const float *x, float *y) {
    for (int i = 0; i < 64 * ROWS; i++) y[i] = VALUE;
    return 0;
}
"""


@needs_torch
@pytest.mark.timeout(1500)
async def test_a_copy_holds_several_kernels_and_its_patch_puts_all_of_them_in(lab: Lab, tmp_path: Path):
    workspace = (await lab.store.workspaces.write(None, {"program.py": ROWS})).workspace_id
    copy, attempts, reports = workspace, list[str](), list[ApplyReport]()

    async def put_in(target: str, rows: str, value: str) -> None:
        nonlocal copy
        found = await lab.programs.capture.capture([PYTHON, "program.py", rows], target, copy)
        assert found.problem, found.summary()
        verdict = await judge(lab, found.problem.problem_id, EACH.replace("ROWS", rows).replace("VALUE", value))
        assert verdict.verdict == "correct", verdict.summary()
        attempts.append(verdict.attempt_id)
        reports.append(await lab.programs.overlays.apply(verdict.attempt_id, copy))
        copy = reports[-1].workspace_id

    await put_in("__main__:squared", "32", "x[i] * x[i]")
    await put_in("aten::tanh", "32", "tanhf(x[i])")
    await put_in("aten::tanh", "16", "tanhf(x[i])")
    assert reports[-1].kernels == attempts and reports[-1].of == workspace

    async with lab.store.workspaces.laid_out(copy) as folder, lab.store.workspaces.laid_out(workspace) as plain:
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())

        def run(**more: str) -> str:
            env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **more}
            command = [PYTHON, "program.py", "32", "16"]
            return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout

        before = await asyncio.to_thread(run)
        overlay = {"PYTHONPATH": str(folder / "speedup_overlay"), "GPU_MCP_OVERLAY_COUNTS": str(tmp_path / "counts")}
        assert await asyncio.to_thread(run, **overlay) == before
        (told,) = [json.loads(path.read_text()) for path in tmp_path.glob("counts.*")]
        # The tanh of 16 rows was put in last: that of 32 gets what it passes on.
        assert told == [{"calls": 1, "passed_on": 1}, {"calls": 1, "passed_on": 0}, {"calls": 1, "passed_on": 1}]
        (tmp_path / "speedup.patch").write_bytes(await lab.store.artifacts.read(reports[-1].patch))
        shutil.copytree(plain, tmp_path / "program")
        argv = ["git", "-C", str(tmp_path / "program"), "apply", str(tmp_path / "speedup.patch")]
        await asyncio.to_thread(subprocess.run, argv, check=True)
        assert len(paths) == 13 and all(
            (tmp_path / "program" / path).read_bytes() == (folder / path).read_bytes() for path in paths
        )


def test_a_patch_changes_and_adds_files_of_any_content(tmp_path: Path):
    before = {"a b.py": b"one\ntwo", "same": b"1\n", "data": b"\0\1", "cr": b"a\rb\x0cc\nd\n"}
    after = {
        "a b.py": b"one\n2\n", "same": b"1\n", "data": os.urandom(3000), "cr": b"a\rB\x0cc\nd",
        "deep/x.so": b"\0" * 200, "empty": b"", "\u00fc.py": "\u2028\n".encode(),
    }  # fmt: skip
    for path, content in before.items():
        (tmp_path / path).write_bytes(content)
    patch = git_patch(before, after)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch.encode(), check=True)
    found = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == after and "same" not in patch
