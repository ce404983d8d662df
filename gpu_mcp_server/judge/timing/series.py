"""Rounds at one shape, played until the interval of their median is narrow or what they may cost is used up."""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from ..devices.device import Buffers
from ..numerics.stats import half_width, median, median_interval
from .clock_overhead import Cost
from .rounds import Round
from .serial_calls import Single
from .shared_work import Sharing
from .time_accounting import Ledger

LEAST_ROUNDS = 7
PATIENCE = 4
"""Budgets after which fewer rounds do."""
FEWEST_ROUNDS = 6
"""Below 6 samples no pair of order statistics reaches 95 %."""
LEAST_S = 1e-9
"""Of a round, where the clock's own cost is all of it."""
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


class Unsure(NamedTuple):
    """Half of 95 % intervals that come from what is taken off for the clock, which is the same for all rounds.

    The passes' interval is cut where no more is taken off, so that a few that stalled say no more than that.
    """

    candidate_us: float
    reference_us: float
    """Of a call, as the candidate's."""
    ratio: float
    """Of reference over candidate: as the same is taken off both, less than either's."""


class Series:
    """Rounds of one kind at one shape."""

    def __init__(self, goal: Goal, ledger: Ledger, costs: Dict[str, Cost], sets: int, passes: int) -> None:
        """Begin with none.

        Args:
            goal: When there are enough.
            ledger: Of the job.
            costs: Of empty passes, by role, before the candidate was loaded; `low_s` is off the rounds' times already.
            sets: Calls of a round.
            passes: How often the reference goes through them.
        """
        self.goal, self.ledger, self.costs, self.sets, self.passes = goal, ledger, costs, sets, passes
        self.played: List[Round] = []
        self.stopped_by = ""
        """`half_width`, `rounds` or `time`; the time is the shape's own or what the judge may cost in all."""
        self.note = ""
        self.sharing = Sharing()
        self.singles: List[Single] = []
        """Of calls that were asked for one by one."""
        self.separated_s: List[float] = []
        """Of a call, in rounds with separators behind them."""
        self.exposed_s = 0.0
        """What a call takes with something between calls, where that is clearly more than its part of a round."""
        self.doubt = ""
        """Why its rounds are no time of a call's, if so."""

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
        ratios, unsure = [r / c for r, c in zip(reference, candidate)], self.unsure()
        narrow = half_width(candidate, unsure.candidate_us) < self.goal.half_width
        return narrow and half_width(ratios, unsure.ratio) < self.goal.half_width

    def empty_s(self) -> List[float]:
        """Return what empty passes between the rounds took."""
        return [each for p in self.played for each in p.empty_s]

    def taken_s(self, role: str) -> float:
        """Return what is taken off a pass of `role` for the clock itself: what empty passes between the rounds say.

        The machine's state moves it, more from evaluation to evaluation than from round to round. It is the reference
        that makes those passes, as a candidate could be slow in them; theirs are without the fence, so that rather too
        little is taken off. A candidate could still leave work on the GPU that slows them. So of its own no more is
        taken off than `high_s`, by passes from before it was loaded; of its baseline it may.
        """
        passes_s, cost = self.empty_s(), self.costs[role]
        if not passes_s:
            return cost.low_s
        return min(median(passes_s), cost.high_s) if role == "candidate" else median(passes_s)

    def unsure(self) -> Unsure:
        """Return what is not known of it; nothing is said of it where there were no passes between the rounds."""
        passes_s, cost = self.empty_s(), self.costs["candidate"]
        if not passes_s:
            return Unsure(0.0, 0.0, 0.0)
        middle_s, *ends_s = median_interval(passes_s)
        # Order statistics of so few passes give no 95 % interval, so the spread from calibration stands in.
        if len(passes_s) < FEWEST_ROUNDS:
            ends_s = [middle_s - cost.spread_s / 2, middle_s + cost.spread_s / 2]
        mine_s = [min(end_s, cost.high_s) for end_s in ends_s]
        its_s = [min(end_s, max(middle_s, cost.high_s)) for end_s in ends_s]  # the rest are stalls
        mine_us = (mine_s[1] - mine_s[0]) / 2 * 1e6 / self.sets
        its_us = (its_s[1] - its_s[0]) / 2 * 1e6 / self.sets / self.passes
        candidate_us, reference_us = (median(samples) for samples in self.samples_us())
        most = (reference_us + its_us) / (candidate_us + mine_us)
        return Unsure(mine_us, its_us, abs(most - reference_us / candidate_us))

    def clock(self) -> Dict[str, Any]:
        """Return the passes and what was taken off, in microseconds, and the rounds that were interrupted."""
        found: Dict[str, Any] = {"clock_us": {role: round(self.taken_s(role) * 1e6, 1) for role in self.costs}}
        short = [[one.calls, round(one.seconds * 1e6, 1)] for one in self.sharing.short]
        empty = [round(each * 1e6, 1) for each in self.empty_s()]
        single = [[round(each * 1e6, 2) for each in one] for one in self.singles]
        found.update(empty_passes_us=empty, short_rounds=short, changed_calls=self.sharing.changed)
        if any(p.outside_s for p in self.played):
            found["outside_us"] = [round(p.outside_s * 1e6 / self.sets, 4) for p in self.played]
        return dict(found, one_by_one_us=single, separated_us=[round(each * 1e6, 2) for each in self.separated_s])

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
        more_s = {role: self.taken_s(role) - cost.low_s for role, cost in self.costs.items()}
        # The reference's time is divided by its passes already, so the clock's cost, paid once a round, is too.
        more_s["reference"] /= self.passes
        own = self.gap() <= ALLOWED  # by the median, so that lies in fewer than half of the rounds pass it
        took_s = [max(p.candidate_s, p.outside_s / (1 + ALLOWED)) if own else p.outside_s for p in self.played]
        candidate = [max(each - more_s["candidate"], LEAST_S) * 1e6 / self.sets for each in took_s]
        return candidate, [max(p.reference_s - more_s["reference"], LEAST_S) * 1e6 / self.sets for p in self.played]
