"""Suites and repetitions: each problem once, whatever interrupts them; metrics with intervals."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.recipe import RunState, Verdict
from gpu_mcp_server.models.run_plan import RunPlan, SuiteBudget
from gpu_mcp_server.models.suite import Proportion
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.reports.text_difference import mean_difference
from gpu_mcp_server.recipes.run.plan_loader import read_plan
from gpu_mcp_server.recipes.suites import Suites, kernelbench_problems, suite_report
from gpu_mcp_server.services.lab import Lab
from tests.commands import shared_commands
from tests.laboratory import Folder
from tests.recipes.conftest import HERE, TWICE, Begun

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def state(name: str, speedup: float | None, outcome: str = "correct") -> RunState:
    best = (
        Verdict(stage="performance", outcome=outcome, speedup=speedup, trust="confirmed")
        if outcome == "correct"
        else None
    )
    return RunState(run_id=f"r-{name}", name=name, mode="structured", state="finished", stopped="iterations", best=best)


def test_metrics_are_shares_of_what_is_done_with_intervals():
    states = {"a": state("a", 3.0), "b": state("b", 1.0), "c": state("c", None), "d": state("d", None, "incorrect")}
    report = suite_report("s", states, 10)
    assert {name: rate.hits for name, rate in report.fast.items()} == {"fast_0": 3, "fast_1": 1, "fast_2": 1}
    assert all(rate.of == 4 and rate.low < rate.hits / 4 < rate.high for rate in report.fast.values())
    assert "4 of 10 problems" in report.summary() and "correct, not timed" in report.summary()
    wilson = Proportion.from_counts(8, 10)  # 0.490 to 0.943, as tables of Wilson's interval have it
    assert (round(wilson.low, 3), round(wilson.high, 3)) == (0.490, 0.943)
    assert Proportion.from_counts(0, 0).text().startswith("- (0 of 0")


def test_a_plan_of_a_suite_may_name_no_problem(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_text('name = "one"\n[agent]\ncommand = ["true"]\n')
    with pytest.raises(BadRequest, match=r"cannot be used: mode structured needs a problem"):
        read_plan(path)
    assert read_plan(path, problem_given=True).name == "one"


def test_a_degenerate_problem_counts_nowhere_and_is_named():
    states = {"a": state("a", 3.0), "b": state("b", 9.0).model_copy(update={"degenerate": True})}
    report = suite_report("s", states, 2)
    assert (report.fast["fast_1"].hits, report.fast["fast_1"].of) == (1, 1)
    assert "left out of these, as an answer without work is right: b" in report.summary()


def test_sources_are_as_different_as_they_look():
    assert (
        mean_difference(["a\nb\n", "a\nb\n"]) == 0
        and mean_difference(["a\n", "b\n"]) == 1
        and mean_difference(["a"]) is None
    )


def test_problems_of_a_level_are_in_the_order_of_their_numbers(tmp_path: Path):
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for name in ("10_ten.py", "2_two.py", "1_one.py", "__init__.py"):
        (folder / name).touch()
    assert list(kernelbench_problems(tmp_path, 1)) == ["1_one", "2_two", "10_ten"]
    assert list(kernelbench_problems(tmp_path, 1, ["10", "1_one"])) == ["10_ten", "1_one"]
    for level, chosen in ((2, []), (1, ["3"])):
        with pytest.raises(NotFound):
            kernelbench_problems(tmp_path, level, chosen)


class Noting:
    """Runs that are noted and refused."""

    def __init__(self, *, elsewhere: bool) -> None:
        self.elsewhere, self.begun = elsewhere, list[RunPlan]()

    def check_agent(self, plan: RunPlan) -> None: ...

    async def look(self, run_id: str) -> None: ...

    async def begin(self, plan: RunPlan, run_id: str | None = None) -> str:
        self.begun.append(plan)
        raise NotFound("problem", "p", hint="")


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_suite_of_kernelbench_s_ranks_by_its_own_times_unless_the_plan_says_otherwise(
    lab: Lab, tmp_path: Path, elsewhere: bool
):
    (tmp_path / "1_one.py").write_text("class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n")
    (tmp_path / "p.toml").write_text(TWICE)
    runs = Noting(elsewhere=elsewhere)
    plan = RunPlan.model_validate({"name": "plan", "problem": "any", "agent": {"command": ["true"]}})
    problems = {"one": tmp_path / "1_one.py", "own": tmp_path / "p.toml"}
    await Suites(lab, cast("Any", runs)).over(plan, "suite", problems)
    said = RunPlan.model_validate({**plan.model_dump(exclude_unset=True), "basis": "call"})
    await Suites(lab, cast("Any", runs)).over(said, "said", problems)

    assert [each.basis for each in runs.begun] == ["kernelbench", "device", "call", "call"]


async def test_repetitions_are_counted_once_and_a_problem_that_is_refused_is_a_row(
    lab: Lab, begun: Begun, tmp_path: Path
):
    plan = Runs(lab).plan(await begun("never", iterations={"compile": 1}))
    suites = Suites(lab)
    first = await suites.repeat(plan, 2, "series")
    assert await suites.repeat(plan, 2, "series") == first
    assert (first.passed.hits, first.passed.of, first.difference) == (0, 2, None)

    (tmp_path / "p.toml").write_text(TWICE.replace("2 * x + 1", "x"))
    report = await suites.over(plan, "refusing", {"bad": tmp_path / "p.toml"})
    assert (report.rows[0].stopped, report.fast["fast_0"].of) == ("degenerate", 0), report.summary()
    assert "left out of these, as an answer without work is right: bad" in report.summary()
    accepting = plan.model_copy(update={"accept_degenerate": True})
    report = await suites.over(accepting, "accepting", {"bad": tmp_path / "p.toml"})
    row = report.rows[0]
    assert (row.stopped, row.degenerate, report.fast["fast_0"].of) == ("iterations", True, 0), row.why
    written = lab.settings.data_dir / "recipes" / "suites" / "refusing.json"
    assert json.loads(written.read_text())["rows"][0]["name"] == "bad"


async def test_problems_run_side_by_side_and_a_spent_budget_begins_no_further_one(
    lab: Lab, begun: Begun, tmp_path: Path
):
    plan = Runs(lab).plan(await begun("never", iterations={"compile": 1}))
    problems = {f"p{n}": tmp_path / f"p{n}.toml" for n in range(4)}
    for name, path in problems.items():
        path.write_text(TWICE.replace("twice plus one", f"twice plus one of {name}"))
    told: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    suites = Suites(lab)
    limited = plan.model_copy(update={"suite": SuiteBudget(agent_calls=2, gpu_s=1)})
    first = await suites.over(limited, "limited", problems, tell)
    assert [row.name for row in first.rows] == ["p0"] and "2 of suite.agent_calls 2 are spent" in first.summary()
    rest = await suites.over(plan, "limited", problems, tell, jobs=4)
    assert [(row.name, row.agent_calls) for row in rest.rows] == [(name, 2) for name in problems] and not rest.ended
    assert rest.rows[0] == first.rows[0] and any(line.startswith("p3 judge-001: compile_failed") for line in told)
    begins = [n for n, line in enumerate(told) if ": begun, " in line and not line.startswith("p0")]
    ends = [n for n, line in enumerate(told) if "judge-001: compile_failed" in line and line.startswith("p")]
    assert max(begins) < min(ends), "all were begun before any was judged"


async def test_gpu_seconds_are_gpus_times_the_time_of_finished_jobs_and_of_sharers_their_part(lab: Lab):
    rows: list[tuple[str, str, dict[str, Any] | None]] = [
        ("j-1", "a-1", {"gpus": ["G0", "G1"], "wall_s": 3.0}), ("j-2", "a-1", {"gpus": [], "wall_s": 9.0}),
        ("j-3", "a-2", {"gpus": ["G0"], "wall_s": 4.0, "gpu_s": 1.5}), ("j-4", "a-3", {"gpus": ["G0"], "wall_s": 50.0}),
        ("j-5", "a-2", None),
    ]  # fmt: skip
    for job_id, attempt_id, record in rows:
        await lab.store.db.execute(
            "INSERT INTO jobs (job_id, host, purpose, attempt_id, submitted_at, context, record) "
            "VALUES (?, 'local', 'run', ?, 'now', '{}', ?)",
            (job_id, attempt_id, json.dumps(record) if record else None),
        )
    try:
        assert await lab.jobs.table.gpu_seconds(["a-1", "a-2"]) == 7.5 and await lab.jobs.table.gpu_seconds([]) == 0
    finally:
        await lab.store.db.execute("DELETE FROM jobs WHERE submitted_at = 'now'")


PLAN = """
name = "killed"
problem = "p.toml"
language = "c"
tier = "smoke"
iterations = { compile = 2 }
[agent]
command = ["/usr/bin/python3", "agent.py"]
files = { "agent.py" = "AGENT" }
environment = { SCENARIO = "never" }
"""


def test_a_series_killed_again_and_again_does_every_step_once(tmp_path: Path):
    (tmp_path / "p.toml").write_text(TWICE)
    (tmp_path / "plan.toml").write_text(PLAN.replace("AGENT", str(HERE / "agent.py")))
    command = ["recipe", "repeat", "plan.toml", "-n", "2", "--json"]
    commands = shared_commands()
    with Folder() as data:
        env = {**os.environ, "GPU_MCP_DATA_DIR": str(data), "GPU_MCP_INDEX_DOCUMENTATION": "false"}
        for place in ("r-killed-1", "r-killed-2"):
            journal = data / "recipes" / place / "journal.jsonl"
            running = commands.start(*command, cwd=tmp_path, env=env)
            while running.poll() is None and not (journal.exists() and "code-001" in journal.read_text()):
                time.sleep(0.02)
            running.kill()
            assert running.wait() == -signal.SIGKILL
        done = commands.run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert [row["stopped"] for row in json.loads(done.stdout)["rows"]] == ["iterations", "iterations"]
        for place in ("r-killed-1", "r-killed-2"):
            lines = (data / "recipes" / place / "journal.jsonl").read_text().splitlines()
            steps = [entry["step"] for entry in map(json.loads, lines) if entry["event"] == "done"]
            assert sorted(steps) == sorted(set(steps)) and {"code-001", "judge-001", "judge-002", "end"} <= set(steps)
        shown = commands.run("recipe", "list", cwd=tmp_path, env=env)
        assert shown.stdout.count("iterations") == 2
