"""A verdict in words: the decisive lines first, each thing once, little enough to read every round."""

import re
from typing import Any, Literal

import pytest

from gpu_mcp_server.hostd.protocol import JobRecord
from gpu_mcp_server.models.attempt import Attempt, AttemptList
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.evaluation import ClockTimes, Evaluation, ShapeVerdict, Timing
from gpu_mcp_server.models.profile import ProfileResult
from gpu_mcp_server.services.evaluation.judge_job import seconds_of

OF: Any = {"attempt_id": "a-1", "problem_id": "p-1", "problem_hash": "0", "language": "c", "host": "local"}
EVIDENCE = {"seed_commitment": "3f" * 32, "harness_sha256": "a0" * 32, "memory": "memfd, inputs sealed"}
HASH = re.compile(r"[0-9a-f]{32}")
CONDITIONS = "{} of 6 rounds with CPU time stolen by the hypervisor, load 9.98-12.9"
WIDE = "the interval is wide, {} % of the median to either side: judge it again on a quiet machine (timing.fresh)"


def timed(rows: int, number: int) -> ShapeVerdict:
    timing = Timing(median_us=2907.25 * number, low_us=1256, high_us=3335.9, rounds=7, calls_per_round=27)
    return ShapeVerdict(
        dims={"rows": rows, "cols": 1024}, verdict="correct", candidate=timing, reference=timing, speedup=1.0,
        speedup_low=0.91, speedup_high=1.19, half_width=0.3576, stopped_by="time", cache="cold: 120 MB in 30 buffers",
        conditions=CONDITIONS.format(number), notes=[WIDE.format(number * 11)],
    )  # fmt: skip


def test_the_first_line_says_what_correct_covers_and_whether_it_is_robust():
    covers = "2 declared shapes, 14 hidden shapes (larger than declared, up to cols=65589), inputs as declared"
    robust = "no; large: looks like TF32 or float16"
    text = Evaluation(status="judged", verdict="correct", covers=covers, robust=robust, **OF).summary()

    assert text.splitlines()[0] == f"verdict: correct for {covers}; robust: {robust}"


def two_clocks(basis: Literal["device", "call"], note: str, rows: int = 8) -> ShapeVerdict:
    """Return a shape with a speed-up of 1.3 on the GPU alone and of 0.74 in a loop."""
    shape = timed(rows, 1).model_copy(update={"basis": basis, "notes": [note] if note else []})
    times: Any = {"candidate": shape.candidate, "reference": shape.reference, "speedup_low": 0.7, "speedup_high": 1.4}
    if basis == "device":
        return shape.model_copy(update={"speedup": 1.3, "in_loop": ClockTimes(speedup=0.74, **times)})
    return shape.model_copy(update={"speedup": 0.74, "on_gpu": ClockTimes(speedup=1.3, **times)})


@pytest.mark.parametrize(("basis", "speedup"), [("device", 1.3), ("call", 0.74)])
def test_the_first_line_has_both_ratios_of_a_candidate_that_waits_for_its_launches(basis, speedup):
    note = "launch-bound: the GPU is busy 7 of 14.3 us a call"
    found = Evaluation(status="judged", verdict="correct", speedup=speedup, shapes=[two_clocks(basis, note)], **OF)
    text = found.summary()

    assert text.splitlines()[0] == f"verdict: correct; 1.3 times on the GPU alone, 0.74 in a loop: {note}"
    assert text.count("launch-bound") == 1
    assert ("in a loop 2.91 ms" if basis == "device" else "on the GPU alone 2.91 ms") in text
    both = [two_clocks(basis, note), two_clocks(basis, "", 16)]
    text = found.model_copy(update={"shapes": both}).summary()
    assert text.splitlines()[0].endswith("0.74 in a loop: launch-bound at 1 of 2 shapes") and text.count(note) == 1


