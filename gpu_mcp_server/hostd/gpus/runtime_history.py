"""Predicts waits, and jobs that fit a gap, from the times that earlier jobs held their GPUs. No I/O.

Only a job that ends in a gap may use it, and the job behind the gap must not be able to start sooner than predicted. So
the longest time counts for the first, and the shortest one for the jobs that hold the GPUs meanwhile.
"""

from collections import OrderedDict, deque
from typing import Deque, Optional, Tuple

Kind = Tuple[int, str, str]
"""Uid, user and what the job is of: its purpose and command line."""

REMEMBERED = 8
"""Jobs of each kind."""
ENOUGH = 3
"""Jobs of a kind after which its shortest and longest time are taken for what they are."""
MARGIN = 1.25
"""On the longest time that was seen, as the next one may be longer."""
MAX_KINDS = 2000
LEARNING = 0.3
"""Weight of the newest job in the mean of all kinds."""


class RuntimeHistory:
    """Times of the last jobs of each kind.

    Attributes:
        mean_s: Over all kinds, the newest counting most; None while nothing is known.
    """

    def __init__(self) -> None:
        self._kinds: "OrderedDict[Kind, Deque[float]]" = OrderedDict()
        self.mean_s: Optional[float] = None

    def note(self, kind: Kind, held_s: float) -> None:
        """Learn from a job that has ended; a kind without a name says nothing beyond the mean."""
        self.mean_s = held_s if self.mean_s is None else (1 - LEARNING) * self.mean_s + LEARNING * held_s
        if not kind[2]:
            return
        self._kinds.setdefault(kind, deque(maxlen=REMEMBERED)).append(held_s)
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MAX_KINDS:
            # The least recently used kind goes, so callers with ever new commands cannot fill memory.
            self._kinds.popitem(last=False)

    def expected_s(self, kind: Kind) -> Optional[float]:
        """Return how long such a job takes; None while nothing is known of any."""
        seen = self._kinds.get(kind)
        return sum(seen) / len(seen) if seen else self.mean_s

    def longest_s(self, kind: Kind) -> Optional[float]:
        """Return what such a job is not expected to exceed; None while too few were seen."""
        seen = self._kinds.get(kind, ())
        # None keeps a kind of which little is known out of gaps altogether.
        return MARGIN * max(seen) if len(seen) >= ENOUGH else None

    def shortest_s(self, kind: Kind) -> float:
        """Return what such a job takes at least; 0 while too few were seen."""
        seen = self._kinds.get(kind, ())
        # 0 means that the GPU may be free at any moment, so no gap is foretold from it.
        return min(seen) if len(seen) >= ENOUGH else 0.0
