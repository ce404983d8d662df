"""Times of calls behind gates at one shape: how many calls a round has, what they took, and what they say."""

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from ..checks.interrupted_rounds import STOPPED_CALLS
from ..checks.isolated_calls import IsolatedCalls
from ..devices.device import Buffers
from ..numerics.stats import half_width, median, times_of
from ..timing.gated_pass import BY_EVENTS, LIVE_S, SHORT, NoGate
from ..timing.gated_rounds import HOST_S, WAITS, GatedRounds
from ..timing.rounds import Round, Rounds
from ..timing.series import ALLOWED, Goal, Progress, Series
from ..verdicts import cheat
from .event_series import EventSeries

ROUND_S, LONG_S, LEAST_S = 1e-3, 2e-3, 1e-4
"""That a round of short calls should last, what one may last for `STOPPED_CALLS` of them, and what it lasts beside a
slow reference: the word is seen within a microsecond of its writing, and an empty pass is taken off. Longer ones cost
the host's time: on an H200 launching 210 calls of 5 us took 7 ms. By the GPU's time: what a call takes in ungated
rounds has the launch in it, and a candidate could be slow there on purpose."""
LONGER_S = 3e-4
"""The same beside a slow reference, but at a first look. Behind rounds in which kernels ran the GPU answers 5 to 17 us
later by itself (H200), and a tenth of a round is allowed."""
MOST = 512
"""Calls of a round, unless memory or the queue has room for fewer. The queue holds about 1,000 launches."""
HALF_WIDTH = 0.005
MOST_ROUNDS = 30
BUDGET_S = 1.5
FIRST_CALLS, TRIES, ENOUGH = 16, 2, 1.25
"""Calls that are launched together first; how often one call, and they, are tried, as torch's allocator keeps what it
had to ask the driver for; times as many as there are, up to which more are not worth new buffers."""
FEWER, FAR_FEWER = 2, 4
"""Times as few calls after a launch that did not return: a reference of eight kernels fills the queue with half of the
calls of a round. Of those that are launched first, hardly any number will do."""
REFERENCE_S = 0.05
"""Time of a round in a slow reference, once the round lasts `LEAST_S` on the GPU: it answers some forty rounds."""
MANY_HOST_S, MANY_REFERENCE_S = HOST_S / 2, HOST_S / 10
"""Time that launching more than the first calls may take beyond that of ungated rounds: at worst a round has fewer.
Many a reference launches several kernels a call, and fills the queue."""
SHARED, GATE_S = 0.1, 6e-6
"""Part of a call's time, and a gate's own, by which one behind its own gate may take more than one among others."""
CERTAIN, SURE_S = 2.0, 30e-6
"""Times that, and so much more, from which on it is a cheat: a switch between contexts was seen to take 17 to 30 us.
Below that the time is unconfirmable, as an honest kernel of few microseconds must never be called a cheat."""

UNSTEADY = (
    "the time of calls that go on launching while the clock runs varies by %.0f %% to either side, the limit is "
    "%.0f %%: evaluate again on an idle host"
)

After = Callable[[Buffers, int], None]
Begin = Callable[[int], Tuple[Buffers, "Pace"]]


class Pace(NamedTuple):
    """Findings of an ungated round for rounds behind gates."""

    call_s: float
    """Time of one call of the candidate."""
    reference_call_s: float
    most: int
    """Calls that a round may have, for the sake of the reference and of what a call took here."""
    room: int
    """Calls that it may have where those are too short on the GPU: as many as memory and the shape's budget allow."""


def least_round_s(task: Dict[str, Any]) -> float:
    """Return what a round of short calls lasts at least on the GPU, however slow the reference is."""
    return LEAST_S if task.get("brief") else max(LEAST_S, LONGER_S)


