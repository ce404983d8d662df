"""Two plans on the same problems, told apart by pairs; and which step makes repetitions of one plan differ."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.models.suite import ComparedPair, SuiteRow
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.plan_comparison import changed_keys, compare_plans, comparison_of
from gpu_mcp_server.recipes.reports.step_variance import gains_of, variance_by_step
from gpu_mcp_server.recipes.run.paired_statistics import difference_of_shares, mean_of_differences
from gpu_mcp_server.recipes.suites import Suites
from gpu_mcp_server.services.lab import Lab
from tests.commands import shared_commands
from tests.laboratory import Folder
from tests.recipes.conftest import HERE, TWICE, Begun

gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def plan(**changes: Any) -> RunPlan:
    return RunPlan.model_validate({"name": "one", "problem": "p-1", "agent": {"command": ["true"]}, **changes})


def test_two_plans_may_differ_in_one_key_and_an_agent_is_one():
    other = plan(name="two", agent={"command": ["false"], "model": "large"})
    assert changed_keys(plan(), other) == [
        "agent.command: ['true'] | ['false']", "agent.model: '' | 'large'",
    ]  # fmt: skip
    assert changed_keys(plan(), plan(iterations={"compile": 9})) == ["iterations.compile: 4 | 9"]
    with pytest.raises(BadRequest, match="differ in agent, history"):
        changed_keys(plan(), plan(history=1, agent={"command": ["false"]}))
    with pytest.raises(BadRequest, match="are the same"):
        changed_keys(plan(), plan(name="two", problem="p-2"))


def test_intervals_of_pairs_are_those_of_their_sources():
    # by hand: Wilson 0.8654 to 0.9890 of 48, 0.6259 to 0.8570 of 38; phi = -24 / sqrt(48 * 2 * 38 * 12) = -0.1147
    first = [True] * 36 + [False] * 12 + [True] * 2
    second = [True] * 48 + [False] * 2
    shares = difference_of_shares(first, second)
    assert shares.mean == pytest.approx(0.2)
    assert (round(shares.low or 0, 4), round(shares.high or 0, 4)) == (0.0569, 0.3404)
    means = mean_of_differences([1.0, 2.0, 3.0])  # 2 +- 4.303 * 1 / sqrt(3)
    assert (means.mean, round(means.low or 0, 3), round(means.high or 0, 3)) == (2.0, -0.484, 4.484)
    assert mean_of_differences([0.5]).low is None and mean_of_differences([]).text() == "unknown"
    assert difference_of_shares([], []).mean is None
    same = difference_of_shares([True, False], [True, False])
    assert same.mean == 0 and (same.low or 0) < 0 < (same.high or 0)


def row(speedup: float | None, calls: int = 1, **more: Any) -> SuiteRow:
    return SuiteRow(name="x", run_id="r-x", speedup=speedup, correct=speedup is not None, agent_calls=calls, **more)


def test_what_one_side_lacks_makes_no_pair_and_repetitions_of_a_problem_are_one_value():
    pairs = [
        ComparedPair(problem="p", number=1, a=row(1.0, tokens=10), b=row(4.0, 3)),
        ComparedPair(problem="p", number=2, a=row(1.0), b=row(1.0, 3)),
        ComparedPair(problem="q", number=1, a=row(2.0, tokens=10), b=row(4.0, tokens=30)),
        ComparedPair(problem="r", number=1, a=row(None), b=row(8.0)),
        ComparedPair(problem="s", number=1, a=row(9.0), b=row(None, degenerate=True)),
    ]
    found = comparison_of("c", ["history: 1 | 2"], pairs)
    assert (found.faster.of, found.faster.mean) == (2, pytest.approx(2.0))
    assert (found.passed_a.hits, found.passed_b.hits, found.passed.of) == (3, 4, 4)
    assert (found.calls.of, found.calls.mean) == (3, pytest.approx(2 / 3))
    assert (found.tokens.of, found.tokens.mean, found.cost_usd.mean) == (1, 20, None)
    assert "cost in USD as reported, B - A: unknown" in found.summary() and "| r | - (" in found.summary()


def entry(step: str, speedup: float | None, **more: Any) -> dict[str, Any]:
    verdict = Verdict(stage="performance", outcome="correct" if speedup else "incorrect", speedup=speedup)
    return {"event": "done", "step": step, "verdict": verdict.model_dump(mode="json"), **more}


def test_shares_of_the_variance_add_up_to_one_and_name_the_step_whose_gain_differs():
    journals = [[entry("judge-001", 1.0), entry("judge-002", 1.0 + gain)] for gain in (0.0, 1.0, 2.0)]
    answers = [{"specification-001": "same", "code-001": "a", "code-002": f"b{n}"} for n in range(3)]
    found = {one.step: one for one in variance_by_step(journals, answers)}
    assert list(found) == ["specification-001", "code-001", "code-002"]
    assert [one.share for one in found.values()] == [0.0, 0.0, pytest.approx(1.0)]
    assert [one.difference for one in found.values()] == [0.0, 0.0, 1.0]
    mixed = [[entry("judge-001", a), entry("judge-002", b)] for a, b in ((1.0, 3.0), (2.0, 5.0), (None, 2.5))]
    shares = [one.share or 0 for one in variance_by_step(mixed, [{}, {}, {}])]
    assert sum(shares) == pytest.approx(1.0) and all(share > 0 for share in shares)
    alike = variance_by_step([[entry("judge-001", 1.0)]] * 2, [{}, {}])
    assert alike[0].share is None and "nothing to compare" in alike[0].line_text()
    worse = [entry("judge-001", 3.0), entry("judge-002", 2.0)]
    assert gains_of(worse) == {"code-001": 3.0, "code-002": 0.0}


def test_gains_are_of_times_as_they_were_confirmed_and_candidates_of_sessions_are_counted():
    def judged(attempt_id: str, speedup: float, **more: Any) -> dict[str, Any]:
        return entry(f"judge-{attempt_id}", speedup) | {
            "verdict": {"stage": "performance", "outcome": "correct", "attempt_id": attempt_id, "speedup": speedup},
            **more,
        }

    void = {"stage": "correctness", "outcome": "voided", "attempt_id": "a-2"}
    journal = [
        judged("a-1", 2.0), judged("a-2", 9.0), judged("a-3", 4.0),
        {"event": "done", "step": "confirm-a-2", "kind": "confirm", "verdict": void},
        judged("a-3", 3.0, step="confirm-a-3", kind="confirm"),
    ]  # fmt: skip
    assert gains_of(journal) == {"code-001": 2.0, "code-002": 0.0, "code-003": 1.0}
    many = [[entry(f"judge-{n:03}", 1.0) for n in (2, 10, 101)]] * 2
    named = [{"code-101": "a", "build-plan-001": "b", "specification-001": "c"}] * 2
    order = [one.step for one in variance_by_step(many, named)]
    assert order == ["build-plan-001", "specification-001", "code-002", "code-010", "code-101"]


@gcc
async def test_repetitions_say_what_each_step_adds(lab: Lab, begun: Begun):
    repeated = await Suites(lab).repeat(Runs(lab).plan(await begun("learns")), 2, "steps")
    assert [(one.step, one.difference) for one in repeated.steps] == [
        ("specification-001", 0.0), ("code-001", 0.0), ("code-002", 0.0), ("code-003", 0.0),
    ]  # fmt: skip
    assert "code-001 (2 runs): answers differ by 0.00" in repeated.summary()


@gcc
async def test_two_agents_on_two_problems_are_compared_in_pairs_and_the_same_call_changes_nothing(
    lab: Lab, begun: Begun, tmp_path: Path
):
    one, other = [Runs(lab).plan(await begun(name, iterations={"compile": 2})) for name in ("never", "stumbles")]
    other = other.model_copy(update={"name": one.name})
    problems: dict[str, Path | str] = {"first": tmp_path / "first.toml", "second": one.problem}
    (tmp_path / "first.toml").write_text(TWICE)
    found = await compare_plans(lab, (one, other), "agents", problems, times=1, jobs=2)
    assert found.changed == ["agent.environment.SCENARIO: 'never' | 'stumbles'"]
    assert [(p.problem, p.a.correct, p.b.correct) for p in found.pairs] == [
        ("first", False, False), ("second", False, False),
    ], found.summary()  # fmt: skip
    assert await compare_plans(lab, (one, other), "agents", problems, times=1) == found
    more = [
        plan.model_copy(update={"iterations": plan.iterations.model_copy(update={"compile": 4})})
        for plan in (one, other)
    ]
    better = await compare_plans(lab, (more[0], more[1]), "patient", problems)
    assert (better.passed_b.hits, better.passed.mean) == (2, 1.0) and better.faster.mean is None
    written = lab.settings.data_dir / "recipes" / "suites" / "patient"
    assert "B - A" in written.with_suffix(".md").read_text() and "Changed" in written.with_suffix(".html").read_text()


PLAN = """
name = "killed"
problem = "p.toml"
language = "c"
tier = "smoke"
iterations = { compile = LIMIT }
[agent]
command = ["/usr/bin/python3", "agent.py"]
files = { "agent.py" = "AGENT" }
environment = { SCENARIO = "never" }
"""


@gcc
def test_a_comparison_that_is_killed_goes_on_and_does_every_step_once(tmp_path: Path):
    (tmp_path / "p.toml").write_text(TWICE)
    for name, limit in (("a", "1"), ("b", "2")):
        text = PLAN.replace("AGENT", str(HERE / "agent.py")).replace("LIMIT", limit)
        (tmp_path / f"{name}.toml").write_text(text)
    command = ["recipe", "compare", "a.toml", "b.toml", "--json"]
    commands = shared_commands()
    with Folder() as data:
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(data), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        journals = [data / "recipes" / f"r-a-b-{side}-own-1" / "journal.jsonl" for side in "ab"]
        running = commands.start(*command, cwd=tmp_path, env=env)
        while running.poll() is None and not (journals[1].exists() and "code-001" in journals[1].read_text()):
            time.sleep(0.02)
        running.kill()
        assert running.wait() == -signal.SIGKILL
        done = commands.run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["changed"] == ["iterations.compile: 1 | 2"]
        assert told["calls"]["mean"] == 1 and told["passed_b"]["of"] == 1
        for path in journals:
            steps = [e["step"] for e in map(json.loads, path.read_text().splitlines()) if e["event"] == "done"]
            assert sorted(steps) == sorted(set(steps)) and "end" in steps
