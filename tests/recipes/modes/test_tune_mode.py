"""Mode tune: every choice of a source's parameters is judged, what is dominated no further; no agent is called."""

import json
import shutil
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.recipe import TunedPoint, Verdict
from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.modes.tune_mode import dominates, in_order, mark_dominated
from gpu_mcp_server.recipes.reports.run_report import report
from gpu_mcp_server.recipes.run import parameter_sampling
from gpu_mcp_server.recipes.run.journal import FILE, entries
from gpu_mcp_server.recipes.run.parameter_sampling import propose_points
from gpu_mcp_server.recipes.run.prompt_verdict import worth
from gpu_mcp_server.recipes.run.tuning_space import TuningSpace, with_parameters
from gpu_mcp_server.services.lab import Lab
from tests.recipes.conftest import HERE, Begun

pytestmark = pytest.mark.usefixtures("long_rounds")
gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
SOURCE = (HERE / "tuned.c").read_text()
SWEEP: dict[str, Any] = {
    "mode": "tune",
    "tier": "performance",
    "tune": {"REPEATS": [20, 250], "OFFSET": [1, 1.5, "nothing"]},
    "tuning": {"source": "tuned.c", "constraints": ["not (OFFSET == 'nothing' and REPEATS > 20)"]},
}
NO_AGENT: dict[str, Any] = {"command": [], "environment": {}, "files": {}}


@gcc
async def test_every_point_is_judged_without_an_agent_and_the_dominated_are_timed_no_further(lab: Lab, begun: Begun):
    run_id = await begun("sweep", NO_AGENT, **SWEEP)
    state = await Runs(lab).go(run_id)

    assert (state.stopped, state.spent.agent_calls) == ("tuned", 0), state.summary()
    assert [s.step for s in state.steps] == ["tune-001", "tune-002", "tuning-001"]
    assert {p.parameters_text(): p.outcome for p in state.tuned} == {
        "REPEATS=20 OFFSET=1": "correct", "REPEATS=250 OFFSET=1": "correct", "REPEATS=20 OFFSET=1.5": "incorrect",
        "REPEATS=250 OFFSET=1.5": "incorrect", "REPEATS=20 OFFSET=nothing": "compile_failed",
    }  # fmt: skip
    folder, page = lab.settings.data_dir / "recipes" / run_id, await report(lab, run_id)
    assert "<h2>Tuning</h2>" in page and "REPEATS=20 OFFSET=1: correct" in state.summary()
    fast, slow = sorted(state.tuned[:2], key=lambda point: int(point.parameters["REPEATS"]))
    attempt = await lab.store.experience.get(slow.attempt_id or "")
    assert (attempt.evidence or {})["parameters"] == "REPEATS=250 OFFSET=1" and "REPEATS=250" in (attempt.note or "")
    if not any(p.trust.startswith("unconfirmable") for p in state.tuned):  # such a point stands behind the others
        assert [fast, slow] == state.tuned[:2]
        assert (fast.parameters, fast.coarse, slow.coarse) == ({"REPEATS": 20, "OFFSET": 1}, False, True)
        assert slow.dominated_by is not None and state.steps[1].outcome == "1 of 1 correct", state.summary()
        assert state.best is not None and state.best.attempt_id == fast.attempt_id
        assert (folder / "best.txt").read_text() == SOURCE.replace("250", "20")
        assert "REPEATS=20 OFFSET=1: correct, speed-up" in state.summary() and "1 dominated" in state.why
        assert f"dominated by {fast.attempt_id[:2] if fast.attempt_id else ''}" in page
    kept = json.loads((folder / "handoffs" / "tuning-001.json").read_text())
    assert (kept["space"], kept["sampled"], len(kept["points"])) == (6, False, 5)

    recent = len((await lab.store.experience.list("recent", problem_id=state.problem_id, limit=100)).attempts)
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines)):
        (folder / FILE).write_bytes(b"".join(lines[:cut]) + lines[cut][:10])
        again = await Runs(lab).go(run_id)
        assert (again.stopped, again.why, again.best) == (state.stopped, state.why, state.best), lines[cut][:80]
        assert again.tuned == state.tuned
    assert len((await lab.store.experience.list("recent", problem_id=state.problem_id, limit=100)).attempts) == recent


