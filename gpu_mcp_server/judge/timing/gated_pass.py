"""A player's calls launched behind closed gates: the owner stops the player, opens a gate and waits for the last word.

The host cannot act while the clock runs, so that neither its jitter nor what its threads do is in the time. A round's
inputs are written after the launch: nothing exists that could be worked on ahead.
"""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, cast

from ..channel.supervisor_client import Player
from ..devices.gate_words import END, ENTERED, FIRST, TIMED, GateWords
from ..numerics.stats import median

GATE_S = 60.0
OFFSETS = {"first": FIRST, "entered": ENTERED, "timed": TIMED, "end": END}
BY_EVENTS = "kernelbench"
"""Basis of problems whose calls are timed one by one, as by events around them."""
EMPTY_PASSES = 9
LATE_S = 5.0
"""For a stream that is ready to do the least."""

LIVE_S = 2e-3
"""What a call takes at least whose rest is launched while the clock runs: letting the player go on, and stopping it at
the last word, take some 0.1 ms each."""
FILL_S, FILL_TIMES, MOST_FILL_S = 0.02, 2.0, 0.25
"""So long, and so many times what an ungated one takes, such a call may fill the queue before it is stopped; at most so
long, as a thousand launches take some 10 ms."""
SHORT = "; from 2 ms on a call is timed all the same: judge it at a larger shape"


class Blocked(Exception):
    """The launch did not return while the gate was closed: a call waits for the device, or the queue is full."""


class NoGate(Exception):
    """Calls cannot be timed behind gates here; the message says why, and everything has run by then."""


class Opened(NamedTuple):
    """Times seen when gates were opened."""

    elapsed_s: float
    """From the opening of the first timed gate to the last word."""
    each_s: Tuple[float, ...]
    """The same, gate by gate."""
    entered_s: float
    """From the opening of the first gate until the GPU had come to this process, before the clock started."""
    thaw_s: float = 0.0
    """What it took to let the player launch the rest, which is in its time."""


class Empty(NamedTuple):
    """Times of a pass without a call."""

    elapsed_s: float = 0.0
    """The gate itself."""
    switch_s: float = 0.0
    """A probe right behind it, as the GPU changes from one process to another (137 us on an H100)."""
    entered_s: float = 0.0
    """From the opening of the first gate, behind work of the owner's, until the GPU has come to the process."""
    laid_s: float = 0.0
    """A probe behind work of the owner's, while the process waits at its gate."""


def fill_s(call_s: float) -> float:
    """Return how long a call may fill the queue, if an ungated one takes so long."""
    return min(FILL_S + FILL_TIMES * call_s, MOST_FILL_S)


def no_work() -> None:
    """Do nothing."""


