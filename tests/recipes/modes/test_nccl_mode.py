"""NCCL mode: two stages by the program, the rest by an agent, each edit behind verify_nccl."""

import json
from pathlib import Path
from typing import Any

from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.services.lab import Lab
from tests.recipes.conftest import HERE
from tests.services.nccl.test_pipeline import PROGRAM

WAITED = "  cudaStreamSynchronize(stream);"
PRODUCT = PROGRAM.replace(WAITED, f"  ncclReduce(recv, recv, 1024, ncclFloat, ncclProd, 0, comm, stream);\n{WAITED}")
AGENT = {"command": ["{python}", "agent.py"], "files": {"agent.py": str(HERE / "nccl_agent.py")}, "timeout_s": 60}


async def ran(lab: Lab, folder: Path, text: str, **more: Any) -> Any:
    (folder / "p.cu").write_text(text)
    values = {"name": "nccl", "mode": "nccl", "problem": "p.cu", "agent": AGENT, "nccl": {"until": "static"}, **more}
    runs = Runs(lab)
    run_id = runs.create(plan_of(values, folder))
    return await runs.go(run_id), lab.settings.data_dir / "recipes" / run_id


async def test_an_agent_does_what_the_stages_left_and_only_what_the_checks_let_pass_stays(lab: Lab, tmp_path: Path):
    state, folder = await ran(lab, tmp_path, PRODUCT)

    outcomes = [(s.step, s.outcome) for s in state.steps if s.kind == "verify"]
    assert outcomes == [("verify-001", "failed"), ("verify-002", "failed"), ("verify-003", "incomplete")], (
        state.summary()
    )
    assert state.stopped == "target" and "no host call is left; not run: " in state.why
    reasons = [json.loads((folder / "handoffs" / f"verify-00{n}.json").read_text())["reason"] for n in (1, 2)]
    assert "frozen" in reasons[0] and "collectives" in reasons[1]
    made = (folder / "program-003" / "p.device.cu").read_text()
    assert "ncclx::product_kernel<<<" in made and 'got == 0 ? "PASS" : "FAIL"' in made and "ncclReduce" not in made
    assert (tmp_path / "p.cu").read_text() == PRODUCT
    runs = Runs(lab)
    assert await runs.go(state.run_id) == state


async def test_what_needs_no_agent_calls_none_and_what_cannot_be_used_is_refused(lab: Lab, tmp_path: Path):
    done, _ = await ran(lab, tmp_path, PROGRAM)
    nothing, _ = await ran(lab, tmp_path, "int main() { return 0; }\n")

    assert (done.stopped, done.spent.agent_calls) == ("target", 0) and "without the agent" in done.why
    assert (nothing.stopped, nothing.spent.agent_calls) == ("refused", 0) and "nothing to transform" in nothing.why


async def test_an_error_that_repeats_is_looked_up_and_the_reflector_asked(lab: Lab, tmp_path: Path):
    agent = {**AGENT, "environment": {"SCENARIO": "repeats"}}
    state, _ = await ran(lab, tmp_path, PRODUCT, agent=agent, iterations={"correctness": 3})

    kinds = [s.kind for s in state.steps if s.kind in ("code", "verify", "lookup", "reflect")]
    assert kinds[:5] == ["code", "verify", "code", "verify", "lookup"] and "reflect" in kinds, state.summary()
    assert state.stopped == "iterations" and kinds.count("lookup") >= 1


async def test_an_agent_that_never_gets_there_leaves_the_last_stage_that_stood(lab: Lab, tmp_path: Path):
    state, folder = await ran(lab, tmp_path, PRODUCT, iterations={"correctness": 2})

    assert state.stopped == "iterations" and "ncclReduce" in state.why and state.best is None
    assert "ncclReduce" in (folder / "program-002" / "p.device.cu").read_text()
