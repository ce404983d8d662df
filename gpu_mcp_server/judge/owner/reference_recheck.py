"""The reference timed once more, cold, when the candidate has been ended: was it only slow beside it?

A frozen candidate has no processor, yet the kernel may work for it: timers that it armed go off, packets between its
own sockets are sent again. On a processor all of that slows the reference down, which is timed meanwhile, and so makes
the candidate look faster. What goes with the candidate was the candidate's.
"""

import time
from typing import Any, Dict, List

from ..devices.device import Buffers
from ..numerics.stats import median
from .shape_judge import Shape

ROUNDS, MORE_ROUNDS = 3, 6
"""That count; more of them where the reference is faster than it was: a machine may have been busy at either time."""
MOST_S = 0.5
"""At a shape, before no more are begun; one that takes longer is timed once, with buffers that are new to it."""
SETTLED_S = 0.1
"""Between the candidate's end and this: its other processes and its memory go after it."""
FASTER = 1.15
"""Times that it must be, by its median against the low end of its interval beside the candidate."""


class Alone:
    """Times the reference at one shape, of which the candidate's verdict is known."""

    def __init__(self, shape: Shape, result: Dict[str, Any]) -> None:
        """Take the shape and its verdict, of a candidate that has been ended."""
        self.shape, self.result = shape, result
        self.taken_us: List[float] = []
        """Of a call, round by round."""

    def look(self) -> None:
        """Time it; if it is clearly faster, say so and let the low end of the speed-up count that."""
        shape, rounds = self.shape, self.shape.rounds
        if shape.series is None or not self.result.get("speedup"):
            return
        rounds.present, rounds.passes = (rounds.reference,), shape.series.passes
        buffers = rounds.open(shape.sets)
        deadline = time.monotonic() + MOST_S
        for count in (ROUNDS, MORE_ROUNDS):
            first = [] if self.taken_us else [self._round_s(buffers)]  # its memory is new
            several: List[float] = []
            while len(several) < count and time.monotonic() < deadline:
                several.append(self._round_s(buffers))
            self.taken_us += [each * 1e6 / shape.sets for each in several or first]
            if not self._faster():
                break
        rounds.close(buffers)
        self.result["samples"]["reference_alone_us"] = self.taken_us
        if self._faster():
            self._count()

    def _round_s(self, buffers: Buffers) -> float:
        """Return what the reference takes; outputs go through the caches before, as beside a candidate."""
        buffers.poison()
        return self.shape.rounds.expect(buffers)

    def _faster(self) -> bool:
        return FASTER * median(self.taken_us) < self.result["reference"]["low_us"]

    def _count(self) -> None:
        alone_us, timed = median(self.taken_us), self.result["candidate"]["median_us"]
        self.result["speedup_low"] = min(self.result["speedup_low"], alone_us / timed)
        text = "the reference takes %.3g us without the candidate, %.3g us with it running: the candidate slowed it "
        text += "down, or the machine was busier; speedup_low counts the former"
        self.result["notes"].append(text % (alone_us, self.result["reference"]["median_us"]))
