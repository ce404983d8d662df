"""Rounds with inputs of another distribution between those that are timed, and one at a shape's end.

In the trials a candidate is right with them. One that counts its calls, or tells a declared shape by its size, could
be right there and, once it is timed, only for inputs as declared: a softmax without its maximum.
"""

from dataclasses import replace
from typing import Any, Callable, List, Optional

import numpy as np

from ..catch_log import CATCHES
from ..devices.device import Buffers, RoundCheck
from ..numerics.compare import LARGE, numbers
from ..timing.rounds import Rounds
from ..verdicts import Judged, ReferenceFailed, incorrect
from .fp64_check import InDouble
from .robustness import Robustness
from .trial_setup import DISTRIBUTIONS, SELDOM_DRAWN, Agenda, may_vary

LOOKED_AT = 4
"""Wrong calls of a round of which it is asked whether rounding explains them; fewer where outputs are large."""
LOOKED_AT_ELEMENTS = 1 << 22


def answered(buffers: Buffers, call: int, *, infinite: bool) -> bool:
    """Say whether the reference has an answer: all finite, or without a NaN if infinities belong to the problem."""
    if not infinite:
        return buffers.sound(call)
    pairs = ((buffers.pair(call, number)[0], item.dtype) for number, item in enumerate(buffers.outputs))
    return not any(np.isnan(numbers(expected, dtype)).any() for expected, dtype in pairs)


class Elsewhere:
    """Plays such rounds at one shape."""

    def __init__(self, rounds: Rounds, robustness: Robustness) -> None:
        task, inputs, outputs = rounds.task, rounds.inputs, rounds.outputs
        self.rounds, self.well, self.robustness = rounds, rounds.well, robustness
        self.infinite = bool(task.get("infinite"))
        self.free = may_vary(inputs)
        own = {item.distribution for item, may in zip(inputs, self.free) if may}
        wanted = (
            task.get("distributions") != "declared"
            and max((item.count for item in [*inputs, *outputs]), default=0) <= LARGE
        )
        # Where a wrong answer is only told, one is known already: asking what rounding explains takes seconds.
        known = {} if robustness.required else robustness.found
        names = [name for name in DISTRIBUTIONS if own != {name} and name not in (*SELDOM_DRAWN, *known)]
        self.left: List[str] = []
        self.names: List[str] = names if wanted and any(self.free) else []
        self.answered: List[str] = []
        """Of these, what the reference has answered at this shape."""
        """What inputs are drawn from, in an order that is drawn too."""
        self.most = max(1, min(LOOKED_AT, LOOKED_AT_ELEMENTS // max((item.count for item in outputs), default=1)))
        self.double = InDouble(rounds, rounds.notes)
        self.agenda = Agenda(self.well)

    def after(self, buffers: Buffers, played: int, play: Optional[Callable[[Buffers], Any]] = None) -> None:
        """Play what is due behind a round.

        Raises:
            Judged: If the candidate is wrong there.
        """
        for _ in range(self.agenda.due(played)):
            self.play(buffers, play)

    def play(self, buffers: Buffers, play: Optional[Callable[[Buffers], Any]] = None) -> None:
        """Play one, in the plain way or as `play` does it.

        Raises:
            Judged: If the candidate is wrong there, and that decides.
        """
        if not self.names:
            return
        # Each distribution comes once before any comes twice, so few rounds cover them all.
        self.left = self.left or list(self.names)
        drawn = self.left.pop(self.well.word() % len(self.left))
        rounds, declared, watch = self.rounds, buffers.inputs, self.rounds.watch
        forgives, twice = rounds.forgives, rounds.twice
        buffers.inputs = [replace(i, distribution=drawn) if may else i for i, may in zip(declared, self.free)]
        # These rounds are no times, so nobody looks at clocks around them.
        rounds.watch, rounds.picks = None, lambda check: self._some(buffers, check)
        rounds.forgives, rounds.twice = self.double.forgiven, self.robustness.required
        try:
            if play and drawn not in self.answered:
                # Behind gates the candidate comes first, and could die of inputs to which the reference has no answer.
                rounds.expect(buffers)
                self.answered.append(drawn)
            with CATCHES.during("timed, other inputs"):
                (play or rounds.play)(buffers)
            self.robustness.right[drawn] = None
        except ReferenceFailed as error:
            # A candidate may hold the memory that the reference lacks; that must not remove a distribution from the
            # draw.
            if rounds.reference.lost or "out of memory" in str(error):
                raise
            rounds.reference.freeze()
            # The reference has no answer to this distribution, and would have none the next time.
            self.names.remove(drawn)
        except Judged as judged:
            if judged.verdict == "cheat":
                raise
            if self.robustness.takes(judged, rounds, buffers, drawn):
                self.names.remove(drawn)
                return
            text = "right with inputs as declared, wrong with the distribution %s between timed rounds: %s"
            raise incorrect(text % (drawn, judged.reason)) from None
        finally:
            buffers.inputs, rounds.watch, rounds.picks = declared, watch, None
            rounds.forgives, rounds.twice = forgives, twice

    def _some(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Leave some of the wrong calls, drawn, of those to which the reference has an answer."""
        kept, calls = np.zeros_like(check.wrong), np.flatnonzero(check.wrong.any(axis=1)).tolist()
        for _ in range(min(self.most, len(calls))):
            call = calls.pop(self.well.word() % len(calls))
            if answered(buffers, call, infinite=self.infinite):
                kept[call] = check.wrong[call]
        return check._replace(wrong=kept)
