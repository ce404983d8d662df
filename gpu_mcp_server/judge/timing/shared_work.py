"""Finds work that the calls of a round share: the part of its time that does not depend on their number.

All inputs of a round lie before the candidate when its clock starts, and it knows where from the rounds before. It may
compute every answer at the first call, on all cores or by one large launch, into memory of its own. If it only copies
each answer at its call, it writes nothing before its time. But then a round of few calls takes as long as one of many;
an honest candidate takes the time of those few. This is asked where freezing a candidate does not stop its work, beside
inputs that change without a clock (judge/checks/input_swap.py). A candidate that returns results of its own, which are
not seen before a round's end, is told to copy each in those rounds.
"""

from typing import Callable, List, NamedTuple

from ..numerics.stats import median
from ..verdicts import cheat

DOUBTED = 0.1
"""Part of a round from which on there is no time: what several calls share, none of them takes. The median of six
said 0.02 at most of five honest kernels on an H200, in rounds of 10 ms (benchmarks/results/h200-cheats.md)."""
CERTAIN = 0.5
"""Part from which on it is a cheat: to wake threads and to fill caches takes an honest one a few percent."""
MORE = 8
"""Shorter rounds that are played besides where those so far look suspicious, each beside a whole one: a busy machine
delays some, not most. One that is honest now and then gains nothing: what counts of the whole rounds is their median,
too."""
SLOWER = 1.25
"""Times its time that a whole round takes by then, above which nothing is certain: the machine has become busy since. A
delay of a quarter of a round seems to be no more than half of it that is shared, where half of its calls are made."""

IDLE = 0.25
"""Part of a whole round that a pass without a call takes by then, above which nothing is certain either: a busy machine
delays every round alike, and one of few calls then takes as long as one of many."""


class Short(NamedTuple):
    """A round that ended early."""

    calls: int
    sets: int
    """Calls of a whole round."""
    seconds: float
    """Less the clock's own cost."""

    def shared(self, whole_s: float) -> float:
        """Return the part of a whole round, which takes `whole_s`, that this one took besides its calls."""
        part = self.calls / self.sets
        # A linear model t = shared + calls * each, solved for the shared part; an honest candidate gives about 0.
        return (self.seconds / whole_s - part) / (1 - part)


class Sharing:
    """Rounds of one length that ended early."""

    def __init__(self) -> None:
        self.short: List[Short] = []
        self.changed: List[int] = []
        """Of how many calls inputs were changed in time, in each round in which some were to be."""

    def doubt(
        self, whole_s: float, shorten: Callable[[], None], again: Callable[[], float], empty: Callable[[], float]
    ) -> str:
        """Say what speaks against the times of these rounds; empty if nothing does.

        Args:
            whole_s: What a round of all calls takes.
            shorten: Plays one of fewer calls, and adds it where that can be done.
            again: Plays one of all calls, and returns what it took.
            empty: Makes a pass without a call, and returns what it took beyond the clock's own cost.

        Raises:
            Judged: If it is certain.
        """
        # The cheap test comes first: honest candidates pay for no additional rounds.
        if self._part(whole_s) < DOUBTED:
            return ""
        beside_s: List[float] = []
        empty_s: List[float] = []
        for _ in range(MORE):
            shorten()
            # Whole rounds are interleaved with short ones, so that a machine that turned busy shows in both.
            beside_s.append(again())
            empty_s.append(empty())
        part = self._part(whole_s)
        if part < DOUBTED:
            return ""
        # The verdict quotes the round nearest the median, so that its figures agree with the percentage beside them.
        one = min(self.short, key=lambda each: abs(each.shared(whole_s) - part))
        text = "%.0f %% of a round's time does not depend on the number of calls: %d of %d calls took %.3g of %.3g ms"
        told = (100 * part, one.calls, one.sets, 1000 * one.seconds, 1000 * whole_s)
        # A cheat verdict needs a quiet machine: otherwise the time is void and the candidate stays correct.
        if part < CERTAIN or median(beside_s) > SLOWER * whole_s or median(empty_s) > IDLE * whole_s:
            return "no time: %s; work that calls share is in no call's time" % (text % told)
        text = "worked on a call before it was called: %s; work that calls share is in no call's time" % text
        raise cheat(text % told)

    def _part(self, whole_s: float) -> float:
        return median([one.shared(whole_s) for one in self.short]) if self.short else 0.0
