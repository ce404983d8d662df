"""Evaluations that share a GPU: which do, and what becomes of one that failed beside others."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import judge_job, judge_results, trial_judge
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.lab import Lab
from tests.services.evaluation.test_confirmation_runs import RIGHT, UNTIMED, register

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.mark.parametrize(
    ("timing", "elements", "may_share", "mode"),
    [
        (TimingOptions(), 1 << 20, True, "windowed"),
        (TimingOptions(tier="correctness", precision="exact"), 1 << 20, True, "windowed"),
        (TimingOptions(), 1 << 20, False, "exclusive"),
        (TimingOptions(), 1 << 26, True, "exclusive"),
        (TimingOptions(precision="exact"), 1 << 20, True, "exclusive"),
        (TimingOptions(first_call_s=600), 1 << 20, True, "exclusive"),
    ],
    ids=["a first look", "not timed", "judged again", "large", "exact", "compiles for long"],
)
async def test_first_looks_at_small_problems_share_a_gpu(lab: Lab, timing, elements, may_share, mode):
    problem = await lab.store.problems.get(await register(lab))
    problem = problem.model_copy(update={"shapes": [{"n": elements}]})
    spec, _ = judge_job.judge_spec(
        problem, await lab.jobs.runner.probe("local"), lab.settings, host="local", device="cuda",
        candidate=BuiltCandidate("library", b""), timing=timing, may_share=may_share,
    )  # fmt: skip

    assert spec.gpus.mode == mode


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have the first verdict be one that other jobs may have caused; return what jobs were asked for."""
    asked: list[dict[str, Any]] = []
    spec_of, read = trial_judge.judge_spec, judge_results.parse_verdict

    def judge_spec(*about: Any, **more: Any) -> Any:
        asked.append(more)
        return spec_of(*about, **more)

    def parse_verdict(data: bytes) -> dict[str, Any]:
        return read(data) if len(asked) != 1 else {"mode": "judge", "beside": "crashed with SIGSEGV"}

    monkeypatch.setattr(trial_judge, "judge_spec", judge_spec)
    monkeypatch.setattr(judge_results, "parse_verdict", parse_verdict)
    return asked


async def test_what_failed_beside_others_is_judged_again_alone(own_lab: Lab, beside: list[dict[str, Any]]):
    problem = await register(own_lab)
    found = await own_lab.evaluation.evaluator.evaluate(problem, CandidateSource(RIGHT, "c", "k.c"), timing=UNTIMED)

    assert found.verdict == "correct"
    assert [each["may_share"] for each in beside] == [True, False]
    assert (found.note or "").startswith(
        "judged again from the beginning, alone on its GPU, as other jobs were there when it failed "
        "(crashed with SIGSEGV)"
    )
    assert len((await own_lab.store.experience.list("recent", problem_id=problem)).attempts) == 1


@pytest.mark.parametrize("why", ["beside others", "its allocation ended"])
async def test_a_candidate_is_judged_twice_at_most_and_the_second_time_alone(
    own_lab: Lab, monkeypatch: pytest.MonkeyPatch, why: str
):
    asked: list[bool] = []
    problem, spec_of = await register(own_lab), trial_judge.judge_spec

    def judge_spec(*about: Any, may_share: bool, **more: Any) -> Any:
        asked.append(may_share)
        return spec_of(*about, **more)

    monkeypatch.setattr(trial_judge, "judge_spec", judge_spec)
    if why == "beside others":
        monkeypatch.setattr(judge_results, "parse_verdict", lambda data: {"mode": "judge", "beside": "SIGSEGV"})
    else:
        monkeypatch.setattr(own_lab.jobs.runner, "was_preempted", lambda done: True)
    found = await own_lab.evaluation.evaluator.evaluate(problem, CandidateSource(RIGHT, "c", "k.c"), timing=UNTIMED)

    assert asked == [True, False]
    assert (found.note or "").startswith("judged again from the beginning, ")
    if why == "beside others":
        assert found.verdict is None and found.reason.endswith("so that is no verdict; have it judged again")
    else:
        assert found.verdict == "correct"


async def test_what_others_may_have_caused_is_no_verdict_where_nobody_waits(own_lab: Lab, beside: list[dict[str, Any]]):
    source = CandidateSource(RIGHT, "c", "k.c")
    started = await own_lab.evaluation.evaluator.evaluate(await register(own_lab), source, timing=UNTIMED, wait_s=0.0)
    result = await own_lab.commands.status(started.job_id or "", wait_s=60)
    attempt = await own_lab.store.experience.get(started.attempt_id)

    assert (attempt.status, attempt.verdict) == ("refused", None)
    assert (attempt.reason or "").startswith("other jobs were on its GPU when it failed (crashed with SIGSEGV)")
    assert result.note


async def test_who_read_a_job_before_another_stood_in_for_it_ends_no_attempt(
    own_lab: Lab, beside: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    verdicts, table, experience = own_lab.evaluation.verdicts, own_lab.jobs.table, own_lab.store.experience
    submit, submitted = own_lab.jobs.runner.submit, [""]
    late: list[str] = []

    async def settle_late(spec: Any, **more: Any) -> Any:
        """Settle the first job by the row that it had, where the second one is on its way."""
        if len(beside) == 2 and spec.purpose == "judge":
            done = await own_lab.jobs.runner.wait(submitted[0], "local")
            await verdicts.finish(done, replace(await table.get(submitted[0]), attempt_id=more["attempt_id"]))
            late.append((await experience.get(more["attempt_id"])).status)
        submitted[:] = [spec.id] if not late else submitted
        return await submit(spec, **more)

    monkeypatch.setattr(own_lab.jobs.runner, "submit", settle_late)
    found = await own_lab.evaluation.evaluator.evaluate(
        await register(own_lab), CandidateSource(RIGHT, "c", "k.c"), timing=UNTIMED
    )
    attempt = await experience.get(found.attempt_id)

    assert late == ["running"], "it is judged again"
    assert (attempt.status, attempt.verdict, attempt.reason) == ("judged", "correct", None)
    asked = await own_lab.commands.status(submitted[0], wait_s=60)
    assert (asked.note or "").startswith(judge_results.REPLACED)


@pytest.mark.parametrize("status", ["refused", "broken", "abandoned"])
async def test_an_attempt_that_is_judged_again_runs_on_however_it_was_ended(own_lab: Lab, status: str):
    experience = own_lab.store.experience
    attempt_id = await experience.start("evaluate")
    await experience.finish(attempt_id, status=status, reason="its allocation ended")
    await experience.resume(attempt_id)
    assert await experience.finish(attempt_id, status="judged", verdict="correct")

    await experience.resume(attempt_id)
    assert (await experience.get(attempt_id)).status == "judged", "a verdict stays"
