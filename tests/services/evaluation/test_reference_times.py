"""The reference's times, kept from evaluation to evaluation: which count, when, and what a verdict says then.

No GPU is here: verdicts are as an owner on a GPU writes them, and a judge's real job stands in for one there.
"""

import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.judge.timing.series import ALLOWED
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation import judge_results, reference_times
from gpu_mcp_server.services.evaluation.confirmation_outcomes import compare_verdicts, timed_low
from gpu_mcp_server.services.evaluation.judge_job import shape_verdicts
from gpu_mcp_server.services.evaluation.reference_times import COUNTED, LEAST, ReferenceTimes
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.schema import migrations
from tests.services.evaluation.test_confirmation_runs import RIGHT, register
from tests.services.evaluation.test_required_instructions import settled_as_on_a_gpu

HERE: dict[str, Any] = {
    "problem_hash": "h", "driver": "580.159", "host": "gpus", "target": "cuda", "language": "cuda",
    "versions": {"torch": "2.9"},
}  # fmt: skip
SLOWED = (
    "the reference took 520 us, but 400 us in the median of 3 earlier evaluations, and speedup and speedup_low count "
    "the latter: look for other work on the GPU and its host, and judge again (timing.fresh)"
)


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.sqlite3") as database:
        yield database


def timing(median_us: float) -> dict[str, Any]:
    ends = {"low_us": median_us * 0.99, "high_us": median_us * 1.01}
    return {"median_us": median_us, **ends, "rounds": 9, "calls_per_round": 10}


def shape(reference_us: float, n: int = 1, **more: Any) -> dict[str, Any]:
    """Return a shape whose candidate takes 100 us, as the owner says it."""
    ratio = reference_us / 100
    ratios = {"speedup": ratio, "speedup_low": ratio * 0.98, "speedup_high": ratio * 1.02}
    about = {"dims": {"n": n}, "verdict": "correct", "reason": "", "basis": "device", "notes": ["launch-bound: 9 us"]}
    return {**about, "candidate": timing(100), "reference": timing(reference_us), **ratios, **more}


def verdict_of(*shapes: dict[str, Any], **more: Any) -> dict[str, Any]:
    whole = shapes[0]["speedup"] if len(shapes) == 1 else 1.0
    return {"mode": "judge", "verdict": "correct", "device": "H200", "speedup": whole, "shapes": [*shapes], **more}


async def judged(db: Database, verdict: Mapping[str, Any] | float, kind: Any = "evaluate", **columns: Any) -> Attempt:
    """Record an evaluation that ended correct with this verdict, or took this long in the reference; return it."""
    verdict = verdict if isinstance(verdict, Mapping) else verdict_of(shape(verdict))
    store = AttemptStore(db)
    attempt = await store.get(await store.start(kind, **{**HERE, **columns}))
    for _ in range(2):  # a job may be settled twice
        await ReferenceTimes(db).keep(attempt, verdict)
    return attempt


async def compared(db: Database, verdict: Mapping[str, Any], **columns: Any) -> dict[str, Any]:
    store = AttemptStore(db)
    attempt = await store.get(await store.start("evaluate", **{**HERE, **columns}))
    return await ReferenceTimes(db).compare(attempt, verdict)


async def test_a_slower_reference_does_not_count_after_three_evaluations(db: Database):
    slow = verdict_of(shape(520))
    for reference_us in (390, 400):
        await judged(db, reference_us)
        assert await compared(db, slow) == slow
    await judged(db, 410)
    found = await compared(db, slow)
    (only,) = found["shapes"]

    assert found["speedup"] == only["speedup"] == pytest.approx(4.0)
    assert only["speedup_low"] == pytest.approx(400 / 101)
    assert only["speedup_high"] == pytest.approx(5.2 * 1.02), "the candidate may have been as slow"
    assert only["reference_before_us"] == 400
    assert only["reference"] == timing(520)
    assert only["notes"] == ["launch-bound: 9 us", SLOWED]
    assert slow == verdict_of(shape(520)), "what the judge said stays as it is"


def test_the_allowance_is_the_judge_s():
    assert reference_times.ALLOWED == ALLOWED


@pytest.mark.parametrize("reference_us", [200.0, 400.0, 439.0])
async def test_rounds_own_ratios_count_where_the_reference_is_no_more_than_a_tenth_slower(
    db: Database, reference_us: float
):
    for _ in range(LEAST):
        await judged(db, 400)
    given = verdict_of(shape(reference_us))
    assert await compared(db, given) == given


