"""Untimed calls before the timed rounds: hidden shapes, other distributions, the same inputs again."""

import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..channel.supervisor_client import Player
from ..checks.distribution_rounds import answered
from ..checks.fp64_check import InDouble
from ..checks.trial_setup import DISTRIBUTIONS, SELDOM_DRAWN, Table, may_vary, named_dims, untimed_shape
from ..correctness.error_statistics import distribution, suspicion
from ..correctness.fp64_reference import EPSILON, split
from ..correctness.replay_detector import History
from ..devices.device import Device
from ..inputs.hidden_shapes import Dims, elements
from ..numerics.compare import LARGE, numbers
from ..numerics.random_inputs import Well
from ..numerics.tensors import FLOATS, symbols, tensors
from ..timing.clock_overhead import Cost
from ..timing.rounds import Rounds
from ..timing.time_accounting import Ledger
from ..verdicts import Judged, JudgeFailed, ReferenceFailed, incorrect

SMALL = 1 << 18
"""Elements of a tensor up to which a declared shape is tried with every distribution, where hidden ones are as well."""
SOME = 2
"""Distributions that a larger declared shape is tried with; which ones is drawn."""
ORACLE_ELEMENTS = 1 << 22
REPEATS = 2
KEPT_BYTES = 256 << 20
"""Of a shape's buffers, at most, that players keep mapped until they open the next."""
TRIALS_S, OWN_S = 20.0, 60.0
"""After so long the remaining trials are left out, and that is said; what the candidate's own calls may take besides.
One hidden shape and one other distribution are tried whatever that takes: a candidate could be slow on purpose."""
HONEST = ("returned without computing", "wrote outside its outputs")
"""What an ordinary bug does at a shape that the author did not think of."""


