"""A run whose best is voided goes on with the next one; resumed, it is the same run, and nothing is judged again."""

from pathlib import Path

import pytest

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, Timing, TimingOptions
from gpu_mcp_server.models.recipe import RunState, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.models.suite import CandidateReport
from gpu_mcp_server.recipes.agents.agent_jobs import Agents
from gpu_mcp_server.recipes.headless_runs import silent, state_of
from gpu_mcp_server.recipes.reports.suite_page import suite_page
from gpu_mcp_server.recipes.run.journal import Journal, entries
from gpu_mcp_server.recipes.run.plan_loader import plan_of
from gpu_mcp_server.recipes.run.prompt_verdict import verdict_of, verdict_of_attempt, worth
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.recipes.run.run_context import Ground
from gpu_mcp_server.recipes.suite_candidates import JudgeWish, SuiteCandidates, suite_tasks
from gpu_mcp_server.recipes.suites import suite_report
from gpu_mcp_server.services.evaluation import confirmation_runs
from gpu_mcp_server.services.lab import Lab
from tests.recipes.conftest import AGENT, HERE
from tests.services.evaluation import test_confirmation_runs as runs_tests
from tests.services.evaluation.test_confirmation_runs import PROBLEM, RIGHT, WRONG, recorded, register

believing_judge, quick = runs_tests.believing_judge, runs_tests.quick


def planned(problem_id: str, **more: object) -> RunPlan:
    values = {"name": "r", "problem": problem_id, "language": "c", "agent": AGENT, "target": {"speedup": 100.0}}
    return plan_of({**values, **more}, HERE)


async def test_a_run_whose_best_is_voided_has_the_next_one_and_is_the_same_when_it_is_resumed(
    own_lab: Lab, tmp_path: Path
):
    problem_id = await register(own_lab)
    plan = planned(problem_id)
    honest = await recorded(own_lab, problem_id, RIGHT, 50.0)
    cheat = await recorded(own_lab, problem_id, WRONG, 900.0)
    verdicts = [await recorded_verdict(own_lab, attempt, plan) for attempt in (honest, cheat)]
    assert [v.stage for v in verdicts] == ["performance", "performance"], "no provisional time reaches a target"

    async def run() -> Ground:
        with Journal(tmp_path) as journal:
            problem = await own_lab.store.problems.get(problem_id)
            agents = Agents(own_lab, plan.agent)
            ground = Ground(own_lab, plan, problem, "r-1", tmp_path, journal, silent, agents)
            for number, verdict in enumerate(verdicts, 1):
                step = f"judge-{number:03}"
                if journal.done(step) is None:
                    told = {"outcome": verdict.outcome, "verdict": verdict.model_dump(mode="json")}
                    journal.finish(step, kind="judge", seconds=0.0, **told)
                ground.consider(await ground.confirm_target(verdict), "text")
            await ground.confirm_best()
            return ground

    first = await run()
    assert first.best is not None and first.best.attempt_id == honest.attempt_id
    seen = entries(tmp_path)
    settled = {e["step"]: e["outcome"] for e in seen if e["event"] == "done" and e["kind"] == "confirm"}
    assert settled[f"confirm-{cheat.attempt_id}"] == "voided" and len(settled) == 2
    jobs = len(await own_lab.jobs.table.recent(100))

    again = await run()
    assert again.best == first.best and entries(tmp_path) == seen
    assert len(await own_lab.jobs.table.recent(100)) == jobs, "nothing was judged again"
    state = state_of("r-1", plan, seen)
    assert state.best is not None and state.best.attempt_id == honest.attempt_id
    assert [step.kind for step in state.steps].count("confirm") == 2


@pytest.mark.parametrize(
    ("target", "speedups", "times_us", "stage"),
    [
        ({"speedup": 2.0}, (1.9, 2.5), (90.0, 110.0), "performance"),
        ({"speedup": 2.0}, (2.1, 2.5), (90.0, 110.0), "target"),
        ({"median_us": 100.0}, (2.0, 2.5), (90.0, 110.0), "performance"),
        ({"median_us": 100.0}, (2.0, 2.5), (80.0, 100.0), "target"),
        ({"median_us": 100.0, "speedup": 2.0}, (1.9, 2.5), (80.0, 100.0), "performance"),
    ],
)
def test_a_target_is_reached_by_the_worse_end_of_an_interval(
    target: dict[str, float], speedups: tuple[float, float], times_us: tuple[float, float], stage: str
):
    plan = planned("p-1", target=target)
    attempt = Attempt(
        attempt_id="a-1", kind="evaluate", created_at="now", status="judged", verdict="correct", trust="confirmed",
        speedup=sum(speedups) / 2, speedup_range=speedups, median_us=sum(times_us) / 2,
        evidence={"median_range_us": list(times_us)},
    )  # fmt: skip
    shape = ShapeVerdict(
        dims={"n": 1}, verdict="correct", speedup=sum(speedups) / 2, speedup_low=speedups[0], speedup_high=speedups[1],
        candidate=Timing(median_us=sum(times_us) / 2, low_us=times_us[0], high_us=times_us[1], rounds=9, calls_per_round=1),
    )  # fmt: skip
    evaluation = Evaluation(
        attempt_id="a-1", problem_id="p-1", problem_hash="h", host="local", status="judged", verdict="correct",
        trust="confirmed", language="c", seconds={}, speedup=sum(speedups) / 2, shapes=[shape],
    )  # fmt: skip
    assert (verdict_of_attempt(attempt, plan).stage, verdict_of(evaluation, plan).stage) == (stage, stage)
    unsure = attempt.model_copy(update={"trust": "provisional"})
    assert verdict_of_attempt(unsure, plan).stage == "performance"