async def test_a_lower_end_that_is_worse_already_stays(db: Database):
    for _ in range(LEAST):
        await judged(db, 400)
    found = await compared(db, verdict_of(shape(520, speedup_low=1.5)))
    assert found["shapes"][0]["speedup_low"] == 1.5


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({"problem_hash": "other"}, {}),
        ({"driver": "590.1"}, {}),
        ({"host": "other"}, {}),
        ({"versions": {"torch": "2.10"}}, {}),
        ({}, {"device": "H100"}),
        ({}, {"shapes": [shape(520, n=2)]}),
        ({}, {"shapes": [shape(520, basis="call")]}),
        ({"target": "cpu"}, {}),
        ({"language": "program"}, {}),
        ({}, {"speedup": None}),
    ],
    ids=[
        "problem",
        "driver",
        "host",
        "torch",
        "device",
        "size",
        "clock",
        "processor",
        "program",
        "no baseline",
    ],
)
async def test_times_of_another_kind_do_not_count(db: Database, columns: dict[str, Any], verdict: dict[str, Any]):
    for _ in range(LEAST):
        await judged(db, 400)
    given = verdict_of(shape(520), **verdict)
    assert await compared(db, given, **columns) == given


@pytest.mark.parametrize(("calls", "counted"), [(4, False), (5, True), (20, True), (21, False)])
async def test_evaluations_with_far_more_or_fewer_calls_a_round_do_not_count(db: Database, calls: int, counted: bool):
    """A round's first call finds a model's weights cold, and a slow candidate has few calls."""
    for _ in range(LEAST):
        await judged(db, 400)
    given = verdict_of(shape(520, reference={**timing(520), "calls_per_round": calls}))
    assert (await compared(db, given) != given) is counted


async def test_a_judge_that_changed_begins_anew(db: Database, monkeypatch: pytest.MonkeyPatch):
    for _ in range(LEAST):
        await judged(db, 400)
    monkeypatch.setattr(reference_times, "judge_sha256", lambda: "another")
    assert await compared(db, verdict_of(shape(520))) == verdict_of(shape(520))


async def test_the_kind_of_a_candidate_is_no_way_around_earlier_times(db: Database):
    for _ in range(LEAST):
        await judged(db, 400, language="python")
    verdict = verdict_of(shape(520), evidence={"harness_sha256": "with other compiled code"})
    assert (await compared(db, verdict))["speedup"] == pytest.approx(4.0)


async def test_what_has_no_speed_up_on_a_gpu_is_not_kept(db: Database):
    await judged(db, 400, target="cpu")
    await judged(db, 400, language="program")
    await judged(db, verdict_of(shape(400), speedup=None))
    assert await db.fetch_all("SELECT * FROM reference_times") == []


async def test_a_voided_attempt_counts_no_more_nor_does_its_confirmation_run(db: Database):
    for _ in range(LEAST - 1):
        await judged(db, 400)
    voided = await judged(db, 400)
    again = await judged(db, 400, kind="confirm", parent_id=voided.attempt_id)
    child = await judged(db, 400, parent_id=voided.attempt_id)
    assert (await compared(db, verdict_of(shape(520))))["speedup"] == pytest.approx(4.0)
    await AttemptStore(db).void(voided.attempt_id, "slower", again.attempt_id)
    assert (await compared(db, verdict_of(shape(520))))["speedup"] == pytest.approx(4.0), "a child is another candidate"
    await AttemptStore(db).void(child.attempt_id, "slower")
    assert await compared(db, verdict_of(shape(520))) == verdict_of(shape(520))


