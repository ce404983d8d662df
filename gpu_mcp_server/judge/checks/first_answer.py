"""Keeps an answer and holds later ones to the same inputs against it: what was right once is so again."""

from typing import Any, Callable, Dict

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.compare import LARGE, compare
from ..numerics.tensors import Array

Forgives = Callable[[Buffers, RoundCheck], RoundCheck]
LEEWAY = 2.0
"""Times what the first answer may be off, up to which a later one is no other: threads add in another order, double
precision looks at other elements, and an answer near a threshold is on this side of it at times and on that at others.
"""


class FirstAnswer:
    """The first call's answer, of outputs that are not too large."""

    def __init__(self, buffers: Buffers, task: Dict[str, Any]) -> None:
        self.rtol, self.atol = float(task["rtol"]), float(task["atol"])
        self.kept: Dict[int, Array] = {
            number: buffers.pair(0, number)[1].copy()
            for number, item in enumerate(buffers.outputs)
            if item.count <= LARGE
        }

    def extend(self, forgives: Forgives) -> Forgives:
        """Return what forgives an answer as near to the first one as to the reference's, and asks `forgives` if not."""

        def both(buffers: Buffers, check: RoundCheck) -> RoundCheck:
            left = self.excuse(buffers, check)
            return left if left.passed else forgives(buffers, check)

        return both

    def excuse(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Leave of the first call's wrong elements those that are beyond the tolerance of the first answer as well."""
        wrong = check.wrong.copy()
        for number, kept in self.kept.items():
            if wrong[0, number]:
                expected, got = buffers.pair(0, number)
                both = self._beyond(buffers, number, expected, got) & self._beyond(buffers, number, kept, got)
                wrong[0, number] = np.count_nonzero(both)
        return check._replace(wrong=wrong)

    def comes_again(self, buffers: Buffers) -> bool:
        """Say whether the answer that is there now is within the tolerance of the first one."""
        now = {number: buffers.pair(0, number)[1] for number in self.kept}
        beyond = (self._beyond(buffers, number, kept, now[number]).any() for number, kept in self.kept.items())
        return len(self.kept) == len(buffers.outputs) and not any(beyond)

    def _beyond(self, buffers: Buffers, number: int, want: Array, have: Array) -> Array:
        """Say of each element whether it is beyond the tolerance, or in one word that none is."""
        mask = compare(want, have, buffers.outputs[number].dtype, self.rtol, self.atol).mask
        return np.zeros(1, dtype=bool) if mask is None else mask
