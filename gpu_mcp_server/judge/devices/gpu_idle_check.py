"""Checks that the GPU is idle between rounds: empty fences are timed, and a foreign kernel slows them.

A frozen process makes no launches, but what it launched before goes on, or begins when memory changes for which it
waits (cuStreamWaitValue32). Such a kernel slows the reference.
"""

import time
from typing import Any, Callable, Dict, List

from ..numerics.stats import median

ALONE_PROBES = 7
FENCES = 5
BUSY = 3
BUSY_US = 1000.0
"""A GPU shared with another busy context gives it slices of milliseconds."""


class Idleness:
    """Times of empty fences, by which other work on the GPU is seen."""

    def __init__(self, fence: Callable[[], Any]) -> None:
        """Learn what they take while nobody else is at work; `fence` runs an empty one and waits for it."""
        self.fence = fence
        self.alone_us = 0.0
        self.between_us: List[float] = []
        """Between rounds, the candidate frozen; since the last question."""
        self.rounds_us: List[float] = []
        """The middle of those of each question."""
        self.alone()

    def alone(self) -> None:
        """Learn it anew."""
        # The first probe only warms up.
        self.alone_us = median([self._probe() for _ in range(ALONE_PROBES)][1:])
        self.forget()

    def forget(self) -> None:
        """Forget looks since the last question."""
        self.between_us = []

    def _probe(self) -> float:
        begin = time.perf_counter()
        # Several fences in a row: a single one may run whole within its own context's time slice.
        for _ in range(FENCES):
            self.fence()
        return (time.perf_counter() - begin) * 1e6

    def between(self) -> None:
        """Look between two rounds."""
        self.between_us.append(self._probe())

    def remarks(self) -> List[str]:
        """Say so if the GPU was not idle between the rounds, when the reference is timed. Looks are forgotten then."""
        if not self.between_us:
            return []
        probe_us = median(self.between_us)
        self.rounds_us.append(round(probe_us, 1))
        # Looks are forgotten: a baseline that is slowed at one shape of several would be in the lesser half of all.
        self.forget()
        # A factor and an absolute margin: a slow host raises small times by factors, time slices add milliseconds.
        if probe_us < BUSY * self.alone_us + BUSY_US:
            return []
        text = "the GPU was busy between rounds: an empty probe took %.0f us, on an idle GPU %.0f us; "
        text += "the baseline may be slowed, so there is no speed-up"
        return [text % (probe_us, self.alone_us)]

    def evidence(self) -> Dict[str, Any]:
        """Return what probes took."""
        return {
            "idle_probe_alone_us": round(self.alone_us, 1),
            "idle_probes_between_rounds_us": self.rounds_us,
        }
