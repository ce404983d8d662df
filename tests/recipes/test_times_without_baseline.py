"""Order by the time of a call where a NumPy reference is no baseline on the GPU: runs, sweeps, tables and pictures."""

import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.comparison import ComparisonRow
from gpu_mcp_server.models.recipe import RunState, RunStep, TunedPoint, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.models.suite import ComparedPair
from gpu_mcp_server.plots.history_plots import plot_history
from gpu_mcp_server.recipes.headless_runs import silent
from gpu_mcp_server.recipes.modes import tune_mode
from gpu_mcp_server.recipes.plan_comparison import comparison_of
from gpu_mcp_server.recipes.reports.run_picture import run_picture
from gpu_mcp_server.recipes.reports.run_timeline import timeline_steps
from gpu_mcp_server.recipes.reports.step_variance import gains_of
from gpu_mcp_server.recipes.run import run_context
from gpu_mcp_server.recipes.run.journal import Journal
from gpu_mcp_server.recipes.run.prompt_verdict import verdict_of_attempt, worth
from gpu_mcp_server.recipes.run.run_context import Ground
from gpu_mcp_server.recipes.suites import row_of
from gpu_mcp_server.services.evaluation import candidate_batches
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.status.dashboard_queries import DashboardQueries
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.web.dashboard import problems

PLAN = RunPlan.model_validate({"name": "one", "problem": "p-1", "agent": {"command": ["true"]}})
DOUBT = "unconfirmable: the GPU answered late"
KNOWN: dict[str, Any] = {"generation": 1, "ranked_by": "time"}


def timed(attempt_id: str, low_us: float, high_us: float, trust: str = "provisional") -> Verdict:
    middle = (low_us + high_us) / 2
    return Verdict(
        attempt_id=attempt_id, stage="performance", outcome="correct", median_us=middle,
        time_range_us=(low_us, high_us), trust=trust,
    )  # fmt: skip


def judged(step: str, verdict: Verdict, kind: str = "judge", **more: Any) -> dict[str, Any]:
    told = {"outcome": verdict.outcome, "verdict": verdict.model_dump(mode="json"), **more}
    return {"event": "done", "step": step, "kind": kind, "seconds": 1.0, **told}


async def settled(tmp_path: Path, verdicts: list[Verdict], answers: dict[str, Verdict]) -> tuple[Ground, list[str]]:
    """Return a run's end over such verdicts, with what confirmation runs say of each, and of which it asked."""
    asked: list[str] = []
    with Journal(tmp_path) as journal, pytest.MonkeyPatch.context() as patch:

        async def answer(lab: Any, verdict: Verdict, plan: Any, tell: Any) -> tuple[str, Verdict]:
            asked.append(str(verdict.attempt_id))
            now = answers[str(verdict.attempt_id)]
            return ("confirmed" if now.trust == "confirmed" else "not confirmed"), now

        patch.setattr(run_context, "confirmed_verdict", answer)
        nothing: Any = None
        ground = Ground(nothing, PLAN, None, "r-1", tmp_path, journal, silent, nothing)
        for verdict in verdicts:
            ground.consider(verdict, f"source of {verdict.attempt_id}")
        await ground.confirm_best()
    return ground, asked


async def test_a_faster_candidate_in_doubt_is_timed_once_more_and_is_the_best_if_the_doubt_goes(tmp_path: Path):
    slow, fast = timed("a-slow", 1240, 1250), timed("a-fast", 163, 165, DOUBT)
    late = timed("a-late", 1300, 1310, DOUBT)
    sure = timed("a-fast", 164, 166, "confirmed")
    answers = {"a-fast": sure, "a-slow": timed("a-slow", 1240, 1250, "confirmed")}

    ground, asked = await settled(tmp_path, [slow, fast, late], answers)
    assert (ground.best, ground.best_source, asked) == (sure, "source of a-fast", ["a-fast"])
    (tmp_path / "other").mkdir()
    ground, asked = await settled(tmp_path / "other", [slow, fast, late], {**answers, "a-fast": fast})
    assert (ground.best, asked) == (answers["a-slow"], ["a-fast", "a-slow"]), "a doubt that stays does not win"


