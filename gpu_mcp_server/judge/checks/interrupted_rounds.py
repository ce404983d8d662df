"""Rounds that end before their end: a call that was not made yet must not have been worked on.

All inputs of a round lie before the candidate when its clock starts. One that answers several calls at once, on all
cores or by one large launch, would be as fast as no single call of it is.
"""

import contextlib
import time
from typing import Any, Dict, Generator, List, Tuple

import numpy as np

from ..catch_log import CATCHES
from ..devices.device import Buffers
from ..devices.memory_cpu import WORDS
from ..numerics.compare import STORAGE
from ..numerics.tensors import ITEM_BYTES, Array
from ..timing.rounds import Rounds
from ..verdicts import Judged, Torn, cheat
from .input_swap import Exchange
from .trial_setup import Agenda

STOPS, SELDOM = 8, 6
"""Before how many of a shape's first rounds one is interrupted, and before one in so many of the others. One is at the
end always, so that a candidate gains nothing by waiting for the interruptions to be over."""
STOPPED, MIDDLE = "inputs change while stopped", "stopped in the middle"
FEWER, RUNNING = "fewer calls", "inputs change while running"
KINDS = {True: (FEWER, STOPPED, MIDDLE, RUNNING), False: (STOPPED, FEWER)}
"""Interruptions that take turns: where freezing stops the candidate's work, and elsewhere, as on a GPU. There nothing
is to be seen in the middle, and beside one that runs the owner's kernels wait for their slices of the GPU (in none of
12 rounds of 10 ms on an H200 was a change in time).

Fewer calls alone show answers that the first call gave to those soon behind it (examples/cheats/cpu/batch_at_first.c):
a stop comes too late for them. Inputs that change beside a running candidate alone show one that takes a gap on its
clock for a stop, and then recomputes the answers that it kept."""
WHEN = (0.3, 0.8)
"""Of the last round's time, between which inputs change on a GPU; on a processor at any time of it."""
LAUNCH_S = 3e-6
"""Of a call, on a GPU, where a candidate is stopped while it launches them, which may be long before they begin. A C++
loop needs about as much (benchmarks/results), Python ten times that."""
DRAINED_S = 0.001
DRAINED_AT_MOST_S = 5.0
"""What was launched by then is over when in so long, and in the time of `AHEAD` calls, no further one has begun."""
AHEAD = 3
"""Calls from the last one that is seen to have begun to the first that can be changed, where the loop does not count
returned calls: while nothing is seen of the next one it is not finished, so that the one after it has not begun; and
one more. Where the loop counts them, the call that has not returned may have begun and the next one has not."""
FEW_CALLS = 4
"""That are changed while the candidate runs, in no time: in the second half of what is left, or one that reads its
inputs twice might find two of them; and one more close behind, for a candidate that works a few calls ahead."""
CLOSE = 32
"""Calls from the first that has not begun in which that one lies, and of which inputs change while the candidate is
stopped at a moment that is not the round's last."""
MOMENTS = 6
"""Of a round, on a processor, at which inputs change, or the last call that has returned is looked at."""
LOOKS, MOST_LOOKS = 4, 16
"""Rounds that are stopped in the middle at the end, in time; on a busy machine some end before they are, and so many
are tried at most. Of two calls of which one was put off, one stop may find none."""
CHANGES = 4
"""Rounds at the end whose inputs change while the candidate is stopped: of two calls of which one is made ahead, a stop
finds one in eight."""
LEAST_CALLS = 2
STOPPED_CALLS = 4
"""That a round has which is interrupted in every way. One of fewer, longer calls is interrupted half as often, the
first time always; nothing is changed while it runs, and on a GPU it is made shorter alone."""
FIRST = 1, 2
"""First call whose inputs may change: where the loop says how many have returned, and elsewhere."""
SAMPLES = 64
"""Positions of an output that say whether its call has begun, or has changed since it returned."""