def test_a_time_by_events_is_said_with_both_others():
    shape = two_clocks("call", "launch-bound: the GPU is busy 7 of 14.3 us a call")
    loop = {"in_loop": ClockTimes(candidate=shape.candidate, speedup=0.74, speedup_low=0.7, speedup_high=0.8)}
    shape = shape.model_copy(update={"basis": "kernelbench", "speedup": 0.9, **loop})
    text = Evaluation(status="judged", verdict="correct", speedup=0.9, shapes=[shape], **OF).summary()

    assert text.splitlines()[0].startswith("verdict: correct; 0.9 times by events, 1.3 times on the GPU alone, 0.74 in")
    assert "by events around each call" in text and "in a loop 2.91 ms" in text and "on the GPU alone 2.91 ms" in text


@pytest.mark.parametrize(
    ("why", "told"), [("two calls returned the same memory", True), ("as always on the processor", False)]
)
def test_a_speed_up_with_a_copy_in_it_is_told_as_a_lower_bound(why, told):
    note = f"the outputs are copied into the judge's, within the clock: {why}"
    shapes = [two_clocks("device", note, rows) for rows in (8, 16)]
    text = Evaluation(status="judged", verdict="correct", speedup=1.3, shapes=shapes, **OF).summary()

    (line,) = (each for each in text.splitlines() if each.startswith("speed-up against"))
    assert line.endswith(f", a lower bound: {note}") == told
    assert text.count(note) == 1


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(two_clocks("device", ""), id="busy"),
        pytest.param(two_clocks("call", "launch-bound: it is").model_copy(update={"on_gpu": None}), id="one ratio"),
    ],
)
def test_the_first_line_has_no_ratios_where_launches_are_no_matter_or_one_is_not_known(shape):
    found = Evaluation(status="judged", verdict="correct", speedup=1.3, shapes=[shape], **OF)
    assert found.summary().splitlines()[0] == "verdict: correct"


def test_the_second_line_says_which_declared_shapes_pass_and_which_fail():
    declared = "right at n=64; wrong at n=100"
    text = Evaluation(
        status="judged", verdict="incorrect", reason="n=100: y[0] is 2", declared=declared, **OF
    ).summary()

    assert text.splitlines()[:2] == ["verdict: incorrect - n=100: y[0] is 2", f"declared shapes: {declared}"]


def test_the_first_failure_is_said_once():
    reason = "output y[0, 0] is 0.00451, expected 0.00452; 28868 of 64000 elements are wrong"
    shape = ShapeVerdict(dims={"rows": 64, "cols": 1000}, verdict="incorrect", reason=reason)
    declared = "wrong at rows=64,cols=1000"
    text = Evaluation(
        status="judged", verdict="incorrect", reason=f"rows=64, cols=1000: {reason}", declared=declared,
        shapes=[shape], **OF,
    ).summary()  # fmt: skip

    assert text.count(reason) == 1 and text.splitlines()[2].startswith("attempt a-1")


def test_another_shape_s_own_failure_is_said_too():
    shapes = [ShapeVerdict(dims={"n": n}, verdict="incorrect", reason=f"{what}") for n, what in ((1, "a"), (2, "b"))]
    text = Evaluation(
        status="judged", verdict="incorrect", reason="n=1: a", declared="x", shapes=shapes, **OF
    ).summary()

    assert "\nn=2: incorrect; b" in text and "1: incorrect" not in text


def test_the_first_error_of_a_compiler_is_said_once():
    found = Diagnostic(severity="error", message="'retrn' undeclared", file="kernel.c", line=6)
    text = Evaluation(status="compile_failed", reason=found.line_text(), diagnostics=[found], **OF).summary()

    assert text.splitlines()[:2] == ["status: compile_failed", found.line_text()]
    assert text.count("'retrn' undeclared") == 1


def test_a_note_that_a_line_says_already_is_not_said_again():
    note = "tier smoke: not timed"
    assert Evaluation(status="judged", verdict="correct", tier="smoke", note=note, **OF).summary().count(note) == 1