class GatedSeries:
    """Plays a shape's gated rounds."""

    def __init__(self, rounds: Rounds, pace: Pace, goal: Goal) -> None:
        """Begin; the goal is that of ungated rounds, and counts where it is the narrower one."""
        self.rounds, self.pace = rounds, pace
        self.goal = Goal(HALF_WIDTH, MOST_ROUNDS, BUDGET_S, math.inf)
        if goal.half_width <= HALF_WIDTH:
            self.goal = goal._replace(limit_s=math.inf)
        self.gated = GatedRounds(rounds, pace.call_s, pace.reference_call_s)
        self.isolated = IsolatedCalls(self.gated)
        self.series: Optional[Series] = None
        self.events: Optional[EventSeries] = None
        """Times by events, where the problem's basis asks for them."""
        self.open: Any = None
        """The buffers that are open, once there are some."""
        self.why = ""
        """Why there is no such time, or none by events, if so."""
        self.disturbed = False
        """Whether calls seem to share work for certain, and other jobs may be why."""

    def measure(self, buffers: Buffers, begin: Begin, after: After, progress: Progress) -> Buffers:
        """Play the rounds; return the buffers that are open afterwards.

        Args:
            buffers: Of the shape, for one call.
            begin: Opens some for another number of calls and plays an ungated round.
            after: Looks at each round that was played, and may play others.
            progress: Told after each round.

        Raises:
            Judged: If the candidate did not pass one of them.
        """
        self.open = buffers
        try:
            buffers = self._fit(begin)
            self.gated.time_old_inputs(buffers)
            series = Series(self.goal, self.rounds.ledger, buffers.sets, 1)

            def play(buffers_: Buffers, played: int) -> Round:
                round_ = self.gated.play(buffers_)
                after(buffers_, played)
                return round_

            series.measure(buffers, play, progress)
            self.gated.complete(buffers)
            self.series = series
            # Isolated calls come last: they need the series' median to be held against. Those that are launched live
            # have a round of their own each anyway.
            if not self.gated.candidate.live:
                self.isolated.play(buffers)
            if self._is_shared(CERTAIN, SURE_S):
                # What another job left at work on the GPU may look so: then it is judged again, alone.
                self.disturbed = bool(self.rounds.device.beside)
                if not self.disturbed:
                    raise cheat(self._shared())
            if self.rounds.task.get("basis") == BY_EVENTS and self.is_basis(self.rounds.task):
                events = EventSeries(self.gated, self.goal, buffers.sets)
                events.measure(buffers, progress)
                self.events = events
        except NoGate as found:
            self.why = str(found)
        return self.open

    def _fit(self, begin: Begin) -> Buffers:
        """Return buffers for as many calls as make a round, and as can be launched behind a gate.

        An ungated round comes before: kernels are loaded when they run first, and would wait for the device then.

        Raises:
            NoGate: If not one call can.
        """
        self.rounds.passes, gated = 1, self.gated
        self._reopen(begin, min(FIRST_CALLS, self.pace.most))
        gated.prepare()
        # One call first: what waits for the device is told from a queue without room for many, and soon.
        if not any(gated.try_launch(self.open, 1, HOST_S) for _ in range(TRIES)):
            self._launch_live(begin)
        tries, most = TRIES, MOST
        if not any(gated.try_reference(1, HOST_S) for _ in range(TRIES)):
            most = self._leave_reference()
        if gated.candidate.live:
            return self.open
        while True:
            sets = self.open.sets
            host_s = HOST_S if sets <= FIRST_CALLS else MANY_HOST_S
            call_s = gated.try_launch(self.open, sets, host_s)
            fits = bool(call_s) and gated.try_reference(sets, HOST_S if sets <= FIRST_CALLS else MANY_REFERENCE_S)
            tries -= 1
            if not fits and tries > 0:
                continue
            if not fits and sets == 1:
                if not call_s:
                    raise NoGate(
                        "some launches behind a gate did not return, and one did: the host is busy, or some wait"
                    )
                fits, most = True, self._leave_reference()
            most = most if fits else max(1, sets // (FAR_FEWER if sets <= FIRST_CALLS else FEWER))
            wanted = min(most, self._wanted_calls(call_s)) if fits else most
            if fits and wanted <= ENOUGH * sets:
                return self.open
            self._reopen(begin, wanted)

    def _launch_live(self, begin: Begin) -> None:
        """Have the candidate launch the rest of its calls, one a round, while the clock runs.

        Raises:
            NoGate: If they are too short for that.
        """
        if self.pace.call_s < LIVE_S:
            raise NoGate(WAITS % "the candidate's calls" + SHORT)
        self._reopen(begin, 1)
        self.gated.candidate.live = True

    def _leave_reference(self) -> int:
        """Time the reference live, or in a loop, from now on; return how many calls a round may have."""
        if self.gated.reference is not None and self.pace.reference_call_s >= LIVE_S:
            self.gated.reference.live = True
            return MOST
        self.gated.leave_reference(WAITS % "the reference's calls")
        return max(FIRST_CALLS, min(MOST, int(REFERENCE_S / self.pace.reference_call_s)))

    def _wanted_calls(self, call_s: float) -> int:
        """Return how many calls a round should have, of which each takes so long on the GPU."""
        least_s = least_round_s(self.rounds.task)
        enough = max(self.pace.most, min(self.pace.room, max(STOPPED_CALLS, math.ceil(least_s / call_s))))
        some = min(STOPPED_CALLS, math.ceil(LONG_S / call_s))
        return min(enough, max(some, math.ceil(ROUND_S / call_s)))

    def _reopen(self, begin: Begin, sets: int) -> None:
        """Have buffers for so many calls."""
        if sets != self.open.sets:
            self.rounds.close(self.open)
            self.open, self.pace = begin(sets)
            self.gated.call_s, self.gated.reference_call_s = self.pace.call_s, self.pace.reference_call_s

    def _is_shared(self, most: float, more_s: float) -> bool:
        """Say whether a call by itself takes over `most` times what it may beside others, and `more_s` seconds."""
        if self.series is None or not self.isolated.samples_s:
            return False
        device_s = median(self.series.samples_us()[0]) / 1e6
        # The gate's own time is allowed for each call here, while a whole round pays for one gate.
        return median(self.isolated.samples_s) > most * ((1 + SHARED) * device_s + GATE_S) + more_s

    def _shared(self) -> str:
        device_us = median(self.series.samples_us()[0]) if self.series else 0.0
        text = "calls share work, or overlap on the GPU: alone a call takes %.3g us, in a round %.3g us; join every "
        text += "stream of your own into the given one"
        return text % (median(self.isolated.samples_s) * 1e6, device_us)

    def is_basis(self, task: Dict[str, Any]) -> bool:
        """Say whether these are the shape's times: a reference of the same GPU must be timed so too."""
        if self.series is None or task.get("basis") == "call":
            return False
        # A ratio needs both sides on one clock; a processor's reference never had a GPU clock to share.
        return task["framework"] == "numpy" or self._is_reference_timed()

    def _is_reference_timed(self) -> bool:
        """Say whether the reference was timed behind gates, alone, and by the candidate's clock."""
        return not self.gated.ungated and not self.gated.is_reference_slowed() and self._has_one_clock()

    def _has_one_clock(self) -> bool:
        """Say whether launching is in both times or in neither.

        It is in that of a live reference. Beside it a candidate must be busy on the GPU for as long as its launching
        takes at least: then a loop of the host's costs it no more.
        """
        if self.series is None or self.gated.live_players() != ["reference"]:
            return True
        return self.launch_us() <= median(self.series.samples_us()[0])

    def doubt(self) -> str:
        """Say why the time is not confirmed; empty if it is."""
        # Without its times by events a shape has those on the GPU alone: a candidate could choose that.
        if self.series is None or self.why:
            return self.why
        if self.gated.candidate.live:
            return self._doubt_live(self.series.samples_us()[0])
        if self._is_shared(1.0, 0.0):
            return self._shared()
        return self.isolated.doubt(median(self.series.samples_us()[0]) / 1e6) or self.gated.doubt()

    def _doubt_live(self, samples_us: Sequence[float]) -> str:
        """Say why the times of calls that were launched live are not confirmed; empty if they are."""
        if median(list(samples_us)) < LIVE_S * 1e6:
            return WAITS % "the candidate's calls" + SHORT
        # The host is at work in these times: none may be confirmed by its own jitter.
        width = half_width(samples_us)
        if width > ALLOWED:
            return UNSTEADY % (100 * width, 100 * ALLOWED)
        return self.gated.doubt()

    def result(self) -> Dict[str, Any]:
        """Return times with their intervals, what ended the rounds and what speaks against them.

        Empty if there is no time; without a reference that was not launched behind gates, or not alone on the GPU.
        """
        if self.series is None:
            return {}
        candidate, reference = self.series.samples_us()
        result = times_of(candidate, reference if self._is_reference_timed() else (), self.series.sets, again=True)
        result.update(half_width=half_width(candidate), stopped_by=self.series.stopped_by, unconfirmable=self.doubt())
        if self.isolated.samples_s:
            result["isolated_us"] = median(self.isolated.samples_s) * 1e6
        return result

    def live_text(self) -> str:
        """Say whose calls were launched to their end while the clock ran; empty if none were."""
        who = "" if self.series is None or self.why else " and ".join(self.gated.live_players())
        text = "%s launched live: calls wait for the device, or launch more than its queue holds, so part of them was "
        return (text + "launched while the clock ran") % who if who else ""

    def launch_us(self) -> float:
        """Return what launching a call took the host behind a closed gate, where nothing had begun."""
        return median(self.gated.launch_s) * 1e6 / self.series.sets if self.series and self.gated.launch_s else 0.0

    def samples(self) -> Dict[str, Any]:
        """Return all rounds, for the evidence."""
        if self.series is None:
            return {"why": self.why}
        gated = self.gated
        return {
            **self.series.samples(),
            "isolated_us": [round(each * 1e6, 3) for each in self.isolated.samples_s],
            "launch_us": round(self.launch_us(), 3),
            "isolated_later_us": [round(each * 1e6, 1) for each in self.isolated.later_s],
            "empty_us": {role: round(each * 1e6, 2) for role, each in gated.empty_s.items()},
            "switch_us": round(gated.empty.switch_s * 1e6, 1),
            "probes_behind_us": [round(each * 1e6, 1) for each in gated.behind_s],
            "later_us": {when: round(each * 1e6, 1) for when, each in gated.later_s().items()},
            "fenced_rounds": gated.fenced,
            "busy": {when: len(rounds) for when, rounds in gated.busy.items()},
            "ungated": gated.ungated,
            "live": gated.live_players(),
        }

    def close(self) -> None:
        """Give the words back."""
        self.gated.close()
