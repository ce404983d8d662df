"""Population mode: offspring that keep frozen lines are judged in one call, others are refused."""

import shutil

import pytest

from gpu_mcp_server.models.recipe import Candidate, Verdict
from gpu_mcp_server.nccl.program_model.markers import frozen_text
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.modes.population import Member, ancestors, refusal
from gpu_mcp_server.recipes.run.journal import FILE, entries
from gpu_mcp_server.services.lab import Lab
from tests.recipes.conftest import HERE, Begun

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


async def test_offspring_change_blocks_alone_and_a_killed_round_is_judged_once(lab: Lab, begun: Begun):
    wishes = {"seed": "seed.c", "descendant_num": 2, "rounds": 2, "ancestor_num": 1}
    run_id = await begun("evolves", mode="population", population=wishes)
    state = await Runs(lab).go(run_id)

    assert state.stopped == "target" and state.best is not None, state.summary()
    assert [(s.step, s.outcome) for s in state.steps] == [
        ("judge-000", "0 of 1 correct"),
        ("code-001-01", "ok"),
        ("code-001-02", "ok"),
        ("judge-001", "1 of 1 correct"),
    ]
    folder = lab.settings.data_dir / "recipes" / run_id
    assert "2 * x[i] + 1;" in (folder / "best.txt").read_text()
    done = next(e for e in entries(folder) if e["event"] == "done" and e["step"] == "code-001-01")
    prompt = (await lab.store.artifacts.read(done["prompt_artifact_id"])).decode()
    assert "Ancestor 1 (incorrect)" in prompt and "EVOLVE-BLOCK-END may change" in prompt
    (child,) = (await lab.store.experience.list("ancestors", attempt_id=state.best.attempt_id)).attempts[:1]
    assert child.parent_id is not None and child.batch_id == f"{run_id}.judge-001"

    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join(line for line in lines if b'"done","step":"judge-' not in line)[:-1])
    again = await Runs(lab).go(run_id)
    assert again.stopped == "target" and again.best and again.best.attempt_id == state.best.attempt_id
    recent = await lab.store.experience.list("recent", problem_id=state.problem_id, limit=50)
    assert len(recent.attempts) == 2


async def test_children_are_asked_for_side_by_side_within_the_budget_and_with_the_same_result(lab: Lab, begun: Begun):
    wishes = {"seed": "seed.c", "descendant_num": 3, "rounds": 2, "ancestor_num": 1}
    told: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    run_id = await begun("evolves", mode="population", population=wishes, budget={"agent_calls": 3})
    state = await Runs(lab).go(run_id, tell, jobs=3)
    asked = [line for line in told if line.startswith("code-001-")][:6]
    assert [line.endswith(": begun") for line in asked] == [True] * 3 + [False] * 3, asked
    assert (state.stopped, state.spent.agent_calls) == ("target", 3), state.summary()

    budget = {"agent_calls": 2}
    run_id = await begun("evolves", mode="population", population=wishes, budget=budget, fresh=True)
    state = await Runs(lab).go(run_id, jobs=3)
    assert (state.stopped, state.spent.agent_calls) == ("budget", 2) and await Runs(lab).go(run_id) == state


def test_what_may_not_change_is_told_from_what_may():
    seed = (HERE / "seed.c").read_text()
    frozen = frozen_text(seed)
    assert refusal(seed.replace("1.5f", "1"), frozen) == ""
    assert "outside" in refusal(seed.replace("return 0", "return 1"), frozen)
    assert "damaged" in refusal(seed.replace("    // EVOLVE-BLOCK-END\n", ""), frozen)
    assert refusal("anything", None) == ""
    python = "import x\n# EVOLVE-BLOCK-START\na = 1\n# EVOLVE-BLOCK-END\n"
    assert refusal(python.replace("a = 1", "a = 2"), frozen_text(python)) == ""
    assert "outside" in refusal(python.replace("import x", "import y"), frozen_text(python))


def test_ancestors_stand_in_ascending_latency():
    def member(speedup: float | None, outcome: str = "correct") -> Member:
        verdict = Verdict(attempt_id=f"a-{speedup}", stage="performance", outcome=outcome, speedup=speedup)
        return Member(Candidate(source="x"), verdict)

    members = [member(1.0), member(3.0), member(None, "incorrect"), member(2.0)]
    assert [m.verdict.speedup for m in ancestors(members, 2)] == [3.0, 2.0]
    assert [m.verdict.outcome for m in ancestors(members[2:3], 2)] == ["incorrect"]
