"""What the reference says in double precision of answers: how exact one can be, and what rounding allows."""

import math
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
from check import compare, numbers
from devices import Buffers, RoundCheck
from memory_cpu import Region
from oracle import EPSILON, available
from rounding import Known, beyond, slack
from rounds import Rounds
from tensors import Array

LOOKED_AT = 1 << 16
"""Elements of a larger output of which double precision is asked: so many of the wrong ones that are farthest beyond
the tolerance, so many of them drawn, and as many others, as what rounding does to an element is told by those of its
size too (judge/rounding.py)."""


COARSE = 1e30
"""A tolerance that float32 can hold."""


class Look(NamedTuple):
    """An output with wrong elements."""

    number: int
    at: Array
    """Positions that are looked at: wrong ones that are farthest off, wrong ones that were drawn, and others."""
    farthest: int
    drawn: int
    expected: Array
    got: Array
    mask: Array
    """Which elements are beyond the tolerance."""


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
        rtol, atol = float(self.task["rtol"]), float(self.task["atol"])
        found: List[int] = []
        looks: List[Look] = []
        for number, item in enumerate(buffers.outputs):
            expected, got = buffers.pair(call, number)
            mask = compare(expected, got, item.dtype, rtol, atol).mask
            found.append(0 if mask is None else int(np.count_nonzero(mask)))
            if mask is not None and item.dtype in EPSILON:
                looks.append(self._look(number, expected, got, mask, item.dtype))
        for look, known in zip(looks, self._known(buffers, call, looks)):
            item, at, many = buffers.outputs[look.number], look.at, found[look.number]
            if known is None:
                at = np.concatenate([np.flatnonzero(look.mask), np.flatnonzero(~look.mask)])
            want, have = (numbers(part[at], item.dtype).astype(np.float64) for part in (look.expected, look.got))
            most = atol + rtol * np.abs(want) + slack(want, buffers.inputs, item, known)
            left = look.mask[at] & beyond(have, want, most)
            drawn = slice(look.farthest, look.farthest + look.drawn) if known is not None else slice(0, many)
            share = np.count_nonzero(left[drawn]) / max(1, left[drawn].size)
            found[look.number] = max(int(np.count_nonzero(left)), math.ceil(share * many))
        return found

    def _look(self, number: int, expected: Array, got: Array, mask: Array, dtype: str) -> "Look":
        """Choose the elements that are looked at: of a small output all."""
        wrong = np.flatnonzero(mask)
        if mask.size <= 4 * LOOKED_AT:
            at = np.concatenate([wrong, np.flatnonzero(~mask)])
            return Look(number, at, 0, wrong.size, expected, got, mask)
        drawn, some = wrong[self._drawn(wrong.size)], self._drawn(mask.size)
        farthest = self._farthest(expected, got, wrong, drawn, dtype)
        drawn = np.setdiff1d(drawn, farthest)
        at = np.concatenate([farthest, drawn, some[~mask[some]]])
        return Look(number, at, farthest.size, drawn.size, expected, got, mask)

    def _farthest(self, expected: Array, got: Array, wrong: Array, drawn: Array, dtype: str) -> Array:
        """Return those of wrong elements that are farthest beyond the tolerance; none where they are few.

        Of many, only those are ordered that are farther off than all but some of the drawn ones.
        """
        if wrong.size <= LOOKED_AT:
            return wrong[:0]
        if wrong.size > 4 * LOOKED_AT:
            times = np.sort(self._times_beyond(expected, got, drawn, dtype))[-drawn.size * 2 * LOOKED_AT // wrong.size]
            rtol, atol = (min(float(self.task[name]) * float(times), COARSE) for name in ("rtol", "atol"))
            mask = compare(expected, got, dtype, rtol, atol).mask
            further = wrong[:0] if mask is None else np.flatnonzero(mask)
            wrong = further if LOOKED_AT < further.size < wrong.size else wrong
        far = self._times_beyond(expected, got, wrong, dtype)
        farthest: Array = wrong[np.argpartition(far, -LOOKED_AT)[-LOOKED_AT:]]
        return farthest

    def _times_beyond(self, expected: Array, got: Array, at: Array, dtype: str) -> Array:
        """Return how many times the tolerance elements are off, infinite where that is no number."""
        want, have = (numbers(part[at], dtype).astype(np.float64) for part in (expected, got))
        with np.errstate(all="ignore"):
            allowed = max(float(self.task["atol"]), 1e-300) + float(self.task["rtol"]) * np.abs(want)
            far: Array = np.abs(have - want) / allowed
        return np.where(np.isnan(far), np.inf, far)

    def _drawn(self, size: int) -> Array:
        """Return some positions, or all if they are few."""
        if size <= LOOKED_AT:
            return np.arange(size)
        some: Array = np.unique(self.rounds.history.well.positions(LOOKED_AT, size))
        return some

    def _known(self, buffers: Buffers, call: int, looks: Sequence["Look"]) -> Sequence[Optional[Known]]:
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
