"""Times of calls by events, as KernelBench takes them: each call by itself, behind a sweep of the cache.

KernelBench overwrites 256 MiB, records an event, calls, records another, and waits for the GPU. Launching is in such a
time as far as it takes longer than the sweep. Here the GPU writes words of the owner's page instead of recording
events, and the owner's clock sees them.
Source: https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/timing.py (time_execution_with_cuda_event).

A candidate could write the words itself, and work before its first or behind its last one. That makes the time between
two calls longer than the reference's, but where it leaves out the sweep. And it leaves less than the calls take behind
gates, but where launching is what it hides. Either makes the time unconfirmable.
"""

from typing import Any, Dict, List

from ..devices.device import Buffers
from ..numerics.stats import half_width, median, times_of
from ..timing.gate_doubts import AGREE, BESIDE
from ..timing.gated_pass import NoGate
from ..timing.gated_rounds import GatedRounds
from ..timing.rounds import Round, named
from ..timing.series import Goal, Progress, Series

CALLS = 24
"""Of a round at most: each comes with a wait for the GPU, and its inputs are checked."""
NEAR_US = 5.0
"""By which the time between two calls may be longer than the reference's where that is more than a tenth of a call, as
each side waits for the GPU by its own library."""
LATE = "the GPU wrote the %s's words around a call late, or not at all"
OUTSIDE = ": it may work outside of its events"


class EventSeries:
    """Plays such rounds at one shape."""

    def __init__(self, gated: GatedRounds, goal: Goal, sets: int) -> None:
        """Begin, for rounds of so many sets behind gates."""
        self.gated, self.rounds = gated, gated.rounds
        self.calls = min(sets, CALLS)
        self.first = 1 if self.calls > 1 else 0
        """The round's first call is not counted where there are others: the GPU changes to the process before it."""
        self.series = Series(goal, self.rounds.ledger, self.calls - self.first, 1)
        self.words_s = 0.0
        """By which words are farther apart than events, by the reference's: a candidate could be slow in its own."""
        self.between_us: Dict[str, List[float]] = {"candidate": [], "reference": []}

    def measure(self, buffers: Buffers, progress: Progress) -> None:
        """Play the rounds.

        Raises:
            Judged: If the candidate did not pass one of them.
            NoGate: If a word did not come in time.
        """
        if self.gated.reference is not None:
            with self.rounds.ledger.part("launch"):
                self.words_s = self.gated.reference.time_words()
        self.series.measure(buffers, self._play, progress)

    def _play(self, buffers: Buffers, played: int) -> Round:
        rounds, gated = self.rounds, self.gated
        gated.launched += 1  # each round's probes are one finding
        rounds.draw(buffers)
        reference_s = rounds.solve(buffers, self.calls) / self.calls * self.series.sets
        if gated.reference is not None:
            # No gate holds the candidate's calls back: what they left running would slow the reference.
            gated.probe(BESIDE)
            reference_s = self._time("reference")
            gated.probe(BESIDE)
        rounds.lay(buffers)
        candidate_s, reply = self._time("candidate"), self.reply
        with rounds.ledger.part("check"):
            check = buffers.check_first(self.calls)
            rounds.judge(buffers, reply, check, 0.0)
        if not (candidate_s and reference_s):
            raise NoGate(LATE % ("reference" if candidate_s else "candidate"))
        rounds.calls_checked += self.calls
        return Round(candidate_s, reference_s, check)

    def _time(self, role: str) -> float:
        """Return what a player's calls took that count, 0 where it did not make all."""
        gated, ledger = self.gated, self.rounds.ledger
        player = gated.candidate if role == "candidate" else gated.reference
        assert player is not None
        limit_s = gated.limit_s(1) * (1 if player is gated.candidate else 6)
        with ledger.part(role):
            taken, between, self.reply = player.time_each(self.calls, limit_s)
        if role == "reference":
            named(self.reply, "compute")
        self.between_us[role] += [each_s * 1e6 for each_s in between]
        if len(taken) < self.calls:
            return 0.0
        return sum(max(each_s - self.words_s, 1e-9) for each_s in taken[self.first :])

    def doubt(self, device_us: float) -> str:
        """Say why the times are not confirmed, where a call takes so long on the GPU alone; empty if they are."""
        call_us = median(self.series.samples_us()[0])
        if call_us < (1 - AGREE) * device_us:
            return "a call takes %.4g us by events and %.4g us on the GPU alone" % (call_us, device_us) + OUTSIDE
        mine, its = (median(self.between_us[role] or [0.0]) for role in ("candidate", "reference"))
        if its and mine > its + max(NEAR_US, AGREE * call_us):
            return "%.4g us pass between two calls, %.4g us between the reference's" % (mine, its) + OUTSIDE
        return ""

    def result(self, device_us: float) -> Dict[str, Any]:
        """Return times with their intervals, what ended the rounds and what speaks against them, as `doubt` does."""
        candidate, reference = self.series.samples_us()
        result = times_of(
            candidate, reference if self.gated.reference is not None else (), self.series.sets, again=True
        )
        result.update(half_width=half_width(candidate), stopped_by=self.series.stopped_by)
        return dict(result, unconfirmable=self.doubt(device_us))

    def samples(self) -> Dict[str, Any]:
        """Return all rounds, for the evidence."""
        between = {role: round(median(each_us), 2) for role, each_us in self.between_us.items() if each_us}
        return dict(self.series.samples(), between_us=between, words_us=round(self.words_s * 1e6, 2))