class GatedPlayer:
    """A player with gates."""

    def __init__(self, player: Player, timeout_s: float) -> None:
        self.player, self.timeout_s = player, timeout_s
        self.words = GateWords()
        self.calls = 0
        self.launch_s = 0.0
        """What the last launch took the host, with the message and its reply."""
        self.live = False
        """Whether what the queue has no room for is launched while the clock runs."""
        self.is_launching = False
        """Whether the last launch has not returned so far."""

    def prepare(self, *, sweeps: bool = False) -> None:
        """Show the player the page of words; it `sweeps` before calls that are made one by one.

        Raises:
            NoGate: If it cannot use it, as some drivers do not let a stream wait for a word of the host's.
        """
        self.player.thaw()
        reply = self.player.ask("gate", GATE_S, [self.words.descriptor], offsets=OFFSETS, sweeps=sweeps)
        self.player.freeze()
        if reply.get("error"):
            raise NoGate(str(reply["error"])[:300])

    def launch(self, calls: int, wait_s: float, *, each: bool = False) -> Dict[str, Any]:
        """Have it launch calls behind a closed gate, or each behind one of its own, and freeze it; return its reply.

        The reply of one that is `live` can be owed until `finish`.

        Raises:
            Blocked: If the reply did not come in `wait_s`, and it is not live; everything has run by then.
            Judged: If the candidate died or did not end.
        """
        player, self.calls = self.player, calls
        # Every pass has larger values, so a late write of an earlier pass never looks like this one's.
        value = self.words.begin(calls if each else 1)
        # The message waits in the socket before the thaw, so the player needs no second wake-up.
        player.tell("go", calls=calls, gate=value, each=each)
        player.thaw()
        begin = time.perf_counter()
        # Stopped as soon as the launch has returned, and until `finish`: none of the player's host code runs while the
        # clock does.
        if player.link.pending(wait_s):
            self.launch_s = time.perf_counter() - begin
            reply = player.hear(self.timeout_s)
            player.freeze()
            return reply
        if self.live:
            player.freeze()
            self.is_launching = True
            return {}
        # A call that waits for the device would wait for ever behind a closed gate.
        self.words.open_all()
        reply = player.hear(self.timeout_s)
        self.finish(reply)
        raise Blocked()

    def open(
        self,
        limit_s: float,
        *,
        each: Optional[Tuple[int, Callable[[], None]]] = None,
        look: Callable[[], None] = no_work,
    ) -> Opened:
        """Open the gates of a launch, one after the other, and wait for the last word.

        Args:
            limit_s: For what is behind one gate.
            each: With a gate behind each call: before which one something is to be done, and what.
            look: Is done right behind the last word. A player that launched until then is stopped afterwards, as it
                could make its stopping take long.

        Raises:
            TimeoutError: If the GPU does not come to this process's work, or not to its end; `finish` is still owed.
        """
        words = self.words
        asked = time.perf_counter()
        # The GPU changes to this process before the clock starts: that takes longer than many a call.
        words.open(FIRST)
        if words.wait(ENTERED, 0, LATE_S) is None:
            raise TimeoutError
        taken, thaw_s = cast("List[float]", []), 0.0
        # The clock starts behind ENTERED: the context switch is then over, and its jitter is in `entered_s` alone.
        first = time.perf_counter()
        for number in range(self.calls if each else 1):
            if each and number and number == each[0]:
                each[1]()
            begin = time.perf_counter()
            words.open(TIMED, number)
            if self.is_launching:
                # Behind the opening: whatever the player's host does from now on is in its time.
                self.player.thaw()
                thaw_s = time.perf_counter() - begin
            end = words.wait(END, number, limit_s)
            if end is None:
                raise TimeoutError
            taken.append(end - begin)
        elapsed_s = time.perf_counter() - first
        look()
        self.player.freeze()
        return Opened(elapsed_s, tuple(taken), first - asked, thaw_s)

    def time_each(self, calls: int, limit_s: float, **more: Any) -> Tuple[List[float], List[float], Dict[str, Any]]:
        """Have it make calls one by one, each behind a sweep; return their times, those between them, and its reply.

        The GPU writes a word before a call and one behind it, as CUDA events stand around it. After an error, or behind
        `limit_s` for a call, there are fewer times than calls.
        """
        words, player = self.words, self.player
        value, taken, between, last = words.begin(calls), cast("List[float]", []), cast("List[float]", []), 0.0
        player.tell("go", calls=calls, gate=value, by_events=True, **more)
        player.thaw()
        for number in range(calls):
            begin, end = words.wait(ENTERED, number, limit_s), words.wait(END, number, limit_s)
            if begin is None or end is None:
                break
            taken.append(end - begin)
            if number:
                between.append(begin - last)
            last = end
        reply = player.hear(self.timeout_s)
        player.freeze()
        return taken, between, reply

    def time_words(self) -> float:
        """Return how many seconds two words with nothing between them are farther apart than two events are.

        Only a reference knows of events. It is 0 where that is not found out.
        """
        taken, _, reply = self.time_each(EMPTY_PASSES, LATE_S, empty=True)
        events_s = reply.get("events_s")
        whole = len(taken) == EMPTY_PASSES and isinstance(events_s, float)
        return max(0.0, median(taken) - float(events_s or 0.0)) if whole else 0.0

    def finish(self, launched: Dict[str, Any]) -> Dict[str, Any]:
        """Have it wait for what it launched, freeze it, and return its reply to the launch with an error that came."""
        self.words.open_all()
        self.player.thaw()
        if self.is_launching:
            self.is_launching, launched = False, self.player.hear(self.timeout_s)
        reply = self.player.ask("finish", self.timeout_s)
        self.player.freeze()
        error = launched.get("error") or reply.get("error")
        return dict(launched, error=error) if error else launched

    def time_empty(
        self, probe: Callable[[], float], *, lay: Callable[[], None] = no_work, sweep: Callable[[], None] = no_work
    ) -> Empty:
        """Return medians of passes without a call.

        Args:
            probe: One kernel of the owner's.
            lay: Comes right before a probe while the process waits.
            sweep: Comes before the gate is opened. Behind a swept cache the GPU comes to a process 10 us later (H200).

        Raises:
            NoGate: If the GPU does not come to them.
        """
        taken = [self._pass_empty(probe, lay, sweep) for _ in range(EMPTY_PASSES + 1)][1:]  # the first warms up
        return Empty(*(median(list(each)) for each in zip(*taken)))

    def _pass_empty(self, probe: Callable[[], float], lay: Callable[[], None], sweep: Callable[[], None]) -> Empty:
        try:
            reply = self.launch(0, LATE_S)
        except Blocked:
            raise NoGate("an empty launch did not return in %.0f s" % LATE_S) from None
        probe()  # as in a round, the GPU comes from the owner's work, not from the launch
        lay()
        # The second probe is the baseline for probes in rounds, which run while the player waits at its gate too.
        laid_s = probe()
        sweep()
        try:
            opened = self.open(LATE_S)
        except TimeoutError:
            self.finish(reply)
            raise NoGate("the GPU did not come to an empty launch in %.0f s" % LATE_S) from None
        probe_s = probe()
        self.finish(reply)
        return Empty(opened.elapsed_s, probe_s, opened.entered_s, laid_s)

    def close(self) -> None:
        """Give the page back."""
        self.words.close()
