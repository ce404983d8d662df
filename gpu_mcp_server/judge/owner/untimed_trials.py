"""Untimed calls before the timed rounds: hidden shapes, other distributions, the same inputs again."""

import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from ..catch_log import CATCHES
from ..checks.first_answer import FirstAnswer
from ..checks.fp64_check import InDouble
from ..checks.robustness import Robustness, Sameness
from ..checks.trial_setup import DISTRIBUTIONS, SELDOM_DRAWN, Table, may_vary, untimed_shape
from ..correctness.discrete_ties import Ties
from ..correctness.error_statistics import distribution, suspicion
from ..correctness.fp64_reference import EPSILON, split
from ..inputs.constraints import Dims
from ..inputs.hidden_shapes import elements
from ..numerics.compare import LARGE, Kept, numbers
from ..numerics.tensors import FLOATS, MADE, symbols
from ..timing.judging_setup import JudgingSetup
from ..verdicts import Judged, incorrect
from .larger_shapes import LargerShapes
from .trial_room import TrialRoom, named_by_reason

SMALL = 1 << 18
"""Elements of a tensor up to which a declared shape is tried with every distribution, where hidden ones are as well."""
SOME = 2
"""Distributions that a larger declared shape is tried with; which ones is drawn. A first look tries as many at all.
Where shapes are timed, each sees others between its rounds (judge/checks/distribution_rounds.py)."""
UNEVEN = 32
"""Beyond which an odd size ends within a vector, a warp or a tile."""
ORACLE_ELEMENTS = 1 << 22
REPEATS = 2
MOST_IN_A_ROW, ROW_S, ROW_BYTES, ROWS = 64, 0.3, 64 << 20, 16
"""Calls of a round on a processor where nothing is timed, about what they may take, and how often they are played. In a
call by itself the first thread is often done before the others wake: a race shows among calls in a row, and on a busy
machine not in each."""


