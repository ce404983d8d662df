"""What a run finds out by itself between candidates: profiles, memory, hints of the reflector."""

import json
import shutil

import pytest

from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.profile import Advice
from gpu_mcp_server.models.recipe import CandidateProfile, HintEffect, Verdict
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run.candidate_profile import gain_of, predicted_gain, profile_text
from gpu_mcp_server.recipes.run.journal import FILE, entries
from gpu_mcp_server.services.lab import Lab
from tests.recipes.conftest import Begun
from tests.services.profiles.test_profiler import put_tools

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
TIMED = {"tier": "performance", "target": {"speedup": 1e6}, "iterations": {"performance": 2}}
"""A target that no candidate reaches, so that correct ones are below it on every machine."""


async def asked(lab: Lab, run_id: str, step: str) -> str:
    journal = entries(lab.settings.data_dir / "recipes" / run_id)
    done = next(e for e in journal if e["event"] == "done" and e["step"] == step)
    return (await lab.store.artifacts.read(done["prompt_artifact_id"])).decode()


async def test_a_correct_candidate_below_its_target_is_profiled_and_the_next_one_scores_the_advice(
    lab: Lab, begun: Begun, monkeypatch: pytest.MonkeyPatch
):
    put_tools(lab, monkeypatch)
    monkeypatch.setitem(LANGUAGES, "c", LANGUAGES["c"]._replace(called_alone=True))
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    assert state.stopped == "iterations", state.summary()
    (profiled,) = [step for step in state.steps if step.kind == "profile"]
    assert profiled.step == "profile-003" and profiled.outcome.startswith("standard: bound by "), profiled
    folder = lab.settings.data_dir / "recipes" / run_id
    told = CandidateProfile.model_validate_json((folder / "handoffs" / "profile-003.json").read_text())
    prompt = await asked(lab, run_id, "code-004")
    assert f"bound by {told.bound}" in prompt and told.advice and told.advice in prompt and told.evidence in prompt
    assert told.predicted is not None and 1 < told.predicted <= 10 and told.profile_id

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


async def test_where_nothing_can_profile_the_times_stand_alone_and_say_why(lab: Lab, begun: Begun):
    state = await Runs(lab).go(run_id := await begun("learns", **TIMED))

    assert [s.outcome for s in state.steps if s.kind == "profile"] == ["times alone"]
    prompt = await asked(lab, run_id, "code-004")
    assert "(times): bound by not measured" in prompt and "Not measured: An NVIDIA GPU" in prompt


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
    assert first.best is not None and first.best.speedup, first.summary()

    cached = await runs.go(await begun("never", tier="performance", target={"speedup": first.best.speedup / 2}))
    assert (cached.stopped, cached.spent.agent_calls) == ("cached", 0) and first.best.attempt_id in cached.why
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
    run_id = await begun("stumbles", {"models": {"reflect": "large"}}, iterations={"compile": 5})
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
        assert again.best is not None and state.best is not None
        assert again.best == state.best.model_copy(update={"details": again.best.details})  # the record has none
