"""Discrete answers that differ from the reference's and are as right: where two candidates for an index tie, or nearly.

An index, a class, a bit, a float of eight bits jumps: where two maxima are equal, or so close that rounding decides,
the reference says one and a right candidate another. Such an element is forgiven if the reference itself gives the
candidate's answer in double precision, to the inputs as they are or to inputs moved by no more than they may be off:

- where the answer only depends on the order of the inputs (it stays when every input is squared and keeps its sign), by
  less than a quarter of a last place each. Such an input is still stored as the same number, and two that are not
  equal keep their order: only exact ties are open, and all of them (how often short floats tie is up to the data).
  Zeros are moved where their sign means nothing either.
- otherwise by sqrt(n) u, or half a last place if that is more. The answer of a sum or product of n terms in float32 is
  the exact one to inputs that are off by so much. Source: Higham, Mary, A New Approach to Probabilistic Rounding Error
  Analysis, SIAM J. Sci. Comput. 41, 2019 (theorem 3.1, with lambda 1).
- where all inputs are whole numbers, by less than a quarter. An index may be that of any element equal to the expected
  one (named_equals.py), if the answer depends on the order alone and moves change it there; nothing else is forgiven.

How inputs are moved follows from the owner's secret seed. Where the answer depends on more than the order, no more
elements are forgiven than chance explains. What each element could be is not yet what all of them can: an answer
must keep what stays as it is of all answers to moved inputs, as the reference's own must (line_invariants.py).
"""

import math
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from ..channel.supervisor_client import Player
from ..devices.device import Buffers, RoundCheck
from ..devices.memory_cpu import Region
from ..numerics.compare import compare
from ..numerics.random_inputs import Well
from ..numerics.tensors import Array, Tensor
from ..verdicts import JudgeFailed
from .fp64_reference import EPSILON
from .line_invariants import Lines
from .named_equals import INDICES, WHOLES, distinct, name_equals

TRIES = 48
"""Of moved inputs, in a row and in vain. Each decides a tie of two either way, of two that rounding has parted with a
chance of 0.4 at least: that all of them decide the same has one of 2e-11, and a candidate may have 100,000 ties. Ties
of many are mostly decided for the first or the last, which is tried before chance."""
MORE_TRIES = 256
MORE_S = 2.0
"""The same, and for how long, where the answer depends on the order alone and some ties were found: of k that tie each
try decides for one, so 48 tries miss one of four with a chance of 1e-6, one of six with 2e-4, and 256 one of ten with
2e-12."""
HALFWAY, MOST_OPEN = TRIES // 2, 0.25
"""Tries after which a larger share of computed answers that nothing explained will not be explained: were all off by
up to what inputs are moved, evenly, 2 / 25 would be open still."""
ONE_WAY = ("rising", "falling")
LEAST = 3
SHARE = 0.01
"""Of computed answers, what may be forgiven at a shape: the first few, and this share of all compared in rounds where
some differ.
Uniform float32 have 2^24 values, so one of n numbers has an equal with a chance of n 2^-24, which is 1 % at
n = 168,000; the largest of n normal ones has one with a chance of about ulp(m) m, m = sqrt(2 ln n), or 1e-6 at 1000."""
BY_CHANCE = 1e-6
"""The probability below which something is no chance."""
MOST_ELEMENTS = 1 << 26
AT_ONCE = 1 << 20
"""Discrete elements of a round's calls that are looked at, and of those that are asked for together."""
MOST_S = 40.0
"""At a shape. Beyond it nobody knows whether an answer is wrong, so there is no verdict. Some 25 rounds are looked at
there: 20 s were too few on an H100 for 16.6 million indices of float16 in each."""
MOST_TERMS = 1 << 14
"""Beyond which no sum is expected to be taken in order."""
OFTEN = (
    "%d of a round's %d calls differ where values may tie, and %.0f s were too short to check them; let inputs tie "
    "less often (a distribution of floats), or let the problem return the values instead of their indices"
)


def moved_by(inputs: Sequence[Tensor]) -> float:
    """Return how far, relatively, an input of a computed answer may be moved for rounding of float32 in n terms."""
    longest = max((max(item.shape, default=1) for item in inputs), default=1)
    return float(min(longest, MOST_TERMS) ** 0.5 * EPSILON["float32"] / 2)