async def test_where_no_run_can_confirm_the_fastest_the_best_is_a_confirmed_one(tmp_path: Path):
    sure, fast = timed("a-sure", 1240, 1250, "confirmed"), timed("a-fast", 163, 165)
    ground, asked = await settled(tmp_path, [sure, fast], {"a-fast": fast})
    assert (ground.best, ground.best_source, asked) == (sure, "source of a-sure", ["a-fast"])
    late = timed("a-late", 500, 510)
    (tmp_path / "other").mkdir()
    answers = {"a-fast": timed("a-fast", 163, 165, DOUBT), "a-late": timed("a-late", 505, 515, "confirmed")}
    ground, asked = await settled(tmp_path / "other", [sure, fast, late], answers)
    assert (ground.best, asked) == (answers["a-late"], ["a-fast", "a-late"]), "one in doubt gives way to the next"


def test_the_time_orders_candidates_and_what_a_run_says_has_it():
    wide, narrow = timed("a-wide", 5, 30), timed("a-narrow", 11, 13)
    assert max([wide, narrow], key=worth) == narrow, "by the most that it takes, as rankings do"
    attempt = Attempt.model_validate({
        "attempt_id": "a-1", "kind": "evaluate", "created_at": "now", "status": "judged", "verdict": "correct",
        "median_us": 12.3, "time_range_us": (12.0, 12.6), "trust": "confirmed",
    })  # fmt: skip
    best = verdict_of_attempt(attempt, PLAN)
    step = RunStep(step="judge-001", kind="judge", seconds=1, outcome="correct", median_us=best.median_us)
    state = RunState(run_id="r-1", name="r", mode="structured", state="finished", best=best, steps=[step])
    assert "best: a-1, 12.3 µs a call (12.0–12.6 µs; no GPU baseline; give a torch" in state.summary()  # noqa: RUF001
    assert "reference), confirmed" in state.summary()
    assert "judge-001: correct, 12.3 µs a call (1.0 s)" in state.summary()
    untimed = Verdict(attempt_id="a-2", stage="target", outcome="correct")
    assert untimed.speed_text() == "not timed"


def test_a_sweep_without_speedups_has_dominated_points_and_a_table_of_times():
    def point(n: int, low_us: float, high_us: float) -> TunedPoint:
        evidence = {"time_range_us": [low_us, high_us]}
        attempt = Attempt(attempt_id=f"a-{n}", kind="evaluate", created_at="now", status="judged", evidence=evidence)
        coarse = tune_mode.point_of({"n": n}, timed(f"a-{n}", low_us, high_us), coarse=True)
        return coarse.model_copy(update=tune_mode._intervals(attempt))

    points = [point(1, 90, 130), point(2, 100, 104), point(3, 200, 210)]
    found = tune_mode.in_order(tune_mode.mark_dominated(points))
    assert [(p.parameters["n"], p.dominated_by) for p in found] == [(2, None), (1, None), (3, "a-2")]
    assert found[0].line_text().startswith("n=2: correct, 102 µs (100–104 µs) a call")  # noqa: RUF001


def test_rows_of_a_batch_share_a_rank_where_their_times_overlap():
    def row(name: str, low_us: float, high_us: float) -> ComparisonRow:
        return ComparisonRow(
            name=name, status="judged", verdict="correct", ranked_by_time=True, trust="provisional",
            time_us=(low_us + high_us) / 2, time_range_us=(low_us, high_us),
        )  # fmt: skip

    ranked = candidate_batches._ranked([row("wide", 5, 30), row("narrow", 11, 13), row("late", 40, 41)])
    assert [(r.name, r.rank) for r in ranked] == [("narrow", 1), ("wide", 1), ("late", 3)]


