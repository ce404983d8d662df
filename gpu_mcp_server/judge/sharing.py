"""What the calls of a round share: the part of its time that does not depend on how many of them are made.

All inputs of a round lie before the candidate when its clock starts, and it knows where from the rounds before. One
that computes every answer at the first call, on all cores or by one large launch, into memory of its own, and only
copies each when it is called for, writes nothing before its time; but a round of few calls takes as long as one of
many. Of an honest one it takes as long as those few calls.
"""

from typing import Callable, List, NamedTuple

from verdicts import cheat

DOUBTED = 0.1
"""Part of a round from which on there is no time: what several calls share, none of them takes. Of five honest kernels
on an H200 the least of six was 0.01 at most, in rounds of 10 ms (benchmarks/results/h200-hacks.md)."""
CERTAIN = 0.5
"""Part from which on it is a cheat: to wake threads and to fill caches takes an honest one a few percent."""
MOST_MORE = 8
"""Shorter rounds that are played besides, while those so far look suspicious: a busy machine delays some, not all."""


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
        return (self.seconds / whole_s - part) / (1 - part)


class Sharing:
    """Rounds of one length that ended early."""

    def __init__(self) -> None:
        self.short: List[Short] = []

    def doubt(self, whole_s: float, shorten: Callable[[], None]) -> str:
        """Say what speaks against the times of these rounds; empty if nothing does.

        The one of the short rounds decides that speaks least against them.

        Args:
            whole_s: What a round of all calls takes.
            shorten: Plays one of fewer calls, and adds it where that can be done.

        Raises:
            Judged: If it is certain.
        """
        whole_s = max(whole_s, 1e-9)
        for more in range(MOST_MORE + 1):
            if not self.short or min(one.shared(whole_s) for one in self.short) < DOUBTED:
                return ""
            if more < MOST_MORE:
                shorten()
        least = min(self.short, key=lambda one: one.shared(whole_s))
        text = "%.0f %% of a round's time is spent however few of its calls are made: %d of %d took %.3g of %.3g ms"
        told = [100 * least.shared(whole_s), least.calls, least.sets, 1000 * least.seconds, 1000 * whole_s]
        if least.shared(whole_s) < CERTAIN:
            return "no time: %s; what several calls share, none of them takes" % (text % tuple(told))
        text = "worked on a call before it was called: %s; what several calls share, none of them takes" % text
        raise cheat(text % tuple(told))
