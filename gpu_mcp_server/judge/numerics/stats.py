"""Statistics of the rounds: medians with exact confidence intervals. Pure functions, standard library only."""

import math
from statistics import median
from typing import Any, Dict, List, Optional, Sequence, Tuple

SPEEDUP = "speedup", "speedup_low", "speedup_high"
WIDE = 0.1
"""Half of an interval as a part of its median, beyond which a shape says so: five times what `quick` asks for."""

AGAIN_US, AGAIN = 0.15, 0.005
"""By which, and by which part of it, a kernel's time on the GPU alone lies higher or lower in another evaluation, as
memory lies elsewhere: 87 of 95 lay within that of their series' median, though rounds of one spread by 0.3 % (H200,
benchmarks/results/h200-repeats.md)."""


def interval_ranks(count: int) -> Tuple[int, int]:
    """Return the 1-based ranks of the order statistics that enclose the median.

    The narrowest symmetric pair whose coverage, 1 - 2 P(Binomial(count, 1/2) < low), reaches 95 %; below 6 values
    no pair does and the ranks are the extremes.

    Source:
        H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    low = 1
    tail = 0.0
    for rank in range(1, count // 2 + 1):
        # Order statistics assume no distribution: timing noise is skewed, and a normal interval would mislead.
        tail += math.comb(count, rank - 1) / 2.0**count
        if 1 - 2 * tail < 0.95:
            break
        low = rank
    return low, count - low + 1


def median_interval(values: Sequence[float]) -> Tuple[float, float, float]:
    """Return the median of at least one value, and the ends of its 95 % interval."""
    ordered = sorted(values)
    low, high = interval_ranks(len(ordered))
    return median(ordered), ordered[low - 1], ordered[high - 1]


def half_width(values: Sequence[float]) -> float:
    """Return half the interval's width as a part of the median."""
    middle, low, high = median_interval(values)
    return (high - low) / 2 / middle if middle > 0 else math.inf


def geometric_mean(values: Sequence[float]) -> Optional[float]:
    """Return the geometric mean of positive values; None of none."""
    return None if not values else math.exp(sum(math.log(v) for v in values) / len(values))


def weighted_speedup(speedups: Sequence[float], parts: Sequence[float]) -> float:
    """Return how many times as fast the whole becomes, each part of the time before by its own speed-up.

    Source:
        G. Amdahl, Validity of the single processor approach, AFIPS 1967, with as many parts as there are.
    """
    return sum(parts) / sum(part / gain for gain, part in zip(speedups, parts))


def timing(samples_us: Sequence[float], calls: int) -> Dict[str, float]:
    """Return what a verdict says about the samples of one side."""
    middle, low, high = median_interval(samples_us)
    return {"median_us": middle, "low_us": low, "high_us": high, "rounds": len(samples_us), "calls_per_round": calls}


def times_of(
    candidate_us: Sequence[float], reference_us: Sequence[float], calls: int, *, again: bool = False
) -> Dict[str, Any]:
    """Return what a verdict says of both sides' paired samples in microseconds, or of the candidate's alone.

    With `again` the intervals hold what another evaluation would find, too.
    """
    found: Dict[str, Any] = {"candidate": timing(candidate_us, calls)}
    if reference_us:
        found["reference"] = timing(reference_us, calls)
        found.update(zip(SPEEDUP, speedup(reference_us, candidate_us)))
    if again:
        _widen(found)
    return found


def _widen(found: Dict[str, Any]) -> None:
    parts: List[float] = []
    for each in (found[side] for side in ("candidate", "reference") if side in found):
        more = AGAIN_US + AGAIN * each["median_us"]
        # Never 0: who reads it takes logarithms and calls in a second.
        each.update(low_us=max(each["low_us"] - more, AGAIN * each["low_us"]), high_us=each["high_us"] + more)
        parts.append(more / each["median_us"])
    if "speedup" in found:
        # Both sides move independently of each other.
        found["speedup_low"] /= 1 + math.hypot(*parts)
        found["speedup_high"] *= 1 + math.hypot(*parts)


def wide(half_width_: float) -> str:
    """Say that a median is not known well, by half its interval's width as a part of it; empty if it is."""
    if half_width_ <= WIDE:
        return ""
    text = "the interval is wide, %.0f %% of the median to either side: other work disturbed it, or calls differ; "
    return text % (100 * half_width_) + "judge it again on a quiet machine (timing.fresh)"


def speedup(reference_us: Sequence[float], candidate_us: Sequence[float]) -> Tuple[float, float, float]:
    """Return the median, low and high end of the rounds' ratios of reference over candidate; they are paired."""
    # A median of ratios, not a ratio of medians: pairing removes drift that both sides share.
    ratios: List[float] = [r / c for r, c in zip(reference_us, candidate_us)]
    return median_interval(ratios)
