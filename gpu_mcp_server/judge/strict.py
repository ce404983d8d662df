"""Strict precision in timed rounds: a candidate that is only exact where it is tried before would be faster there."""

from typing import Any, Dict

import numpy as np
from check import numbers
from devices import Buffers
from fill import Well
from memory_cpu import Region
from oracle import EPSILON, available, split
from precision import distribution, suspicion
from rounds import Rounds
from tensors import Tensor
from verdicts import incorrect

ELEMENTS = 1 << 22
"""Of all outputs of a call, beyond which none is looked at."""
SELDOM = 8
"""One round in so many is looked at, and one of the first ones always."""


class Strict:
    """Looks at one call of some rounds against double precision, where the problem wants strict precision."""

    def __init__(self, task: Dict[str, Any], well: Well, first: int) -> None:
        self.task, self.well = task, well
        self.wanted = task.get("precision") == "strict"
        self.next = well.word() % first
        """Which round is looked at next."""

    def look(self, rounds: Rounds, buffers: Buffers, played: int) -> None:
        """Look at the round that was just played, if it is its turn; outside the clock.

        Raises:
            Judged: If an answer is less exact than its type allows.
        """
        size = sum(item.count for item in buffers.outputs)
        if not (self.wanted and played >= self.next and size <= ELEMENTS and available(self.task, buffers.outputs)):
            return
        self.next = played + 1 + self.well.word() % (2 * SELDOM)
        call = self.well.word() % buffers.sets
        memory = Region(8 * size, writable_by_others=True)
        try:
            rounds.reference.thaw()
            reply = rounds.reference.ask("oracle", 6 * rounds.timeout_s, [memory.fd], call=call)
            truth = [] if reply.get("error") else split(memory.bytes.view(np.float64), buffers.outputs)
            for number, (item, exact) in enumerate(zip(buffers.outputs, truth)):
                self._compare(buffers, call, number, item, exact)
        finally:
            rounds.reference.freeze()
            memory.close()

    def _compare(self, buffers: Buffers, call: int, number: int, item: Tensor, exact: Any) -> None:
        if item.dtype not in EPSILON:
            return
        expected, got = (numbers(part, item.dtype) for part in buffers.pair(call, number))
        doubt = suspicion(distribution(exact, expected, got, item.dtype))
        if doubt:
            text = "output %s %s, in call %d of %d of a timed round, and the problem wants strict precision"
            raise incorrect(text % (item.name, doubt, call + 1, buffers.sets))
