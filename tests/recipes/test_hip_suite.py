"""A suite of GEAK-HIP tasks: what the host can judge is judged, what wants an AMD device is compiled, the rest is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.suites import Suites, hip_problems
from gpu_mcp_server.services.lab import Lab
from tests.judge.program_harness import PROGRAM
from tests.recipes.conftest import AGENT, HERE

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
HIP = """
#include <hip/hip_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
int main() { float *x; if (hipMalloc(&x, 256)) return 1; twice<<<1, 64>>>(x); return hipDeviceSynchronize(); }
"""
TASKS = {
    "sines": ("g++ -x c++ $< -o $@ -lm", PROGRAM),
    "no-numbers <b>": ("g++ -x c++ $< -o $@ -lm", PROGRAM),
    "wave": ("$(HIPCC) --offload-arch=gfx906 $< -o $@", HIP),
}
EXTRACTOR = """
rtol = 1e-5
atol = 1e-6
run = ["./test", "{n}", "{seed}"]
cases = [{ n = 100 }]
outputs = [{ name = "y", source = "out.bin", format = "binary", dtype = "float32" }]
"""


@pytest.fixture
def instructions(tmp_path: Path) -> Path:
    told = []
    for number, (name, (rule, text)) in enumerate(TASKS.items()):
        folder = tmp_path / f"task{number}"
        folder.mkdir()
        (folder / "main.hip").write_text(text)
        compiler = "HIPCC = /opt/rocm/bin/hipcc\n" if "HIPCC" in rule else ""
        (folder / "Makefile").write_text(f"{compiler}TARGET = test\n\n$(TARGET): main.hip\n\t{rule}\n")
        told.append({"task": name, "instruction": "Faster.", "file_path": folder.name, "file_name": "main.hip"})
    (tmp_path / "task0/extractor.toml").write_text(EXTRACTOR)
    (tmp_path / "tasks.json").write_text(json.dumps(told))
    return tmp_path / "tasks.json"


async def test_each_task_is_taken_as_far_as_the_host_can(lab: Lab, instructions: Path):
    agent = {**AGENT, "environment": {"SCENARIO": "rewrites"}}
    values = {"name": "geak", "problem": "x", "language": "hip", "tier": "smoke", "agent": agent}
    plan = plan_of({**values, "iterations": {"compile": 2}}, HERE)
    problems = await hip_problems(instructions)
    if shutil.which("hipcc") is None:
        del problems["wave"]
    report = await Suites(lab).over(plan, "geak", problems)

    rows = {row.name: row for row in report.rows}
    assert list(rows) == list(problems)
    assert (rows["sines"].stopped, rows["sines"].correct) == ("target", True), report.summary()
    refused = rows["no-numbers <b>"]
    assert refused.stopped == "refused" and "its own PASS is not believed" in refused.why and not refused.correct
    folder = lab.settings.data_dir / "recipes/suites"
    html = (folder / "geak.html").read_text()
    assert "&lt;b&gt;" in html and "<b>" not in html and "default-src &#x27;none&#x27;" in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|src=|href=", html)
    assert (folder / "geak.md").exists() and (folder / "geak.json").exists()
    assert await Suites(lab).over(plan, "geak", problems) == report

    (instructions.parent / "task1/extractor.toml").write_text(EXTRACTOR)
    mended = (await Suites(lab).over(plan, "geak", problems)).rows
    assert [row.stopped for row in mended[:2]] == ["target", "target"]
    if "wave" in rows:
        await compiled_alone(lab, rows["wave"].run_id, rows["wave"].stopped or "")
        assert (report.fast["fast_0"].hits, report.fast["fast_0"].of) == (1, 2)
        assert all("compiled and not judged, as no device is here: 1" in text for text in (report.summary(), html))


async def compiled_alone(lab: Lab, run_id: str, stopped: str) -> None:
    """The HIP task was compiled until it did, and nothing of it ran."""
    state = Runs(lab).state(run_id)
    if stopped == "refused":
        pytest.skip(f"this hipcc compiles nothing: {state.why}")
    assert [(s.step, s.outcome) for s in state.steps if s.kind == "judge"] == [
        ("judge-001", "compile_failed"),
        ("judge-002", "compiles"),
    ], state.summary()
    assert stopped == "compiled" and state.best is not None and state.best.attempt_id is not None
    attempt = await lab.store.experience.get(state.best.attempt_id)
    assert (attempt.kind, attempt.status, attempt.verdict) == ("compile", "ok", None)
    assert "// anew" in (lab.settings.data_dir / "recipes" / run_id / "best.txt").read_text()


async def test_only_tasks_that_are_there_can_be_chosen(instructions: Path):
    assert list(await hip_problems(instructions, ["wave"])) == ["wave"]
    with pytest.raises(NotFound, match="wawe"):
        await hip_problems(instructions, ["wawe"])
    (instructions.parent / "twice.json").write_text(json.dumps(json.loads(instructions.read_text())[:1] * 2))
    for name, words in (("twice.json", "two tasks"), ("task0/Makefile", "no instruction file")):
        with pytest.raises(BadRequest, match=words):
            await hip_problems(instructions.parent / name)
