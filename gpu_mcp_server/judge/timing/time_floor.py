"""The time below which no device can answer: bytes over its bandwidth, operations over its peak, a launch."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..numerics.stats import median_interval

LAUNCH_US = 0.5
"""Handing one piece of work to a GPU takes a processor longer than this, whatever is launched.

The least that a C++ loop showed on an H200 is 3.7 us a call (benchmarks/results), and a whole graph takes about 2.5 us
(Constant Time Launch for Straight-Line CUDA Graphs and Other Performance Enhancements, NVIDIA Technical Blog, 2024).
"""
MARGIN = 0.1
"""How far below the floor a time must be to be impossible: boards run a few per cent above their data sheets."""


class Floor(NamedTuple):
    """Least time of one call at one shape on one device, when it is one of `sets` in a round."""

    least_us: float
    by: str
    """`memory`, `compute` or `launch`."""
    roof_us: Optional[float]
    """What is to be had at best, with every input read once, in the declared type."""
    roof: str

    def impossible(self, high_us: float) -> str:
        """Say why a time cannot be, from the upper end of its interval; empty if it can."""
        if high_us >= self.least_us * (1 - MARGIN):
            return ""
        text = "faster than the device can be: a call took at most %.4g us, and any answer takes at least %.4g us (%s)"
        return text % (high_us, self.least_us, self.by)


def floor_of(task: Dict[str, Any], device: str, number: int, sets: int) -> Optional[Floor]:
    """Return the floor of a declared shape by its number, `None` where no peak figures are known.

    What a round moves beyond the largest cache must go through memory; less may never have been there.
    """
    floors: Dict[str, Any] = task.get("floors") or {}
    if device not in floors:
        return None
    figures: Dict[str, Any] = floors[device]
    needs = figures["shapes"][number]

    def memory_us(size: int) -> float:
        # A whole cache's worth is granted per round: inputs may lie there when the clock starts.
        return max(0, size * sets - figures["cache_bytes"]) / sets / figures["dram_bytes_per_s"] * 1e6

    least: List[Tuple[float, str]] = [(memory_us(needs["least_bytes"]), "memory"), (LAUNCH_US, "launch")]
    roofs: List[Tuple[float, str]] = []
    # Below twice the cache, bandwidth of memory is no bound that a reader could compare with.
    if needs["touched_bytes"] * sets > 2 * figures["cache_bytes"]:
        whole_us = needs["touched_bytes"] / figures["dram_bytes_per_s"] * 1e6
        roofs.append((whole_us, "memory roof, %.3g us" % whole_us))
    if needs["flops"]:
        least.append((needs["flops"] / figures["flop_per_s"] * 1e6, "compute"))
        if figures["roof_flop_per_s"]:
            whole_us = needs["flops"] / figures["roof_flop_per_s"] * 1e6
            roofs.append((whole_us, "compute roof of %s, %.3g us" % (figures["roof_type"], whole_us)))
    # Memory, compute and launch may overlap, so the floor is the largest of them and not their sum.
    least_us, by = max(least)
    roof_us, roof = max(roofs) if roofs else (None, "")
    return Floor(least_us, by, roof_us, roof)


def hold_against_floor(result: Dict[str, Any], floor: Floor, samples_us: Sequence[float], taken_us: float) -> str:
    """Hold a shape's time against what the device can do at most; void it if it is impossible.

    Args:
        result: Of the shape; the floor is added to it.
        floor: Of the shape.
        samples_us: Of a call, round by round.
        taken_us: The clock's own cost a call, which is given back for this: it may have been measured too high.

    Returns:
        What to note, or nothing.
    """
    # The interval's upper end and the clock's cost both favour the candidate: void means impossible, not unlikely.
    timed, high_us = result["candidate"], median_interval(samples_us)[2] + taken_us
    result["floor_us"], result["floor_by"] = floor.least_us, floor.by
    impossible = floor.impossible(high_us)
    if impossible:
        result.update(verdict="cheat", reason=impossible, speedup=None, speedup_low=None, speedup_high=None)
    if not floor.roof_us:
        return ""
    share = floor.roof_us / timed["median_us"]
    result["roof"] = "%.0f %% of the %s" % (100 * share, floor.roof)
    unneeded = floor.roof_us > high_us and not impossible
    return (
        "faster than reading every input once and computing in the declared type: the answer did not need all of it"
        if unneeded
        else ""
    )
