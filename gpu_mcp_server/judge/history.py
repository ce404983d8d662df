"""Samples of earlier answers, to know a candidate that repeats one."""

from typing import List, NamedTuple, Sequence

import numpy as np
from check import compare
from devices import Buffers
from fill import Well
from tensors import FLOATS, Array, Tensor

SAMPLES = 64
"""Positions kept of each output."""
KEPT_ROUNDS = 5
"""The first round and the latest ones; an answer is cached early or was the last."""


class Seen(NamedTuple):
    """The samples of one round, a [sets, samples] array for each output."""

    round: int
    expected: List[Array]
    got: List[Array]


class History:
    """What was expected and what was answered before, at one shape."""

    def __init__(self, outputs: Sequence[Tensor], well: Well, rtol: float, atol: float) -> None:
        self.outputs, self.rtol, self.atol, self.well = outputs, rtol, atol, well
        self.positions = [well.positions(SAMPLES, item.count) for item in outputs]
        self.rounds: List[Seen] = []

    def add(self, number: int, buffers: Buffers) -> None:
        """Remember a round that passed."""
        self.rounds.append(self._look(number, buffers))
        if len(self.rounds) > KEPT_ROUNDS:
            del self.rounds[1]

    def _look(self, number: int, buffers: Buffers) -> Seen:
        pairs = [buffers.samples(i, positions) for i, positions in enumerate(self.positions)]
        return Seen(number, [p[0].copy() for p in pairs], [p[1].copy() for p in pairs])

    def repeated(self, number: int, buffers: Buffers, call: int, output: int) -> str:
        """Say which earlier answer the wrong output of `call` is, empty if none."""
        now = self._look(number, buffers)
        dtype = self.outputs[output].dtype
        got, expected = now.got[output][call], now.expected[output][call]
        if dtype not in FLOATS and not self._telling(got, output, now):
            return ""
        for seen in [*self.rounds, now]:
            for other, answer in enumerate(seen.expected[output]):
                if seen is now and other == call:
                    continue
                if not self._same(answer, got, dtype) or self._same(answer, expected, dtype):
                    continue
                return "it is the answer to call %d of round %d" % (other + 1, seen.round)
            if seen is now or np.unique(got).size < 3:
                continue
            for other, answer in enumerate(seen.got[output]):
                if answer.tobytes() == got.tobytes():
                    return "bit for bit what it returned in call %d of round %d" % (other + 1, seen.round)
        return ""

    def _telling(self, got: Array, output: int, now: Seen) -> bool:
        """Say whether an answer of few values, such as an index, is another call's by no chance."""
        rows = np.concatenate([seen.expected[output] for seen in (*self.rounds, now)])
        return np.unique(got).size > 2 and len(np.unique(rows, axis=0)) == len(rows)

    def _same(self, first: Array, second: Array, dtype: str) -> bool:
        return compare(first, second, dtype, self.rtol, self.atol).wrong == 0
