"""Plays rounds with a gate behind each call: its time without overlap, and proof that it is done by its gate.

Somewhere between two gates the owner compares what should be there in full, and changes inputs of calls that are still
to come. Work that is put off, or shared with a later call, is missing there; what was worked on ahead is wrong then.
"""

from typing import List, Optional, cast

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.stats import median
from ..timing.gate_doubts import AGREE, OPENS
from ..timing.gated_pass import Blocked
from ..timing.gated_rounds import WAITS, GatedRounds
from ..verdicts import Judged, calls_text, cheat
from .input_swap import Exchange

ROUNDS, CALLS = 3, 24
"""So many rounds, one of slow ones, of so many calls at most: each gate costs 5 to 6 us and the owner's look at it."""
TRIES = 6
"""Launches that may not return behind their gates, each of half as many calls as the one before."""
LATER_S, LEAST_LATER_S = 2e-6, (30e-6, 60e-6)
"""Seconds a call, and of a round at least, by which the GPU may answer later behind the last word of one. Behind 24
honest calls beside a torch reference it was 6 to 15 us on an H200, behind nine beside a NumPy reference, where the
empty pass is the candidate's, 39 and 45 (benchmarks/results/verdict-seconds.md). Few calls have the smaller one."""
FEW = 4


class IsolatedCalls:
    """Plays such rounds at one shape."""

    def __init__(self, gated: GatedRounds) -> None:
        self.gated, self.rounds, self.well = gated, gated.rounds, gated.well
        self.samples_s: List[float] = []
        self.later_s: List[float] = []
        """How much later than behind an empty pass the GPU answered behind a round's last word."""
        self.calls = CALLS
        self.why = ""
        """Why there are no such rounds, or not enough: a candidate could choose to have none."""

    def play(self, buffers: Buffers) -> None:
        """Play the rounds, with as many calls as the queue holds with their gates.

        Raises:
            Judged: If the candidate did not pass.
        """
        self.calls, played, blocked = min(buffers.sets, CALLS), 0, 0
        rounds = 1 if self.gated.is_slow() else ROUNDS
        while played < rounds and not self.why:
            try:
                self._play(buffers)
                played += 1
            except Blocked:
                self.calls, blocked = max(1, self.calls // 2), blocked + 1
                self.why = WAITS % "calls with a gate behind each" if blocked == TRIES else ""

    def doubt(self, device_s: float) -> str:
        """Say what speaks against these rounds, where a call among others takes `device_s`; empty if nothing does."""
        more_s, least_s = median(self.later_s or [0.0]), LEAST_LATER_S[self.calls >= FEW]
        if more_s > max(least_s, self.calls * (LATER_S + AGREE * device_s)):
            text = "the GPU answered %.0f us later behind %s with a gate behind each than behind calls without gates"
            return text % (more_s * 1e6, calls_text(self.calls))
        return self.why

    def _play(self, buffers: Buffers) -> None:
        gated, calls = self.gated, self.calls
        reply = gated.launch(buffers, calls, each=True)
        gated.lay_inputs(buffers)
        gated.show_inputs(buffers, OPENS)
        call = 1 + self.well.word() % (calls - 1) if calls > 1 else 0
        exchange, seen = Exchange(buffers, self.well, call) if call else None, cast("List[RoundCheck]", [])
        if exchange is not None:
            exchange.put(after=True)
        self.rounds.solve(buffers, calls)
        opened = gated.open(buffers, each=(call, lambda: seen.append(self._look(buffers, call, exchange))))
        if opened is None:
            self.why = "calls with a gate behind each did not end in time"
            gated.candidate.finish(reply)
            return  # whatever inputs they had
        self.later_s.append(gated.probe("behind the last word") - gated.empty.switch_s)
        reply = gated.candidate.finish(reply)
        check = buffers.check_first(calls)
        try:
            self.rounds.judge(buffers, reply, check, 0.0)
        except Judged as judged:
            wrong, told = np.flatnonzero(check.wrong.any(axis=1)), None
            if exchange is not None and judged.verdict != "cheat" and np.isin(wrong, exchange.calls).any():
                wrong = np.intersect1d(wrong, exchange.calls)
                told = exchange.stale_verdict(self.rounds, wrong, calls, "behind its gate")
            raise (told or judged) from None
        # What is still wrong at the end was judged above as a wrong answer; here only what came late is left.
        for before in seen:
            late = np.flatnonzero((before.wrong > check.wrong[:call]).any(axis=1))
            if late.size and not gated.rounds.ties.excuse(buffers, before).passed:
                raise cheat(
                    "put a call off: the stream reached the gate behind call %d of %d before the call's output was "
                    "there; work that calls share is in no call's time" % (int(late[0]) + 1, calls)
                )
        # The owner looked and changed inputs before this call: its time has that in it.
        taken = [each for number, each in enumerate(opened.each_s) if number != call or not call]
        self.samples_s += [each - gated.empty_s["candidate"] for each in taken]

    def _look(self, buffers: Buffers, call: int, exchange: Optional[Exchange]) -> RoundCheck:
        """Return how the calls before one are, and change inputs from there on."""
        with self.rounds.ledger.part("check"):  # within the candidate's: its time alone is free to the judge's budget
            seen = buffers.check_first(call)
        if exchange is not None:
            exchange.show(exchange.calls)
        return seen
