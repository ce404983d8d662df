"""What of two verdicts is compared."""

import pytest

from gpu_mcp_server.models.evaluation import ShapeVerdict, Timing
from gpu_mcp_server.services.audit import timed_low


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
