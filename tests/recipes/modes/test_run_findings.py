"""Findings of a run by itself between candidates: profiles, memory, hints of the reflector."""

import json
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.profile import Advice
from gpu_mcp_server.models.recipe import CandidateProfile, HintEffect, Verdict
from gpu_mcp_server.recipes.headless_runs import Runs, verdicts_of
from gpu_mcp_server.recipes.run.candidate_profile import gain_of, predicted_gain, profile_text
from gpu_mcp_server.recipes.run.journal import FILE, entries
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.profiles import profile_plans
from gpu_mcp_server.services.profiles.processor_profiler import ProcessorProfiler
from tests.recipes.conftest import Begun
from tests.services.profiles.test_profiler import DATA, put_tools

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
TIMELINE = """
import pathlib, subprocess, sys
output, *program = sys.argv[1:]
code = subprocess.call([sys.executable, *program])
pathlib.Path(output + ".trace.json").write_text(TRACE)
sys.exit(code)
"""
"""Runs the program, and leaves the trace of another that was captured on an H200."""
TIMED = {"tier": "performance", "target": {"speedup": 1e6}, "iterations": {"performance": 2}}
"""A target that no candidate reaches, so that correct ones are below it on every machine."""


def put_gpu(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attempts in C profiled as those for a GPU are, by the stand-ins."""
    put_tools(lab, monkeypatch)
    monkeypatch.setitem(LANGUAGES, "c", LANGUAGES["c"]._replace(called_alone=True))
    leave_out_the_processor(monkeypatch)


def leave_out_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def plan(*_: object) -> None:
        return None

    monkeypatch.setattr(ProcessorProfiler, "plan", plan)


async def asked(lab: Lab, run_id: str, step: str) -> str:
    journal = entries(lab.settings.data_dir / "recipes" / run_id)
    done = next(e for e in journal if e["event"] == "done" and e["step"] == step)
    return (await lab.store.artifacts.read(done["prompt_artifact_id"])).decode()


async def test_a_correct_candidate_below_its_target_is_profiled_and_the_next_one_scores_the_advice(
    lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    put_gpu(lab, monkeypatch)
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    assert state.stopped == "iterations", state.summary()
    (profiled,) = [step for step in state.steps if step.kind == "profile"]
    assert profiled.step == "profile-003" and profiled.outcome.startswith("standard: bound by "), profiled
    folder = lab.settings.data_dir / "recipes" / run_id
    told = CandidateProfile.model_validate_json((folder / "handoffs" / "profile-003.json").read_text())
    prompt = await asked(lab, run_id, "code-004")
    assert f"bound by {told.bound}" in prompt and told.advice and told.advice in prompt and told.evidence in prompt
    assert told.predicted is not None and 1 < told.predicted <= 10 and told.profile_id
    bound = await lab.memory.bound_of(told.attempt_id)
    assert bound and told.bound.startswith(bound), "the record of the profile says it"

    last = next(step for step in state.steps if step.step == "judge-004")
    evidence = (await lab.store.experience.get(last.attempt_id or "")).evidence or {}
    score = json.loads(evidence["advice"])
    assert (score["topic"], score["predicted"], score["profiled"]) == (told.topic, told.predicted, told.attempt_id)
    said = [one.says for one in (await lab.memory.lessons(problem_id=state.problem_id)).lessons]
    assert any(text.startswith(f"advice {told.topic!r} on ") for text in said), said
    assert any("int65_t" in text or "is wrong" in text or "expected" in text for text in said if "->" in text), said

    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if b'"begun","step":"profile-003"' in line)
    path.write_bytes(b"".join(lines[: cut + 1]))
    again = await Runs(lab).go(run_id)
    assert [s.step for s in again.steps] == [s.step for s in state.steps] and again.stopped == state.stopped
    assert (again.best and again.best.attempt_id) == (state.best and state.best.attempt_id)


async def test_where_counters_are_denied_a_timeline_says_what_takes_the_time_and_what_is_not_measured(
    lab: Lab, begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    put_gpu(lab, monkeypatch)
    ncu = lab.settings.data_dir / "tools" / "ncu"
    ncu.write_text(ncu.read_text().replace('if "closed" in program', "if True"))
    (tmp_path / "python_profile.py").write_text(
        TIMELINE.replace("TRACE", repr((DATA / "torch/trace.json").read_text()))
    )
    monkeypatch.setattr(profile_plans, "WORKERS", tmp_path)
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    assert [s.outcome for s in state.steps if s.kind == "profile"] == ["quick: what bounds it is not measured"], (
        state.summary()
    )
    handoffs = lab.settings.data_dir / "recipes" / run_id / "handoffs"
    told = CandidateProfile.model_validate_json((handoffs / "profile-003.json").read_text())
    prompt = await asked(lab, run_id, "code-004")
    assert told.profile_id and "(quick): what bounds it is not measured" in prompt and told.evidence in prompt
    assert "product_kernel" in told.evidence and "Not measured: hardware counters" in prompt


async def test_a_population_profiles_its_fastest_once_and_tells_the_next_round(
    lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    put_gpu(lab, monkeypatch)
    rounds = {"descendant_num": 1, "rounds": 4, "ancestor_num": 2}
    state = await Runs(lab).go(run_id := await begun("learns", mode="population", population=rounds, **TIMED))

    assert state.stopped == "rounds", state.summary()
    profiled = [(s.step, s.outcome) for s in state.steps if s.kind == "profile"]
    assert [step for step, _ in profiled] == ["profile-003"] and profiled[0][1].startswith("standard: bound by ")
    folder = lab.settings.data_dir / "recipes" / run_id
    told = CandidateProfile.model_validate_json((folder / "handoffs" / "profile-003.json").read_text())
    earlier, prompt = await asked(lab, run_id, "code-003-01"), await asked(lab, run_id, "code-004-01")
    assert (
        "Profile of" not in earlier and f"Profile of {told.attempt_id} (standard)" in prompt and told.advice in prompt
    )
    (after,) = verdicts_of([e for e in entries(folder) if e["step"] == "judge-004"])
    score = json.loads(((await lab.store.experience.get(after.attempt_id or "")).evidence or {})["advice"])
    assert (score["topic"], score["profiled"]) == (told.topic, told.attempt_id)

    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    for step in (b'"begun","step":"profile-003"', b'"done","step":"profile-003"', b'"begun","step":"judge-004"'):
        cut = next(n for n, line in enumerate(lines) if step in line)
        (folder / FILE).write_bytes(b"".join(lines[: cut + 1]))
        again = await Runs(lab).go(run_id)
        assert ([s.step for s in again.steps], again.best) == ([s.step for s in state.steps], state.best), step


async def test_a_candidate_for_the_processor_is_profiled_there(lab: Lab, begun: Begun):
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    (profiled,) = [step for step in state.steps if step.kind == "profile"]
    assert profiled.outcome.partition(":")[0] in ("standard", "quick"), profiled
    handoffs = lab.settings.data_dir / "recipes" / run_id / "handoffs"
    told = CandidateProfile.model_validate_json((handoffs / "profile-003.json").read_text())
    prompt = await asked(lab, run_id, "code-004")
    assert told.profile_id and "calls" in told.evidence and told.evidence in prompt and told.advice in prompt


async def test_where_nothing_can_profile_the_times_stand_alone_and_say_why(
    lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    leave_out_the_processor(monkeypatch)
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    assert [s.outcome for s in state.steps if s.kind == "profile"] == ["times alone"]
    prompt = await asked(lab, run_id, "code-004")
    assert "(times): what bounds it is not measured" in prompt and "Not measured: An NVIDIA GPU" in prompt


def test_a_promise_is_of_the_whole_candidate_and_a_score_of_two_that_are_correct():
    advice = Advice(topic="spills", share=0.5, text="stop the spills")
    assert predicted_gain(advice, None) == 2
    assert predicted_gain(advice, 40) == pytest.approx(1.25)
    assert predicted_gain(advice.model_copy(update={"share": 1.0}), None) == pytest.approx(10)
    slow, fast = (Verdict(stage="performance", outcome="correct", speedup=up) for up in (1.0, 1.5))
    assert gain_of(slow, fast) == 1.5
    assert gain_of(slow, Verdict(stage="correctness", outcome="incorrect")) is None
    timed = [Verdict(stage="performance", outcome="correct", median_us=us) for us in (30.0, 10.0)]
    assert gain_of(*timed) == 3 and profile_text(None) == ""


async def test_a_second_run_ends_as_cached_or_starts_from_the_best_and_a_fresh_one_from_nothing(lab: Lab, begun: Begun):
    runs = Runs(lab)
    first = await runs.go(await begun("learns", tier="performance", iterations={"performance": 2}))
    assert first.best is not None and first.best.speedup_range, first.summary()

    least = first.best.speedup_range[0]
    cached = await runs.go(await begun("never", tier="performance", target={"speedup": least}))
    assert (cached.stopped, cached.spent.agent_calls) == ("cached", 0) and str(first.best.attempt_id) in cached.why
    assert cached.best is not None and cached.best.attempt_id == first.best.attempt_id
    run_id = await begun("never", **{**TIMED, "iterations": {"compile": 1}})
    further = await runs.go(run_id)
    assert (further.stopped, further.steps[0].kind) == ("iterations", "memory")
    assert further.best is not None and further.best.attempt_id == first.best.attempt_id, "none was better"
    assert "The best of earlier runs" in await asked(lab, run_id, "code-001")
    fresh = await runs.go(run_id := await begun("never", **{**TIMED, "iterations": {"compile": 1}}, fresh=True))
    assert fresh.best is None and "earlier runs" not in await asked(lab, run_id, "code-001")

    path = lab.settings.data_dir / "recipes" / further.run_id / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:cut]) + lines[cut][:10])
        again = await runs.go(further.run_id)
        assert (again.stopped, again.best, len(again.steps)) == (further.stopped, further.best, len(further.steps))


async def test_after_two_failures_the_reflector_is_asked_and_its_hints_effect_is_kept(lab: Lab, begun: Begun):
    run_id = await begun("stumbles", {"steps": {"reflect": {"model": "large"}}}, iterations={"compile": 5})
    state = await Runs(lab).go(run_id)

    assert [(s.step, s.kind) for s in state.steps if s.kind == "reflect"] == [("reflect-002", "reflect")]
    assert state.stopped == "target" and state.spent.agent_calls == 5, state.summary()
    folder = lab.settings.data_dir / "recipes" / run_id
    effect = HintEffect.model_validate_json((folder / "handoffs" / "effect-003.json").read_text())
    assert (effect.before, effect.after, effect.helped) == ("compile", "target", True)
    assert "int65_t" in await asked(lab, run_id, "reflect-002")
    said = [one.says for one in (await lab.memory.lessons(problem_id=state.problem_id)).lessons if one.kind == "hint"]
    assert said == ["helped (compile to target): the type is int64_t"]

    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    remembered = next(n for n, line in enumerate(lines) if b'"memory-001"' in line)
    for cut in range(remembered + 1, len(lines)):
        path.write_bytes(b"".join(lines[:cut]) + lines[cut][:10])
        again = await Runs(lab).go(run_id)
        assert [s.step for s in again.steps] == [s.step for s in state.steps]
        assert state.best is not None and state.best.details and again.best == state.best, lines[cut]
