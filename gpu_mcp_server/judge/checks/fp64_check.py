"""Compares answers with the reference in double precision: their exactness, and the effect of rounding."""

import contextlib
import math
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np

from ..correctness.error_statistics import NOTHING_LIKE, SCATTERED
from ..correctness.fp64_reference import EPSILON, available, movable
from ..correctness.rounding_bounds import Known, beyond, slack
from ..devices.device import Buffers, RoundCheck
from ..devices.memory_cpu import Region
from ..numerics.compare import LARGE, numbers
from ..numerics.tensors import Array
from ..timing.rounds import Rounds
from ..verdicts import JudgeFailed

LOOKED_AT = 1 << 16
"""Elements of a larger output of which double precision is asked: so many of the wrong ones that are farthest beyond
the tolerance, so many of them drawn, and as many others, as what rounding does to an element is told by those of its
size too (judge/correctness/rounding_bounds.py)."""
IN_DOUBLE = {"cpu": LARGE, "cuda": 1 << 26}
"""Elements of the largest tensor, up to which double precision is asked by a device: it takes seconds and memory."""
MOST = 4 * LOOKED_AT
"""Elements of an output that is looked at whole, and wrong ones that are ordered by how far off they are."""
AS_EXACT = 2.0
"""Times the reference's errors that an answer's may be, where many tell: the next coarser type has eight times as large
ones or more."""
BY_CHANCE, COARSER = 8.0, 8.0
"""Over the root of how many elements err, what chance adds to that, and the most that may come of it. Each of hundreds
of calls is asked: of two equally exact answers of eight elements or more, one in some 10,000 looks less exact (roots of
the F distribution's 99.99th percentile: 4.8 for eight elements, 2.8 for sixteen)."""
LARGEST = 4.0
"""The same of the largest error of all: of two equally exact answers one's is now and then more than twice the other's,
where sums of few terms and of many lie side by side."""
NEIGHBOURS = 512
"""Elements of about the same size, whose errors are compared with the reference's."""
FEW = 16
"""Gross errors that are none too many: where partial sums are large, one in some 10,000 is, now more and now fewer."""
ROOT_MEAN_SQUARE = math.sqrt(math.pi / 2)
"""Of normal errors, in mean absolute ones. A mean is led astray by a few large errors less than a mean square."""
NO_MEASURE = 0.5
"""Of a value, or of all as a root mean square: a reference that is farther off says nothing of what a candidate may be.
"""
MOST_S = 40.0
"""At a shape, for wrong calls that are as exact as the reference; beyond it there is no verdict."""
SLOW = (
    "the reference is about as far from double precision as the candidate, or farther, and %.0f s were too short to "
    "check all such calls; let the reference compute in a wider type, or widen the tolerance"
)
FARTHER = (
    "the reference is about as far from double precision as the candidate, or farther, in %s: such differences do "
    "not count"
)
NARROW = (
    "the wrong elements are no farther off than rounding may put them: TF32's, or that of many terms added one after "
    "the other. Add in parts or in a wider type. An epsilon that differs a little does the same. If no kernel can be "
    "so exact, widen the problem's tolerance"
)
CLOSE = 16.0
"""Times the tolerance, up to which it is asked whether rounding explains a wrong answer; that takes seconds."""
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


