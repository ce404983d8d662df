"""One shape: first a checked call, then rounds of the right length until the interval is narrow."""

import math
from typing import Any, Dict, Optional, Tuple

from ..catch_log import CATCHES
from ..checks.distribution_rounds import Elsewhere
from ..checks.fp64_check import InDouble
from ..checks.interrupted_rounds import STOPPED_CALLS, Interruption
from ..checks.robustness import Robustness
from ..checks.stream_order_rounds import Separation
from ..checks.strict_precision import Strict
from ..correctness.own_check import LATE_UNSEEN
from ..devices.device import Buffers
from ..numerics.error_location import ordinal
from ..timing.judging_setup import JudgingSetup
from ..timing.machine_state import Watch
from ..timing.rounds import Round, Rounds
from ..timing.series import FEWEST_ROUNDS, LEAST_ROUNDS, Goal, Progress, Series
from ..timing.stalls import outlasted
from ..verdicts import Judged, TooLarge, megabytes, where_of
from .gated_series import ENOUGH, REFERENCE_S, GatedSeries, Pace, least_round_s
from .shape_times import ShapeTimes, short_round

SURE = 1.5
"""Times the shortest round that can be timed, which is what a round lasts at least: the clock's cost was measured on
the machine as it is, and on a busy one it is more."""
LONGEST_S = 0.1
GAPS = 20.0
"""Times what the owner's clock covers besides the calls, that a round lasts where the candidate's own clock counts."""
WARM_SHARE = 0.5
"""Of the cache, for the data of a warm round; the rest is for the other processes' and the owner's own."""
ADVICE_ROUNDS, SLOW_ADVICE_ROUNDS = 3, 2
"""In a loop beside gates, at a first look; a confirmation run plays as many as where the loop gives the times."""
UNTIMED = 2
"""Rounds with inputs of other distributions at a shape that is not timed."""
GROWTH = 16
MOST_PASSES = 64
AIM = 1.15
LONG = 1.3
"""A round is meant to last `AIM` times what is asked, at most `LONG` times: longer ones cost data, not error."""


