"""Times of calls behind gates at one shape: how many calls a round has, what they took, and what they say."""

import math
from typing import Any, Callable, Dict, Optional

from ..devices.device import Buffers
from ..numerics.random_inputs import Well
from ..numerics.stats import median, speedup, timing
from ..timing.clock_overhead import NO_COST
from ..timing.gated_rounds import GatedRounds
from ..timing.rounds import Rounds
from ..timing.series import Goal, Progress, Series
from ..timing.time_accounting import Ledger

ROUND_S = 2e-3
"""That a round of short calls should last: the word is seen within a microsecond of its writing."""
FEWEST, MOST = 16, 512
"""Calls of a round, unless memory or the queue has room for fewer. The queue holds about 1,000 launches."""
HALF_WIDTH = 0.005
MOST_ROUNDS = 30
BUDGET_S = 1.5
LAUNCH_BOUND = 1.5
"""Times its time on the GPU, that a call must take with its launch for the launch to be what it waits for."""


class GatedSeries:
    """Plays gated rounds behind a shape's others."""

    def __init__(self, rounds: Rounds, well: Well, ledger: Ledger, call_s: float) -> None:
        """Begin; `call_s` is what a call takes in ungated rounds."""
        self.rounds, self.ledger, self.call_s = rounds, ledger, call_s
        self.gated = GatedRounds(rounds, well, call_s)
        self.series: Optional[Series] = None
        self.why = ""
        """Why there is no such time, if so."""

    def measure(self, buffers: Buffers, open_buffers: Callable[[int], Buffers], progress: Progress) -> Buffers:
        """Play the rounds; return the buffers that are open afterwards.

        Raises:
            Judged: If the candidate did not pass one of them.
        """
        self.why = self.gated.prepare()
        if self.why:
            return buffers
        wanted = min(MOST, max(FEWEST, math.ceil(ROUND_S / self.call_s)), buffers.sets)
        buffers = self._reopen(buffers, open_buffers, wanted)
        while not self.gated.try_launch(buffers):
            if buffers.sets == 1:
                self.why = "a call waits for the device, or launches more than the queue holds"
                return buffers
            buffers = self._reopen(buffers, open_buffers, buffers.sets // 2)
        goal = Goal(HALF_WIDTH, MOST_ROUNDS, BUDGET_S, math.inf)
        costs = {"candidate": NO_COST, "reference": NO_COST}
        self.series = Series(goal, self.ledger, costs, buffers.sets, 1)
        self.rounds.passes = 1
        self.series.measure(buffers, lambda buffers_, played: self.gated.play(buffers_), progress)
        self.gated.complete(buffers)
        self.gated.isolate(buffers)
        return buffers

    def _reopen(self, buffers: Buffers, open_buffers: Callable[[int], Buffers], sets: int) -> Buffers:
        if sets == buffers.sets:
            return buffers
        self.rounds.close(buffers)
        return open_buffers(sets)

    def result(self) -> Dict[str, Any]:
        """Return times with their intervals, and what speaks against them."""
        if self.series is None:
            return {"unconfirmable": self.why}
        candidate, reference = self.series.samples_us()
        calls, found = self.series.sets, {"unconfirmable": self.gated.doubt([each / 1e6 for each in candidate])}
        result: Dict[str, Any] = {"candidate": timing(candidate, calls), **found}
        if not self.gated.ungated:
            result["reference"] = timing(reference, calls)
            names = ("speedup", "speedup_low", "speedup_high")
            result.update(zip(names, speedup(reference, candidate)))
        if self.gated.each_s:
            result["isolated_us"] = median(self.gated.each_s) * 1e6
        return result

    def samples(self) -> Dict[str, Any]:
        """Return all rounds, for the evidence."""
        if self.series is None:
            return {}
        candidate, reference = self.series.samples_us()
        return {"candidate_us": candidate, "reference_us": reference, **self.gated.evidence()}

    def remark(self) -> str:
        """Say so where the launch and not the GPU takes most of a call."""
        if self.series is None:
            return ""
        device_us = median(self.series.samples_us()[0])
        if self.call_s * 1e6 < LAUNCH_BOUND * device_us:
            return ""
        return "launch-bound: the GPU is busy %.3g of %.3g us a call" % (device_us, self.call_s * 1e6)

    def close(self) -> None:
        """Give the words back."""
        self.gated.close()