def as_exact(
    exact: Array,
    want: Array,
    have: Array,
    tolerances: Tuple[float, float],
    leeway: float = 1.0,
    moved: Optional[Array] = None,
) -> Optional[Array]:
    """Say of each element whether it is within the tolerance of double precision, or as near as the reference.

    Two right answers in one precision lie about the exact one, so that an element may well be farther off than the
    reference's. As near are elements whose errors are at most twice as large as the reference's among those of
    about their size, by their mean, and of which hardly more are gross. Where few elements err, chance is allowed
    more, of errors as rounding makes them: a reference that is far off itself would excuse anything. What neither
    answer errs in, as zeros outside of a triangle, has no part in a mean. A reference that is off by half of all
    values is no measure. `None` where it is clearly more exact as a whole.

    Args:
        exact: In double precision.
        want: The reference's answer.
        have: The candidate's.
        tolerances: The relative and the absolute one.
        leeway: Times all of that which is allowed.
        moved: How far each element moves with the inputs, by which those of about its size are told instead: what is
            left of large terms errs far more than others of its size.
    """
    rtol, atol = tolerances
    with np.errstate(all="ignore"):
        own, off, size = np.abs(have - exact), np.abs(want - exact), np.abs(exact)
        known = np.isfinite(own) & np.isfinite(off)
        told = np.flatnonzero(known & (own + off > 0))
        rounded = own <= np.maximum(NOTHING_LIKE * size, CLOSE * (atol + rtol * size))
        chance = BY_CHANCE / math.sqrt(max(1, told.size)) if rounded[told].all() else 0.0
        most = leeway * min(COARSER, AS_EXACT + chance)
        # By groups: a large element's error, or a small one's in parts of itself, must excuse no other element.
        ordered = told[np.argsort((size if moved is None else moved)[told], kind="stable")]
        groups = np.array_split(ordered, max(1, ordered.size // NEIGHBOURS))
        usual = _usual(off, groups)
        mine, its = (part[usual > 0] / usual[usual > 0] for part in (own, off))
        # Over all elements: a few that are right by luck make no answer the more exact one.
        if not mine.size or np.mean(mine**2) > most**2 * np.mean(its**2):
            return None
        off[off > NO_MEASURE * np.maximum(size, np.sqrt(np.mean(size[known] ** 2)))] = 0.0
        usual = _usual(off, groups)
        alike = (usual > 0) & (_usual(own, groups) <= most * usual)
        times, theirs = np.where(alike, own / usual, np.inf), np.where(alike, off / usual, 0.0)
        within: Array = own <= leeway * (atol + rtol * size)
        gross = (times > SCATTERED) & ~within
        few = np.count_nonzero(gross) <= AS_EXACT * np.count_nonzero(theirs > SCATTERED) + FEW
        largest = max(AS_EXACT * SCATTERED, LARGEST * float(theirs.max())) if few else SCATTERED
    found: Array = (within | (times <= leeway * largest)) & np.isfinite(exact)
    return found


def _usual(errors: Array, groups: Sequence[Array]) -> Array:
    """Return the usual error among elements of about the same size, 0 for those of no group."""
    found = np.zeros(errors.shape)
    for alike in groups:
        found[alike] = ROOT_MEAN_SQUARE * np.mean(errors[alike]) if alike.size else 0.0
    return found


class InDouble:
    """Asks the reference, outside the clock; allows so many times what it allows otherwise."""

    def __init__(self, rounds: Rounds, notes: Dict[str, None], leeway: float = 1.0) -> None:
        self.left_s, self.leeway = MOST_S, leeway
        self.task, self.rounds, self.notes = rounds.task, rounds, notes

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
        if not (movable if verb == "sensitivity" else available)(self.task, buffers.outputs):
            return None
        positions = np.concatenate([*picked.values()]) if picked else np.empty(0, dtype=np.int64)
        with contextlib.closing(Region(8 * max(count, positions.size), writable_by_others=True)) as memory:
            memory.bytes.view(np.int64)[: positions.size] = positions
            sizes = {number: int(at.size) for number, at in (picked or {}).items()}
            there = self._asked(verb, memory.fd, call=call, picked=sizes)
            return memory.bytes.view(np.float64)[:count].copy() if there else None

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
            # The reference reports its own time; no more of it is believed than passed here.
            self.rounds.ledger.move(min(max(ran_s, 0.0), time.perf_counter() - begin), "reference")
        return True

    def forgiven(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Compare wrong calls once more, and allow what rounding of inputs and partial sums does to each element.

        And what is as near to double precision as the reference.
        """
        wrong = check.wrong.copy()
        for call in np.flatnonzero(check.wrong.any(axis=1)).tolist():
            counts, looks = self._looks(buffers, call)
            known = self._known(buffers, call, looks)
            wrong[call] = self._left(buffers, call, counts, looks, {}, known, rounding=True)
        return check._replace(wrong=wrong)

    def excuse(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Compare wrong calls once more, and allow what is as near to double precision as the reference.

        The first call in which something else is wrong ends it, as the round has failed then.
        """
        wrong = check.wrong.copy()
        for call in np.flatnonzero(check.wrong.any(axis=1)).tolist():
            begin = time.perf_counter()
            wrong[call] = self._excused(buffers, call)
            self.left_s -= time.perf_counter() - begin
            if wrong[call].any():
                break
            if self.left_s < 0:
                raise JudgeFailed(SLOW % MOST_S)
        return check._replace(wrong=wrong)

    def _is_close(self, buffers: Buffers, call: int) -> bool:
        """Say whether no element of a call is off by many times the tolerance."""
        rtol, atol = (CLOSE * each for each in self.tolerances)
        return not any(
            buffers.wrong_places(call, number, (rtol, atol), 1.0, 1)[0] for number in range(len(buffers.outputs))
        )

    def _looks(self, buffers: Buffers, call: int) -> Tuple[List[int], List[Look]]:
        """Return how many elements of each output are wrong, and elements of those that have some."""
        counts: List[int] = []
        looks: List[Look] = []
        for number, item in enumerate(buffers.outputs):
            count, places = buffers.wrong_places(call, number, self.tolerances, 1.0, MOST)
            counts.append(count)
            if count and item.dtype in EPSILON:
                looks.append(self._look(buffers, call, number, count, places))
        return counts, looks

    def _excused(self, buffers: Buffers, call: int) -> List[int]:
        """Return how many elements of each output are wrong, but for what is as exact as the reference.

        Elements are compared with those of their size, which costs little. Where that leaves some, and the reference
        errs by more than the tolerance, they are compared with those that the inputs move as far.
        """
        counts, looks = self._looks(buffers, call)
        exact, known = cast("Dict[int, Array]", {}), cast("Sequence[Optional[Known]]", [None] * len(looks))
        found = self._left(buffers, call, counts, looks, exact, known)
        is_close = any(found) and self._is_close(buffers, call)
        if is_close or (any(found) and self._reference_errs(looks, exact)):
            known = self._known(buffers, call, looks)
            found = self._left(buffers, call, counts, looks, exact, known)
        if is_close and any(found) and not any(self._left(buffers, call, counts, looks, exact, known, rounding=True)):
            self.notes[NARROW] = None
        return found

    def _reference_errs(self, looks: Sequence[Look], exact: Dict[int, Array]) -> bool:
        """Say whether the reference is farther from double precision than the tolerance."""
        rtol, atol = self.tolerances
        pairs = [(look.want, exact[look.number]) for look in looks if look.number in exact]
        return any(beyond(want, double, atol + rtol * np.abs(double)).any() for want, double in pairs)

    def _left(
        self,
        buffers: Buffers,
        call: int,
        counts: Sequence[int],
        looks: Sequence[Look],
        exact: Dict[int, Array],
        known: Sequence[Optional[Known]],
        *,
        rounding: bool = False,
    ) -> List[int]:
        """Return how many elements of each output are wrong all the same; `rounding` allows what it may do to each.

        What is asked in double precision is added to `exact`, by the outputs' numbers.
        """
        rtol, atol = self.tolerances
        found, left = list(counts), cast("List[Array]", [])
        for look, told in zip(looks, known):
            more = slack(look.want, buffers.inputs, buffers.outputs[look.number], told) if rounding else 0.0
            most = self.leeway * (atol + rtol * np.abs(look.want) + more)
            left.append(beyond(look.have, look.want, most)[: look.farthest + look.drawn])
        for look, some in zip(looks, self._without_as_exact(buffers, call, looks, left, exact, known)):
            # The drawn ones stand for all wrong elements: their share is what is left of those that were not looked at.
            share = np.count_nonzero(some[look.farthest :]) / max(1, look.drawn)
            found[look.number] = max(int(np.count_nonzero(some)), math.ceil(share * look.bad))
        return found

    def _without_as_exact(
        self,
        buffers: Buffers,
        call: int,
        looks: Sequence[Look],
        left: Sequence[Array],
        exact: Dict[int, Array],
        known: Sequence[Optional[Known]],
    ) -> Sequence[Array]:
        """Return which wrong elements are left where they are not as near to double precision as the reference."""
        wrong = [look for look, some in zip(looks, left) if some.any() and look.number not in exact]
        picked: Dict[str, Array] = {str(look.number): look.at for look in wrong}
        sizes = [look.at.size for look in wrong]
        small = max(item.count for item in [*buffers.inputs, *buffers.outputs]) <= IN_DOUBLE[self.rounds.device.kind]
        told = self.read(buffers, "oracle", sum(sizes), call, picked) if wrong and small else None
        if told is not None:
            exact.update((look.number, part) for look, part in zip(wrong, np.split(told, np.cumsum(sizes)[:-1])))
        found: List[Array] = []
        for look, some, rounded in zip(looks, left, known):
            if some.any() and look.number in exact:
                double, ways = exact[look.number], cast("List[Optional[Array]]", [None])
                if rounded:
                    # By what the inputs add up to. Constants of the problem's own are rounded too, and do not move.
                    given = max(EPSILON[item.dtype] for item in buffers.inputs if item.dtype in EPSILON)
                    ways.append(np.fmax(rounded.moved * (2 / given), np.abs(double)))
                near = (as_exact(double, look.want, look.have, self.tolerances, self.leeway, way) for way in ways)
                if any(each is not None and not (some & ~each[: some.size]).any() for each in near):
                    self.notes[FARTHER % buffers.outputs[look.number].name] = None
                    some = np.zeros_like(some)
            found.append(some)
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
            # Too many to order: a sample tells how far off the farthest are, and a second pass takes those alone.
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
        some: Array = np.unique(self.rounds.well.positions(LOOKED_AT, size))
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