class Trials:
    """Tries a candidate where nothing is timed, cheapest first."""

    def __init__(
        self,
        task: Dict[str, Any],
        device: Device,
        players: Tuple[Player, Player],
        costs: Dict[str, Cost],
        well: Well,
        ledger: Ledger,
        hidden: Sequence[Dims],
    ) -> None:
        self.task, self.device, self.players, self.costs = task, device, players, costs
        self.well, self.ledger, self.hidden = well, ledger, hidden
        self.entries: List[Dict[str, Any]] = []
        self.errors: Dict[str, Any] = {}
        self.notes: Dict[str, None] = {}
        self.left_out: Dict[str, None] = {}
        self.begin, self.own_s = time.monotonic(), 0.0
        self.shapes_tried = 0
        self.drawn: Dict[str, None] = {}
        self.repeats = 0
        self.unsteady = ""
        self.complete = False
        self.passed: Dict[str, Any] = {}
        """What was found at the smallest declared shape."""
        self.tier = str(task.get("tier") or "performance")
        """`smoke` ends after the first call."""
        declared = sorted(task["shapes"], key=lambda dims: elements(task, dims))
        self.smallest: Dims = declared[0]
        self.largest: Dims = declared[-1]
        self.infinite = False
        """Whether the reference's answer to inputs as declared has infinities."""

    def run(self, progress: Callable[[str, float], None]) -> Optional[Dict[str, Any]]:
        """Try everything; return the verdict at a declared shape that is not passed.

        Raises:
            Judged: If the candidate fails elsewhere.
        """
        progress("first call", 0.0)
        first = self._sit(self.smallest, hidden=False)
        try:
            self._declared(first)
        except Judged as judged:
            return untimed_shape(first, judged)
        self._leave(first)
        self.passed = untimed_shape(first, None)
        if self.tier == "smoke":
            self.complete = True
            return None
        progress("hidden shapes", 0.02)
        # Where a size is one, much is right, and a candidate may settle there: those come last. The first is drawn.
        order = sorted(range(len(self.hidden)), key=lambda number: 1 in self.hidden[number].values())
        telling = sum(1 not in dims.values() for dims in self.hidden)
        if telling > 1:
            order.insert(0, order.pop(self.well.word() % telling))
        for tried, number in enumerate(order):
            if tried and self._late("%d hidden shapes" % (len(order) - tried)):
                break
            self._hidden(self.hidden[number], number)
        failed = self._largest()
        self.complete = not failed
        return failed

    def _largest(self) -> Optional[Dict[str, Any]]:
        """Try the largest declared shape with other inputs too: what tells it by its size must be right there."""
        other = self.task.get("distributions") != "declared" and any(
            may_vary(tensors(self.task["inputs"], self.largest))
        )
        if self.largest == self.smallest or not other or not SMALL < elements(self.task, self.largest) <= LARGE:
            return None
        if self._late("other distributions at %s" % named_dims(self.largest)):
            return None
        table = self._sit(self.largest, hidden=False)
        try:
            self._play(table, "")
        except Judged as judged:
            return untimed_shape(table, judged)
        self._distributions(table, SOME)
        self._leave(table)
        return None

    def untimed(self) -> List[Dict[str, Any]]:
        """Return the verdict at each declared shape that the tier wants, one checked call each, none timed."""
        found = [self.passed]
        declared: List[Dims] = [] if self.tier == "smoke" else self.task["shapes"]
        for dims in declared:
            if dims == self.smallest or found[-1]["verdict"] != "correct":
                continue
            table = self._sit(dims, hidden=False)
            try:
                self._play(table, "")
                if elements(self.task, dims) > LARGE or not self._distributions(table, SOME):
                    self._renew(table)
                found.append(untimed_shape(table, None))
                self._leave(table)
            except Judged as judged:
                found.append(untimed_shape(table, judged))
        return found

    def _declared(self, table: Table) -> None:
        self._play(table, "")
        self.infinite = not table.buffers.sound()
        if self.tier == "smoke":
            return
        count = elements(self.task, self.smallest)
        if count <= ORACLE_ELEMENTS:
            self._precision(table)
        self._again(table)
        if count > LARGE:
            if not self.hidden:
                self.left_out["other distributions (the tensors are large)"] = None
        elif self._distributions(table, SOME if self.hidden and count > SMALL else len(DISTRIBUTIONS)):
            return
        self._renew(table)

    def _hidden(self, dims: Dims, number: int) -> None:
        table = self._sit(dims, hidden=True)
        if self._play(table, "") is not None:
            self.shapes_tried += 1
            if number == len(self.hidden) - 1:
                self._again(table)
                if not self.errors:
                    self._precision(table)
        if number != len(self.hidden) // 2 or not self._distributions(table):
            self._renew(table)
        self._leave(table)

    def _renew(self, table: Table) -> None:
        """Play a call with fresh inputs: a candidate that kept something of its first call here is wrong now."""
        if not self._late("second calls"):
            self._play(table, "")

    def _leave(self, table: Table) -> None:
        """Let a shape go; what is small the players keep mapped until they open the next one, which saves time."""
        if self.device.set_bytes(table.buffers.inputs, table.buffers.outputs) > KEPT_BYTES:
            table.rounds.close(table.buffers)
        else:
            table.buffers.close()

    def _sit(self, dims: Dims, *, hidden: bool) -> Table:
        """Open a shape."""
        inputs, outputs = tensors(self.task["inputs"], dims), tensors(self.task["outputs"], dims)
        buffers = self.device.buffers(inputs, outputs, 1)
        history = History(outputs, self.well, self.task["rtol"], self.task["atol"])
        limit_s = float(self.task["round_timeout_s"])
        rounds = Rounds(self.device, *self.players, self.costs, history, limit_s, self.ledger)
        table = Table(rounds, buffers, dims, hidden)
        try:
            rounds.open(buffers, dims, symbols(self.task))
        except Judged as judged:
            raise self._told(judged, table, "") from None
        return table

    def _play(self, table: Table, drawn: str) -> Optional[float]:
        """Play a call with inputs of a distribution; return the reference's time, `None` if it has no answer."""
        rounds, buffers = table.rounds, table.buffers
        what = drawn or "declared"
        entry: Dict[str, Any] = {"dims": table.dims, "distribution": what, "hidden": table.hidden, "verdict": "correct"}
        strict = not drawn and not table.hidden
        double = InDouble(self.task, rounds, self.notes)
        rounds.forgives = None if strict else lambda check: double.forgiven(buffers, check)
        try:
            reference_s = rounds.expect(buffers)
            if not (strict or answered(buffers, 0, infinite=self.infinite)):
                raise ReferenceFailed("the reference is not finite")
            self._answer(table, reference_s)
        except ReferenceFailed as error:
            # A trial is left out for what the reference cannot answer, not for memory that the candidate may hold.
            if strict or rounds.reference.lost or "out of memory" in str(error):
                raise
            rounds.reference.freeze()
            entry["verdict"] = "left out"
            where = drawn or "shape " + named_dims(table.dims)
            self.left_out["%s (%s)" % (where, (str(error).strip().splitlines() or ["failed"])[-1][:100])] = None
            self.entries.append(entry)
            return None
        except Judged as judged:
            told = judged if strict else self._told(judged, table, drawn)
            self.entries.append(dict(entry, verdict=told.verdict, reason=told.reason[:300]))
            raise told from None
        self.entries.append(entry)
        return reference_s

    def _answer(self, table: Table, reference_s: float) -> None:
        begin = time.monotonic()
        try:
            table.rounds.answer(table.buffers, reference_s)
        finally:
            self.own_s += time.monotonic() - begin

    def _told(self, judged: Judged, table: Table, drawn: str) -> Judged:
        """Return a failure with where it was, and what had been right before."""
        verdict = judged.verdict
        if table.hidden and judged.reason.startswith(HONEST):
            verdict = "incorrect"
        if verdict == "cheat":
            return Judged(verdict, judged.reason + (" (at %s)" % self._place(table) if table.hidden else ""))
        several = len(self.task["shapes"]) > 1
        text = "right at %s, wrong" % ("the smallest declared shape" if several else "the declared shapes")
        if drawn:
            text = "right with inputs as declared, wrong with the distribution %s" % drawn
        at = " at " + self._place(table) if table.hidden or table.dims != self.smallest else ""
        return Judged(verdict, "%s%s: %s" % (text, at, judged.reason))

    def _place(self, table: Table) -> str:
        return named_dims(table.dims) + (" (hidden shape)" if table.hidden else "")

    def _distributions(self, table: Table, most: int = len(DISTRIBUTIONS)) -> int:
        """Try so many distributions besides the declared one, for the inputs that may have another; return how many."""
        if self.task.get("distributions") == "declared":
            return 0
        free = may_vary(table.declared)
        if not any(free):
            self.left_out["other distributions (the inputs are integers, or made by the problem's own code)"] = None
            return 0
        own = {item.distribution for item, may in zip(table.declared, free) if may}
        self.drawn.update(dict.fromkeys(sorted(own)))
        first = self.well.word() % len(DISTRIBUTIONS) if most < len(DISTRIBUTIONS) else 0
        tried = 0
        for drawn in DISTRIBUTIONS[first:] + DISTRIBUTIONS[:first]:
            if tried == most:
                break
            if own == {drawn} or (tried and self._late("distribution %s" % drawn)):
                continue
            if drawn in SELDOM_DRAWN and most < len(DISTRIBUTIONS):
                continue
            if drawn == "zeros" and any(item.dtype not in FLOATS for item in table.buffers.outputs):
                self.left_out["zeros (an index among equals may be any of them)"] = None
                continue
            table.buffers.inputs = [
                replace(item, distribution=drawn) if may else item for item, may in zip(table.declared, free)
            ]
            if self._play(table, drawn) is not None:
                self.drawn[drawn] = None
                tried += 1
        table.buffers.inputs = table.declared
        return tried

    def _late(self, what: str) -> bool:
        late = time.monotonic() - self.begin - min(self.own_s, OWN_S) > TRIALS_S
        if late:
            self.left_out["%s (no time)" % what] = None
        return late

    def _again(self, table: Table) -> None:
        """Have the same inputs answered again, and compare bit by bit."""
        rounds, buffers = table.rounds, table.buffers
        before = [buffers.keep(number) for number in range(len(buffers.outputs))]
        for _ in range(REPEATS):
            rounds.history.rounds.clear()
            try:
                self._answer(table, 0.0)
            except Judged as judged:
                text = "right at first and wrong with the same inputs again, as with a race, at %s: %s"
                if judged.verdict == "incorrect":
                    raise incorrect(text % (self._place(table), judged.reason)) from None
                raise self._told(judged, table, "") from None
            self.repeats += 1
            for item, kept in zip(buffers.outputs, before):
                pair = kept.other()
                if pair:
                    a, b = (numbers(part, item.dtype).astype(np.float64) for part in pair)
                    with np.errstate(all="ignore"):
                        apart = float(np.nanmax(np.abs(a - b)))
                    self.unsteady = "not deterministic: max difference %.3g in %s" % (apart, item.name)
        for kept in before:
            kept.close()

    def _precision(self, table: Table) -> None:
        """Compare errors of the candidate and of the reference against double precision."""
        outputs = table.buffers.outputs
        count = sum(item.count for item in outputs)
        found = InDouble(self.task, table.rounds, self.notes).read(table.buffers, "oracle", count)
        if found is None:
            return
        truth = split(found, outputs)
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
            return "stopped at the first failure, after %d trials" % len(self.entries)
        if self.tier == "smoke":
            return "none: tier smoke is one call at the smallest shape"
        if self.task.get("fixed_shapes"):
            parts = ["no hidden shapes (the problem fixes its shapes)"]
        elif not symbols(self.task):
            parts = ["no hidden shapes (the tensors have fixed sizes)"]
        else:
            parts = ["%d hidden shapes" % self.shapes_tried]
        if self.task.get("distributions") == "declared":
            parts.append("declared distribution only")
        elif self.drawn:
            parts.append("%d distributions" % len(self.drawn))
        if self.repeats:
            parts.append(self.unsteady or "deterministic")
        text = ", ".join(parts)
        if self.left_out:
            text += "; left out: " + ", ".join(list(self.left_out)[:8])
        return "; ".join([text, *self.notes])


__all__ = ["JudgeFailed", "Trials"]