@gcc
async def test_a_run_that_ends_below_its_target_sweeps_its_best_if_that_has_the_parameters(lab: Lab, begun: Begun):
    plan = {"tier": "performance", "tune": {"REPEATS": [20, 250]}, "iterations": {"performance": 1}}
    run_id = await begun("tunable", target={"speedup": 1e6}, **plan)
    state = await Runs(lab).go(run_id)

    assert state.stopped == "iterations" and "the fastest: REPEATS=20" in state.why, state.summary()
    assert state.spent.agent_calls == 2 and [s.step for s in state.steps if s.kind == "tune"][-1] == "tuning-001"
    written = next(v for s, v in judged(lab, run_id) if s == "judge-001")
    attempt = await lab.store.experience.get(state.tuned[0].attempt_id or "")
    assert attempt.parent_id == written["attempt_id"]

    without = await Runs(lab).go(await begun("learns", target={"speedup": 1e6}, **plan, fresh=True))
    assert "not tuned: The source defines REPEATS 0 times" in without.why and not without.tuned


def judged(lab: Lab, run_id: str) -> list[tuple[str, dict[str, str]]]:
    journal = entries(lab.settings.data_dir / "recipes" / run_id)
    return [(e["step"], e["verdict"]) for e in journal if e["event"] == "done" and "verdict" in e]


@gcc
async def test_what_cannot_be_swept_is_refused_with_the_reason(lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch):
    async def why(**changes: object) -> str:
        state = await Runs(lab).go(await begun("sweep", NO_AGENT, **{**SWEEP, **changes}))
        assert (state.stopped, state.tuned) == ("refused", [])
        return state.why

    assert "defines WIDTH 0 times" in await why(tune={"WIDTH": [1]}, tuning={"source": "tuned.c"})
    assert "no point of [tune] complies" in await why(tuning={"source": "tuned.c", "constraints": ["REPEATS > 999"]})
    assert "[tune] has no HEIGHT" in await why(tuning={"source": "tuned.c", "constraints": ["HEIGHT > 1"]})
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    large = {"REPEATS": [*range(20, 120)], "OFFSET": [1]}
    assert "more than tuning.trials 64, and optuna is not installed" in await why(
        tune=large, tuning={"source": "tuned.c"}
    )
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tune": {}}, "needs \\[tune\\]"), ({"tier": "smoke"}, "times nothing"), ({"mode": "agent"}, "command or client"),
    ]  # fmt: skip
    for more, words in refused:
        with pytest.raises(BadRequest, match=words):
            await begun("sweep", NO_AGENT, **{**SWEEP, **more})


