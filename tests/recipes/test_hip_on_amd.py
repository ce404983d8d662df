"""A GEAK-HIP task on a host with AMD GPUs: built by hipcc, judged from outside as a process, in either mode."""

import json
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.suites import Suites, hip_problems
from tests.amd_laboratory import NAME, amd_laboratory, can_pretend
from tests.recipes.conftest import AGENT, HERE
from tests.recipes.test_hip_suite import EXTRACTOR
from tests.services.evaluation.test_program_amd import NEEDS_ITS_GPU

pytestmark = [*can_pretend, pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed")]


@pytest.mark.parametrize("mode", ["structured", "population"])
async def test_a_task_that_hipcc_builds_is_judged_by_its_extractor(tmp_path: Path, mode: str):
    folder = tmp_path / "wave"
    folder.mkdir()
    (folder / "main.hip").write_text(NEEDS_ITS_GPU)
    rule = "$(HIPCC) --offload-arch=gfx942 -x c++ $< -o $@ -lm"
    (folder / "Makefile").write_text(f"HIPCC = /opt/rocm/bin/hipcc\nTARGET = test\n\n$(TARGET): main.hip\n\t{rule}\n")
    (folder / "extractor.toml").write_text(EXTRACTOR)
    told = [{"task": "wave", "instruction": "Faster.", "file_path": "wave", "file_name": "main.hip"}]
    (tmp_path / "tasks.json").write_text(json.dumps(told))
    agent = {**AGENT, "environment": {"SCENARIO": "rewrites"}}
    values = {"name": "geak", "problem": "x", "language": "hip", "tier": "smoke", "agent": agent, "mode": mode}
    plan = plan_of({**values, "iterations": {"correctness": 3}}, HERE)
    async with amd_laboratory() as lab:
        report = await Suites(lab).over(plan, "geak", await hip_problems(tmp_path / "tasks.json"))
        (row,) = report.rows
        state = Runs(lab).state(row.run_id)
        assert row.correct, (state.summary(), state.why)
        attempt = await lab.store.experience.get(state.best.attempt_id if state.best else "")
        assert (attempt.kind, attempt.device, attempt.target, attempt.verdict) == (
            "evaluate",
            NAME,
            "hip",
            "correct",
        )
