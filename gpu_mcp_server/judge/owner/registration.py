"""A problem's reference on trial: does it run, is it steady, and do answers without any work fail?"""

import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..correctness.own_check import refusal_of
from ..correctness.sampled_errors import LARGE_SAMPLES
from ..devices.device import Buffers
from ..numerics.compare import LARGE, compare, numbers
from ..numerics.input_views import input_views
from ..numerics.tensors import FLOATS, Array, Tensor, brings_check
from ..timing.judging_setup import JudgingSetup
from ..timing.rounds import Rounds, named
from ..verdicts import JudgeFailed, ReferenceFailed, Unequipped, registration_result
from .trivial_answers import Trivial, describe_trivial, spoiled_answers, trivial_answers, work_free_answers

SEEDS = 2
HIDDEN_S = 5.0
"""Time for the reference at shapes besides the declared ones."""
RELOADED = (
    "the reference answers the same inputs differently in %s each time that its file is run, so no candidate can know "
    "the answer: what it draws at its top, such as weights, needs a fixed seed there, or should be an input"
)
ALONE = "no other shape was found that complies with the constraints: candidates are tried at the declared ones alone"
RUNS = 2
"""Of the same inputs, to see whether the reference answers the same."""
DRAWS = 20
"""Of the same inputs in a row, beyond which they do not depend on the seed; of the same answer likewise. Where two
answers are alike by chance with probability p, all of them are with p^21: of one bit in two million. A loss that is
alike in one pair of ten is no constant: with a hundred calls to be right in, a constant would not be."""
COARSE = 0.01
"""Part of an output's usual size from which an atol is told of: an answer that is so far off is right."""
KEPT = ("made", "weights", "integers")
"""How inputs are drawn that a wish for another distribution leaves alone."""
ANOTHER = "the answer to another seed"
RETURNS_NAN = (
    "the reference returns NaN in %s: let it put numbers there, or draw inputs that give none (uniform, offset)"
)
SAME = "the inputs are the same for every seed: an answer that was kept from the first call would pass"