class Trials(TrialRoom):
    """Tries a candidate where nothing is timed, cheapest first."""

    def __init__(self, setup: JudgingSetup, robustness: Robustness, hidden: Sequence[Dims]) -> None:
        super().__init__(setup, robustness)
        self.hidden = hidden
        self.shapes_tried = 0
        self.larger = LargerShapes(self)
        self.drawn: Dict[str, None] = {}
        self.repeats = 0
        self.unsteady = ""
        self.complete = False
        self.passed: Dict[str, Any] = {}
        """What was found at the smallest declared shape."""
        self.tier = str(self.task.get("tier") or "performance")
        """`smoke` ends after the first call."""
        self.brief = bool(self.task.get("brief"))
        """Whether it is a first look: a confirmation run tries all else if the candidate becomes the best."""

    def run(self, progress: Callable[[str, float], None]) -> Optional[Dict[str, Any]]:
        """Try everything; return the verdict at a declared shape that is not passed.

        Raises:
            Judged: If the candidate fails elsewhere.
        """
        progress("first call", 0.0)
        first = self.sit(self.smallest, hidden=False)
        try:
            self._declared(first)
        except Judged as judged:
            return untimed_shape(first, judged)
        self.leave(first)
        self.passed = untimed_shape(first, None)
        if self.tier == "smoke":
            self.complete = True
            return None
        progress("hidden shapes", 0.02)
        fast = [dims for dims in self.hidden if not self.slow_at(dims)]
        if self.slow:
            self.left_out["%d hidden shapes (%s)" % (len(self.hidden) - len(fast), self.slow)] = None
            self.hidden = fast or self.hidden[:1]
        if self.brief:
            self._look()
            self.complete = True
            return None
        # Where a size is one, much is right, and a candidate may settle there: those come last. The first is drawn.
        order = sorted(range(len(self.hidden)), key=lambda number: 1 in self.hidden[number].values())
        telling = sum(1 not in dims.values() for dims in self.hidden)
        if telling > 1:
            order.insert(0, order.pop(self.well.word() % telling))
        for tried, number in enumerate(order):
            if tried and self.late("%d hidden shapes" % (len(order) - tried)):
                break
            self._hidden(self.hidden[number], number)
        self.larger.run()
        self.complete = True
        return None

    def _look(self) -> None:
        """Try two hidden shapes without ones, if there are such; the first has a large uneven size."""
        numbers = range(len(self.hidden))
        rest = [number for number in numbers if 1 not in self.hidden[number].values()] or list(numbers)
        uneven = [n for n in rest if any(size > UNEVEN and size % 2 for size in self.hidden[n].values())]
        for some in (uneven or rest, rest):
            left = [number for number in some if number in rest]
            if not left:
                break
            number = left[self.well.word() % len(left)]
            rest.remove(number)
            table = self.sit(self.hidden[number], hidden=True)
            if self.play(table, "") is not None:
                self.shapes_tried += 1
            self._renew(table)
            self.leave(table)
        if len(self.hidden) > self.shapes_tried:
            text = "larger shapes, other distributions and %d more hidden ones (a confirmation run tries them)"
            self.left_out[text % (len(self.hidden) - self.shapes_tried)] = None

    def untimed(self) -> List[Dict[str, Any]]:
        """Return the verdict at each declared shape that the tier wants, one checked call each, none timed."""
        if self.tier == "smoke":
            return [self.passed]
        shapes: List[Dims] = [dims for dims in self.task["shapes"] if dims != self.smallest]
        found = [self.passed]
        if self.task["device"] == "cpu":  # the smallest one once more, for its calls in a row
            shapes, found = [self.smallest, *shapes], []
        for dims in shapes:
            table = self.sit(dims, hidden=False)
            try:
                took_s = self._once(table)
                if found and (elements(self.task, dims) > LARGE or not self._distributions(table, SOME)):
                    self._renew(table)
                seen = untimed_shape(table, None) if found else self.passed
                self.leave(table)
                table = self._in_a_row(table, took_s)
                found.append(seen)
            except Judged as judged:
                found.append(untimed_shape(table, judged))
                break
        return found

    def _once(self, table: Table) -> float:
        """Play a call with inputs as declared; return the seconds that all of it took."""
        begin = time.monotonic()
        self.play(table, "")
        return time.monotonic() - begin

    def _in_a_row(self, table: Table, took_s: float) -> Table:
        """Play a round of many calls of a shape where one took so long, if it has a processor's threads.

        Raises:
            Judged: If a call is wrong then.
        """
        each = self.device.set_bytes(table.buffers.inputs, table.buffers.outputs)
        calls = min(MOST_IN_A_ROW, int(ROW_S / took_s), ROW_BYTES // max(each, 1))
        if self.task["device"] != "cpu" or calls < REPEATS or self.late("calls in a row"):
            return table
        row = self.sit(table.dims, hidden=False, calls=calls)
        try:
            self.play(row, "")
            for _ in range(ROWS - 1):
                row.rounds.history.rounds.clear()
                self.answer(row, 0.0)
        except Judged as judged:
            if judged.verdict != "incorrect":
                raise
            text = "right call by call and wrong in %d calls in a row, as with a race, or inputs that come seldom: %s"
            raise incorrect(text % (calls, judged.reason)) from None
        self.leave(row)
        return row

    def _declared(self, table: Table) -> None:
        self.play(table, "")
        self.infinite = not table.buffers.sound()
        if self.tier == "smoke":
            return
        count = elements(self.task, self.smallest)
        if count <= ORACLE_ELEMENTS:
            self._precision(table)
        # Repeats come right after the call, while its answer still lies there to be compared bit for bit.
        self._again(table)
        if count > LARGE:
            if not self.hidden:
                self.left_out["other distributions (the tensors are large)"] = None
        elif self._distributions(table, SOME if self.brief or (self.hidden and count > SMALL) else len(DISTRIBUTIONS)):
            return
        self._renew(table)

    def _hidden(self, dims: Dims, number: int) -> None:
        table = self.sit(dims, hidden=True)
        if self.play(table, "") is not None:
            self.shapes_tried += 1
            if number == len(self.hidden) - 1:
                self._again(table)
                if not self.errors:
                    self._precision(table)
        if number != len(self.hidden) // 2 or not self._distributions(table):
            self._renew(table)
        self.leave(table)

    def _renew(self, table: Table) -> None:
        """Play a call with fresh inputs: a candidate that kept something of its first call here is wrong now."""
        if not self.late("second calls"):
            self.play(table, "")

    def _distributions(self, table: Table, most: int = len(DISTRIBUTIONS)) -> int:
        """Try so many distributions besides the declared one, for the inputs that may have another; return how many."""
        if self.task.get("distributions") == "declared":
            return 0
        free = may_vary(table.declared)
        if not any(free):
            small = any(i.dtype in ("int32", "int64") and i.distribution not in ("full", *MADE) for i in table.declared)
            why = "the inputs are integers, or made by the problem's own code"
            why = "int32 and int64 are 0 to 99 unless declared full" if small else why
            self.left_out["other distributions (%s)" % why] = None
            return 0
        own = {item.distribution for item, may in zip(table.declared, free) if may}
        self.drawn.update(dict.fromkeys(sorted(own)))
        same = Sameness(table.buffers)
        # A drawn start: a candidate cannot know which two distributions a large shape is tried with.
        first = self.well.word() % len(DISTRIBUTIONS) if most < len(DISTRIBUTIONS) else 0
        tried = 0
        for drawn in DISTRIBUTIONS[first:] + DISTRIBUTIONS[:first]:
            if tried == most:
                break
            if own == {drawn} or (tried and self.late("distribution %s" % drawn)):
                continue
            if drawn in SELDOM_DRAWN and most < len(DISTRIBUTIONS):
                continue
            # All-equal inputs tie everywhere, so an argmax or sort has no single right answer.
            if drawn == "zeros" and not self._answers_zeros(table):
                self.left_out["zeros (an index among equals may be any of them)"] = None
                continue
            table.buffers.inputs = [
                replace(item, distribution=drawn) if may else item for item, may in zip(table.declared, free)
            ]
            if self.play(table, drawn) is not None:
                self.drawn[drawn] = None
                tried += 1
            if drawn in table.failed:
                same.see(drawn)
        table.buffers.inputs = table.declared
        if table.failed:
            with CATCHES.during("untimed, inputs as declared after others"), CATCHES.check():
                self._look_at_declared(table, same)
        return tried

    def _answers_zeros(self, table: Table) -> bool:
        """Say whether there is one right answer to zeros: the reference's, or without whole numbers, or by signs."""
        if self.task.get("ties") == "reference" or all(item.dtype in FLOATS for item in table.buffers.outputs):
            return True
        ties = table.rounds.ties
        return isinstance(ties, Ties) and ties.by_signs(table.buffers)

    def _look_at_declared(self, table: Table, same: Sameness) -> None:
        """Play inputs as declared once more: a candidate that was wrong with others must be right with these.

        Raises:
            Judged: If it is not, or says the same to all of them.
        """
        try:
            self.play(table, "")
        except Judged as judged:
            text = "%s (after a wrong answer with the distribution %s)"
            raise Judged(judged.verdict, text % (judged.reason, ", ".join(table.failed))) from None
        if same.alike and same.holds():
            text = (
                "its answer does not depend on the inputs: with the distribution %s it is wrong, and bit for bit the "
            )
            raise incorrect((text + "one to inputs as declared") % ", ".join(same.alike))

    def _again(self, table: Table) -> None:
        """Have the same inputs answered again, and compare bit by bit."""
        rounds, buffers = table.rounds, table.buffers
        before = [Kept(buffers, number) for number in range(len(buffers.outputs))]
        first = FirstAnswer(buffers, self.task)
        rounds.forgives = self.forgives(rounds, strict=not table.hidden, first=first)
        for _ in range(REPEATS):
            # The same inputs have the same answer, which the replay detector would take for an earlier call's.
            rounds.history.rounds.clear()
            try:
                self.answer(table, 0.0)
            except Judged as judged:
                text = "right at first and wrong with the same inputs again, as with a race or unset memory, at %s: %s"
                if judged.verdict == "incorrect":
                    raise incorrect(text % (self.place(table), judged.reason)) from None
                raise self.failure_at(judged, table, "") from None
            self.repeats += 1
            for item, kept in zip(buffers.outputs, before):
                pair = kept.other()
                if pair:
                    a, b = (numbers(part, item.dtype).astype(np.float64) for part in pair)
                    with np.errstate(all="ignore"):
                        apart = float(np.nanmax(np.abs(a - b)))
                    self.unsteady = "not deterministic: max difference %.3g in %s" % (apart, item.name)
        rounds.forgives = self.forgives(rounds, strict=not table.hidden)

    def _precision(self, table: Table) -> None:
        """Compare errors of the candidate and of the reference against double precision."""
        outputs = table.buffers.outputs
        count = sum(item.count for item in outputs)
        found = InDouble(table.rounds, self.notes).read(table.buffers, "oracle", count)
        if found is None:
            return
        truth = split(found, outputs)
        with CATCHES.during("untimed, precision"), CATCHES.check():
            for number, item in enumerate(outputs):
                if item.dtype not in EPSILON:
                    continue
                expected, got = (numbers(part, item.dtype) for part in table.buffers.pair(0, number))
                errors = distribution(truth[number], expected, got, item.dtype)
                self.errors[item.name] = dict(errors, dims=table.dims)
                doubt = suspicion(errors)
                if doubt and self.task.get("precision") == "strict":
                    raise incorrect("output %s %s, and the problem wants strict precision" % (item.name, doubt))
                if doubt:
                    self.notes["%s %s" % (item.name, doubt)] = None

    def summary(self) -> str:
        """Say in one line what was tried."""
        if not self.complete:
            many = "s" * (len(self.entries) != 1)
            return "; ".join(
                ["stopped at the first failure, after %d trial%s" % (len(self.entries), many), *self.notes]
            )
        if self.tier == "smoke":
            return "none: tier smoke is one call at the smallest shape"
        parts = [self.hidden_text()]
        if self.task.get("distributions") == "declared":
            parts.append("declared distribution only")
        elif self.drawn:
            parts.append("%d distribution%s" % (len(self.drawn), "s" * (len(self.drawn) > 1)))
        if self.repeats:
            parts.append(self.unsteady or "deterministic")
        text = ", ".join(parts)
        if self.left_out:
            text += "; left out: " + ", ".join(named_by_reason(self.left_out)[:8])
        return "; ".join([text, *self.notes])

    def hidden_text(self) -> str:
        """Say how many hidden shapes were tried, and how far beyond the declared ones they go."""
        if self.task.get("fixed_shapes"):
            return "no hidden shapes (the problem fixes its shapes)"
        if not symbols(self.task):
            return "no hidden shapes (the tensors have fixed sizes)"
        tried = self.shapes_tried + self.larger.tried
        return "%d hidden shapes" % tried + self.larger.text()

    def covers(self) -> str:
        """Say of a correct candidate at which shapes it is."""
        if self.tier == "smoke":
            return "one call at the smallest declared shape"
        count = len(self.task["shapes"])
        return "%s, %s, inputs as declared" % ("%d declared shape%s" % (count, "s" * (count > 1)), self.hidden_text())

    def robust_text(self) -> str:
        """Say what the candidate does with inputs that are not as declared."""
        if self.tier == "smoke":
            return self.robustness.text("tier smoke tries no others")
        alone = self.task.get("distributions") == "declared"
        return self.robustness.text("the problem has the declared distribution alone" if alone else "")