def by_rule(rows: Array) -> bool:
    """Say whether rows of [rows, length] have no two equal elements, and not by chance (the birthday problem)."""
    if not rows.size or not distinct(rows[:1]) or not distinct(rows):
        return False
    values = float(rows.max()) - float(rows.min()) + 1
    pairs = rows.shape[0] * rows.shape[1] * (rows.shape[1] - 1) / 2
    # Rows of random values would have no equal pair with a probability of about exp(-pairs / values).
    return pairs / values > -math.log(BY_CHANCE)


class Suspects(NamedTuple):
    """Calls of a round with wrong discrete elements, those of all discrete outputs one behind the other."""

    calls: List[int]
    items: Sequence[Tensor]
    expected: Array
    """[calls, elements], as 64-bit integers; so is `got`."""
    got: Array
    wrong: Array
    """[calls, elements], true where nothing has explained the answer yet."""


class Ties:
    """Explains wrong discrete elements at one shape, as long as chance could have made them."""

    def __init__(self, reference: Player, well: Well, rtol: float, atol: float, timeout_s: float) -> None:
        self.reference, self.well, self.rtol, self.atol = reference, well, rtol, atol
        self.timeout_s = timeout_s
        self.compared = self.forgiven = 0
        """Discrete elements, at this shape."""
        self.ordinal: Optional[bool] = None
        """Whether the answer only depends on the order of the inputs, once that was tried."""
        self.tied = False
        """Whether moved inputs ever explained something."""
        self.zeros = False
        """Whether it does not depend on the sign of the inputs either, so that zeros may be moved."""
        self.wholes = False
        """Whether all inputs are whole numbers."""
        self.lines = Lines()
        self.amount = 0.0
        """How far an input may be moved where the answer depends on more."""
        self.left_s, self.until = MOST_S, 0.0
        """For looking at this shape, and until when in this round."""
        self.open: Dict[int, Dict[int, Array]] = {}
        """Of calls of the last round, each discrete output's elements that nothing explained."""

    def excuse(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Return a round's comparison without the calls whose wrong elements are all as right as the reference's.

        Raises:
            JudgeFailed: If that takes longer than `MOST_S` at this shape.
        """
        which = [number for number, item in enumerate(buffers.outputs) if item.discrete]
        if check.passed or not which:
            return check
        count = sum(buffers.outputs[number].count for number in which)
        self.compared += len(check.wrong) * count
        floats = [number for number in range(len(buffers.outputs)) if number not in which]
        calls = [int(call) for call in np.flatnonzero(check.wrong.any(axis=1))]
        open_inputs = any(item.dtype in EPSILON and item.dtype != "float64" for item in buffers.inputs)
        self.wholes = bool(buffers.inputs) and all(item.dtype in WHOLES for item in buffers.inputs)
        most = max([count, *(item.count for item in buffers.inputs if self.wholes)]) * len(calls)
        # A wrong float output fails the round anyway, and double precision adds nothing to inputs of float64.
        if check.wrong[:, floats].any() or not (open_inputs or self.wholes) or most > MOST_ELEMENTS:
            return check
        self.amount, self.open = moved_by(buffers.inputs), {}
        left, step = check.wrong.copy(), max(1, AT_ONCE // count)
        begin = time.monotonic()
        self.until = begin + self.left_s
        self.reference.thaw()
        try:
            for start in range(0, len(calls), step):
                suspects = self._suspects(buffers, check, calls[start : start + step], which)
                if suspects is None:
                    break
                if not self.wholes:
                    self._clear(suspects)
                elif self._name_equals(buffers, suspects, [suspects.got]):
                    self._clear_wholes(buffers, suspects)
                open_calls = np.asarray(suspects.wrong.any(axis=1))
                if self._late() and (open_calls.any() or start + step < len(calls)):
                    raise JudgeFailed(OFTEN % (len(calls), len(check.wrong), MOST_S))
                left[np.array(suspects.calls)[~open_calls]] = 0
                if open_calls.any():
                    self._keep(suspects, which)
                    break
        finally:
            self.reference.freeze()
            self.left_s -= time.monotonic() - begin
        return check._replace(wrong=left)

    def _late(self) -> bool:
        return time.monotonic() > self.until

    def by_signs(self, buffers: Buffers) -> bool:
        """Say whether the first call's discrete answers depend on the inputs' signs alone: equals are no tie then."""
        items = [item for item in buffers.outputs if item.discrete]
        blank = np.zeros((1, sum(item.count for item in items)), dtype=np.int64)
        if blank.size > AT_ONCE:
            return False
        self.reference.thaw()
        try:
            asked = Suspects([0], items, blank, blank, blank)
            found = [self._moved(asked, np.array([0]), how, 0.0) for how in ("exact", "signs")]
        finally:
            self.reference.freeze()
        return found[0] is not None and found[1] is not None and bool((found[0] == found[1]).all())

    def inexcusable_at(self, call: int, output: int, wrong: Optional[Array]) -> Optional[Array]:
        """Return which of an output's wrong elements nothing explained in the last round."""
        left = self.open.get(call, {}).get(output)
        return wrong if wrong is None or left is None or not left.any() else wrong & left

    def _suspects(
        self, buffers: Buffers, check: RoundCheck, calls: List[int], which: Sequence[int]
    ) -> Optional[Suspects]:
        """Read the answers of some calls; `None` where they have changed since they were checked."""
        items = [buffers.outputs[number] for number in which]
        ends = np.cumsum([item.count for item in items])
        shape = (len(calls), int(ends[-1]))
        expected, got = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        wrong = np.zeros(shape, dtype=bool)
        for row, call in enumerate(calls):
            for number, item, end in zip(which, items, ends):
                part = slice(int(end) - item.count, int(end))
                expected[row, part], got[row, part] = want, have = buffers.pair(call, number)
                difference = compare(want, have, item.dtype, self.rtol, self.atol)
                # An output that changed since its check is still being written, and no tie explains that.
                if difference.wrong != check.wrong[call, number]:
                    return None
                if difference.mask is not None:
                    wrong[row, part] = difference.mask
        return Suspects(calls, items, expected, got, wrong)

    def _clear_wholes(self, buffers: Buffers, suspects: Suspects) -> None:
        """Strike out wrong indices that name equals of the expected elements, where the answer turns on their order."""
        every, closed = np.arange(len(suspects.calls)), suspects.wrong.copy()
        exact = self._ask(suspects, every, how="exact")
        if exact is None or not self._by_order(suspects, every, exact):
            return
        ways, found = [*ONE_WAY, *["moved"] * TRIES], [suspects.got]
        # What names an equal need not come out itself: of hundreds that tie each try decides for one.
        while ways and (closed.any() or len(found) <= len(ONE_WAY)) and not self._late():
            moved = self._moved(suspects, every, ways.pop(0), 0.0)
            if moved is None:
                return
            closed &= moved == suspects.expected
            found += [moved] * (len(found) <= len(ONE_WAY))
        if not closed.any() and self._name_equals(buffers, suspects, found):
            suspects.wrong[:] = False

    def _name_equals(self, buffers: Buffers, suspects: Suspects, found: Sequence[Array]) -> bool:
        """Say whether answers, where the candidate's differ, are indices of elements that equal the expected ones."""
        calls, end = np.array(suspects.calls), 0
        inputs = [(buffers.pieces(number, calls, 0, x.count), x.shape) for number, x in enumerate(buffers.inputs)]
        for item in suspects.items:
            part, end = slice(end, end + item.count), end + item.count
            for row in np.flatnonzero((suspects.expected[:, part] != suspects.got[:, part]).any(axis=1)).tolist():
                sides = [side[row, part] for side in (suspects.expected, *found)]
                named = any(name_equals(x[row].reshape(shape), item, *sides) for x, shape in inputs)
                if item.dtype not in INDICES or not named:
                    return False
        return True

    def _keep(self, suspects: Suspects, which: Sequence[int]) -> None:
        ends = np.cumsum([item.count for item in suspects.items])[:-1]
        for call, wrong in zip(suspects.calls, suspects.wrong):
            self.open[call] = dict(zip(which, np.split(wrong, ends)))

    def _clear(self, suspects: Suspects) -> None:
        """Strike out wrong elements that are as right as the reference's."""
        # Once the answer is known to depend on the order alone, moves come first: double precision decides exact ties
        # like the reference.
        if self.ordinal:
            self._move(suspects, 0.0)
        wrong = suspects.wrong
        if not wrong.any():
            return
        calls = np.flatnonzero(wrong.any(axis=1))
        exact = self._ask(suspects, calls, how="exact")
        if exact is None:
            return
        # Double precision clears elements where the reference's own rounding chose the other value.
        wrong[calls] &= exact != suspects.got[calls]
        if self.ordinal or not wrong.any():
            return
        if self.ordinal is None:
            self.ordinal = self._by_order(suspects, calls, exact)
        self._move(suspects, 0.0 if self.ordinal else self.amount)

    def _by_order(self, suspects: Suspects, calls: Array, exact: Array) -> bool:
        """Say whether answers depend on the order of the inputs alone, and see whether on their sign."""
        squares = self._ask(suspects, calls, how="squares")
        ordinal = squares is not None and bool((squares == exact).all())
        places = self._ask(suspects, calls, how="places") if ordinal else None
        self.zeros = places is not None and bool((places == exact).all())
        return ordinal

    def _move(self, suspects: Suspects, amount: float) -> None:
        """Strike out wrong elements that are the answer to some inputs that were moved, unless they are too many.

        A tie of k is decided for one answer by one try of k: it goes on as long as tries explain something.
        """
        wrong = suspects.wrong
        left = int(np.count_nonzero(wrong))
        self.forgiven += 0 if self.ordinal else left
        if self.forgiven > LEAST + SHARE * self.compared or not self._plausible(suspects):
            return
        ways, in_vain, since, tries, most = iter(ONE_WAY if self.ordinal else ()), 0, time.monotonic(), 0, left
        as_it_was, all_calls, last = wrong.copy(), np.flatnonzero(wrong.any(axis=1)), None
        while left and self._hopes(in_vain, since) and not self._late():
            calls = np.flatnonzero(wrong.any(axis=1))
            way = next(ways, "moved")
            found = self._moved(suspects, calls, way, amount)
            if found is None:
                return
            wrong[calls] &= found != suspects.got[calls]
            before, left = left, int(np.count_nonzero(wrong))
            in_vain, tries = in_vain + 1, tries + 1
            if tries == HALFWAY and not self.ordinal and left > LEAST + MOST_OPEN * most:
                return
            if left < before:
                in_vain, since, self.tied = 0, time.monotonic(), True
            if last is not None and way == "moved" and last.shape == found.shape:
                self.lines.see(suspects.items, last, found)
            last = found if way == "moved" else None
        if not left and not self._keeps_lines(suspects, all_calls, amount):
            wrong |= as_it_was

    def _hopes(self, in_vain: int, since: float) -> bool:
        """Say whether another try is worth it after so many in vain, `since` the last one that was not."""
        more = self.ordinal and self.tied and time.monotonic() - since < MORE_S
        return in_vain < (MORE_TRIES if more else TRIES)

    def _moved(self, suspects: Suspects, calls: Array, how: str, amount: float) -> Optional[Array]:
        return self._ask(suspects, calls, how=how, amount=amount, seed=self.well.word() >> 1, zeros=self.zeros)

    def _keeps_lines(self, suspects: Suspects, calls: Array, amount: float) -> bool:
        """Say whether answers keep what stays as it is of all answers to inputs moved by chance.

        One way alone, two inputs that are equal would stay so.
        """
        if not self.lines.strict_axes(suspects.items):
            return True
        first = self._moved(suspects, calls, "moved", amount)
        for _ in range(TRIES):
            sides = (suspects.expected[calls], suspects.got[calls])
            if first is None or not any(self.lines.broken(suspects.items, first, side) for side in sides):
                return first is not None
            other = self._moved(suspects, calls, "moved", amount)
            if other is None:
                return False
            self.lines.see(suspects.items, first, other)
        return False

    def _plausible(self, suspects: Suspects) -> bool:
        """Say whether answers of which no row has one twice, as sorted orders, still are like that."""
        start = 0
        for item in suspects.items:
            part = slice(start, start + item.count)
            start += item.count
            length = item.shape[-1] if item.shape else 1
            want, have = (side[:, part].reshape(-1, length) for side in (suspects.expected, suspects.got))
            if by_rule(want) and not distinct(have):
                return False
        return True

    def _ask(self, suspects: Suspects, which: Array, **how: Any) -> Optional[Array]:
        """Return the reference's discrete answers to some of the calls in double precision, `None` if it has none."""
        calls = [suspects.calls[int(row)] for row in which.tolist()]
        memory = Region(8 * len(calls) * suspects.got.shape[1], writable_by_others=True)
        try:
            reply: Dict[str, Any] = self.reference.ask(
                "decide", 6 * self.timeout_s, [memory.fd], calls=calls, wholes=self.wholes, **how
            )
            if reply.get("error"):
                return None
            return memory.bytes.view(np.int64).reshape(len(calls), -1).copy()
        finally:
            memory.close()

    def excuse_note(self, buffers: Buffers) -> str:
        """Return the note on a round in which something was forgiven."""
        names: List[str] = [item.name for item in buffers.outputs if item.discrete]
        text = "some elements of %s differ from the reference's and are as right: they tie within rounding"
        return text % ", ".join(names)

    def reason(self) -> str:
        """Return nothing: elements say why an answer is wrong."""
        return ""
