"""Turns a shape's rounds into its times, or into the reason for having none."""

from typing import Any, Dict, Optional, Sequence

from ..numerics.stats import SPEEDUP, half_width, median_interval, times_of, wide
from ..timing.gated_pass import BY_EVENTS
from ..timing.judging_setup import JudgingSetup
from ..timing.machine_state import summary
from ..timing.rounds import Round
from ..timing.series import ALLOWED, Series
from ..timing.time_floor import floor_of, hold_against_floor
from ..verdicts import duration, megabytes
from .event_series import EventSeries
from .gated_series import GatedSeries

COLD = 2
"""Times the cache that a round's data must be to find nothing of itself there."""
SHARING = 1.5
"""Times its time in a loop of the host's, that a call may take on the GPU alone: both are cold, and noise is less."""
LAUNCHING = 3.0
"""Times the same, that it may take to be launched behind a gate. An honest model of three kernels took 1.8 times that,
99 us a call beside 55 in a loop (H200)."""
LAUNCH_BOUND = 1.5
"""Times its time on the GPU, that a call must take in a loop of the host's for the launch to be what it waits for."""

NEARLY = 0.95
"""Of what a round should last: that calls became a little faster since its length was found tells no reader more."""


def short_round(played: Round, calls: int, wanted_s: float, spread_s: float, made_s: Optional[float]) -> str:
    """Return why a round is shorter than it should be; empty where it is nearly as long.

    Args:
        played: The round.
        calls: Of it.
        wanted_s: What it should last.
        spread_s: By how much the clock's own cost varies.
        made_s: What the problem's own code took to make its inputs; None where more calls would not take too long.
    """
    if played.candidate_s > NEARLY * wanted_s:
        return ""
    why = "buffers are at their limit" if made_s is None else "the reference is slow"
    if made_s is not None and made_s > played.reference_s:
        why = "the problem's own code takes %.3g ms a call to make inputs" % (made_s / calls * 1e3)
    text = "round of %.3g ms, shorter than %.3g ms: %s; the clock's own cost varies by %.2g %% of it"
    return text % (played.candidate_s * 1e3, wanted_s * 1e3, why, 100 * spread_s / played.candidate_s)


def _doubt_loop(loop: Dict[str, Any], alone: Dict[str, Any], launch_us: float) -> str:
    """Say that a loop is quicker than the GPU alone, or the launching behind gates; empty if it is not.

    Args:
        loop: Times of the loop.
        alone: Times on the GPU alone; empty if there are none.
        launch_us: What launching a call took where its gate was closed: no call begins sooner.
    """
    if not alone:
        return ""
    loop_us, device_us = loop["candidate"]["median_us"], alone["candidate"]["median_us"]
    if device_us <= (1 + ALLOWED) * loop_us and launch_us <= LAUNCHING * loop_us:
        return ""
    text = "a call takes %.4g us in a loop, %.4g us on the GPU alone and %.4g us to launch: calls may share work in "
    return (text + "the loop, or find their data in the cache") % (loop_us, device_us, launch_us)


def _times_alone(alone: Dict[str, Any]) -> Dict[str, Any]:
    return {name: alone[name] for name in ("candidate", "reference", *SPEEDUP) if name in alone}


