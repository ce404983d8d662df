"""What the reference says in double precision of answers: how exact one can be, and what rounding allows."""

import time
from typing import Any, Dict, List, Optional

import numpy as np
from check import compare, numbers
from devices import Buffers, RoundCheck
from memory_cpu import Region
from oracle import EPSILON, available, split
from rounding import Known, beyond, slack
from rounds import Rounds
from tensors import Array


class InDouble:
    """Asks the reference, outside the clock."""

    def __init__(self, task: Dict[str, Any], rounds: Rounds, notes: Dict[str, None]) -> None:
        self.task, self.rounds, self.notes = task, rounds, notes

    def read(self, buffers: Buffers, verb: str, count: int, call: int = 0) -> Optional[Array]:
        """Return so many numbers that the reference writes of a call, `None` if it cannot answer in double precision.

        Args:
            buffers: With the call's inputs.
            verb: `oracle` or `sensitivity`.
            count: How many they are.
            call: Which one of the round.
        """
        if not available(self.task, buffers.outputs):
            return None
        memory = Region(8 * count, writable_by_others=True)
        try:
            return memory.bytes.view(np.float64)[:count].copy() if self._asked(verb, memory.fd, call) else None
        finally:
            memory.close()

    def _asked(self, verb: str, descriptor: int, call: int) -> bool:
        player, begin = self.rounds.reference, time.perf_counter()
        try:
            player.thaw()
            reply = player.ask(verb, 6 * self.rounds.timeout_s, [descriptor], call=call)
        finally:
            player.freeze()
        if reply.get("error"):
            self.notes["no double precision oracle: %s" % str(reply["error"]).splitlines()[-1][:120]] = None
            return False
        ran_s = reply.get("ran_s")
        if isinstance(ran_s, float):
            self.rounds.ledger.move(min(max(ran_s, 0.0), time.perf_counter() - begin), "reference")
        return True

    def forgiven(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Compare wrong calls once more, and allow what rounding of inputs and partial sums does to each element."""
        wrong = check.wrong.copy()
        for call in np.flatnonzero(wrong.any(axis=1)).tolist():
            wrong[call] = self._wrong(buffers, call)
        return check._replace(wrong=wrong)

    def _wrong(self, buffers: Buffers, call: int) -> List[int]:
        """Return how many elements of each output are wrong all the same."""
        rtol, atol = float(self.task["rtol"]), float(self.task["atol"])
        floats = [item for item in buffers.outputs if item.dtype in EPSILON]
        count = 2 * sum(item.count for item in floats)
        told = self.read(buffers, "sensitivity", count, call) if floats else None
        known = iter(() if told is None else split(told, [item for item in floats for _ in range(2)]))
        found: List[int] = []
        for number, item in enumerate(buffers.outputs):
            expected, got = buffers.pair(call, number)
            mask = compare(expected, got, item.dtype, rtol, atol).mask
            if item.dtype in EPSILON:
                of_it = None if told is None else Known(next(known), next(known))
                if mask is not None:
                    want, have = (numbers(part, item.dtype).astype(np.float64) for part in (expected, got))
                    most = atol + rtol * np.abs(want) + slack(want, buffers.inputs, item, of_it)
                    mask = mask & beyond(have, want, most)
            found.append(0 if mask is None else int(np.count_nonzero(mask)))
        return found
