"""Tries a candidate with inputs beyond declared ones; failures are told beside the verdict, or part of it.

An answer that is wrong with another distribution of inputs does not make a candidate incorrect, unless the problem
wants that: lower precision within the tolerance, a missing maximum, a dropped epsilon are choices of its author. Other
failures decide all the same: a cheat, a candidate that is lost, the same answer to any inputs, and wrong answers to
inputs as declared from then on. So do inputs that were answered rightly before and are now wrong by more than a lower
precision: that much an autotuner may choose later.
"""

import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..correctness.error_statistics import SCATTERED, distribution, lower_precision, suspicion
from ..correctness.fp64_reference import EPSILON
from ..devices.device import Buffers
from ..numerics.compare import Kept, numbers
from ..timing.rounds import Rounds
from ..verdicts import Judged
from .fp64_check import InDouble

LOOKED_AT = 1 << 16
"""Elements of a wrong output by which its kind of error is told."""
COUNT = re.compile(r"\b\d+(?= of \d+ elements)")
"""Wrong elements, as a reason counts them."""
WORDS = 160
"""Characters of a reason that is told as it is."""
MOST_LOST = 0.25
"""Of the values, by root mean square, what lower precision may lose in a sum that is longer than declared ones."""
TELLING = 16
"""Elements of an answer of whole numbers from which it is the same for other inputs by no chance."""


class Robustness:
    """Findings with inputs beyond declared ones."""

    def __init__(self, task: Dict[str, Any]) -> None:
        self.task = task
        self.required = task.get("robust") == "required" or task.get("precision") == "strict"
        """Whether what is wrong there is incorrect."""
        self.found: Dict[str, str] = {}
        """By distribution, what is wrong with it."""
        self.right: Dict[str, None] = {}
        """Distributions besides the declared one with which an answer was right."""

    def takes(self, judged: Judged, rounds: Rounds, buffers: Buffers, drawn: str) -> bool:
        """Note a failure with another distribution; say whether it is no more than that."""
        if self.required or judged.verdict == "cheat" or rounds.candidate.lost:
            return False
        if drawn not in self.found:
            self.found[drawn] = self._words(judged, rounds, buffers)
        return True

    def spares(self, judged: Judged, rounds: Rounds, buffers: Buffers, place: str, known: Dict[str, Any]) -> bool:
        """Note a lower precision that shows at a shape beyond the declared ones; say whether a failure is no more.

        A tolerance is declared for sums as long as the declared ones are. Of who is as exact as the type allows at
        declared shapes, by errors of outputs that are `known`, something else is wrong.
        """
        if self.required or judged.answer is None:
            return False
        if not suspicion(known.get(buffers.outputs[judged.answer[1]].name) or {}):
            return False
        share = self.precision_loss(judged, rounds, buffers)
        if share is not None:
            self.found[place] = "lower precision, by which the answer is %.2g %% off" % (100 * share)
        return share is not None

    def precision_loss(self, judged: Judged, rounds: Rounds, buffers: Buffers) -> Optional[float]:
        """Return which part of the values a lower precision loses by root mean square; None for any other failure."""
        if judged.verdict == "cheat" or rounds.candidate.lost or judged.answer is None:
            return None
        errors = self._errors(buffers, judged.answer, rounds)
        # Rounding errs in all elements alike; few large errors have another cause, which a tolerance must not cover.
        if not errors or errors["max_abs"] > SCATTERED * errors["rms"]:
            return None
        # The guard against 0 keeps an all-zero answer from dividing; the share is then beyond any limit.
        share = float(errors["rms"] / max(errors["rms_of_values"], 1e-300))
        return share if share <= MOST_LOST else None

    def _errors(self, buffers: Buffers, answer: Tuple[int, int], rounds: Rounds) -> Dict[str, Any]:
        """Return errors of an answer against double precision, nothing if there are none to be had."""
        call, output = answer
        item = buffers.outputs[output]
        if item.dtype not in EPSILON:
            return {}
        some = np.unique(rounds.well.positions(LOOKED_AT, item.count))
        want, have = (numbers(part, item.dtype) for part in buffers.elements_at(call, output, some))
        # An overflow is no matter of precision, and would make every mean infinite.
        if (np.isfinite(want) & ~np.isfinite(have)).any():
            return {}
        double = InDouble(rounds, rounds.notes)
        exact = double.read(buffers, "oracle", some.size, call, {str(output): some})
        return {} if exact is None else distribution(exact, want, have, item.dtype)

    def _words(self, judged: Judged, rounds: Rounds, buffers: Buffers) -> str:
        if judged.answer is None:
            return judged.reason.splitlines()[0][:WORDS]
        call, output = judged.answer
        item = buffers.outputs[output]
        rtol, atol = float(self.task["rtol"]), float(self.task["atol"])
        bad, places = buffers.wrong_places(call, output, (rtol, atol), 1.0, LOOKED_AT)
        which = "output %s: " % item.name if len(buffers.outputs) > 1 else ""
        text = "%s%d of %d elements are wrong" % (which, bad, item.count)
        if item.dtype not in EPSILON or not places.size:
            return text
        want, have = (numbers(part, item.dtype) for part in buffers.elements_at(call, output, places))
        if (np.isfinite(want) & ~np.isfinite(have)).any():
            return "NaN or infinite where the reference is finite"
        return lower_precision(self._errors(buffers, judged.answer, rounds)) or text

    def text(self, why_not: str = "") -> str:
        """Return a sentence on robustness; `why_not` says why the judge tried no other distribution."""
        if self.found:
            return "; ".join(["no", *_joined(self.found)])
        if self.right:
            return "yes, with %d other distributions" % len(self.right)
        return "unknown; " + (why_not or "no other distribution was tried")


def _joined(found: Dict[str, str]) -> List[str]:
    """Return what was wrong at which places, those that differ in the count of wrong elements in one."""
    kinds: Dict[str, Dict[str, str]] = {}
    for place, words in found.items():
        kinds.setdefault(COUNT.sub("", words), {})[place] = words
    texts: List[str] = []
    for places in kinds.values():
        words = next(iter(places.values()))
        counts = sorted({int(count) for each in places.values() for count in COUNT.findall(each)})
        if len(counts) > 1:
            words = COUNT.sub("%d to %d" % (counts[0], counts[-1]), words)
        texts.append("%s: %s" % (", ".join(places), words))
    return texts


class Sameness:
    """Detects a candidate that gives the very same answer to other inputs."""

    def __init__(self, buffers: Buffers) -> None:
        items = buffers.outputs
        # A few whole numbers, such as a class, agree by chance; floats do so hardly ever.
        self.telling = any(item.dtype in EPSILON for item in items) or sum(i.count for i in items) >= TELLING
        self.kept: Sequence[Kept] = [Kept(buffers, number) for number in range(len(items))] if self.telling else []
        self.alike: List[str] = []
        """Distributions that got a wrong answer which is the one to inputs as declared, bit for bit."""

    def see(self, drawn: str) -> None:
        """Look at a wrong answer."""
        if self.holds():
            self.alike.append(drawn)

    def holds(self) -> bool:
        """Say whether the answer that is there now is the one that was kept."""
        return self.telling and all(kept.other() is None for kept in self.kept)
