"""What the reference says in double precision of answers: how exact one can be, and what rounding allows."""

import math
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..correctness.fp64_reference import EPSILON, available
from ..correctness.rounding_bounds import Known, beyond, slack
from ..devices.device import Buffers, RoundCheck
from ..devices.memory_cpu import Region
from ..numerics.compare import numbers
from ..numerics.tensors import Array
from ..timing.rounds import Rounds

LOOKED_AT = 1 << 16
"""Elements of a larger output of which double precision is asked: so many of the wrong ones that are farthest beyond
the tolerance, so many of them drawn, and as many others, as what rounding does to an element is told by those of its
size too (judge/correctness/rounding_bounds.py)."""
MOST = 4 * LOOKED_AT
"""Elements of an output that is looked at whole, and wrong ones that are ordered by how far off they are."""
COARSEST = 1e30
"""Times the tolerance; float32 can hold what that makes."""


class Look(NamedTuple):
    """Elements of an output of which some are wrong."""

    number: int
    bad: int
    """Wrong elements of the output."""
    at: Array
    """Positions that are looked at: wrong ones that are farthest off, wrong ones that were drawn, and others."""
    farthest: int
    drawn: int
    want: Array
    have: Array
    """What is expected and what is there at these, in double precision."""


class InDouble:
    """Asks the reference, outside the clock."""

    def __init__(self, task: Dict[str, Any], rounds: Rounds, notes: Dict[str, None]) -> None:
        self.task, self.rounds, self.notes = task, rounds, notes

    def read(
        self, buffers: Buffers, verb: str, count: int, call: int = 0, picked: Optional[Dict[str, Array]] = None
    ) -> Optional[Array]:
        """Return so many numbers that the reference writes of a call, `None` if it cannot answer in double precision.

        Args:
            buffers: With the call's inputs.
            verb: `oracle` or `sensitivity`.
            count: How many they are.
            call: Which one of the round.
            picked: Positions in outputs, by the outputs' numbers, where not all elements are wanted.
        """
        if not available(self.task, buffers.outputs):
            return None
        positions = np.concatenate([*picked.values()]) if picked else np.empty(0, dtype=np.int64)
        memory = Region(8 * max(count, positions.size), writable_by_others=True)
        try:
            memory.bytes.view(np.int64)[: positions.size] = positions
            sizes = {number: int(at.size) for number, at in (picked or {}).items()}
            there = self._asked(verb, memory.fd, call=call, picked=sizes)
            return memory.bytes.view(np.float64)[:count].copy() if there else None
        finally:
            memory.close()

    def _asked(self, verb: str, descriptor: int, **fields: Any) -> bool:
        player, begin = self.rounds.reference, time.perf_counter()
        try:
            player.thaw()
            reply = player.ask(verb, 6 * self.rounds.timeout_s, [descriptor], **fields)
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
        rtol, atol = self.tolerances
        found: List[int] = []
        looks: List[Look] = []
        for number, item in enumerate(buffers.outputs):
            count, places = buffers.wrong_places(call, number, self.tolerances, 1.0, MOST)
            found.append(count)
            if count and item.dtype in EPSILON:
                looks.append(self._look(buffers, call, number, count, places))
        for look, known in zip(looks, self._known(buffers, call, looks)):
            more = slack(look.want, buffers.inputs, buffers.outputs[look.number], known)
            most = atol + rtol * np.abs(look.want) + more
            left = beyond(look.have, look.want, most)[: look.farthest + look.drawn]
            share = np.count_nonzero(left[look.farthest :]) / max(1, look.drawn)
            found[look.number] = max(int(np.count_nonzero(left)), math.ceil(share * look.bad))
        return found

    def _look(self, buffers: Buffers, call: int, number: int, count: int, places: Array) -> Look:
        """Choose the elements that are looked at: of a small output all."""
        item = buffers.outputs[number]
        if item.count <= MOST:
            at = np.concatenate([places, np.setdiff1d(np.arange(item.count), places, assume_unique=True)])
            return Look(number, count, at, 0, count, *self._elements(buffers, call, number, at))
        if count <= MOST:
            drawn = places[self._drawn(count)]
        else:
            drawn = buffers.wrong_places(call, number, self.tolerances, LOOKED_AT / count, MOST)[1]
            places = np.union1d(drawn, self._further(buffers, call, number, count, drawn))
        farthest = places[:0]
        if places.size > LOOKED_AT:
            far = self._times_beyond(*self._elements(buffers, call, number, places))
            farthest = places[np.argpartition(far, -LOOKED_AT)[-LOOKED_AT:]]
        drawn, others = np.setdiff1d(drawn, farthest), self._drawn(item.count)
        want, have = self._elements(buffers, call, number, others)
        at = np.concatenate([farthest, drawn, others[self._times_beyond(want, have) <= 1]])
        return Look(number, count, at, farthest.size, drawn.size, *self._elements(buffers, call, number, at))

    def _further(self, buffers: Buffers, call: int, number: int, count: int, drawn: Array) -> Array:
        """Return wrong elements that are farther off than all but some of the drawn ones, about twice `LOOKED_AT`."""
        far = np.sort(self._times_beyond(*self._elements(buffers, call, number, drawn)))
        times = min(float(far[-(far.size * 2 * LOOKED_AT // count) :][0]), COARSEST) if far.size else 1.0
        rtol, atol = self.tolerances
        return buffers.wrong_places(call, number, (times * rtol, times * atol), 1.0, MOST)[1]

    @property
    def tolerances(self) -> Tuple[float, float]:
        """The relative and the absolute one."""
        return float(self.task["rtol"]), float(self.task["atol"])

    def _times_beyond(self, want: Array, have: Array) -> Array:
        """Return how many times the tolerance elements are off, infinite where that is no number."""
        rtol, atol = self.tolerances
        with np.errstate(all="ignore"):
            far: Array = np.abs(have - want) / (max(atol, 1e-300) + rtol * np.abs(want))
        far[have == want] = 0.0
        far[np.isnan(have) & np.isnan(want)] = 0.0
        return np.where(np.isnan(far), np.inf, far)

    def _elements(self, buffers: Buffers, call: int, number: int, at: Array) -> Tuple[Array, Array]:
        """Return what is expected and what is there at some positions, in double precision."""
        want, have = buffers.elements_at(call, number, at)
        dtype = buffers.outputs[number].dtype
        return numbers(want, dtype).astype(np.float64), numbers(have, dtype).astype(np.float64)

    def _drawn(self, size: int) -> Array:
        """Return some positions, or all if they are few."""
        if size <= LOOKED_AT:
            return np.arange(size)
        some: Array = np.unique(self.rounds.history.well.positions(LOOKED_AT, size))
        return some

    def _known(self, buffers: Buffers, call: int, looks: Sequence[Look]) -> Sequence[Optional[Known]]:
        """Return what double precision says of elements of some outputs."""
        if not looks:
            return []
        picked: Dict[str, Array] = {str(look.number): look.at for look in looks}
        sizes = [look.at.size for look in looks for _ in Known._fields]
        told = self.read(buffers, "sensitivity", sum(sizes), call, picked)
        if told is None:
            return [None] * len(looks)
        parts = iter(np.split(told, np.cumsum(sizes)[:-1]))
        return [Known(next(parts), next(parts)) for _ in looks]