class Shape:
    """Judges the candidate at one shape."""

    def __init__(self, setup: JudgingSetup, number: int, overhead_s: float, robustness: Robustness) -> None:
        task, device, costs = setup.task, setup.device, setup.costs
        self.ledger = setup.ledger
        self.goal = Goal.of(task, self.ledger.besides_s() + overhead_s)
        self.number = number
        """Of the shape among the task's."""
        self.task, self.device, self.costs = task, device, costs
        self.rounds = Rounds(setup, task["shapes"][number])
        self.rounds.timed = True
        self.dims, self.inputs, self.outputs = self.rounds.dims, self.rounds.inputs, self.rounds.outputs
        self.interruption = Interruption(self.rounds)
        self.separation = Separation(self.rounds)
        self.watch = Watch(device)
        self.strict = Strict(self.rounds, LEAST_ROUNDS)
        self.rounds.forgives = InDouble(self.rounds, self.rounds.notes).excuse
        self.elsewhere = Elsewhere(self.rounds, robustness)
        self.warm: Optional[Series] = None
        self.gated: Optional[GatedSeries] = None
        self.shortest_s = costs["candidate"].shortest_s
        self.round_s = max(float(task["round_ms"]) / 1000, min(SURE * self.shortest_s, LONGEST_S))
        self.least_s, self.gap_s = self.round_s, LONGEST_S
        """The least that the owner's clock covered besides a round's calls so far."""
        self.notes: Dict[str, None] = {}
        self.times = ShapeTimes(setup, number, self.notes)
        self.looking: Dict[str, Any] = {}
        self.series: Optional[Series] = None
        self.where: Optional[Dict[str, Any]] = None
        """Places of wrong elements, if there are any."""
        self.last: Optional[Round] = None
        """The round that showed how many calls make one; it is as good as the others."""
        self.worst_abs = self.worst_rel = self.reference_call_s = self.call_s = 0.0
        self.sets = 1
        self.few = bool(task.get("gated")) and task.get("cache") in (None, "cold")
        """Whether a slow reference makes rounds of few calls: gates give the times, or may."""

    def judge(self, progress: Progress) -> Dict[str, Any]:
        """Return the verdict at this shape."""
        verdict, reason = "correct", ""
        try:
            with self.ledger.part("wait"):
                untimed, wanted = self.task.get("untimed"), self.task.get("cache") or "cold"
                progress("first call", 0.0)
                # Gated rounds first: where they give the times, ungated ones are few and only their answers count.
                gates = self.task.get("gated") and wanted != "warm" and not untimed
                buffers = self._gate(progress) if gates else self._open(1)
                if untimed:
                    self._play(buffers)
                    self.strict.look(buffers, LEAST_ROUNDS)
                    for _ in range(UNTIMED):
                        self.elsewhere.play(buffers)
                    self.notes["not timed: %s" % untimed] = None
                else:
                    # Warm rounds are measured by the loop alone, and have as many calls at most.
                    if self._is_gated() and wanted == "cold":
                        self._shorten_rounds()
                    buffers = self._grow(buffers, progress)
                if not untimed and wanted != "warm":
                    self._measure(buffers, progress)
                self.rounds.close(buffers)
                if wanted != "cold" and not untimed:
                    self._warm(progress)
        except Judged as judged:
            verdict, reason, self.where = judged.verdict, judged.reason, where_of(judged)
        return self._result(verdict, reason)

    def was_disturbed(self) -> bool:
        """Say whether something was, or seems to have been, at work on the GPU when nothing was to be."""
        return self.gated is not None and (self.gated.disturbed or bool(self.gated.gated.busy))

    def _shorten_rounds(self) -> None:
        """Have rounds that the clock can tell and no longer ones: the loop's times stand beside those behind gates."""
        self.round_s = self.least_s = min(self.round_s, SURE * self.shortest_s)

    def _play(self, buffers: Buffers) -> Round:
        with CATCHES.during("timed"):
            played = self.rounds.play(buffers)
        self.reference_call_s = played.reference_s / buffers.sets
        self.call_s = played.candidate_s / buffers.sets
        self.worst_abs = max(self.worst_abs, played.check.max_abs)
        self.worst_rel = max(self.worst_rel, played.check.max_rel)
        if played.outside_s and self.series is None:
            self.gap_s = min(self.gap_s, played.outside_s - played.candidate_s)
            self.round_s = max(self.least_s, min(GAPS * self.gap_s, LONGEST_S))
        return played

    def _play_first(self, buffers: Buffers) -> Round:
        """Play a round, and another one where the first loaded the code that makes inputs and chose its place."""
        played = self._play(buffers)
        return self._play(buffers) if buffers.made_s > played.reference_s else played

    def _open(self, sets: int) -> Buffers:
        self.sets = sets
        return self.rounds.open(sets)

    def _room(self) -> Tuple[int, int]:
        """Return how many calls' buffers a round has room for, as usual and where it would be too short otherwise."""
        one = self.device.set_bytes(self.inputs, self.outputs)
        usual, most = (max(1, min(self.device.max_sets, size // one)) for size in self.device.max_bytes())
        return usual, most

    def _most_calls(self, call_s: float, reference_call_s: float) -> int:
        """Return how many calls a round may have, so that it does not take a slow reference too long."""
        most = self._budgeted_calls(reference_call_s)
        least_s = least_round_s(self.task)
        few = max(STOPPED_CALLS, math.ceil(least_s / call_s), int(REFERENCE_S / reference_call_s))
        return min(most, few) if self.few else most

    def _budgeted_calls(self, call_s: float) -> int:
        """Return how many calls take a third of the shape's budget, if each takes so long."""
        return max(1, int(float(self.task["budget_s"]) / 3 / call_s))

    def _grow(self, buffers: Buffers, progress: Progress) -> Buffers:
        """Return buffers for rounds that are long enough; each trial on the way is checked, none is timed."""
        usual, most = self._room()
        shortest, budget_s = SURE * self.shortest_s, float(self.task["budget_s"])
        played = self._play_first(buffers)
        self.last = played if buffers.sets > 1 else None
        while True:
            sets = buffers.sets
            enough = usual <= sets < most and shortest <= played.candidate_s
            if enough or played.candidate_s >= self.round_s:
                least_s, spread_s = shortest if enough else self.round_s, self.costs["candidate"].spread_s
                played, self.last = outlasted(played, self._play, buffers, least_s, spread_s, budget_s)
            each = max(played.candidate_s, self.costs["candidate"].floor_s) / sets
            slow = self._most_calls(each, (played.reference_s + buffers.made_s) / sets)
            needed = math.ceil(AIM * shortest / each) if played.candidate_s < shortest else 0
            cap = min(max(usual, min(most, needed)), slow)
            # A candidate that is slow without gates, whose time is that behind them, has several calls all the same:
            # of one call nothing is seen too early or too late.
            least = min(sets, STOPPED_CALLS) if self._is_gated() else 1
            wanted = max(least, min(cap, math.ceil(AIM * self.round_s / each)))
            if played.candidate_s < self.round_s and sets < (cap / ENOUGH if self.few else cap):
                wanted = min(max(wanted, sets + 1), sets * GROWTH)
            elif sets == 1 or played.candidate_s <= LONG * self.round_s or wanted >= sets:
                break
            # Closed first: old and new buffers never take memory together.
            self.rounds.close(buffers)
            progress("finding the length of a round", 0.05)
            try:
                buffers, self.last = self._open(wanted), None
            except TooLarge:  # others took it meanwhile: as many calls as usual fit in any case
                most, buffers, self.last = usual, self._open(min(wanted, usual)), None
            if wanted < sets:
                return buffers
            played = self.last = self._play(buffers)
        if not self._is_gated():
            spread_s, made_s = self.costs["candidate"].spread_s, buffers.made_s if buffers.sets >= slow else None
            said = short_round(played, buffers.sets, self.round_s, spread_s, made_s)
            self.notes.update(dict.fromkeys([said] if said else []))
        return buffers

    def _measure(self, buffers: Buffers, progress: Progress) -> None:
        """Play the rounds that count."""
        last = self.last or (self._play(buffers) if self.sets == 1 else None)
        self.series = self._series(buffers, progress, last, advisory=self._is_gated())
        self.looking = self.watch.evidence()
        if self.rounds.passes > 1:
            self.notes["the reference is timed over %d passes of a round's inputs" % self.rounds.passes] = None
        if self.watch.every > 1:
            text = "reading the machine's state takes %.0f us, so the judge reads it in every %s round only"
            self.notes[text % (self.watch.cost_s * 1e6, ordinal(self.watch.every))] = None
        if self.series.note:
            self.notes[self.series.note] = None

    def _series(self, buffers: Buffers, progress: Progress, last: Optional[Round], *, advisory: bool = False) -> Series:
        """Play rounds until there are enough; `last` counts as the first if the reference went once through it too.

        Advisory ones stand beside times on the GPU alone: they are few and as short, and nothing but their answers
        counts.
        """
        passes = 1 if advisory else round(self.round_s / (self.reference_call_s * buffers.sets))
        self.rounds.passes = max(1, min(MOST_PASSES, passes))
        goal = self.goal
        if advisory:
            few = ADVICE_ROUNDS if self.task.get("brief") else LEAST_ROUNDS
            slow = self.gated is not None and self.gated.gated.is_slow()
            goal = goal._replace(half_width=1.0, most_rounds=SLOW_ADVICE_ROUNDS if slow else few)
        series = Series(goal, self.ledger, buffers.sets, self.rounds.passes)
        if last is not None and passes <= 1:
            series.played.append(last)
        # Behind gates, calls that share work are wrong anyway. But a candidate could see the gates, and its calls in a
        # plain loop answer too early or too late: copies between calls and one interruption show that.
        first = goal.most_rounds if advisory else LEAST_ROUNDS
        self.interruption.begin(first, once=advisory)
        self.elsewhere.agenda.begin(LEAST_ROUNDS)
        self.separation.agenda.begin(first)
        self.rounds.watch = self.watch
        series.measure(buffers, self._next, progress)
        if self.strict.owed:
            self._play(buffers)
            self.strict.look(buffers, LEAST_ROUNDS)
        if not advisory:
            # The drawn interruptions are among the first rounds; later ones must not be safe from them.
            if len(series.played) > LEAST_ROUNDS:
                self.interruption.play(buffers)
            self.interruption.look(buffers)
        self.elsewhere.play(buffers)
        self.rounds.watch = None
        series.changed = self.interruption.changed
        if not advisory:
            self.separation.look(buffers)
        return series

    def _warm(self, progress: Progress) -> None:
        """Play rounds so small that all of their data fits the cache in which the owner has just written it.

        No two calls of a round get the same inputs: what repeats itself could be answered once. So a round holds no
        more calls than half the cache has room for, and where that is none, or too short for the clock, there is no
        warm time.
        """
        cache, call = self.device.cache_bytes(), self._touched()
        sets = min(int(WARM_SHARE * cache / call), self.sets) if cache else 0
        if sets < 1:
            large = "a call's %s do not fit half of %s of cache" % (megabytes(call), megabytes(cache))
            self.notes["no warm time: " + (large if cache else "%s, unknown cache" % megabytes(call))] = None
            return
        kept = self.sets
        buffers = self._open(sets)
        self._play(buffers)
        self.warm = self._series(buffers, progress, None)
        self.rounds.close(buffers)
        self.sets = kept

    def _gate(self, progress: Progress) -> Buffers:
        """Time the calls on the GPU alone, which ungated rounds need not do then; return the buffers that are open."""
        buffers, pace = self._begin(1)
        gated = self.gated = GatedSeries(self.rounds, pace, self.goal)
        strict = Strict(self.rounds, FEWEST_ROUNDS)
        self.elsewhere.agenda.begin(FEWEST_ROUNDS)

        def after(buffers_: Buffers, played: int) -> None:
            strict.look(buffers_, played)
            self.elsewhere.after(buffers_, played, gated.gated.play)

        try:
            buffers = gated.measure(buffers, self._begin, after, progress)
        finally:
            gated.close()
        self.few = self.few and self._is_gated()
        return buffers

    def _begin(self, sets: int) -> Tuple[Buffers, Pace]:
        """Return buffers, and what an ungated round with them says, in which kernels are loaded."""
        buffers = self._open(sets)
        self._play_first(buffers)
        call_s = max(self.call_s, self.costs["candidate"].floor_s / sets)
        reference_s = self.reference_call_s + buffers.made_s / sets
        room = min(self._room()[0], self._budgeted_calls(max(reference_s, call_s)))
        most = min(room, math.ceil(AIM * self.round_s / call_s), self._most_calls(call_s, reference_s))
        return buffers, Pace(call_s, self.reference_call_s, most, room)

    def _is_gated(self) -> bool:
        """Say whether the shape's times are those on the GPU alone."""
        return self.gated is not None and self.gated.is_basis(self.task)

    def _touched(self) -> int:
        """Return bytes of one call's inputs and outputs."""
        return sum(item.nbytes for item in [*self.inputs, *self.outputs])

    def _next(self, buffers: Buffers, played: int) -> Round:
        for _ in range(self.interruption.agenda.due(played)):
            self.interruption.play(buffers)
        round_ = self._play(buffers)
        self.strict.look(buffers, played)
        self.elsewhere.after(buffers, played)
        self.separation.after(buffers, played)
        return round_

    def _result(self, verdict: str, reason: str) -> Dict[str, Any]:
        told = self.rounds.calls_checked and not self.device.own_check  # which compares with nothing
        result: Dict[str, Any] = {
            "dims": self.dims,
            "verdict": verdict,
            "reason": reason,
            "calls_checked": self.rounds.calls_checked,
            "max_abs_error": self.worst_abs if told else None,
            "max_rel_error": self.worst_rel if told else None,
            "speedup": None,
            "where": self.where,
        }
        if verdict == "correct" and self.series and self.series.played:
            self.times.add(self.series, result, self.looking, self.gated)
            result["cache"] = self.times.cache_text(self._touched() * self.sets)
            if self.device.kind == "cuda" and self.device.own_check:
                result["unconfirmable"] = result.get("unconfirmable") or LATE_UNSEEN
        if verdict == "correct" and self.warm and self.warm.played:
            self.times.add_warm(self.warm, result)
        doubts = self.device.remarks()
        if doubts:
            result["speedup"] = None
        result["notes"] = [*self.notes, *self.rounds.notes, *doubts]
        return result
