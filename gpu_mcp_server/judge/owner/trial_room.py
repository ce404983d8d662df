"""A candidate under trial: the shapes that it is tried at, what was played there, and what was found."""

import math
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..catch_log import CATCHES
from ..checks.distribution_rounds import answered
from ..checks.first_answer import LEEWAY, FirstAnswer, Forgives
from ..checks.fp64_check import InDouble
from ..checks.robustness import Robustness
from ..checks.trial_setup import Table, named_dims
from ..inputs.constraints import Dims
from ..inputs.hidden_shapes import elements
from ..numerics.random_inputs import LONG, WHOLE
from ..numerics.tensors import Tensor
from ..timing.extra_rounds import UNSTEADY
from ..timing.judging_setup import JudgingSetup
from ..timing.rounds import Rounds
from ..verdicts import Judged, ReferenceFailed, incorrect

KEPT_BYTES = 256 << 20
"""Of a shape's buffers, at most, that players keep mapped until they open the next."""
TRIALS_S, OWN_S = 20.0, 60.0
"""After so long the remaining trials are left out, and that is said; what the candidate's own calls may take besides.
One hidden shape and one other distribution are tried whatever that takes: a candidate could be slow on purpose."""
SLOW = "the candidate may take %.2g s, the limit is %.2g s"
MARGIN = 2.0
"""How much longer a call may take than that: what is late at a hidden shape is incorrect, not slow."""
LEAST_SLOW_S = 0.05
"""A shorter call may be mostly what does not grow, such as starting threads."""
EMPTY, OUTSIDE = "returned without computing", "wrote outside its outputs"
"""What an ordinary bug does, too: the former at a shape that the author did not think of, the latter at any."""
VALUES = '; if kernels need not take such values, register the problem with trials: distributions = "declared"'
HINT = '; if kernels need not take such sizes, register the problem with trials: constraints = ["%s"]'

LOOSE = (
    "; %s: whole numbers from 0 to 99, drawn each by itself, at a size of %d too; where they must fit a size or each "
    "other, let get_inputs of a KernelBench file make them"
)
"""What an honest kernel may stumble over: a reference in NumPy cuts a slice at the end of its array."""
OTHER_NUMBERS = ("full", "zeros", "made", "weights")
"""Distributions of whole numbers that are not 0 to 99."""


def loose_indices(inputs: Sequence[Tensor], dims: Dims) -> str:
    """Return which inputs may lead out of the smallest size, if they are used as indices; empty if none."""
    least = min(dims.values(), default=WHOLE["integers"])
    names = [each.name for each in inputs if each.dtype in LONG and each.distribution not in OTHER_NUMBERS]
    return LOOSE % (", ".join(names), least) if names and least < WHOLE["integers"] else ""


def constraint_against(dims: Dims, declared: Sequence[Dims], larger: bool) -> str:
    """Return a constraint that the declared shapes keep and a shape breaks; empty if there is none."""
    most = {name: max(each[name] for each in declared) for name in dims}
    # Memory is contiguous along the last size, so that a tail that is missed is one of it.
    uneven = [name for name in dims if dims[name] % 8 and not any(each[name] % 8 for each in declared)]
    grown = max(dims, key=lambda name: dims[name] / most[name])
    least = min(dims, key=lambda name: dims[name] / min(each[name] for each in declared))
    if not larger and uneven and uneven[-1] == list(dims)[-1]:
        return "%s %% 8 == 0" % uneven[-1]
    if dims[grown] > most[grown]:
        return "%s <= %d" % (grown, most[grown])
    if uneven:
        return "%s %% 8 == 0" % uneven[-1]
    lowest = min(each[least] for each in declared)
    return "%s >= %d" % (least, lowest) if dims[least] < lowest else ""


def named_by_reason(left_out: Iterable[str]) -> List[str]:
    """Join what was left out for one reason, each `what (reason)`, so that the reason is said once."""
    found: Dict[str, List[str]] = {}
    for each in left_out:
        what, _, why = each.partition(" (")
        found.setdefault(why, []).append(what)
    return ["%s (%s" % (", ".join(what), why) if why else ", ".join(what) for why, what in found.items()]


