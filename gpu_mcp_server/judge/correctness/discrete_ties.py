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

Floats may follow from a few such elements, as means from clusters. They are right if the reference gives both to the
same moved inputs (whole_answers.py).

How inputs are moved follows from the owner's secret seed. Where the answer depends on more than the order, no more
elements are forgiven than chance explains. What each element could be is not yet what all of them can: an answer
must keep what stays as it is of all answers to moved inputs, as the reference's own must (line_invariants.py).
"""

import contextlib
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
from .fp64_reference import EPSILON, moved_by
from .line_invariants import Lines, repeats_places
from .named_equals import WHOLES, all_name_equals
from .whole_answers import follow

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
MOSTLY = 0.75
"""Of moved inputs, those that change an answer: of a tie of two about half."""
ONE_WAY = ("rising", "falling")
LEAST = 3
SHARE = 0.01
"""Of computed answers, what may be forgiven at a shape: the first few, and this share of all compared in rounds where
some differ.
Uniform float32 have 2^24 values, so one of n numbers has an equal with a chance of n 2^-24, which is 1 % at
n = 168,000; the largest of n normal ones has one with a chance of about ulp(m) m, m = sqrt(2 ln n), or 1e-6 at 1000."""
MOST_ELEMENTS = 1 << 26
AT_ONCE = 1 << 20
"""Elements of a call that are looked at, and of calls that are asked for together."""
MOST_S = 40.0
"""At a shape. Beyond it nobody knows whether an answer is wrong, so there is no verdict. Some 25 rounds are looked at
there: 20 s were too few on an H100 for 16.6 million indices of float16 in each."""
OFTEN = (
    "%d of a round's %d calls differ where values may tie, and %.0f s were too short to check them; let inputs tie "
    "less often (a distribution of floats), or let the problem return the values instead of their indices"
)
CHAOTIC = (
    "; rounding decides such elements: the reference's own answer changes there with the last places of its inputs. "
    "Let it return what jumps less, or compile without contraction, such as -ffp-contract=off"
)
MANY = "; the judge did not look whether floats follow from ties: more indices or codes differ than rounding explains"
LARGE = "; the judge did not look whether values tie: it looks at %d elements of a call, and these are %d"


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

    reason = ""
    """No reason of its own: elements say why an answer is wrong."""

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
        self.advice = ""
        """On what the last round left wrong: why nothing forgave it, where that is not the candidate's fault alone."""
        self.amount = 0.0
        """How far an input may be moved where the answer depends on more."""
        self.seed, self.opposite = 0, True
        """Of the last move, and whether it went against the one before: of both, one decides a tie of two otherwise."""
        self.any_is_right = True  # of equal elements
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
        if check.passed or not which or not self.any_is_right:
            return check
        count = sum(buffers.outputs[number].count for number in which)
        self.compared += len(check.wrong) * count
        calls = [int(call) for call in np.flatnonzero(check.wrong.any(axis=1))]
        open_inputs = any(item.dtype in EPSILON and item.dtype != "float64" for item in buffers.inputs)
        self.wholes = bool(buffers.inputs) and all(item.dtype in WHOLES for item in buffers.inputs)
        follows: Array = np.asarray(np.delete(check.wrong, which, axis=1).any(axis=1))
        self.advice, self.open = "", {}
        # Double precision adds nothing to inputs of float64.
        if not (open_inputs or self.wholes) or not self._may_follow(check.wrong[:, which], follows):
            return check
        largest = self._elements_of(buffers, count, follows)
        if largest > MOST_ELEMENTS:
            self.advice = LARGE % (MOST_ELEMENTS, largest)
            # A few elements may all tie: then the judge does not know whether they are wrong.
            if self._few(check.wrong[:, which]):
                raise JudgeFailed(self.advice[2:])
            return check
        self.amount = moved_by(buffers.inputs)
        left, step = check.wrong.copy(), max(1, AT_ONCE // largest)
        begin = time.monotonic()
        self.until = begin + self.left_s
        self.reference.thaw()
        try:
            for start in range(0, len(calls), step):
                suspects = self._suspects(buffers, check, calls[start : start + step], which)
                if suspects is None:
                    break
                open_calls = self._look(buffers, suspects, check, follows)
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

    def _look(self, buffers: Buffers, suspects: Suspects, check: RoundCheck, follows: Array) -> Array:
        """Strike out what is as right as the reference's, and return which calls nothing explains."""
        before = self.forgiven
        if not self.wholes:
            self._clear(suspects)
        elif all_name_equals(buffers, suspects.calls, suspects.items, suspects.expected, [suspects.got]):
            self._clear_wholes(buffers, suspects)
        open_calls: Array = np.asarray(suspects.wrong.any(axis=1))
        for row in np.flatnonzero(~open_calls & follows[suspects.calls]):
            open_calls[row] = not self._follow(buffers, suspects, int(row), check)
            # The same elements count once more where double precision forgives the floats by themselves.
            self.forgiven = before if open_calls[row] else self.forgiven
        return open_calls

    def _elements_of(self, buffers: Buffers, discrete: int, follows: Array) -> int:
        """Return how many elements of a call are read at once: an input's, or those of all outputs."""
        read = [item.count for item in (buffers.inputs if self.wholes else buffers.outputs)]
        return max(discrete, *read) if self.wholes else sum(read) if follows.any() else discrete

    def _may_follow(self, discrete: Array, follows: Array) -> bool:
        """Say whether wrong floats may follow from wrong discrete elements: from few, in the same calls."""
        beside = not self.wholes and bool(discrete[follows].any(axis=1).all())
        self.advice = MANY if follows.any() and beside and not self._few(discrete) else ""
        return not follows.any() or (beside and not self.advice)

    def _few(self, wrong: Array) -> bool:
        return int(wrong.sum()) <= LEAST + SHARE * self.compared

    def _follow(self, buffers: Buffers, suspects: Suspects, row: int, check: RoundCheck) -> bool:
        """Say whether a call's floats are right with its discrete answers."""
        call, amount, row_ = suspects.calls[row], 0.0 if self.ordinal else self.amount, np.array([row])
        ways = ("exact", *ONE_WAY, *["moved"] * TRIES)
        answers = (None if self._late() else self._moved(suspects, row_, way, amount, buffers) for way in ways)
        return follow(buffers, call, check.wrong[call], answers, (self.rtol, self.atol))

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
        if closed.any():
            return
        if all_name_equals(buffers, suspects.calls, suspects.items, suspects.expected, found):
            suspects.wrong[:] = False

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
        many = self.forgiven > LEAST + SHARE * self.compared
        if many or repeats_places(suspects.items, suspects.expected, suspects.got):
            return
        ways, in_vain, since, tries, most = iter(ONE_WAY if self.ordinal else ()), 0, time.monotonic(), 0, left
        as_it_was, all_calls, last = wrong.copy(), np.flatnonzero(wrong.any(axis=1)), None
        others = np.zeros(wrong.shape, dtype=np.int32)
        while left and self._hopes(in_vain, since) and not self._late():
            calls = np.flatnonzero(wrong.any(axis=1))
            way = next(ways, "moved")
            found = self._moved(suspects, calls, way, amount)
            if found is None:
                return
            wrong[calls] &= found != suspects.got[calls]
            others[calls] += found != suspects.expected[calls]
            before, left = left, int(np.count_nonzero(wrong))
            in_vain, tries = in_vain + 1, tries + 1
            if tries == HALFWAY and not self.ordinal and left > LEAST + MOST_OPEN * most:
                return
            if left < before:
                in_vain, since, self.tied = 0, time.monotonic(), True
            if last is not None and way == "moved" and last.shape == found.shape:
                self.lines.see(suspects.items, last, found)
            last = found if way == "moved" else None
        # Equals decide an order whatever is rounded, so they are no chaos.
        if left and not self.ordinal and tries >= TRIES and (others[wrong] >= MOSTLY * tries).all():
            self.advice = CHAOTIC
        if not left and not self._keeps_lines(suspects, all_calls, amount):
            wrong |= as_it_was

    def _hopes(self, in_vain: int, since: float) -> bool:
        """Say whether another try is worth it after so many in vain, `since` the last one that was not."""
        more = self.ordinal and self.tied and time.monotonic() - since < MORE_S
        return in_vain < (MORE_TRIES if more else TRIES)

    def _moved(
        self, suspects: Suspects, calls: Array, how: str, amount: float, every: Optional[Buffers] = None
    ) -> Optional[Array]:
        self.opposite = how == "moved" and not self.opposite
        self.seed = self.seed if self.opposite else self.well.word() >> 1
        more = {"amount": amount, "seed": self.seed, "opposite": self.opposite, "zeros": self.zeros}
        return self._ask(suspects, calls, every, how=how, **more)

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

    def _ask(self, suspects: Suspects, which: Array, every: Optional[Buffers] = None, **how: Any) -> Optional[Array]:
        """Return the reference's discrete answers to some of the calls in double precision, `None` if it has none.

        Of `every` output where buffers are given, floats as their bits.
        """
        calls = [suspects.calls[int(row)] for row in which.tolist()]
        items = every.outputs if every else suspects.items
        size = 8 * len(calls) * sum(item.count for item in items)
        with contextlib.closing(Region(size, writable_by_others=True)) as memory:
            reply: Dict[str, Any] = self.reference.ask(
                "decide", 6 * self.timeout_s, [memory.fd], calls=calls, wholes=self.wholes, every=bool(every), **how
            )
            if reply.get("error"):
                return None
            return memory.bytes.view(np.int64).reshape(len(calls), -1).copy()

    def excuse_note(self, buffers: Buffers) -> str:
        """Return the note on a round in which something was forgiven."""
        names: List[str] = [item.name for item in buffers.outputs if item.discrete]
        text = "some elements of %s differ from the reference's and are as right: they tie within rounding"
        return text % ", ".join(names)
