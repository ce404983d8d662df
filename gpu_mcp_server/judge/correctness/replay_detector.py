"""Samples of earlier answers, to know a candidate that repeats one."""

from typing import List, NamedTuple, Sequence

import numpy as np

from ..devices.device import Buffers
from ..numerics.compare import compare
from ..numerics.random_inputs import Well
from ..numerics.tensors import FLOATS, Array, Tensor

SAMPLES = 64
"""Positions kept of each output."""
KEPT_ROUNDS = 5
"""The first round and the latest ones; an answer is cached early or was the last."""
MANY = 16
"""Values of an answer of floats from which no few calls have one like it by chance."""
OTHERS = 200
"""Right answers that are held against all others. A wrong one is another call's by chance no more often than a right
one is, so where it is and none of these is, that is chance once in 201 times at most. An answer of less than `MANY`
values, such as a mean or a loss, is told from no fewer."""


class Seen(NamedTuple):
    """The samples of one round, a [sets, samples] array for each output."""

    round: int
    expected: List[Array]
    got: List[Array]


class History:
    """Expected and returned answers of earlier rounds, at one shape."""

    def __init__(self, outputs: Sequence[Tensor], well: Well, rtol: float, atol: float) -> None:
        self.outputs, self.rtol, self.atol, self.well = outputs, rtol, atol, well
        self.positions = [np.unique(well.positions(SAMPLES, item.count)) for item in outputs]
        self.rounds: List[Seen] = []

    def add(self, number: int, buffers: Buffers) -> None:
        """Remember a round that passed."""
        self.rounds.append(self._look(number, buffers))
        if len(self.rounds) > KEPT_ROUNDS:
            del self.rounds[1]

    def _look(self, number: int, buffers: Buffers) -> Seen:
        pairs = [buffers.samples(i, positions) for i, positions in enumerate(self.positions)]
        # Copies, because the buffers hold the next round's answers soon.
        return Seen(number, [p[0].copy() for p in pairs], [p[1].copy() for p in pairs])

    def repeated(self, number: int, buffers: Buffers, call: int, output: int) -> str:
        """Say which earlier answer the wrong output of `call` is, empty if none or if that may be chance."""
        now = self._look(number, buffers)
        if not self._telling(now, call, output):
            return ""
        said = self._expected(now, call, output, self.rtol, self.atol)
        if said and self._apart(now, output, self.rtol, self.atol):
            return said
        # Where answers pass as each other within the tolerance, only bit equality still tells a replay.
        said = self._expected(now, call, output, 0.0, 0.0) or self._returned(now, call, output)
        return said if said and self._apart(now, output, 0.0, 0.0) else ""

    def _expected(self, now: Seen, call: int, output: int, rtol: float, atol: float) -> str:
        """Say which other call's inputs an answer is right for."""
        got, own = now.got[output][call], now.expected[output][call]
        for seen in [*self.rounds, now]:
            rows = seen.expected[output]
            for other in np.flatnonzero(self._same(rows, got, output, rtol, atol)):
                if seen is now and other == call:
                    continue
                if not self._same(rows[[other]], own, output, self.rtol, self.atol)[0]:
                    return "it is the answer to call %d of round %d" % (other + 1, seen.round)
        return ""

    def _returned(self, now: Seen, call: int, output: int) -> str:
        """Say which other call returned an answer bit for bit, and was right."""
        got = now.got[output][call]
        for seen in [*self.rounds, now]:
            for other, answer in enumerate(seen.got[output]):
                if answer.tobytes() != got.tobytes() or (seen is now and other == call):
                    continue
                if seen is not now or self._same(now.expected[output][[other]], got, output, self.rtol, self.atol)[0]:
                    return "bit for bit what it returned in call %d of round %d" % (other + 1, seen.round)
        return ""

    def _rows(self, output: int, now: Seen) -> Array:
        return np.concatenate([seen.expected[output] for seen in (*self.rounds, now)])

    def _telling(self, now: Seen, call: int, output: int) -> bool:
        """Say whether an answer has so many values, or so many others beside it, that chance can be told."""
        rows, values = self._rows(output, now), np.unique(now.got[output][call]).size
        if self.outputs[output].dtype in FLOATS:
            return values >= MANY or len(rows) >= OTHERS
        # Discrete answers that occur twice among right ones would make an honest mistake look like a replay.
        return values > 2 and len(np.unique(rows, axis=0)) == len(rows)

    def _apart(self, now: Seen, output: int, rtol: float, atol: float) -> bool:
        """Say whether no right answer of floats is also another call's; of many, `OTHERS` are held against all."""
        if self.outputs[output].dtype not in FLOATS:
            return True
        rows = self._rows(output, now)
        # Every pair would cost quadratic time, and OTHERS rows bound the chance well enough.
        some = rows[:: max(1, len(rows) // OTHERS)]
        return all(self._same(rows, one, output, rtol, atol).sum() == 1 for one in some)

    def _same(self, rows: Array, one: Array, output: int, rtol: float, atol: float) -> Array:
        """Say of each row of expected answers whether `one` passes as it."""
        mask = compare(rows.ravel(), np.tile(one, len(rows)), self.outputs[output].dtype, rtol, atol).mask
        wrong: Array = np.zeros(rows.shape, dtype=bool) if mask is None else mask.reshape(rows.shape)
        return np.logical_not(wrong.any(axis=1))