@pytest.mark.parametrize(
    ("trust", "accepts", "fast"), [("confirmed", False, 1), ("provisional", False, 0), ("provisional", True, 1)]
)
def test_a_suite_counts_confirmed_times_as_fast_unless_the_plan_accepts_others(trust: str, accepts: bool, fast: int):
    best = Verdict(
        attempt_id="a", stage="performance", outcome="correct", speedup=3.0, speedup_range=(2.9, 3.2), trust=trust
    )  # fmt: skip
    state = RunState(run_id="r", name="n", mode="structured", state="finished", stopped="iterations", best=best)
    report = suite_report("s", {"p": state}, 1, accept_provisional=accepts)
    assert (report.fast["fast_2"].hits, report.fast["fast_0"].hits) == (fast, 1)
    assert f"| p | iterations | 3 (2.9-3.2) | {trust} | a |" in report.summary()
    shown = suite_page(report)
    assert "3 (2.9-3.2)" in shown and trust in shown and shown.count("<path") == 1, "the bar has its interval"


@pytest.mark.timeout(600)  # four evaluations, on a busy machine too
async def test_a_suite_of_answers_waits_for_confirmation_runs_before_it_scores(
    believing_judge: None, quick: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(confirmation_runs, "QUIET_S", 3600.0)  # none begins but by the suite's hand
    (tmp_path / "tasks" / "one").mkdir(parents=True)
    (tmp_path / "tasks" / "one" / "problem.toml").write_text(PROBLEM.replace("1000", "400_000"))
    (tmp_path / "answers" / "one").mkdir(parents=True)
    (tmp_path / "answers" / "one" / "solution.c").write_text(RIGHT)

    async def scored() -> CandidateReport:
        judging = SuiteCandidates(quick, JudgeWish(TimingOptions()), silent)
        return await judging.judge_all("ours", suite_tasks(tmp_path / "tasks"), tmp_path / "answers")

    (row,) = (report := await scored()).rows
    assert (row.verdict, row.trust) == ("correct", "confirmed"), report.summary()
    kept = await quick.store.experience.get(str(row.attempt_id))
    assert (report.geometric_mean, row.speedup) == (pytest.approx(kept.speedup), kept.speedup)

    # A first look that was fooled: what it kept is of a source that the confirmation run finds wrong.
    wrong = await quick.store.artifacts.put(WRONG.encode(), name="kernel.c")
    sql = "UPDATE attempts SET source_artifact_id = ?, evidence = json_remove(evidence, '$.confirmed_by')"
    await quick.store.db.execute(sql, (wrong,))
    await quick.store.db.execute("DELETE FROM confirmations")
    (row,) = (report := await scored()).rows
    assert (row.verdict, row.attempt_id, row.speedup) == ("voided", kept.attempt_id, None), report.summary()
    assert (report.fast["fast_0"].hits, report.fast["fast_0"].of) == (0, 1) and report.geometric_mean is None
    assert (await quick.store.experience.get(kept.attempt_id)).voided, "it stays in the record, marked void"


def test_a_run_s_best_is_no_unconfirmable_time_where_there_is_another():
    def verdict(speedup: float, trust: str, ends: tuple[float, float] | None = None) -> Verdict:
        return Verdict(stage="performance", outcome="correct", speedup=speedup, trust=trust, speedup_range=ends)

    doubted, sure = verdict(9.0, "unconfirmable: busy"), verdict(2.0, "provisional", (1.9, 2.1))
    wide = verdict(2.5, "provisional", (1.0, 4.0))
    assert sorted([doubted, wide, sure], key=worth, reverse=True) == [sure, wide, doubted]


async def test_a_plan_may_accept_provisional_times(own_lab: Lab):
    problem_id = await register(own_lab)
    attempt = await recorded(own_lab, problem_id, RIGHT, 900.0)
    plan = planned(problem_id, accept_provisional=True)
    assert (await recorded_verdict(own_lab, attempt, plan)).stage == "target"
