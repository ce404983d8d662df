"""Comparison of two verdicts, and the attempts judged again because they may be forged."""

import pytest

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing, TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.confirmation_outcomes import timed_low
from gpu_mcp_server.services.evaluation.judge_job import GENERATION
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import HONEST, PROBLEM, laboratory


def shape(speedup_low: float | None) -> ShapeVerdict:
    times = {"rounds": 9, "calls_per_round": 10}
    return ShapeVerdict(
        dims={"n": 1},
        verdict="correct",
        candidate=Timing(median_us=100, low_us=99, high_us=101, **times) if speedup_low else None,
        reference=Timing(median_us=400, low_us=398, high_us=402, **times) if speedup_low else None,
        speedup_low=speedup_low,
        speedup_high=4.05,
    )


@pytest.mark.parametrize(
    ("speedup_low", "compared"),
    [(3.97, 3.97), (1.2, 398 / 101), (None, None)],
    ids=["of timed rounds", "of calls that are kept apart", "no time"],
)
def test_a_speed_up_of_calls_that_are_kept_apart_excuses_no_lower_time(speedup_low, compared):
    assert timed_low(shape(speedup_low)) == (compared if compared is None else pytest.approx(compared))


async def register(lab: Lab) -> str:
    tensors = {side: [TensorSpec.model_validate(t) for t in PROBLEM[side]] for side in ("inputs", "outputs")}
    return (await lab.evaluation.registry.register(**{**PROBLEM, **tensors})).problem_id


UNTIMED = TimingOptions(tier="correctness")
TIMED = "UPDATE attempts SET tier = 'performance', speedup = 1.0 WHERE attempt_id = ?"
"""As on a machine that had time to give."""
ASIDE = "UPDATE attempts SET evidence = json_remove(evidence, '$.generation') WHERE attempt_id = ?"


async def forged(lab: Lab, honest: Attempt, speedup: float) -> str:
    """Record a wrong kernel as an older server did that read a forged verdict: correct, and faster than any."""
    wrong = HONEST.replace("+ 1", "+ 2").encode()
    attempt_id = await lab.store.experience.start(
        "evaluate", problem_id=honest.problem_id, problem_hash=honest.problem_hash, device=honest.device,
        driver=honest.driver, host=honest.host, language="c", flags="[]", entry="launch", target="cpu",
        tier="performance", source_hash="w", source_artifact_id=await lab.store.artifacts.put(wrong, name="kernel.c"),
    )  # fmt: skip
    evidence = {"seed_commitment": "9f3c", "harness_sha256": "0" * 64}
    await lab.store.experience.finish(
        attempt_id, status="judged", verdict="correct", speedup=speedup, evidence=evidence
    )
    return attempt_id


async def test_bests_of_versions_in_which_verdicts_could_be_forged_are_listed_and_judged_again():
    async with laboratory() as lab:
        problem = await register(lab)
        source = CandidateSource(HONEST, "c", "kernel.c")
        fresh = await lab.evaluation.evaluator.evaluate(problem, source)
        assert ((await lab.store.experience.get(fresh.attempt_id)).evidence or {})["generation"] == GENERATION
        assert (await lab.evaluation.auditor.older()).boards == [], "what is judged from now on is trusted"

        honest = await lab.store.experience.get(fresh.attempt_id)
        for change in (TIMED, ASIDE):
            await lab.store.experience._db.execute(change, (honest.attempt_id,))
        first, second = await forged(lab, honest, 900.0), await forged(lab, honest, 70.0)
        (board,) = (await lab.evaluation.auditor.older(problem)).boards
        assert [a.attempt_id for a in board.attempts] == [first, second, honest.attempt_id]
        said = (await lab.evaluation.auditor.older()).summary()
        assert "3 verdicts of older versions" in said and said.index(first) < said.index(honest.attempt_id)

        done = await lab.evaluation.auditor.redo()
        assert [a.attempt_id for a in done.audits] == [first, second, honest.attempt_id] and not done.failed
        assert [a.outcome for a in done.audits[:2]] == ["voided", "voided"]
        assert done.audits[2].verdict_now == "correct", "how fast it is now depends on who else is at work"
        for attempt_id in (first, second):
            assert "incorrect" in ((await lab.store.experience.get(attempt_id)).voided or "")
        best = (await lab.store.experience.list("best", problem_id=problem)).attempts
        assert not {first, second} & {a.attempt_id for a in best}
        assert (await lab.evaluation.auditor.older()).boards == []
        assert (await lab.evaluation.auditor.redo()).audits == []