class TrialRoom:
    """Has a candidate tried, call by call, and remembers what came of it."""

    def __init__(self, setup: JudgingSetup, robustness: Robustness) -> None:
        self.setup, self.robustness = setup, robustness
        self.task, self.device, self.well = setup.task, setup.device, setup.well
        self.entries: List[Dict[str, Any]] = []
        self.errors: Dict[str, Any] = {}
        """By output, of candidate and reference against double precision."""
        self.notes: Dict[str, None] = {}
        self.left_out: Dict[str, None] = {}
        self.begin, self.own_s = time.monotonic(), 0.0
        self.call_s = math.inf
        """What a call of the candidate's took at the smallest declared shape, the least of all so far."""
        self.slow = ""
        """Why shapes were not tried, if calls may take too long there."""
        self.smallest: Dims = min(self.task["shapes"], key=lambda dims: elements(self.task, dims))
        self.infinite = False
        """Whether the reference's answer to inputs as declared has infinities."""
        self.peak_bytes = 0
        """The most memory that the reference had so far."""
        self.declared_calls: List[Tuple[Dims, float, int]] = []
        """Of the reference at declared shapes: what a call took, and the most memory so far."""
        self.marks: Dict[str, Tuple[int, FirstAnswer]] = {}
        """By distribution, what draws inputs once more that were answered rightly at the smallest shape, and how."""

    def leave(self, table: Table) -> None:
        """Let a shape go; what is small the players keep mapped until they open the next one, which saves time."""
        # Large buffers are unmapped at once, or two shapes' memory would be held side by side.
        if self.device.set_bytes(table.buffers.inputs, table.buffers.outputs) > KEPT_BYTES:
            table.rounds.close(table.buffers)
        else:
            table.buffers.close()

    def sit(self, dims: Dims, *, hidden: bool, larger: bool = False, calls: int = 1) -> Table:
        """Open a shape, for so many calls in a round."""
        table = Table(Rounds(self.setup, dims), hidden=hidden, larger=larger)
        try:
            table.buffers = table.rounds.open(calls)
        except Judged as judged:
            raise self.failure_at(judged, table, "") from None
        return table

    def play(self, table: Table, drawn: str) -> Optional[float]:
        """Play a call with inputs of a distribution; return the reference's time, `None` if it has no answer."""
        rounds, buffers = table.rounds, table.buffers
        what = drawn or "declared"
        entry: Dict[str, Any] = {"dims": table.dims, "distribution": what, "hidden": table.hidden, "verdict": "correct"}
        strict = not drawn and not table.hidden
        rounds.forgives = self.forgives(rounds, strict=strict)
        rounds.twice = not drawn or self.robustness.required
        mark, reference_s = self.well.blocks, 0.0
        try:
            reference_s = rounds.expect(buffers)
            self.peak_bytes = rounds.peak_bytes
            if strict:
                self.declared_calls.append((table.dims, reference_s, self.peak_bytes))
            if not (strict or answered(buffers, 0, infinite=self.infinite)):
                raise ReferenceFailed("the reference is not finite")
            self.answer(table, reference_s)
        except ReferenceFailed as error:
            # A trial is left out for what the reference cannot answer, not for memory that the candidate may hold.
            full = "out of memory" in str(error) and not table.larger
            if strict or rounds.reference.lost or full:
                raise
            rounds.reference.freeze()
            entry["verdict"] = "left out"
            where = drawn or "shape " + named_dims(table.dims)
            why = (str(error).strip().splitlines() or ["failed"])[-1].split("; ")[0]
            self.left_out["%s (%s)" % (where, why[:100])] = None
            self.entries.append(entry)
            return None
        except Judged as judged:
            told = self.failure_at(judged, table, drawn)
            self.entries.append(dict(entry, verdict=told.verdict, reason=told.reason[:300]))
            if drawn and self.robustness.takes(judged, rounds, buffers, drawn):
                table.failed.append(drawn)
                self._seek_race(table, judged, drawn)
                return reference_s
            if table.larger and self.robustness.spares(judged, rounds, buffers, named_dims(table.dims), self.errors):
                return reference_s
            raise told from None
        self.entries.append(entry)
        if drawn:
            self.robustness.right[drawn] = None
            if not table.hidden and table.dims == self.smallest:
                self.marks[drawn] = mark, FirstAnswer(buffers, self.task)
        return reference_s

    def forgives(self, rounds: Rounds, *, strict: bool, first: Optional[FirstAnswer] = None) -> Forgives:
        """Return what forgives wrong answers; it allows more of one to inputs that were answered rightly at first."""
        double = InDouble(rounds, self.notes, LEEWAY if first else 1.0)
        forgives = double.excuse if strict else double.forgiven
        return first.extend(forgives) if first else forgives

    def answer(self, table: Table, reference_s: float) -> None:
        """Have the candidate answer the inputs that are there."""
        begin = time.monotonic()
        drawn = {i.distribution for i in table.buffers.inputs} - {i.distribution for i in table.declared}
        place = "larger shape" if table.larger else "hidden shape" if table.hidden else "declared shape"
        try:
            with CATCHES.during("untimed, %s%s" % (place, ", other inputs" if drawn else "")):
                table.rounds.answer(table.buffers, reference_s)
        finally:
            took_s = time.monotonic() - begin
            self.own_s += took_s
            if table.dims == self.smallest and not drawn:
                self.call_s = min(self.call_s, took_s)

    def _seek_race(self, table: Table, judged: Judged, drawn: str) -> None:
        """Have inputs that were answered wrongly answered again.

        Raises:
            Judged: If another answer is right now, though no lower precision made the first one wrong.
        """
        # Lower precision that depends on the order of threads may be right at times; rounding was forgiven before.
        lossy = self.robustness.precision_loss(judged, table.rounds, table.buffers) is not None
        if judged.answer is None or lossy:
            return
        table.rounds.history.rounds.clear()
        # Nor is it a race if the first answer was hardly wrong, or comes again and is forgiven now.
        if InDouble(table.rounds, self.notes, LEEWAY).forgiven(table.buffers, table.buffers.check()).passed:
            return
        first = FirstAnswer(table.buffers, self.task)
        try:
            self.answer(table, 0.0)
        except Judged:
            return
        if first.comes_again(table.buffers):
            return
        text = "wrong at first and right with the same inputs again, as with a race or unset memory, with the "
        where = "distribution %s at %s: " % (drawn, self.place(table))
        raise incorrect(text + where + judged.reason)

    def failure_at(self, judged: Judged, table: Table, drawn: str) -> Judged:
        """Return a failure with where it was, and what had been right before."""
        verdict = judged.verdict
        # Nothing is timed here, so that writing too far gains nothing: it is a mistake like others.
        if judged.reason.startswith(OUTSIDE) or (table.hidden and judged.reason.startswith(EMPTY)):
            verdict = "incorrect"
        if verdict == "cheat" or not (table.hidden or drawn):
            return Judged(verdict, judged.reason + (" (at %s)" % self.place(table) if table.hidden else ""))
        several = len(self.task["shapes"]) > 1
        text = "right at %s, wrong" % ("the smallest declared shape" if several else "the declared shapes")
        if drawn:
            text = "right with inputs as declared, wrong with the distribution %s" % drawn
        at = " at " + self.place(table) if table.hidden or table.dims != self.smallest else ""
        hint = VALUES if drawn and not self.robustness.required else ""
        if table.hidden and not drawn and UNSTEADY not in judged.reason:
            excluding = constraint_against(table.dims, self.task["shapes"], table.larger)
            hint = (HINT % excluding if excluding else "") + loose_indices(table.declared, table.dims)
        return Judged(verdict, "%s%s: %s%s" % (text, at, judged.reason, hint))

    def place(self, table: Table) -> str:
        """Return a shape in words."""
        hidden = " (hidden shape, larger than declared)" if table.larger else " (hidden shape)"
        return named_dims(table.dims) + (hidden if table.hidden else "")

    def slow_at(self, dims: Dims) -> str:
        """Say so if a call of the candidate's may not be over in time at a shape, by one at the smallest."""
        grown = math.prod(max(1.0, dims[name] / self.smallest[name]) for name in dims)
        why = self.slow_after(self.call_s, grown)
        self.slow = why or self.slow
        return why

    def slow_after(self, call_s: float, grown: float) -> str:
        """Say so if a call that grows so many times may not be over in time; empty if it should.

        A candidate may be slow on purpose, to skip a shape. So the owner does not confirm its time then: see `slow`.
        """
        limit_s = float(self.task["round_timeout_s"]) / MARGIN
        if call_s < LEAST_SLOW_S or call_s * grown <= limit_s:
            return ""
        return SLOW % (call_s * grown, limit_s)

    def late(self, what: str) -> bool:
        """Say whether there is no time for something more, which is noted then."""
        late = time.monotonic() - self.begin - min(self.own_s, OWN_S) > TRIALS_S
        if late:
            self.left_out["%s (no time)" % what] = None
        return late