class Interruption:
    """Interrupts rounds at one shape."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.well = rounds, rounds.well
        self.stop_in_calls = rounds.device.stops_calls
        """True if freezing the candidate stops its work, so that the owner can look in the middle of it."""
        self.turn = self.well.word() % 4  # drawn: no candidate knows how the next one is interrupted
        self.played = self.in_time = 0
        """Interruptions; rounds that were stopped in the middle before their end."""
        self.agenda = Agenda(self.well, STOPS - 1, SELDOM)
        self.once = False
        """Whether one interruption must do."""
        self.changed: List[int] = []
        """Of how many calls inputs were changed in time, in each round in which some were to be."""

    def begin(self, first: int, *, once: bool = False) -> None:
        """Draw before which of so many first rounds one is interrupted; before the first, one always is.

        Only one is where the loop gives no time: an answer to inputs as they were before the call is looked for. It is
        not before the first round, in which a candidate may learn where the calls' inputs lie.
        """
        self.changed = []
        self.once, self.agenda = once, Agenda(self.well, 1 if once else STOPS - 1, SELDOM)
        self.agenda.begin(first - once)
        self.agenda.places = [place + 1 for place in self.agenda.places] if once else [*self.agenda.places, 0]

    def play(self, buffers: Buffers) -> None:
        """Play a round and interrupt it.

        Raises:
            Judged: If the candidate worked on calls that were not made yet, or did not pass.
        """
        short = buffers.sets < STOPPED_CALLS
        self.played += 1
        if buffers.sets < LEAST_CALLS or (short and not self.played % 2):
            return
        if self.once and not short:
            self._change(buffers)
            return
        self.turn += 1
        kinds = KINDS[self.stop_in_calls]
        if short:
            kinds = kinds[:3] if self.stop_in_calls else (FEWER,)
        self._interrupt(buffers, kinds[self.turn % len(kinds)])

    def _change(self, buffers: Buffers) -> None:
        """Change inputs while the candidate is stopped; again where its round was over; at last make fewer."""
        for _ in range(CHANGES):
            self._interrupt(buffers, STOPPED)
            if any(self.changed):
                return
        # One whose last call seems to have begun leaves nothing to change; no call that is not made may have begun.
        self._interrupt(buffers, FEWER)

    def look(self, buffers: Buffers) -> None:
        """Stop some rounds at the end of a shape, where that stops the candidate's work.

        Raises:
            Judged: As `play` does.
        """
        if not self.stop_in_calls or buffers.sets < LEAST_CALLS:
            return
        enough = self.in_time + LOOKS
        for _ in range(MOST_LOOKS):
            self._interrupt(buffers, MIDDLE)
            if self.in_time >= enough:
                break
        for _ in range(CHANGES):
            self._interrupt(buffers, STOPPED)

    def _interrupt(self, buffers: Buffers, kind: str) -> None:
        with CATCHES.during("interrupted: " + kind), CATCHES.check():
            if not CATCHES.knows():
                self._play_interrupted(buffers, kind)
        self.rounds.candidate.freeze()
        self.rounds.candidate.quiet()

    def _play_interrupted(self, buffers: Buffers, kind: str) -> None:
        rounds = self.rounds
        # The reference makes one pass over all calls, as ever: how long the candidate was frozen must not tell it what
        # is coming.
        rounds.draw(buffers)
        exchange = None
        if kind in (STOPPED, RUNNING):
            exchange = Exchange(buffers, self.well, FIRST[not self.stop_in_calls])
            exchange.put(after=True)
        rounds.solve(buffers)
        rounds.lay(buffers)
        with rounds.ledger.part("wait"):
            if exchange is not None and exchange.calls.size:
                self._exchanged(buffers, exchange, stopped=kind == STOPPED or not exchange.apart)
            elif self.stop_in_calls and kind != FEWER:
                self._in_the_middle(buffers)
            else:
                self._fewer_calls(buffers, 1 + self.well.word() % (buffers.sets // 2))

    def _exchanged(self, buffers: Buffers, exchange: Exchange, *, stopped: bool) -> None:
        """Change inputs of calls that have not begun: their answers must be those to the new ones.

        A candidate that the owner stops can tell that by a clock, and repeat what it did ahead. One that goes on would
        have to read all inputs once more.
        """
        player, waits_s = self.rounds.candidate, self._waits_s(buffers)
        changed, shown = exchange.calls[:0], exchange.calls[:0]
        more: Dict[str, Any] = {"copied": True} if buffers.copied else {}
        exchange.hide()
        with self._running():
            player.tell("go", calls=buffers.sets, **more)
            player.thaw()
            for number, wait_s in enumerate(waits_s, 1):
                if player.link.pending(wait_s):
                    break  # the round is over before its moment came
                last = number == len(waits_s)
                some, in_time = self._changed(buffers, exchange, stopped=stopped, last=last)
                changed, shown = np.union1d(changed, in_time), np.union1d(shown, some)
            torn = np.setdiff1d(shown, changed)
            reply = self._heard(buffers, torn)
            buffers.stop(player)
            player.freeze()
        self.changed.append(int(changed.size))
        if (reply.get("code") or reply.get("error")) and buffers.returned() in torn:
            return  # it may have failed by what changed under it; other rounds tell
        unsure = np.setdiff1d(exchange.calls, changed)
        exchange.show(unsure)  # where the candidate's inputs are a copy, one that is no more is a trespass
        with self.rounds.ledger.part("check"):
            check = buffers.check()
            check.wrong[unsure] = 0  # a call that ran while its inputs changed may have read either
            try:
                self.rounds.judge(buffers, reply, check, 0.0)
            except Judged as judged:
                wrong = np.flatnonzero(check.wrong.any(axis=1))
                raise self._by_first_inputs(buffers, exchange, np.intersect1d(wrong, changed), judged) from None

    def _heard(self, buffers: Buffers, torn: Array) -> Dict[str, Any]:
        """Return the candidate's reply, unless it died in one of the `torn` calls, whose inputs changed under it.

        Raises:
            Judged: If it died in another one, or did not answer in time.
            Refused: If it died in one of these: no verdict can be had of it any more.
        """
        try:
            return self.rounds.candidate.hear(self.rounds.timeout_s)
        except Judged as judged:
            if buffers.returned() not in torn:
                raise
            raise Torn(
                "the judge changed inputs of call %d of %d too late, as other processes held it up, and the candidate "
                "failed in that call: %s" % (buffers.returned() + 1, buffers.sets, judged.reason)
            ) from None

    def _waits_s(self, buffers: Buffers) -> List[float]:
        """Draw how long to wait for the first moment of a round, and for each next one."""
        if not self.stop_in_calls:
            part = (self.well.word() % 1024) / 1024
            wait_s = self.rounds.took_s * (WHEN[0] + (WHEN[1] - WHEN[0]) * part)
            return [min(wait_s, part * buffers.sets * LAUNCH_S)]
        parts = sorted(self.well.word() / 2**64 for _ in range(MOMENTS))
        return [self.rounds.took_s * (part - before) for before, part in zip([0.0, *parts], parts)]

    def _changed(self, buffers: Buffers, exchange: Exchange, *, stopped: bool, last: bool) -> Tuple[Array, Array]:
        """Change inputs of calls close ahead, of all later calls at the last moment; return these calls.

        And those of them that had not begun afterwards: where the owner is held up meanwhile, as by other processes on
        its core, a call may read its inputs when they change.
        """
        player = self.rounds.candidate
        if stopped:
            player.freeze()
        if stopped and not self.stop_in_calls:
            self._drained(buffers)
        first = self._unbegun(buffers)
        calls = exchange.calls[exchange.calls >= first]
        if not stopped:
            close = calls[calls >= first + 1 + self.well.word() % CLOSE][:1]
            far = calls[calls >= first + (buffers.sets - first) // 2] if last else calls[:0]
            if far.size > FEW_CALLS:
                far = far[np.unique(self.well.positions(FEW_CALLS, far.size))]
            calls = np.union1d(close, far)
        elif not last:
            calls = calls[calls < first + CLOSE]
        exchange.show(calls)
        in_time = calls[calls >= self._unbegun(buffers)]
        if stopped:
            player.thaw()
        return calls, in_time

    def _unbegun(self, buffers: Buffers) -> int:
        """Return the first call that cannot have begun."""
        begun = self._last_begun(buffers)
        return max(begun, buffers.returned()) + 1 if self.stop_in_calls else begun + AHEAD

    def _drained(self, buffers: Buffers) -> None:
        """Wait for what a frozen candidate has launched."""
        each_s = max(DRAINED_S, AHEAD * self.rounds.took_s / buffers.sets)
        begun, deadline = self._last_begun(buffers), time.monotonic() + DRAINED_AT_MOST_S
        while time.monotonic() < deadline:
            time.sleep(each_s)
            before, begun = begun, self._last_begun(buffers)
            if begun == before:
                return

    def _by_first_inputs(self, buffers: Buffers, exchange: Exchange, calls: Array, judged: Judged) -> Judged:
        """Return a better verdict, if there is one, by what the reference answers the inputs as they were at first.

        `calls` are those that were changed in time, and answered wrongly.
        """
        if not calls.size and judged.answer is None:
            return judged
        self.rounds.candidate.freeze()
        found = exchange.stale_verdict(self.rounds, calls, buffers.sets, "before it")
        if found is None and judged.answer is not None:
            # a call that has begun before it could be changed is answered with them, and that answer may be repeated
            found = self.rounds.repeated(buffers, *judged.answer)
        return found or judged

    def _in_the_middle(self, buffers: Buffers) -> None:
        """Freeze after a drawn time: what has returned must be finished, and no call behind the next one be begun.

        The owner sleeps meanwhile, as in timed rounds: one that counts who runs could tell it from these. Such a one
        sees as well that it is about to be frozen; so at some moments the last call that has returned is looked at.
        """
        player, looked_at = self.rounds.candidate, self.well.word() % len(buffers.outputs)
        places = self.well.positions(SAMPLES, buffers.outputs[looked_at].count)
        seen: Dict[int, Array] = {}
        with self._running():
            player.tell("go", calls=buffers.sets)
            player.thaw()
            # Any of the moments is the last: always the latest would come after what is done ahead early in a round.
            for wait_s in self._waits_s(buffers)[: 1 + self.well.word() % MOMENTS]:
                if player.link.pending(wait_s):
                    break
                call = buffers.returned() - 1
                if call >= 0:
                    seen[call] = buffers.pair(call, looked_at)[1][places].copy()
            player.freeze()
            self.in_time += not player.link.pending()
        begun, returned = self._last_begun(buffers), buffers.returned()
        # Compared again at the end: an element that is wrong now and right then was put off; one that is wrong at both
        # times is a wrong answer, no cheat.
        before = buffers.check_first(returned).wrong
        with self._running():
            player.thaw()
            reply = player.hear(self.rounds.timeout_s)
            buffers.stop(player)
        player.freeze()
        with self.rounds.ledger.part("check"):
            check = buffers.check()
            self.rounds.judge(buffers, reply, check, 0.0)
        for call, values in seen.items():
            if values.tobytes() != buffers.pair(call, looked_at)[1][places].tobytes():
                raise cheat(
                    "put a call off: call %d of %d had returned in the middle of a round, and its output changed "
                    "afterwards; work that calls share is in no call's time" % (call + 1, buffers.sets)
                )
        unfinished = np.flatnonzero((before > check.wrong[:returned]).any(axis=1))
        if unfinished.size:
            raise cheat(
                "put a call off: when the judge stopped it in the middle of a round, call %d of %d had returned "
                "unfinished; work that calls share is in no call's time" % (int(unfinished[0]) + 1, buffers.sets)
            )
        # A candidate that says more have returned has these to be finished, above.
        if begun > returned:
            raise cheat(
                "worked on a call before it was called: when the judge stopped it in the middle of a round, %d of %d "
                "calls had returned, and call %d has an answer too; work that calls share is in no call's time"
                % (returned, buffers.sets, begun + 1)
            )

    def _fewer_calls(self, buffers: Buffers, calls: int) -> None:
        """End the round early: the outputs of calls that are not made must stay as they were."""
        player, rounds = self.rounds.candidate, self.rounds
        with self._running():
            player.tell("go", calls=calls)
            player.thaw()
            reply = player.hear(rounds.timeout_s)
            player.freeze()
        begun = self._last_begun(buffers)
        if begun >= calls:
            raise cheat(
                "worked on a call before it was called: the judge made only %d of %d calls, and call %d has an answer "
                "too; work that calls share is in no call's time" % (calls, buffers.sets, begun + 1)
            )
        with self.rounds.ledger.part("check"):
            self.rounds.judge(buffers, reply, buffers.check_first(calls), 0.0)

    @contextlib.contextmanager
    def _running(self) -> Generator[None, None, None]:
        """Count the block as the candidate's own time, as in a round, less what thawing and freezing take."""
        begin = time.perf_counter()
        yield
        own_s = time.perf_counter() - begin - self.rounds.costs["candidate"].low_s
        self.rounds.ledger.move(max(own_s, 0.0), "candidate")

    def _last_begun(self, buffers: Buffers) -> int:
        """Return the last call with an output of which samples are no longer this round's poison, -1 if none has."""
        found: Array = np.zeros(buffers.sets, dtype=bool)
        for number, item in enumerate(buffers.outputs):
            some = self.well.positions(SAMPLES, item.count)
            positions = np.concatenate([np.arange(min(8, item.count)), some]).astype(np.int64)
            word = WORDS[ITEM_BYTES[item.dtype]]
            got = np.ascontiguousarray(buffers.samples(number, positions)[1].astype(STORAGE[item.dtype], copy=False))
            found |= (got.view(word) != word(buffers.words[number])).any(axis=1)
        return int(np.flatnonzero(found)[-1]) if found.any() else -1
