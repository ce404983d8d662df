"""Checks that the GPU is idle when it should be: empty fences are timed, and a foreign kernel slows them.

A frozen process makes no launches, but what it launched before goes on, or begins when memory changes for which it
waits (cuStreamWaitValue32). Such a kernel slows the reference; or it computes while inputs are laid out, before the
clock starts.
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
        self.ahead_us: List[float] = []
        """While inputs are laid out before the candidate, its clock not started; since the last question."""
        self.laid_out_us: List[float] = []
        """The middle of those of each question."""
        self.alone()

    def alone(self) -> None:
        """Learn it anew."""
        # The first probe only warms up.
        self.alone_us = median([self._probe() for _ in range(ALONE_PROBES)][1:])
        self.forget()

    def forget(self) -> None:
        """Forget looks since the last question."""
        self.between_us, self.ahead_us = [], []

    def _probe(self) -> float:
        begin = time.perf_counter()
        # Several fences in a row: a single one may run whole within its own context's time slice.
        for _ in range(FENCES):
            self.fence()
        return (time.perf_counter() - begin) * 1e6

    def between(self) -> None:
        """Look between two rounds."""
        self.between_us.append(self._probe())

    def ahead(self) -> None:
        """Look between two parts of a round's inputs."""
        self.ahead_us.append(self._probe())

    def _busy(self, probes_us: List[float]) -> float:
        middle = median(probes_us) if probes_us else 0.0
        # A factor and an absolute margin: a slow host raises small times by factors, time slices add milliseconds.
        return middle if middle >= BUSY * self.alone_us + BUSY_US else 0.0

    def doubt(self) -> str:
        """Say what speaks against a candidate's time; empty if nothing does. Looks that were taken are forgotten."""
        self.laid_out_us += [round(median(self.ahead_us), 1)] if self.ahead_us else []
        # Looks are forgotten after each question, so that one shape's finding never voids another's time.
        probe_us, self.ahead_us = self._busy(self.ahead_us), []
        if not probe_us:
            return ""
        text = "no time: the GPU was busy while inputs were laid out, before the clock started: an empty probe took "
        return (text + "%.0f us, on an idle GPU %.0f us; work done then would not be in the time") % (
            probe_us,
            self.alone_us,
        )

    def remarks(self) -> List[str]:
        """Say so if the GPU was not idle between the rounds, when the reference is timed. Looks are forgotten then."""
        self.rounds_us += [round(median(self.between_us), 1)] if self.between_us else []
        # As in `doubt`: a baseline that is slowed at one shape of several would be in the lesser half of all looks.
        probe_us, self.between_us = self._busy(self.between_us), []
        text = "the GPU was busy between rounds: an empty probe took %.0f us, on an idle GPU %.0f us; "
        text += "the baseline may be slowed, so there is no speed-up"
        return [text % (probe_us, self.alone_us)] if probe_us else []

    def evidence(self) -> Dict[str, Any]:
        """Return what probes took."""
        return {
            "idle_probe_alone_us": round(self.alone_us, 1),
            "idle_probes_between_rounds_us": self.rounds_us,
            "idle_probes_while_laid_out_us": self.laid_out_us,
        }