async def test_a_gpu_that_became_slower_is_believed_when_most_of_the_newest_evaluations_say_so(db: Database):
    for _ in range(COUNTED):
        await judged(db, 400)
    for _ in range(COUNTED // 2):
        await judged(db, 520)
    assert (await compared(db, verdict_of(shape(520))))["speedup"] == pytest.approx(4.0)
    await judged(db, 520)
    assert await compared(db, verdict_of(shape(520))) == verdict_of(shape(520))


async def test_a_verdict_that_is_settled_again_says_the_same(db: Database):
    """Evaluations that began later do not count for an earlier one, whoever asks when."""
    store = AttemptStore(db)
    attempt = await store.get(await store.start("evaluate", **HERE))
    for _ in range(LEAST):
        await judged(db, 400)
    assert await ReferenceTimes(db).compare(attempt, verdict_of(shape(520))) == verdict_of(shape(520))


async def test_each_shape_has_its_own_time_and_recorded_calls_are_weighed_by_it(db: Database):
    for _ in range(LEAST):
        await judged(db, verdict_of(shape(400, n=1, calls=1), shape(100, n=2, calls=4)))
    found = await compared(db, verdict_of(shape(800, n=1, calls=1), shape(100, n=2, calls=4)))

    assert [each.get("reference_before_us") for each in found["shapes"]] == [400, None]
    assert found["speedup"] == pytest.approx((400 + 4 * 100) / (100 + 4 * 100))


async def test_a_store_of_the_version_before_keeps_its_attempts_and_times_from_now_on(tmp_path: Path):
    path = tmp_path / "lab.sqlite3"
    with sqlite3.connect(path) as old:
        for number, script in migrations():
            if number < 15:
                old.executescript(script)
        old.execute("PRAGMA user_version=14")
        old.execute("INSERT INTO attempts (attempt_id, kind, created_at, status) VALUES ('a-1', 'compile', '', 'ok')")
    old.close()
    async with await Database.open(path) as db:
        assert [row["attempt_id"] for row in await db.fetch_all("SELECT attempt_id FROM attempts")] == ["a-1"]
        for _ in range(LEAST):
            await judged(db, 400)
        assert (await compared(db, verdict_of(shape(520))))["speedup"] == pytest.approx(4.0)


def shape_of(reference_us: float, before_us: float | None = None) -> ShapeVerdict:
    (found,) = shape_verdicts({"shapes": [shape(reference_us)]})
    slowed = {"reference_before_us": before_us, "speedup": 4.0, "speedup_low": 3.9}
    return found.model_copy(update=slowed if before_us else {})


def test_a_confirmation_run_on_a_quiet_gpu_voids_no_attempt_whose_reference_was_slow():
    slowed = shape_of(800, 400)
    assert timed_low(slowed) == 3.9 and timed_low(shape_of(800)) == pytest.approx(800 * 0.99 / 101, rel=0.02)
    before = Attempt(
        attempt_id="a-1", kind="evaluate", created_at="", status="judged", verdict="correct", speedup=4.0,
        trust="provisional",
    )  # fmt: skip
    again = Evaluation(
        status="judged", verdict="correct", speedup=4.0, shapes=[shape_of(400)], attempt_id="a-2", problem_id="p-1",
        problem_hash="h", language="cuda", host="gpus",
    )  # fmt: skip
    assert compare_verdicts(before, [slowed], again)[0] == "confirmed"
    assert compare_verdicts(before, [shape_of(800)], again)[0] == "voided"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
async def test_rankings_have_the_speed_up_against_what_the_reference_took_before(
    own_lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    """Real jobs of the judge; the times in their verdicts are a GPU's."""
    read, told = judge_results.parse_verdict, {"shapes": [shape(400)]}

    def parse_verdict(data: bytes) -> dict[str, Any]:
        return {**read(data), "device": "H200", "tier": "performance", **json.loads(json.dumps(told))}

    monkeypatch.setattr(judge_results, "parse_verdict", parse_verdict)
    problem_id, store = await register(own_lab), own_lab.store.experience

    async def evaluated(number: int, found: dict[str, Any]) -> Evaluation:
        told.update(shapes=[found], speedup=found["speedup"])
        source = CandidateSource(RIGHT + f"// {number}", "c", "k.c")
        started = await own_lab.evaluation.evaluator.evaluate(
            problem_id, source, timing=TimingOptions(tier="smoke"), wait_s=0.0
        )
        await own_lab.store.db.execute(
            "UPDATE attempts SET target = 'cuda' WHERE attempt_id = ?", (started.attempt_id,)
        )
        return await settled_as_on_a_gpu(own_lab, started)

    await evaluated(0, shape(100, unconfirmable="it waits for the GPU"))
    honest = [await evaluated(number, shape(400 + number)) for number in (1, 2, 3)]
    slowed = await evaluated(4, shape(520, candidate=timing(125), speedup=4.16, speedup_low=4.1))

    assert [each.trust for each in honest] == ["provisional"] * 3
    assert slowed.speedup == pytest.approx(402 / 125)
    assert slowed.speedup_range() == pytest.approx((402 / (125 * 1.01), 5.2 * 1.02))
    assert "the reference took 520 us, but 402 us in the median of 3 earlier evaluations" in slowed.summary()
    best = (await store.list("best", problem_id=problem_id)).attempts
    assert [each.attempt_id for each in best][:4] == [
        *(each.attempt_id for each in reversed(honest)), slowed.attempt_id,
    ]  # fmt: skip
    kept = await own_lab.store.artifacts.read(slowed.evidence_artifact_id or "")
    assert json.loads(kept)["shapes"][0]["reference_before_us"] == 402
