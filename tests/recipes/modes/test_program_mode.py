"""Mode program: from a user's command to the measured whole, by a scripted agent, with real torch on a processor."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory
from tests.recipes.conftest import HERE
from tests.services.programs.test_problem_capture import PYTHON, needs_torch

pytestmark = pytest.mark.timeout(1500)
FILES = {
    "recurrence.py": """import torch


def scan(x, keep):
    \"\"\"Return the running sums that forget.\"\"\"
    state, states = [0.0] * x.shape[1], []
    for row, part in zip(x.tolist(), keep.tolist()):
        state = [new + kept * old for new, kept, old in zip(row, part, state)]
        states.append(state)
    return torch.tensor(states)
""",
    "bench.py": """import sys

import torch

import recurrence

torch.manual_seed(0)
torch.set_num_threads(1)
x, keep, total = torch.rand(2048, 64), 0.9 * torch.rand(2048, 64), 0.0
for _ in range(int(sys.argv[1])):
    total += float(recurrence.scan(x, keep).mean())
print(f"total {total:.6f}")
""",
}
AGENT = {"command": ["/usr/bin/python3", "agent.py", "{step}"], "files": {"agent.py": str(HERE / "program_agent.py")}}


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"judge_python": PYTHON or None}}) as lab:
        yield lab


def write_program(folder: Path) -> None:
    (folder / "loop").mkdir()
    for name, text in FILES.items():
        (folder / "loop" / name).write_text(text)


def plan_values(calls: int, target: str = "", scenario: str = "", script: str = "bench.py") -> dict[str, Any]:
    return {
        "name": "loop", "mode": "program", "problem": "loop", "language": "c",
        "program": {"command": [PYTHON or "python3", script, str(calls)], "target": target, "pairs": 6},
        "agent": {**AGENT, "environment": {"SCENARIO": scenario}}, "target": {"speedup": 1.5},
        "accept_provisional": True,
    }  # fmt: skip


def begun(lab: Lab, folder: Path, calls: int = 150, **more: str) -> str:
    write_program(folder)
    return Runs(lab).create(plan_of(plan_values(calls, **more), folder))


@needs_torch
async def test_a_command_becomes_a_faster_program_and_a_killed_measurement_goes_on(lab: Lab, tmp_path: Path):
    runs, run_id = Runs(lab), begun(lab, tmp_path)

    async def stop(message: str) -> None:
        if message == "measure-001: begun":
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await runs.go(run_id, stop)
    stopped = runs.state(run_id)
    assert stopped.next_step.endswith(f"`gpu-mcp-server recipe resume {run_id}`; it goes on with measure-001")
    state = await runs.go(run_id)

    steps = {step.step: step.outcome for step in state.steps}
    assert "has no function scam" in str(lab_journal(runs, run_id, "capture-001")["said"])
    assert steps["capture-002"].startswith("captured recurrence:scan: "), state.summary()
    assert (steps["judge-001"], steps["judge-002"]) == ("incorrect", "correct")
    assert state.stopped == "faster" and "of the whole: the program became faster" in state.why, state.summary()
    assert steps["measure-002"].endswith("the program became faster") and "measure-003" not in steps
    assert state.spent.agent_calls == stopped.spent.agent_calls == 5 and state.problem_id
    copy = str(lab_journal(runs, run_id, "apply-001")["copy"])
    assert f"workspace {copy} has the kernel" in state.why
    assert await lab.store.workspaces.read_bytes(copy, "bench.py") == FILES["bench.py"].encode()
    assert (tmp_path / "loop" / "recurrence.py").read_text() == FILES["recurrence.py"]


def lab_journal(runs: Runs, run_id: str, step: str) -> dict[str, Any]:
    return next(e for e in runs.journal(run_id) if e["event"] == "done" and e["step"] == step)


@needs_torch
async def test_an_agent_that_finds_nothing_worth_a_kernel_ends_the_run(lab: Lab, tmp_path: Path):
    state = await Runs(lab).go(begun(lab, tmp_path, calls=2, scenario="nothing"))
    assert (state.stopped, state.spent.agent_calls) == ("no_gain", 1) and "worth a kernel" in state.why
    assert state.best is None and "program.target" in state.next_step


@needs_torch
async def test_an_agent_that_gives_up_leaves_its_last_refusal_in_the_report(lab: Lab, tmp_path: Path):
    state = await Runs(lab).go(begun(lab, tmp_path, calls=2, scenario="gives up"))
    assert (state.stopped, state.spent.agent_calls) == ("no_gain", 2)
    assert "its last one was refused: " in state.why and "has no function scam" in state.why, state.why


@needs_torch
async def test_no_agent_is_asked_for_a_target_of_a_program_that_does_not_run(lab: Lab, tmp_path: Path):
    state = await Runs(lab).go(begun(lab, tmp_path, script="bench.txt"))
    assert (state.stopped, state.spent.agent_calls) == ("refused", 0), state.summary()
    assert "bench.txt" in state.why and state.next_step.startswith("correct what")


@needs_torch
async def test_a_target_of_the_plan_that_is_not_there_is_refused_by_its_name(lab: Lab, tmp_path: Path):
    state = await Runs(lab).go(begun(lab, tmp_path, calls=2, target="aten::no_such"))
    assert (state.stopped, state.spent.agent_calls) == ("refused", 0)
    assert "the program never ran aten::no_such" in state.why, state.summary()


def test_a_plan_without_a_command_is_no_plan_of_a_program(tmp_path: Path):
    values = {"name": "p", "mode": "program", "problem": "w-1", "agent": {"command": ["x"]}}
    with pytest.raises(BadRequest, match=r"needs program\.command"):
        plan_of(values, tmp_path)
    known = plan_of({**values, "program": {"command": ["python3", "a.py"]}}, tmp_path)
    assert known.problem == "w-1" and known.names_known_problem()