class ShapeTimes:
    """Adds the times of series to a shape's result, and to its notes what makes them less sure."""

    def __init__(self, setup: JudgingSetup, number: int, notes: Dict[str, None]) -> None:
        """Begin, for the shape of a number in the task; notes of the shape are added to `notes`."""
        self.task, self.device, self.costs = setup.task, setup.device, setup.costs
        self.number, self.notes = number, notes
        self.shortest_s = self.costs["candidate"].shortest_s
        """How long a round must last for its time to be told from the clock's own cost."""

    def add(
        self, series: Series, result: Dict[str, Any], looking: Dict[str, Any], gated: Optional[GatedSeries] = None
    ) -> None:
        """Add the times of cold rounds, and the speed-up where they are times of a call's.

        Those on the GPU alone are the shape's where they were to be had; those of calls in a loop of the host's stand
        beside them. It is the other way round where the problem's basis is `call`, or the reference's calls could not
        be launched behind gates. Where the basis is `kernelbench` both stand beside the times by events.
        """
        states = [played.state for played in series.played]
        result["conditions"], marked = summary(states)
        result["samples"] = dict(series.samples(), states=states, marks=marked, looking=looking, **series.evidence())
        loop, alone = times_of(*series.samples_us(), series.sets), gated.result() if gated is not None else {}
        if gated is not None:
            result["gated_samples"] = gated.samples()
            self.notes.update(dict.fromkeys(filter(None, [gated.live_text()])))
        if gated is not None and (gated.events is not None or gated.is_basis(self.task)):
            self._add_gated(series, result, loop, alone, gated.events)
        else:
            self._add_loop(series, result, loop, gated, alone)

    def _add_gated(
        self,
        series: Series,
        result: Dict[str, Any],
        loop: Dict[str, Any],
        alone: Dict[str, Any],
        events: Optional[EventSeries],
    ) -> None:
        """Take the times on the GPU alone, or those by events and the former beside them."""
        kept = result["gated_samples"]
        clock_us = kept["empty_us"]["candidate"]
        if events is None:
            result.update(alone, basis="device")
        else:
            result.update(events.result(alone["candidate"]["median_us"]), basis=BY_EVENTS, on_gpu=_times_alone(alone))
            result["unconfirmable"] = alone["unconfirmable"] or result["unconfirmable"]
            kept, clock_us = events.samples(), 0.0
            result["event_samples"] = kept
        self._hold_against_floor(result, kept["candidate_us"], clock_us, kept["calls_per_round"])
        if not self.is_too_short(series) and self._is_loops_own(loop, alone):
            result["in_loop"] = loop

    def _is_loops_own(self, loop: Dict[str, Any], alone: Dict[str, Any]) -> bool:
        """Say whether the loop's mean can be a call's time, by that on the GPU alone; note what both say together."""
        device_us, call_us = (times["candidate"]["median_us"] for times in (alone, loop))
        if device_us > SHARING * call_us:
            # Work that one call did for others: the loop's mean is no call's time, and is not shown as one.
            text = "no time in a loop: calls share work there (%.4g us each, on the GPU alone %.4g us)"
            self.notes[text % (call_us, device_us)] = None
            return False
        # A faster kernel would not help such a call; the note points at launch overhead instead.
        if call_us > LAUNCH_BOUND * device_us:
            busy = ("%.0f of %.0f" if device_us >= 100 else "%.3g of %.3g") % (device_us, call_us)
            self.notes["launch-bound: the GPU is busy %s us a call" % busy] = None
        return True

    def _add_loop(
        self,
        series: Series,
        result: Dict[str, Any],
        loop: Dict[str, Any],
        gated: Optional[GatedSeries],
        alone: Dict[str, Any],
    ) -> None:
        """Take the times of calls in a loop of the host's."""
        result.update(candidate=loop["candidate"], reference=loop["reference"], basis="call")
        result["half_width"] = half_width(series.samples_us()[0])
        result["stopped_by"] = series.stopped_by
        if self.has_no_time(series) or (alone and not self._is_loops_own(loop, alone)):
            result["candidate"] = None
            return
        result["unconfirmable"] = series.unconfirmable()
        if alone:
            result["on_gpu"] = _times_alone(alone)
        if gated is not None:
            result["unconfirmable"] = (
                gated.doubt() or _doubt_loop(loop, alone, gated.launch_us()) or result["unconfirmable"]
            )
            if alone and gated.gated.ungated and self.task["framework"] != "numpy":
                self.notes["the reference was not timed on the GPU alone: %s" % gated.gated.ungated] = None
        result.update({name: loop[name] for name in SPEEDUP})
        clock_us = self.costs["candidate"].low_s * 1e6
        self._hold_against_floor(result, result["samples"]["candidate_us"], clock_us, series.sets)
        unsure = self.costs["candidate"].spread_s * 1e6 / series.sets
        # Below the default half width of 2 % the uncertainty is inside the interval anyway.
        if unsure > 0.02 * result["candidate"]["median_us"]:
            self.notes["the clock's own cost varies by %.3g us a call" % unsure] = None

    def _hold_against_floor(
        self, result: Dict[str, Any], samples_us: Sequence[float], clock_us: float, sets: int
    ) -> None:
        """Void a time that the device cannot reach; note that, and a wide interval."""
        floor = floor_of(self.task, self.device.label, self.number, sets)
        said = hold_against_floor(result, floor, samples_us, clock_us / sets) if floor else ""
        self.notes.update(dict.fromkeys(filter(None, [said, wide(result["half_width"])])))

    def has_no_time(self, series: Series, which: str = "") -> bool:
        """Say, in a note too, whether rounds are too short for the clock."""
        if self.is_too_short(series):
            text = "too fast to time on this machine, so no speed-up: a call must take at least %s"
            self.notes[which + text % duration(self.shortest_s / series.sets)] = None
        return self.is_too_short(series)

    def cache_text(self, touched: int) -> str:
        """Say how the bytes of a round's data compare with the cache; empty where its size is unknown."""
        cache = self.device.cache_bytes()
        state = "cold" if touched >= COLD * cache else "partly warm"
        return "%s: %s a round, %s of cache" % (state, megabytes(touched), megabytes(cache)) if cache else ""

    def is_too_short(self, series: Series) -> bool:
        """Say whether the rounds are not told from the clock's own cost."""
        # The interval's low end decides: a time must be clear of the clock's cost with confidence.
        return median_interval(series.samples_us()[0])[1] < self.shortest_s * 1e6 / series.sets

    def add_warm(self, warm: Series, result: Dict[str, Any]) -> None:
        """Add the times of rounds whose data fits the cache."""
        result["warm_samples"] = dict(warm.samples(), **warm.evidence())
        if not self.has_no_time(warm, "warm: "):
            times = times_of(*warm.samples_us(), warm.sets)
            result["warm"], result["warm_speedup"] = times["candidate"], times["speedup"]
            if self.device.kind == "cuda":
                self.notes["warm times are those of a loop, which no gate confirms"] = None
