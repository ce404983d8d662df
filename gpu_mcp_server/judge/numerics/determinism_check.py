"""An answer that is kept, to see whether the same inputs get the same bits again."""

from typing import Any, Optional, Tuple

import numpy as np

from .compare import LARGE
from .tensors import Array

SAMPLES = 1 << 16
"""Elements that are kept of an output too large to be kept as a whole."""

Pair = Tuple[Array, Array]


class Kept:
    """The first call's answer in one output, as it is now."""

    def __init__(self, buffers: Any, number: int) -> None:
        self.buffers, self.number = buffers, number
        self.before: Array = self._now().copy()

    def _now(self) -> Array:
        count = self.buffers.outputs[self.number].count
        if count <= LARGE:
            return self.buffers.pair(0, self.number)[1]
        return self.buffers.samples(self.number, np.arange(0, count, count // SAMPLES))[1][0]

    def other(self) -> Optional[Pair]:
        """Return what was kept and what is there now, `None` if they are the same bits."""
        now = self._now()
        return None if self.before.tobytes() == now.tobytes() else (self.before, now)

    def close(self) -> None:
        """Let it go."""