@gcc
async def test_a_large_space_is_sampled_and_a_killed_sweep_goes_on_with_the_points_that_it_had(
    lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("optuna")
    monkeypatch.setattr("gpu_mcp_server.recipes.modes.tune_mode.ROUND", 3)
    tune = {"REPEATS": [*range(20, 420)], "OFFSET": [1, 1.5]}
    tuning = {"source": "tuned.c", "trials": 6, "constraints": ["OFFSET < 1.2 or REPEATS % 2 == 0"]}
    run_id = await begun("sweep", NO_AGENT, **{**SWEEP, "tune": tune, "tuning": tuning})
    state = await Runs(lab).go(run_id)

    assert state.stopped == "tuned" and len(state.tuned) == 6, state.summary()
    assert len({p.parameters_text() for p in state.tuned}) == 6
    assert all(p.parameters["OFFSET"] == 1 or int(p.parameters["REPEATS"]) % 2 == 0 for p in state.tuned)
    path = lab.settings.data_dir / "recipes" / run_id / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(parameter_sampling, "TRIES", 0)
    cut = next(n for n, line in enumerate(lines) if b'"begun","step":"tune-002"' in line)
    path.write_bytes(b"".join(lines[: cut + 1]))
    again = await Runs(lab).go(run_id)
    assert again.tuned == state.tuned


def test_proposals_comply_are_new_and_follow_what_was_fast():
    pytest.importorskip("optuna")
    space = TuningSpace({"a": [*range(50)], "b": [*range(50)]}, ("a + b <= 60",))

    def judged_at(point: Point) -> TunedPoint:
        near = 100 - abs(int(point["a"]) - 30) - abs(int(point["b"]) - 5)
        return TunedPoint(parameters=point, outcome="correct", speedup=float(near))

    points: list[TunedPoint] = []
    for number in range(20):
        proposed = propose_points(space, points, 8, number)
        assert proposed == propose_points(space, points, 8, number) and all(space.admits(p) for p in proposed)
        points += [judged_at(point) for point in proposed]
    assert len({p.parameters_text() for p in points}) == len(points) == 160
    first, last = points[:40], points[-40:]
    assert sum(p.speedup or 0 for p in last) > sum(p.speedup or 0 for p in first)


def test_a_point_is_dominated_only_by_one_that_is_faster_beyond_both_intervals():
    def point(name: int, speedup: float, half: float | None, outcome: str = "correct") -> TunedPoint:
        ends = (speedup - half, speedup + half) if half is not None else None
        return TunedPoint(
            parameters={"n": name}, outcome=outcome, attempt_id=f"a-{name}", speedup=speedup, speedup_range=ends
        )

    fast, near, slow, unknown = point(1, 3.0, 0.2), point(2, 2.7, 0.2), point(3, 2.0, 0.2), point(4, 1.0, None)
    wrong = point(5, 0.5, 0.1, "incorrect")
    found = mark_dominated([slow, unknown, near, fast, wrong])
    assert [p.dominated_by for p in found] == ["a-1", None, None, None, None]
    assert mark_dominated([wrong]) == [wrong]
    timed = [
        TunedPoint(parameters={"n": n}, outcome="correct", median_us=us, median_range_us=(us - 1, us + 1))
        for n, us in enumerate((10.0, 30.0))
    ]
    coarse = Verdict(stage="performance", outcome="correct", speedup=9.0, coarse=True)
    assert worth(coarse) < worth(coarse.model_copy(update={"speedup": 2.0, "coarse": False}))
    assert dominates(*timed) and not dominates(*reversed(timed)) and not dominates(timed[0], slow)


def test_values_go_where_the_name_is_defined_once_and_nowhere_else():
    point: Point = {"REPEATS": 7, "OFFSET": True}
    changed = with_parameters(SOURCE, "c", point)
    assert "#define REPEATS 7\n" in changed and "#define OFFSET 1 // what is added\n" in changed
    assert changed.replace("REPEATS 7", "REPEATS 250") == SOURCE
    python = "# BLOCK = 1\nBLOCK: int = (\n    64\n)  # ä\nname = 'ä'; WARPS = 4  # warps\ndef f():\n    BLOCK = 2\n"
    after = with_parameters(python, "triton", {"BLOCK": 128, "WARPS": 8, "name": "x"})
    assert after == python.replace("    64\n", "    128\n").replace("WARPS = 4", "WARPS = 8").replace("'ä';", "'x';")
    for source, language, words in (
        (SOURCE * 2, "cuda", "defines REPEATS 2 times"), ("REPEATS = 2 * x\n", "triton", "no plain value"),
        ("def f(:\n", "python", "no Python"),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=words):
            with_parameters(source, language, {"REPEATS": 3})  # type: ignore[arg-type]  # a language each


def test_constraints_are_arithmetic_and_comparisons_over_the_parameters():
    values = {"a": [1, 2, 4], "b": ["x", "y"]}
    space = TuningSpace(values, ("a * 2 <= 4 and b != 'y'", "1 <= a < 4 or not a // 2 == 1"))  # type: ignore[arg-type]  # lists of one type each
    assert (space.size, [p["a"] for p in space.points()]) == (6, [1, 2])
    for text in ("a.__class__", "f(a)", "a **", "c > 1", "a / 0 > 1", "a < b", "[a for a in (1,)]"):
        with pytest.raises(BadRequest, match="cannot be read"):
            list(TuningSpace({"a": [1], "b": ["x"]}, (text,)).points())


def test_an_unconfirmable_point_stands_behind_the_others_and_dominates_none_of_them():
    def point(number: int, speedup: float, trust: str) -> TunedPoint:
        ends = (speedup * 0.99, speedup * 1.01)
        return TunedPoint(
            parameters={"N": number}, outcome="correct", speedup=speedup, speedup_range=ends, trust=trust
        )  # fmt: skip

    doubted, fast, slow = point(1, 9.0, "unconfirmable: busy"), point(2, 3.0, "provisional"), point(3, 1.0, "confirmed")
    assert not dominates(doubted, fast) and dominates(fast, slow)
    ordered = in_order(mark_dominated([doubted, slow, fast]))
    assert [(p.parameters["N"], p.dominated_by is not None) for p in ordered] == [(2, False), (1, False), (3, True)]