class Registration:
    """Tries the reference at every shape."""

    def __init__(self, setup: JudgingSetup, torch_seed: int = 0) -> None:
        """Take what rounds need; there is no candidate, and the reference stands in its place."""
        self.setup, self.torch_seed = setup, torch_seed
        self.task, self.reference = setup.task, setup.reference
        self.timeout_s = float(self.task["round_timeout_s"]) * 6
        self.rtol, self.atol = float(self.task["rtol"]), float(self.task["atol"])
        self.tried: Dict[str, None] = {}
        self.notes: Dict[str, None] = {}
        self.reference_us: List[float] = []
        self.degenerate = ""
        """What kind of answer without work passes, where such a problem is accepted."""
        self.trivial = False
        """Whether the problem is refused for such an answer."""
        self.helps: Dict[str, Any] = {}
        """Wishes with which that answer would have failed."""
        self.rounds: Any = None
        """At the shape that is tried."""
        self.own = brings_check(self.task)
        """Whether the problem has a check of its own."""
        self.reloaded = False
        """Whether the reference's file was run once more."""
        self.dropped: Dict[int, str] = {}
        """Cases of several that an answer without work is right for, and which one."""

    def run(self) -> Dict[str, Any]:
        """Return the verdict on the problem."""
        reason = ""
        try:
            if not self.task.get("described"):
                named(self.reference.ask("start", self.timeout_s), "start")
                named(self.reference.ask("load", self.timeout_s, torch_seed=self.torch_seed), "load")
            reason = self._shapes()
            if not reason:
                self._hidden()
        except Unequipped:
            raise
        except JudgeFailed as error:
            reason = str(error)
        found: Dict[str, Any] = {"degenerate": self.degenerate, "trivial": self.trivial, "helps": self.helps}
        return registration_result(reason, self.tried, self.notes, self.reference_us, dropped=[*self.dropped], **found)

    def _shapes(self) -> str:
        """Try the reference at each shape; return why the problem is refused, empty if it is not.

        A case of which an answer without work is right is dropped, as long as there are others.
        """
        shapes: List[Dict[str, int]] = self.task["shapes"]
        for dims in shapes:
            self.trivial = False
            reason = self._shape(dims)
            if reason and self.trivial and "case" in dims and len(shapes) > 1:
                self.dropped[int(dims["case"])] = reason
                self.reference_us.pop()
            elif reason:
                if self.trivial and self._normal_helps(dims):
                    self.helps["distribution"] = "normal"
                return reason
        if len(self.dropped) == len(shapes):
            self.trivial = True
            return next(iter(self.dropped.values()))
        # Dropped cases are solved by leaving them out, so wishes that would have helped them are moot.
        self.trivial, self.helps = False, {} if self.dropped else self.helps
        for reason in list(self.dropped.values())[:4]:
            self.notes["a case is left out, as an answer without work is right there: %s" % reason[:200]] = None
        return ""

    def _open(self, dims: Dict[str, int]) -> Buffers:
        self.rounds = Rounds(self.setup, dims)
        self.rounds.present, self.rounds.notes = (self.reference,), self.notes
        return self.rounds.open(1)  # type: ignore[no-any-return]

    def _solve(self, buffers: Buffers) -> float:
        """Have the reference answer the inputs that are there; return its time, with no thaw in it."""
        self.reference.thaw()
        return self.rounds.solve(buffers)  # type: ignore[no-any-return]

    def _refusal(self, buffers: Buffers, answers: Sequence[Array]) -> Optional[str]:
        """Return why the problem's own check refuses an answer to the inputs that are there, `None` if it takes it."""
        self.reference.thaw()
        return refusal_of(self.reference, buffers.outputs, answers, 0, self.timeout_s)

    def _shape(self, dims: Dict[str, int]) -> str:
        buffers = self._open(dims)
        inputs, outputs = buffers.inputs, buffers.outputs
        times: List[float] = []
        first: List[Array] = []
        reason = ""
        at = "at %s: " % ",".join("%s=%d" % pair for pair in dims.items()) if dims else ""
        for number in range(SEEDS):
            before = self._drawn(buffers)
            self.rounds.draw(buffers)
            # Inputs that never change make any cached answer right, so no comparison could catch a replay.
            if number and inputs and self._always(buffers, before):
                reason = reason or self._trivial(Trivial("constant", SAME))
            answers: List[List[Array]] = []
            for _ in range(RUNS):
                times.append(self._solve(buffers))
                # The owner copies the answers now: the next run overwrites the shared memory.
                answers.append([self._expected(buffers, i) for i in range(len(outputs))])
            reason = reason or self._look(outputs, answers, buffers)
            reason = reason or self._look_after_reload(buffers, answers[0])
            if number and inputs and not self.degenerate:
                reason = reason or self._constant(buffers, first, answers[0])
            first = answers[0]
        self.rounds.close(buffers)
        # The minimum: the first run pays for allocations and lazy initialisation.
        self.reference_us.append(min(times) * 1e6)
        return at + reason if reason else ""

    def _look_after_reload(self, buffers: Buffers, first: Sequence[Array]) -> str:
        """Return why a function answers otherwise in another process, as with weights drawn when its file is run."""
        if self.reloaded or self.own or self.task.get("problem") == "module":
            return ""
        self.reloaded = True
        self.reference.thaw()
        said = ""
        try:
            # A file may fail at the second run alone, as one that registers an operator.
            if not self.reference.ask("reload", self.timeout_s).get("error"):
                self._solve(buffers)
                outputs = enumerate(buffers.outputs)
                other = [i.name for n, i in outputs if not self._right(i, self._expected(buffers, n), first[n])]
                said = RELOADED % other[0] if other else ""
        except ReferenceFailed:
            if self.reference.lost:
                raise
        self.reference.thaw()
        self.reference.ask("reload", self.timeout_s, back=True)
        return said

    def _drawn(self, buffers: Buffers) -> List[bytes]:
        """Return what differs from call to call: the inputs but weights, of a large one samples."""
        fresh = [(i, item) for i, item in enumerate(buffers.inputs) if item.distribution != "weights"]
        return [buffers.input_samples(i, self._places(item)).tobytes() for i, item in fresh]

    def _always(self, buffers: Buffers, before: List[bytes]) -> bool:
        """Say whether all inputs are `before`'s however often they are drawn; few bits may be by chance."""
        for _ in range(DRAWS):
            if self._drawn(buffers) != before:
                return False
            self.rounds.draw(buffers)
        return True

    def _constant(self, buffers: Buffers, first: List[Array], other: List[Array]) -> str:
        """Say which output of one seed is right for the other, and however often inputs are drawn; empty if none."""
        self.tried[ANOTHER] = None
        if self.own:
            taken = self._refusal(buffers, first) is None
            said = "%s passes: the problem's own check accepts it" % ANOTHER
            return self._trivial(Trivial("constant", said)) if taken else ""
        alike = [i for i in range(len(first)) if self._right(buffers.outputs[i], first[i], other[i])]
        # Bit equality separates an output that ignores its inputs from a tolerance that hides them.
        equal = all(first[i].tobytes() == other[i].tobytes() for i in alike)
        for _ in range(DRAWS):
            if not alike:
                return ""
            self.rounds.draw(buffers)
            self._solve(buffers)
            alike = [i for i in alike if self._right(buffers.outputs[i], first[i], self._expected(buffers, i))]
        if not alike:
            return ""
        item = buffers.outputs[alike[0]]
        if equal:
            why = "it is bit for bit the same for all inputs, so no tolerance helps; leave it out"
        else:
            why = "with rtol %g and atol %g a constant is right for all inputs; tighten them, " % (self.rtol, self.atol)
            why += "draw inputs from another distribution, declare other shapes, or leave out what no input changes"
        return self._trivial(Trivial("constant", "%s passes as %s: %s" % (ANOTHER, item.name, why)))

    def _trivial(self, found: Trivial) -> str:
        """Return why the problem is refused for an answer without work; empty where such a problem is accepted."""
        if not self.task.get("accept_degenerate"):
            self.trivial, self.helps = True, self.helps or dict(found.helps)
            return found.reason
        self.degenerate = self.degenerate or found.kind
        self.notes["accepted although " + found.reason[:250]] = None
        return ""

    def _normal_helps(self, dims: Dict[str, int]) -> bool:
        """Say whether no answer without work is right where a module problem's inputs are drawn as normal."""
        given = self.task["inputs"]
        specs = [s if s["distribution"] in KEPT else dict(s, distribution="normal") for s in given]
        if self.task.get("problem") != "module" or specs == given:
            return False
        task = dict(self.task, inputs=specs)
        try:
            return not Registration(self.setup._replace(task=task))._shape(dims)
        except JudgeFailed:
            return False

    def _right(self, item: Tensor, got: Array, expected: Array) -> bool:
        return not compare(expected, got, item.dtype, self.rtol, self.atol).wrong

    def _places(self, item: Tensor) -> Array:
        return np.arange(0, item.count, max(1, item.count // LARGE_SAMPLES))

    def _expected(self, buffers: Buffers, number: int) -> Array:
        """Return an answer's elements, of a large one samples."""
        item = buffers.outputs[number]
        if item.count <= LARGE or self.own:
            return buffers.pair(0, number)[0].copy()
        return buffers.samples(number, self._places(item))[0][0]

    def _given(self, buffers: Buffers, item: Tensor) -> List[Tuple[Tensor, Array]]:
        """Return the inputs that are as long as an output, at the same places."""
        found: List[Tuple[Tensor, Array]] = []
        for view in input_views(self.task, self.rounds.dims):
            if view.item.count != item.count:
                continue
            if item.count <= LARGE and not view.strides:
                found.append((view.item, buffers.input_elements(view.memory)))
                continue
            places: Array = np.arange(item.count) if item.count <= LARGE else self._places(item)
            if view.strides:
                along: Array = np.array(np.unravel_index(places, view.item.shape))
                places = view.offset + np.array(view.strides) @ along
            found.append((view.item, buffers.input_samples(view.memory, places)))
        return found

    def _hidden(self) -> None:
        """Note at which hidden shapes the reference has no answer; candidates are not tried there."""
        begin = time.monotonic()
        failed: List[Tuple[Dict[str, int], str]] = []
        tried, hidden = 0, self.task.get("hidden", [])
        if self.task.get("constraints") and not (hidden or self.task.get("fixed_shapes")):
            self.notes[ALONE] = None
        for dims in hidden:
            # Hidden shapes only yield a note, so registration does not wait long for them.
            if time.monotonic() - begin > HIDDEN_S:
                break
            buffers = self._open(dims)
            self.rounds.draw(buffers)
            tried += 1
            try:
                self._solve(buffers)
            except ReferenceFailed as error:
                if self.reference.lost:
                    raise
                failed.append((dims, (str(error).strip().splitlines() or ["?"])[-1].split("; ")[0][:120]))
            self.rounds.close(buffers)
        # A note instead of a refusal: an author need not support shapes that were never declared.
        if failed:
            dims, why = failed[0]
            at = ",".join("%s=%d" % pair for pair in dims.items())
            text = "the reference fails at %d of %d other shapes than the declared ones, such as %s (%s)"
            more = (
                "; candidates are not tried there: name the shapes that it takes by constraints, such as n % 8 == 0 or "
                "oh == h // 2, or set fixed_shapes"
            )
            self.notes[text % (len(failed), tried, at, why) + more] = None

    def _look(self, outputs: Sequence[Tensor], answers: List[List[Array]], buffers: Buffers) -> str:
        if self.own:
            return self._attack(outputs, answers, buffers)
        rtol, atol = self.rtol, self.atol
        for number, item in enumerate(outputs):
            expected, again = answers[0][number], answers[1][number]
            values = numbers(expected, item.dtype)
            if item.dtype in FLOATS and np.isnan(values).any():
                return RETURNS_NAN % item.name
            if expected.tobytes() != again.tobytes():
                if compare(expected, again, item.dtype, rtol, atol).wrong:
                    text = "the reference answers the same inputs differently in %s, beyond the tolerance"
                    more = (
                        ": it may draw random numbers, as dropout does until a model's __init__ calls self.eval(), or "
                        "return what it keeps from call to call, such as running averages"
                    )
                    return text % item.name + more
                self.notes["the reference is not bit for bit the same from run to run in %s" % item.name] = None
            for name, answer in trivial_answers(item, expected, self._given(buffers, item)):
                if compare(expected, answer, item.dtype, rtol, atol).wrong:
                    self.tried[name] = None
                    continue
                found = describe_trivial(item, name, values, numbers(answer, item.dtype), rtol, atol)
                reason = self._trivial(found)
                if reason:
                    return reason
            if item.dtype in FLOATS:
                self._coarse(item, values[np.isfinite(values)].astype(np.float64))
        return ""

    def _attack(self, outputs: Sequence[Tensor], answers: List[List[Array]], buffers: Buffers) -> str:
        """Return why the problem's own check is none: it refuses the reference, or takes an answer without work."""
        for item, each, again in zip(outputs, *answers):
            if item.dtype in FLOATS and np.isnan(numbers(each, item.dtype)).any():
                return RETURNS_NAN % item.name
            if each.tobytes() != again.tobytes():
                self.notes["the reference is not bit for bit the same from run to run in %s" % item.name] = None
        why = self._refusal(buffers, answers[0])
        if why is not None:
            return "the problem's own check refuses its reference: %s" % why
        given = [self._given(buffers, item) if item.count <= LARGE else [] for item in outputs]
        for name, answer in work_free_answers(outputs, answers[0], given):
            if self._refusal(buffers, answer) is not None:
                self.tried[name] = None
                continue
            kind = "copy" if name.startswith("copy") else "constant"
            reason = self._trivial(Trivial(kind, "%s passes: the problem's own check accepts it" % name))
            if reason:
                return reason
        for name, answer in spoiled_answers(outputs, answers[0]):
            if self._refusal(buffers, answer) is None:
                self.notes["the problem's own check accepts the reference's answer %s" % name] = None
            else:
                self.tried["the answer " + name] = None
        return ""

    def _coarse(self, item: Tensor, finite: Array) -> None:
        """Note that an output is so small that its tolerance says little."""
        usual = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
        if self.atol > COARSE * usual > 0:
            text = "atol %g is %.2g %% of the usual size of %s (%.2g): answers that far off pass; choose a smaller atol"
            said = any(
                note.startswith("atol ") and " of the usual size of %s " % item.name in note for note in self.notes
            )
            if not said:
                self.notes[text % (self.atol, 100 * self.atol / usual, item.name, usual)] = None
