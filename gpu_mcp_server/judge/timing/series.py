"""Rounds at one shape, played until the interval of their median is narrow or what they may cost is used up."""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from ..devices.device import Buffers
from ..numerics.stats import half_width, median
from .rounds import Round
from .time_accounting import Ledger

LEAST_ROUNDS = 7
PATIENCE = 4
"""Budgets after which fewer rounds do."""
FEWEST_ROUNDS = 6
"""Below 6 samples no pair of order statistics reaches 95 %."""
HALF_WIDTH = 0.02
"""Where a task names none."""
ALLOWED = 0.1
"""Part of a time by which the owner's clock may read more than the candidate's own: up to that the latter counts, and
no round counts as less. A candidate that falsifies its own clock gains no more than this, in whichever rounds."""

Progress = Callable[[str, float], None]


class Goal(NamedTuple):
    """Goal at which enough rounds were played."""

    half_width: float
    """Half the width of the median's 95 % interval, as a part of the median: of the candidate's time, and of the
    speed-up."""
    most_rounds: int
    budget_s: float
    """Of wall time for one shape."""
    limit_s: float
    """What the judge itself may have cost by then, as the ledger counts it."""

    @classmethod
    def of(cls, task: Dict[str, Any], limit_s: float) -> "Goal":
        """Return a task's."""
        narrow = float(task.get("half_width") or HALF_WIDTH)
        return cls(narrow, max(1, int(task["max_rounds"])), float(task["budget_s"]), limit_s)


class Series:
    """Rounds of one kind at one shape."""

    def __init__(self, goal: Goal, ledger: Ledger, sets: int, passes: int) -> None:
        """Begin with none.

        Args:
            goal: When there are enough.
            ledger: Of the job.
            sets: Calls of a round.
            passes: How often the reference goes through them.
        """
        self.goal, self.ledger, self.sets, self.passes = goal, ledger, sets, passes
        self.played: List[Round] = []
        self.stopped_by = ""
        """`half_width`, `rounds` or `time`; the time is the shape's own or what the judge may cost in all."""
        self.note = ""
        self.changed: List[int] = []
        """Of how many calls inputs were changed in time, in each round in which some were to be."""

    def measure(self, buffers: Buffers, play: Callable[[Buffers, int], Round], progress: Progress) -> None:
        """Play rounds until one of the three is reached.

        Args:
            buffers: Of `sets` calls.
            play: Plays a round, given how many were played.
            progress: Told after each round.
        """
        begin = time.monotonic()
        while not self.stopped_by:
            if len(self.played) >= self.goal.most_rounds:
                self.stopped_by = "rounds"
                return
            self.played.append(play(buffers, len(self.played)))
            count, elapsed = len(self.played), time.monotonic() - begin
            progress("round %d" % count, min(0.99, max(elapsed / self.goal.budget_s, count / self.goal.most_rounds)))
            self._stop(count, elapsed)

    def _stop(self, count: int, elapsed: float) -> None:
        budget_s = self.goal.budget_s
        # A narrow interval is believed from LEAST_ROUNDS on: few samples that agree by chance look narrow, too.
        if count >= LEAST_ROUNDS and self._narrow():
            self.stopped_by = "half_width"
        elif count >= LEAST_ROUNDS and (elapsed >= budget_s or self.ledger.besides_s() >= self.goal.limit_s):
            self.stopped_by = "time"
        elif (count >= FEWEST_ROUNDS and elapsed >= PATIENCE * budget_s) or elapsed >= 10 * PATIENCE * budget_s:
            self.stopped_by = "time"
            self.note = "only %d rounds: each takes %.3g s" % (count, elapsed / count)

    def _narrow(self) -> bool:
        candidate, reference = self.samples_us()
        # Ratios are taken round by round: drift that slows both players of a round cancels out.
        ratios = [r / c for r, c in zip(reference, candidate)]
        return max(half_width(candidate), half_width(ratios)) < self.goal.half_width

    def evidence(self) -> Dict[str, Any]:
        """Return the rounds besides those that count, in microseconds."""
        found: Dict[str, Any] = {"changed_calls": self.changed}
        if any(p.outside_s for p in self.played):
            found["outside_us"] = [round(p.outside_s * 1e6 / self.sets, 4) for p in self.played]
        return found

    def samples(self) -> Dict[str, Any]:
        """Return the rounds that count, for the evidence."""
        candidate, reference = self.samples_us()
        return {"candidate_us": candidate, "reference_us": reference, "calls_per_round": self.sets}

    def gap(self) -> float:
        """Return how much more the owner's clock reads than the candidate's own, as a part of the latter."""
        return median([p.outside_s / p.candidate_s - 1 for p in self.played if p.outside_s] or [0.0])

    def unconfirmable(self) -> str:
        """Say why the owner's clock does not confirm the candidate's own; then the owner's counts. Empty if it does."""
        gap = self.gap()
        if gap <= ALLOWED:
            return ""
        text = (
            "the judge's clock reads %.0f %% more than the candidate's own, the limit is %.0f %%; so the time is the "
        )
        text += "judge's and includes the host's delays: judge it on an idle host, or at a larger shape"
        return text % (100 * gap, 100 * ALLOWED)

    def samples_us(self) -> Tuple[List[float], List[float]]:
        """Return microseconds a call of candidate and reference, round by round."""
        own = self.gap() <= ALLOWED  # by the median, so that lies in fewer than half of the rounds pass it
        took_s = [max(p.candidate_s, p.outside_s / (1 + ALLOWED)) if own else p.outside_s for p in self.played]
        candidate, reference = took_s, [p.reference_s for p in self.played]
        return [each * 1e6 / self.sets for each in candidate], [each * 1e6 / self.sets for each in reference]
