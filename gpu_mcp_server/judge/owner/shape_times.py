"""What a shape's rounds say of its times, and why there is none."""

from typing import Any, Dict

from ..checks.stream_order_rounds import expose
from ..devices.device import Device
from ..numerics.stats import half_width, median, median_interval, speedup, timing, wide
from ..timing.clock_overhead import Cost
from ..timing.machine_state import summary
from ..timing.series import Series
from ..timing.time_floor import floor_of, hold_against_floor


class ShapeTimes:
    """Adds the times of series to a shape's result, and to its notes what makes them less sure."""

    def __init__(
        self,
        task: Dict[str, Any],
        number: int,
        device: Device,
        costs: Dict[str, Cost],
        shortest_s: float,
        notes: Dict[str, None],
    ) -> None:
        """Begin.

        Args:
            task: The whole one.
            number: Of the shape in it.
            device: The task's.
            costs: Of empty passes, by role.
            shortest_s: How long a round must last for its time to be told from the clock's own cost.
            notes: Of the shape; more are added.
        """
        self.task, self.number, self.device, self.costs = task, number, device, costs
        self.shortest_s, self.notes = shortest_s, notes

    def add(self, series: Series, result: Dict[str, Any], looking: Dict[str, Any]) -> None:
        """Add the times of cold rounds, and the speed-up where they are times of a call's."""
        (candidate, reference), clock = series.samples_us(), series.unsure()
        result["candidate"] = timing(candidate, series.sets, clock.candidate_us)
        result["reference"] = timing(reference, series.sets, clock.reference_us)
        result["half_width"] = half_width(candidate, clock.candidate_us)
        result["stopped_by"] = series.stopped_by
        states = [played.state for played in series.played]
        result["conditions"], marked = summary(states)
        samples: Dict[str, Any] = {
            "candidate_us": candidate,
            "reference_us": reference,
            "calls_per_round": series.sets,
        }
        result["samples"] = dict(samples, states=states, marks=marked, looking=looking)
        result["samples"].update(self.clock(series))
        unsure = self.costs["candidate"].spread_s * 1e6 / series.sets
        if self.has_no_time(series):
            result["candidate"] = None
        else:
            result["unconfirmable"] = series.unconfirmable()
            found = speedup(reference, candidate, clock.ratio)
            result["speedup"], result["speedup_low"], result["speedup_high"] = found
            self._doubt(result, series.exposed_s)
            floor = floor_of(self.task, self.device.label, self.number, series.sets)
            said = hold_against_floor(result, floor, series.sets) if floor else ""
            self.notes.update({said: None} if said else {})
            if unsure > 0.02 * result["candidate"]["median_us"]:
                self.notes["the clock's own cost varies by %.3g us a call" % unsure] = None

    def _doubt(self, result: Dict[str, Any], exposed_s: float) -> None:
        """Say what makes the speed-up less sure."""
        said = expose(result, exposed_s), wide(result["half_width"])
        self.notes.update(dict.fromkeys(filter(None, said)))

    def clock(self, series: Series, which: str = "") -> Dict[str, Any]:
        """Return what was taken off for the clock, and say so where empty passes between the rounds took much more."""
        most_s, passes_s = self.costs["candidate"].high_s, series.empty_s()
        if passes_s and median(passes_s) > most_s:
            text = "an empty pass between rounds takes %.0f us; no more than %.0f us are taken off"
            self.notes[which + text % (median(passes_s) * 1e6, most_s * 1e6)] = None
        return series.clock()

    def has_no_time(self, series: Series, which: str = "") -> bool:
        """Say, in a note too, whether rounds are too short for the clock, or no time of their calls."""
        why = series.doubt
        if self.is_too_short(series):
            text = "too short to time here, so no speed-up: less than %.3g us a call is lost in the clock's own cost"
            why = text % (self.shortest_s * 1e6 / series.sets)
        if why:
            self.notes[which + why] = None
        return bool(why)

    def is_too_short(self, series: Series) -> bool:
        """Say whether the rounds are not told from the clock's own cost."""
        return median_interval(series.samples_us()[0])[1] < self.shortest_s * 1e6 / series.sets

    def add_graph(self, graph: Series, result: Dict[str, Any]) -> None:
        """Add the times of calls that were replayed as one graph."""
        samples_us, _ = graph.samples_us()
        result["graph_samples"] = {"candidate_us": samples_us, **self.clock(graph, "as a graph: ")}
        if not self.has_no_time(graph, "as a graph: "):
            result["graph"] = timing(samples_us, graph.sets, graph.unsure().candidate_us)

    def add_warm(self, warm: Series, result: Dict[str, Any]) -> None:
        """Add the times of rounds whose data fits the cache."""
        candidate, reference = warm.samples_us()
        result["warm_samples"] = {"candidate_us": candidate, "reference_us": reference, "calls_per_round": warm.sets}
        result["warm_samples"].update(self.clock(warm, "warm: "))
        if not self.has_no_time(warm, "warm: "):
            result["warm"] = timing(candidate, warm.sets, warm.unsure().candidate_us)
            result["warm_speedup"] = speedup(reference, candidate)[0]