def test_a_wait_for_a_turn_is_a_number_of_its_own():
    waited, at_once = (JobRecord("j-1", "finished", submitted_at=5.0, started_at=at) for at in (140.0, 5.1))
    assert (seconds_of(waited, {}), seconds_of(at_once, {})) == ({"queue": 135.0, "judge": 0.0}, {"judge": 0.0})


def test_one_attempt_s_evidence_has_short_numbers_and_nothing_empty():
    evidence = {"median_range_us": [188.4063037, 388.86233], "resources": [], "speedup_range": [0.636396, 2.096478]}
    row = Attempt(attempt_id="a-1", kind="evaluate", created_at="", status="judged", evidence=evidence)
    assert row.line_text().endswith("evidence: median_range_us [188.4, 388.9]")


def test_words_have_no_hashes_and_data_has():
    found = Evaluation(status="judged", verdict="correct", evidence=EVIDENCE, shapes=[timed(8, 1)], **OF)
    row = Attempt(attempt_id="a-1", kind="evaluate", created_at="", status="judged", evidence=dict(EVIDENCE))

    assert not HASH.search(found.summary()) and "memory memfd" in found.summary()
    assert not HASH.search(row.line_text()) and "memory memfd" in row.line_text()
    assert found.model_dump()["evidence"] == EVIDENCE


def test_times_have_three_digits_and_a_unit():
    (line,) = (
        each for each in Evaluation(status="judged", shapes=[timed(8, 1)], **OF).summary().splitlines() if "8x" in each
    )

    assert line.startswith(
        "8x1024: correct, 2.91 ms (95 % 1.26\N{EN DASH}3.34 ms, 7x27), time used up, reference 2.91 ms"
    )


def test_what_is_the_same_at_each_shape_but_for_numbers_is_said_at_the_first():
    text = Evaluation(status="judged", shapes=[timed(8, 1), timed(16, 2), timed(32, 3)], **OF).summary()

    assert CONDITIONS.format(1) in text and WIDE.format(11) in text
    assert text.count("with CPU time stolen") == text.count("judge it again on a quiet machine") == 1


def test_hidden_shapes_are_said_once():
    hidden = "19 hidden shapes (larger than declared, up to cols=65542, rows=65543)"
    found = Evaluation(
        status="judged", verdict="correct", covers=f"2 declared shapes, {hidden}, inputs as declared",
        trials=f"{hidden}, 7 distributions, deterministic", **OF,
    )  # fmt: skip

    assert found.summary().count(hidden) == 1
    assert "also tried, untimed: 7 distributions, deterministic" in found.summary()


def test_a_round_of_optimizing_is_read_in_6000_characters():
    """Evaluate, list, profile, each as long as it is in earnest: five shapes, ten attempts with notes, a full profile."""
    shapes = [timed(8 << n, n + 1) for n in range(5)]
    verdict = Evaluation(
        status="judged", verdict="correct", speedup=1.3, evidence=EVIDENCE | {"freeze": "freezer", "floor": "none"},
        covers="5 declared shapes, 19 hidden shapes (larger than declared, up to cols=65542, rows=65543), inputs as declared",
        robust="yes, with 6 other distributions", shapes=shapes, trials="19 hidden shapes, 7 distributions",
        evidence_artifact_id="b-0884d9c8a90c01f9", seconds={"compile": 1.66, "judge": 39.14}, level="full", **OF,
    )  # fmt: skip
    rows = [
        Attempt(
            attempt_id=f"a-1j150hkn0kst{n}q", kind="evaluate", created_at="", status="judged", verdict="correct",
            speedup=1.0 + n, robust="yes, with 6 other distributions", median_us=812.5, language="cuda",
            device="NVIDIA H200", note="vectorized loads of sixteen bytes, two rows a block",
        )
        for n in range(10)
    ]  # fmt: skip
    profile = ProfileResult(status="ok", level="standard", host="local", verdict="x" * 1600, profile_id="r-1")
    read = [verdict.summary(), AttemptList(view="best", attempts=rows).summary(), profile.summary()]

    assert sum(map(len, read)) <= 6000, list(map(len, read))
