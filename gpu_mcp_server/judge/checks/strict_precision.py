"""Strict precision in timed rounds: a candidate that is only exact where it is tried before would be faster there."""

from typing import Dict

import numpy as np

from ..catch_log import CATCHES
from ..correctness.error_statistics import distribution, suspicion
from ..correctness.fp64_reference import EPSILON, available
from ..devices.device import Buffers
from ..numerics.compare import numbers
from ..numerics.tensors import Array
from ..timing.rounds import Rounds
from ..verdicts import incorrect
from .fp64_check import InDouble

ELEMENTS = 1 << 22
"""Of all outputs of a call that are looked at; of more, one in so many, and the more seldom."""
SELDOM = 8
"""One round in so many is looked at, and one of the first ones always."""


class Strict:
    """Looks at one call of some rounds against double precision, where the problem wants strict precision."""

    def __init__(self, rounds: Rounds, first: int) -> None:
        self.rounds, self.well = rounds, rounds.well
        self.wanted = rounds.task.get("precision") == "strict"
        self.next = self.well.word() % first
        """Which round is looked at next."""
        self.owed = self.wanted
        """Whether none was yet: there may be fewer rounds than that."""

    def look(self, buffers: Buffers, played: int) -> None:
        """Look at the round that was just played, if it is its turn; outside the clock.

        Raises:
            Judged: If an answer is less exact than its type allows.
        """
        size = sum(item.count for item in buffers.outputs)
        if not (self.wanted and played >= self.next and available(self.rounds.task, buffers.outputs)):
            return
        self.owed = False
        step = -(-size // ELEMENTS)
        # A drawn distance has no period that a candidate could learn.
        self.next = played + 1 + self.well.word() % (2 * SELDOM * step)
        call = self.well.word() % buffers.sets
        # A drawn offset: with a fixed one, a candidate could be exact at every step-th element alone.
        places = [np.arange(self.well.word() % min(step, item.count), item.count, step) for item in buffers.outputs]
        picked: Dict[str, Array] = {str(number): each for number, each in enumerate(places)}
        exact = InDouble(self.rounds, self.rounds.notes).read(buffers, "oracle", sum(map(len, places)), call, picked)
        if exact is None:
            return
        truth = np.split(exact, np.cumsum([len(each) for each in places])[:-1])
        with CATCHES.during("timed, strict precision"), CATCHES.check():
            for number, some in enumerate(truth):
                self._compare(buffers, call, number, places[number], some)

    def _compare(self, buffers: Buffers, call: int, number: int, places: Array, exact: Array) -> None:
        item = buffers.outputs[number]
        if item.dtype not in EPSILON:
            return
        expected, got = (numbers(part[places], item.dtype) for part in buffers.pair(call, number))
        doubt = suspicion(distribution(exact, expected, got, item.dtype))
        if doubt:
            text = "output %s %s, in call %d of %d of a timed round, and the problem wants strict precision"
            raise incorrect(text % (item.name, doubt, call + 1, buffers.sets))