async def test_an_old_record_below_a_trusted_best_is_listed_and_not_judged_again():
    async with laboratory() as lab:
        problem = await register(lab)
        fresh = await lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(HONEST, "c", "kernel.c"), timing=UNTIMED
        )
        await lab.store.experience._db.execute(TIMED, (fresh.attempt_id,))
        old = await forged(lab, await lab.store.experience.get(fresh.attempt_id), 1e-6)

        assert [a.attempt_id for a in (await lab.evaluation.auditor.older(problem)).boards[0].attempts] == [old]
        assert (await lab.evaluation.auditor.redo()).audits == []


async def test_which_old_record_is_a_best_goes_by_the_ranking():
    async with laboratory() as lab:
        problem = await register(lab)
        store, source = lab.store.experience, CandidateSource(HONEST, "c", "kernel.c")
        fresh = await lab.evaluation.evaluator.evaluate(problem, source, timing=UNTIMED)
        await store._db.execute(TIMED, (fresh.attempt_id,))
        new = await store.get(fresh.attempt_id)
        slow, wide, doubted, sure = [await forged(lab, new, speedup) for speedup in (0.5, 8.0, 9.0, 0.1)]

        async def state(attempt_id: str, name: str, value: str) -> None:
            sql = "UPDATE attempts SET evidence = json_set(evidence, '$.' || ?, json(?)) WHERE attempt_id = ?"
            await store._db.execute(sql, (name, value, attempt_id))

        await state(wide, "speedup_range", "[0.4, 160.0]")
        await state(doubted, "unconfirmable", '"it waits for the GPU"')
        await state(sure, "confirmed_by", '"itself"')
        (board,) = (await lab.evaluation.auditor.older(problem)).boards
        assert [a.attempt_id for a in board.attempts] == [sure, slow, wide, doubted]
        beaten = {a.attempt_id: await store.is_beaten_since(GENERATION, board, a) for a in board.attempts}
        assert beaten == {sure: False, slow: True, wide: True, doubted: True}, "the new one has 1.0, provisional"
        await state(new.attempt_id, "confirmed_by", '"itself"')
        assert await store.is_beaten_since(GENERATION, board, board.attempts[0])
        await store.void(new.attempt_id, "not had twice")
        assert not await store.is_beaten_since(GENERATION, board, board.attempts[3]), "a voided one beats none"


async def test_a_note_that_only_says_so_is_no_audit():
    async with laboratory() as lab:
        problem = await register(lab)
        fresh = await lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(HONEST, "c", "kernel.c"), timing=UNTIMED
        )
        old = await forged(lab, await lab.store.experience.get(fresh.attempt_id), 900.0)
        note = f"audit of {old}"
        said = await lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(HONEST, "c", "k.c"), parent_id=old, note=note
        )

        assert said.verdict == "correct"
        assert [a.attempt_id for a in (await lab.evaluation.auditor.older()).boards[0].attempts] == [old]


async def test_a_best_whose_source_is_gone_is_said_to_be_undecided():
    async with laboratory() as lab:
        problem = await register(lab)
        honest = Attempt(attempt_id="", kind="evaluate", created_at="", status="", problem_id=problem, host="local")
        old = await forged(lab, honest, 900.0)
        await lab.store.experience._db.execute("UPDATE attempts SET source_artifact_id = 'b-0'")
        done = await lab.evaluation.auditor.redo()

        assert not done.audits and done.failed[0].startswith(f"{old} could not be judged again: ")
        assert (await lab.evaluation.auditor.older()).boards, "it is listed as long as nobody knows"