def test_the_picture_of_a_run_and_the_gains_of_its_steps_go_by_time():
    journal = [judged("judge-001", timed("a-1", 99, 101)), judged("judge-002", timed("a-2", 24, 26, "confirmed"))]
    picture = run_picture(timeline_steps(journal), target=4.0)
    root = ET.fromstring(picture)
    words = [e.text or "" for e in root.iter() if e.tag.endswith("}text")]
    titles = [e.text or "" for e in root.iter() if e.tag.endswith("}title")]
    assert any(word.startswith("shortest time of a call so far (no GPU baseline)") for word in words)
    assert "50.0 µs" in words and not any(word.startswith(("\u00d7", "target")) for word in words)
    assert "judge-002: 25.0 µs a call, 95 % 24.0–26.0 µs, confirmed" in titles  # noqa: RUF001
    (best,) = [e.attrib["d"] for e in root.iter() if e.attrib.get("class") == "best"]
    assert best.count("V") == 1
    assert timeline_steps(journal)[1].attempts == (("a-2", "correct", "25.0 µs"),)
    assert gains_of(journal) == {"code-001": 10_000.0, "code-002": 30_000.0}, "calls a second"


def test_two_plans_are_compared_by_time():
    best = timed("a-1", 99, 101)
    state = RunState(run_id="r-1", name="p", mode="structured", state="finished", best=best)
    slow = row_of("p", state)
    fast = row_of("p", state.model_copy(update={"best": timed("a-2", 24, 26)}))
    found = comparison_of("c", [], [ComparedPair(problem="p", number=n, a=slow, b=fast) for n in (1, 2)])
    assert found.faster.mean == pytest.approx(4.0) and "| p | 100 µs a call (" in found.summary()


async def test_history_lessons_and_memory_go_by_time(tmp_path: Path):
    async with await Database.open(tmp_path / "lab.db") as db:
        sql = "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES ('p-1', 'h', 'now', ?)"
        await db.execute(sql, ('{"name": "twice", "inputs": [], "outputs": []}',))
        store = AttemptStore(db)

        async def tried(us: float, note: str, parent: str | None = None, **evidence: Any) -> str:
            columns: Any = {"problem_id": "p-1", "problem_hash": "h", "language": "cuda", "device": "H100"}
            attempt = await store.start("evaluate", **columns, parent_id=parent, note=note)
            whole = {**KNOWN, "time_range_us": [us * 0.75, us * 1.25], "confirmed_by": "itself", **evidence}
            await store.finish(attempt, status="judged", verdict="correct", median_us=us, evidence=whole)
            return attempt

        slow = await tried(100.0, "apart")
        fast = await tried(25.0, "side by side", slow)
        await tried(10.0, "first look", slow, confirmed_by=None)
        memory = ExperienceSearch(db)
        lessons = (await memory.lessons("twice")).lessons
        history = await store.history("p-1")
        kept = await memory.confirmed_best("p-1", generation=1, language="cuda")
        nothing: Any = None
        queries = DashboardQueries(db, nothing, nothing, store)
        lab: Any = SimpleNamespace(status=SimpleNamespace(overview=queries), store=SimpleNamespace(experience=store))
        (board,) = await queries.boards("p-1")
        course = await problems.course(lab, "p-1", 0)

    assert [(x.says, x.before, x.after) for x in lessons if x.kind == "technique"] == [("side by side", 1.0, 4.0)]
    assert kept == [fast, slow], "a run starts from no time that is unconfirmed"
    assert [(p.best_us, p.best_trust, p.time_range_us) for p in history.points] == [
        (100.0, "confirmed", (75.0, 125.0)),
        (25.0, "confirmed", (18.75, 31.25)),
        (25.0, "confirmed", (7.5, 12.5)),
    ], "a first look does not go before what is confirmed"
    words = [e.text for e in ET.fromstring(plot_history(history)).iter() if e.tag.endswith("}text")]
    assert "time of a call (no GPU baseline)" in words and "50.0 µs" in words
    assert (board.best, board.best_us, board.best_trust) == (None, 25.0, "confirmed")
    assert course["time_axis"] == "time of a call (no GPU baseline)"
    assert [p["speedup"] for p in course["points"]] == [10_000.0, 40_000.0, 100_000.0], "calls a second"
    assert f"best {fast} with 25.0 µs" in history.summary()
