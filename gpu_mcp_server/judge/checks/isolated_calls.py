"""Rounds with a gate behind each call: what a call takes when nothing overlaps it, and that it is done by its gate.

Somewhere between two gates the owner compares what should be there in full, and changes inputs of calls that are still
to come. Work that is put off, or shared with a later call, is missing there; what was worked on ahead is wrong then.
"""

from typing import List, NamedTuple, Optional

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.random_inputs import Well
from ..timing.gated_pass import Blocked
from ..timing.gated_rounds import GatedRounds
from ..verdicts import Judged, cheat
from .input_swap import Exchange

ROUNDS, CALLS = 3, 24
"""So many rounds, of so many calls at most: each gate costs 5 to 6 us and the owner's look at its word."""


class Between(NamedTuple):
    """What the owner did between two gates."""

    call: int
    """Before which it was."""
    exchange: Optional[Exchange]
    seen: List[RoundCheck]
    """How the calls before it were then."""


class IsolatedCalls:
    """Plays such rounds at one shape."""

    def __init__(self, gated: GatedRounds, well: Well) -> None:
        self.gated, self.rounds, self.well = gated, gated.rounds, well
        self.samples_s: List[float] = []

    def play(self, buffers: Buffers) -> None:
        """Play the rounds, as far as the queue holds their gates.

        Raises:
            Judged: If the candidate did not pass.
        """
        for _ in range(ROUNDS):
            try:
                self._play(buffers)
            except Blocked:
                return

    def _play(self, buffers: Buffers) -> None:
        gated, calls = self.gated, min(buffers.sets, CALLS)
        reply = gated.launch(buffers, each=calls)
        gated.lay_inputs(buffers)
        call = 1 + self.well.word() % (calls - 1) if calls > 1 else 0
        between = Between(call, Exchange(buffers, self.well, call) if call and buffers.changes else None, [])
        if between.exchange is not None:
            between.exchange.put(after=True)
        self.rounds.solve(buffers)
        buffers.publish()
        if between.exchange is not None:
            between.exchange.hide()
        opened = gated.open(buffers, each=(call, lambda: self._look(buffers, between)))
        reply = gated.candidate.finish(reply)
        check = buffers.check_first(calls)
        try:
            self.rounds.judge(buffers, reply, check, True, 0.0)
        except Judged as judged:
            raise self._told(buffers, between, check, judged) from None
        for seen in between.seen:
            late = np.flatnonzero((seen.wrong > check.wrong[:call]).any(axis=1))
            if late.size and not gated.rounds.ties.explained(buffers, seen).passed:
                raise cheat(
                    "put a call off: the gate behind call %d of %d was reached before its output was there; what "
                    "several calls share, none of them takes" % (int(late[0]) + 1, calls)
                )
        if opened is not None:
            taken = [each for number, each in enumerate(opened.each_s) if number != call or not call]
            self.samples_s += [each - gated.empty_s["candidate"] for each in taken]

    def _look(self, buffers: Buffers, between: Between) -> None:
        between.seen.append(buffers.check_first(between.call))
        if between.exchange is not None:
            between.exchange.show(between.exchange.calls)

    def _told(self, buffers: Buffers, between: Between, check: RoundCheck, judged: Judged) -> Judged:
        """Return a better verdict, if there is one, by what the reference answers the inputs as they were at first."""
        exchange = between.exchange
        if exchange is None or judged.verdict == "cheat":
            return judged
        changed = np.intersect1d(np.flatnonzero(check.wrong.any(axis=1)), exchange.calls)
        if not changed.size:
            return judged
        exchange.put(after=False)
        self.rounds.solve(buffers)
        right = changed[~buffers.check_first(len(check.wrong)).wrong[changed].any(axis=1)]
        if not right.size:
            return judged
        return cheat(
            "worked on a call before it was called: inputs of call %d of %d were changed behind its gate, and it was "
            "answered with what they had been; what several calls share, none of them takes"
            % (int(right[0]) + 1, len(check.wrong))
        )
