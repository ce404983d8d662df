"""Plays rounds behind gates: the time of a call on the GPU alone.

The candidate launches a round's calls behind a closed gate while old inputs lie there, and is stopped. Then the owner
writes other draws of the inputs, the real ones last, and looks after each whether anything of the candidate ran. It
opens the gate and waits for the word that the candidate's stream writes behind the calls. A candidate could write that
word itself: in some rounds, drawn in secret, the fence takes samples of the outputs at once, which must be those of the
end, and in the others a probe looks whether the GPU is still busy. Until then all rounds are alike: calls could tell by
how long they waited. A call for which the queue has no room launches its rest while the clock runs. It is stopped at
the last word, and all outputs are compared before it goes on: no probe sees what is still to be launched. The reference
answers afterwards, as some calls that wait, those on two streams, take time from it, whether a probe sees that or not.
A stream of the candidate's could wait for an input to change, or for the first gate, and work before the clock starts:
probes behind new inputs take longer then, and so does the GPU's coming to its process.
"""

import math
from typing import Any, Dict, List, Optional, Set

from ..devices.device import Buffers, RoundCheck
from ..numerics.stats import median
from ..verdicts import ReferenceFailed, cheat
from .gate_doubts import BESIDE, BUSY_ROUNDS, LAID, NEW, OPENS, doubt_of
from .gated_pass import BY_EVENTS, Blocked, Empty, GatedPlayer, NoGate, Opened, fill_s
from .rounds import Round, Rounds, named

DECOYS = (2, 6)
"""Draws of the inputs before the real ones, from and to."""
FENCE_ROUNDS = 6
"""In so many rounds, at least, the fence looks at the outputs behind the last word."""
FENCED = 3
"""In one of so many."""
SLOW_S, SLOW_FENCE_ROUNDS = 0.5, 2
"""A round that lasts so long is slow: of those, so many do. A job has minutes for all that it plays."""
BUSY_S = 1e-3
"""A probe takes 20 to 300 us while nothing of the candidate runs, and a time slice of 2.4 ms as soon as one
sleeping thread does (measured on an H100, driver 580). The next one does too, unless the host was busy."""
LEAST_LIMIT_S, SLOWER = 1.0, 20.0
"""A pass may take so long, or so many times what its calls took in ungated rounds."""
HOST_TIMES, HOST_S = 4.0, 0.5
"""Times what ungated rounds took, and besides, that launching behind a gate may take before the call is said to wait
for the device."""
MOST_BLOCKED = 5
WAITS = "%s wait for the device, or launch more than its queue holds"
EMPTY_S = 10e-6
"""What an empty pass takes, where no reference says so; 6 us on an H100."""
SWITCH_S = 300e-6
"""What a change from one process to another takes at most, where no reference says so; 155 us on an H100."""
DEARER = 1.5
"""Times the reference's empty pass that the candidate's own may take off: its code could be slow in it."""


class GatedRounds:
    """Plays rounds behind gates at one shape."""

    def __init__(self, rounds: Rounds, call_s: float, reference_call_s: float) -> None:
        """Begin.

        Args:
            rounds: Of the shape; they draw, check and judge.
            call_s: What a call takes in ungated rounds.
            reference_call_s: What one of the reference's takes there.
        """
        self.rounds, self.well, self.call_s, self.reference_call_s = rounds, rounds.well, call_s, reference_call_s
        self.device: Any = rounds.device
        timeout_s = rounds.timeout_s
        self.candidate = GatedPlayer(rounds.candidate, timeout_s)
        self.reference: Optional[GatedPlayer] = None
        """The reference with gates, where it runs on the GPU and can be launched behind them."""
        if self.device.framework == "torch":
            self.reference = GatedPlayer(rounds.reference, timeout_s * 6)
        self.pages = [self.candidate, *filter(None, [self.reference])]
        self.empty_s: Dict[str, float] = {}
        self.fenced, self.empty_launch_s = 0, 0.0
        self.round_s: List[float] = []
        self.launch_s: List[float] = []
        """What launching a round's calls took the host, less that of none."""
        self.empty = Empty()
        """What an empty pass takes: the reference's where it has gates, as a candidate could be slow in it."""
        self.behind_s: List[float] = []
        """Seconds of probes behind the last words."""
        self.laid_s: List[float] = []
        """Seconds of probes right behind new inputs."""
        self.same_s = 0.0
        """Seconds of a probe right behind inputs that were written once more as they were."""
        self.entered_s: List[float] = []
        """How long the GPU took to come to the candidate, before its clock started."""
        self.ungated = ""
        """Why the reference is not timed behind gates, if so."""
        if self.reference is None:
            self.ungated = "the reference runs on the processor"
        self.reference_blocked = 0
        self.reference_thaw_s = 0.0
        """What letting the reference launch its rest took in that time."""
        self.solved_behind_gate = False
        """True if the reference's last time is one behind its gate."""
        self.blocked = 0
        """Launches that did not return behind their gate though one had: the host was busy."""
        self.busy: Dict[str, Set[int]] = {}
        """Rounds in which the GPU was busy, by when."""
        self.launched = 0
        """Rounds that were launched."""

    def prepare(self) -> None:
        """Show both players their words and time the empty passes.

        Raises:
            NoGate: If that cannot be had here.
        """
        with self.rounds.ledger.part("launch"):
            for gated in self.pages:
                gated.prepare(sweeps=self.rounds.task.get("basis") == BY_EVENTS)
            self.empty = self.candidate.time_empty(self.device.probe_s, sweep=self.device.sweep_cache)
            self.empty_s["candidate"], self.empty_launch_s = self.empty.elapsed_s, self.candidate.launch_s
            if self.reference is not None:
                self.empty = self.reference.time_empty(self.device.probe_s, sweep=self.device.sweep_cache)
                self.empty_s["reference"] = self.empty.elapsed_s
            else:
                self.empty = Empty(*(min(each_s, SWITCH_S) for each_s in self.empty))
        # An empty pass is taken off the candidate's times: one that is slow in it on purpose would gain by that.
        most_s = DEARER * self.empty_s.get("reference", EMPTY_S)
        self.empty_s["candidate"] = min(self.empty_s["candidate"], most_s)

    def time_old_inputs(self, buffers: Buffers) -> None:
        """Time a probe behind a copy as large as a round's: behind a large one it takes longer by itself.

        The reference waits at its gate meanwhile. Behind a launch of its own a candidate could keep the GPU busy, and
        have as much time ahead of the clock wherever inputs change.

        Raises:
            NoGate: If the GPU does not come to the passes.
        """
        player, most_s = (self.reference, math.inf) if self.reference else (self.candidate, SWITCH_S)
        with self.rounds.ledger.part("launch"):
            self.same_s = min(player.time_empty(self.device.probe_s, lay=buffers.publish).laid_s, most_s)

    def try_launch(self, buffers: Buffers, calls: int, host_s: float) -> float:
        """Return the seconds of a call, where so many can be launched behind a gate, else 0.

        Launching may take `host_s` besides what ungated rounds took.
        """
        try:
            reply = self.launch(buffers, calls, host_s=host_s)
        except Blocked:
            return 0.0
        opened = self.open(buffers)
        self.candidate.finish(reply)
        # 0 means that the launch failed, so a time that is lost in the empty pass's jitter stays above it.
        return max(opened.elapsed_s - self.empty_s["candidate"], 1e-7) / calls if opened else 0.0

    def try_reference(self, calls: int, host_s: float) -> bool:
        """Say whether so many of the reference's calls can be launched behind a gate too, if that is to be."""
        if self.reference is None or self.reference.live:
            return True
        try:
            reply = self.reference.launch(calls, self._reference_patience_s(calls, host_s))
        except Blocked:
            return False
        self.reference.finish(reply)
        return True

    def live_players(self) -> List[str]:
        """Return whose calls are launched to their end while the clock runs."""
        players = {"candidate": self.candidate, "reference": self.reference}
        return [role for role, gated in players.items() if gated is not None and gated.live]

    def leave_reference(self, why: str) -> None:
        """Time the reference in a loop of the host's from now on."""
        self.reference, self.ungated = None, why

    def _reference_patience_s(self, calls: int, host_s: float = HOST_S) -> float:
        if self.reference is not None and self.reference.live:
            return fill_s(self.reference_call_s)
        return host_s + HOST_TIMES * self.reference_call_s * calls

    def limit_s(self, calls: int) -> float:
        """Return how long so many calls of the candidate may take on the GPU."""
        return LEAST_LIMIT_S + SLOWER * self.call_s * calls

    def play(self, buffers: Buffers) -> Round:
        """Play a round; return it, with the times of all calls together.

        Raises:
            Judged: If the candidate did not pass.
            NoGate: If it cannot be timed so.
        """
        while True:
            try:
                played = self._play(buffers, fenced=self.well.word() % FENCED == 0)
            except Blocked:
                self.blocked += 1
                if self.blocked >= MOST_BLOCKED:
                    why = "%d launches did not return behind a gate, though one did: the host is busy"
                    raise NoGate(why % MOST_BLOCKED) from None
                continue
            # Both times of a round must be of one kind: a round whose reference missed its gate is played again.
            if self.solved_behind_gate == (self.reference is not None):
                return played

    def complete(self, buffers: Buffers) -> None:
        """Play the rounds with the fence that are still owed.

        Raises:
            Judged: As `play`.
            NoGate: As `play`.
        """
        while self.fenced < (SLOW_FENCE_ROUNDS if self.is_slow() else FENCE_ROUNDS):
            self._play(buffers, fenced=True)

    def is_slow(self) -> bool:
        """Say whether a round takes so long that a few must do where they are not times."""
        return median(self.round_s) >= SLOW_S

    def _play(self, buffers: Buffers, *, fenced: bool) -> Round:
        reply = self.launch(buffers)
        live = self.candidate.is_launching
        if not live:
            self.launch_s.append(max(self.candidate.launch_s - self.empty_launch_s, 0.0))
        try:
            self.lay_inputs(buffers)
        except ReferenceFailed:  # the candidate's next round must not find this one's reply
            self.candidate.finish(reply)
            raise
        self.show_inputs(buffers, OPENS)
        # The inputs were just written, so parts may be in the cache; calls must find them in memory.
        with self.rounds.ledger.part("state"):
            self.device.sweep_cache()

        def look() -> None:
            # A candidate can write the last word itself. The fence looks at the outputs at once, the probe for work
            # that goes on. Which of them comes is drawn in secret.
            if fenced:
                buffers.stop(self.rounds.candidate)
                self.fenced += 1
            else:
                self.behind_s.append(self.probe("behind the last word"))

        opened = self.open(buffers, look=look)
        if not live:
            reply = self.candidate.finish(reply)
        # What a candidate left behind would slow a reference on the GPU: both probes find what runs there.
        self.probe(BESIDE)
        reference_s = self._solve(buffers)
        if not live:  # then the candidate's time has no such part
            reference_s = max(reference_s - self.reference_thaw_s, 1e-9)
        self.probe(BESIDE)
        with self.rounds.ledger.part("check"):
            check = buffers.check()
        if live:
            reply = self.candidate.finish(reply)
        self._judge(buffers, reply, check)
        if opened is None:
            raise NoGate("calls behind a gate did not end in %.3g s" % self.limit_s(buffers.sets))
        self.round_s.append(opened.elapsed_s)
        self.entered_s.append(opened.entered_s)
        return Round(max(opened.elapsed_s - self.empty_s["candidate"], 1e-9), reference_s, check)

    def launch(self, buffers: Buffers, calls: int = 0, *, each: bool = False, host_s: float = HOST_S) -> Dict[str, Any]:
        """Have the candidate launch all calls, or so many, while the round before's inputs lie there.

        With `each` there is a gate behind each call.

        Raises:
            Blocked: If it does not return.
        """
        # Poison and old inputs come before the launch: an output that changes while the gate is closed was worked on
        # ahead, and answers to the old inputs are wrong.
        self.rounds.lay(buffers)
        self.launched += 1
        calls = calls or buffers.sets
        wait_s = host_s + HOST_TIMES * self.call_s * calls
        if self.candidate.live:
            wait_s = fill_s(self.call_s)
        with self.rounds.ledger.part("launch"):
            return self.candidate.launch(calls, wait_s, each=each)

    def lay_inputs(self, buffers: Buffers) -> None:
        """Write decoys, look behind each for work of the candidate's on them, and draw the real inputs."""
        least, most = DECOYS
        # The number of decoys is drawn, so that no stream of the candidate's can count up to the real inputs.
        buffers.decoys = buffers.behind_gate = True
        try:
            for _ in range(least + self.well.word() % (most - least + 1)):
                self.rounds.draw(buffers)
                self.show_inputs(buffers, LAID)
            buffers.decoys = False
            self.rounds.draw(buffers)
        finally:
            buffers.decoys = buffers.behind_gate = False

    def show_inputs(self, buffers: Buffers, when: str) -> None:
        """Copy new inputs to the candidate's and look right behind them for work on them: a wait before would hide it.

        Raises:
            Judged: If an output changed.
        """
        with self.rounds.ledger.part("state"):
            # Those that the problem's code makes come from the reference's process. The GPU is to change from there to
            # this one before the copy, as in `time_old_inputs`: behind it that would look like work (59 us, H200).
            self.device.probe_s()
        buffers.publish()
        self.laid_s.append(self.probe(when))
        with self.rounds.ledger.part("state"):
            untouched = buffers.untouched()
        if not untouched:
            raise cheat("worked on calls before they were called: outputs changed while the gate was closed")

    def _solve(self, buffers: Buffers) -> float:
        """Have the reference answer, behind its own gate where that can be; return its time."""
        gated, self.solved_behind_gate, self.reference_thaw_s = self.reference, False, 0.0
        if gated is not None:
            try:
                with self.rounds.ledger.part("launch"):
                    reply = gated.launch(buffers.sets, self._reference_patience_s(buffers.sets))
            except Blocked:
                self.reference_blocked += 1
                if self.reference_blocked >= MOST_BLOCKED:
                    self.leave_reference(WAITS % "the reference's calls")
            else:
                if reply.get("ungated"):
                    self.leave_reference(str(reply["ungated"])[:200])
                elif (reference_s := self._time_reference(buffers, gated, reply)) is not None:
                    self.solved_behind_gate = True
                    return reference_s
        return self.rounds.solve(buffers)

    def _time_reference(self, buffers: Buffers, gated: GatedPlayer, reply: Dict[str, Any]) -> Optional[float]:
        with self.rounds.ledger.part("state"):
            self.device.sweep_cache()
        try:
            with self.rounds.ledger.part("reference"):
                limit_s = 6 * self.limit_s(buffers.sets) + SLOWER * self.reference_call_s * buffers.sets
                opened: Optional[Opened] = gated.open(limit_s)
        except TimeoutError:
            opened = None
        named(gated.finish(reply), "compute")
        if opened is None:
            self.leave_reference("the reference did not end behind its gate")
            return None
        player = self.rounds.reference
        player.thaw()
        # The reference stores its results after the clock: a candidate writes in place and pays for no such copy.
        named(player.ask("store", self.rounds.timeout_s * 6), "store its results")
        player.freeze()
        buffers.collect_expected()
        self.reference_thaw_s = opened.thaw_s
        return max(opened.elapsed_s - self.empty_s["reference"], 1e-9)

    def open(self, buffers: Buffers, **more: Any) -> Optional[Opened]:
        """Open the gates; return None if the calls do not end in time.

        Args:
            buffers: Of the round.
            more: As for `GatedPlayer.open`.
        """
        try:
            with self.rounds.ledger.part("candidate"):
                return self.candidate.open(self.limit_s(buffers.sets), **more)
        except TimeoutError:
            return None

    def _judge(self, buffers: Buffers, reply: Dict[str, Any], check: RoundCheck) -> None:
        with self.rounds.ledger.part("check"):
            if self.rounds.picks is not None:
                check = self.rounds.picks(check)
            # `finish` has waited for the GPU, so the watch for late work needs no more than its least time.
            self.rounds.judge(buffers, reply, check, 0.0)
        self.rounds.calls_checked += buffers.sets

    def probe(self, when: str) -> float:
        """Look whether the GPU is busy, by one kernel of the owner's, and return what it took."""
        with self.rounds.ledger.part("state"):
            taken_s: float = self.device.probe_s()
            # Two in a row: one alone may be late because the host was busy.
            if taken_s >= BUSY_S and self.device.probe_s() >= BUSY_S:
                self.busy.setdefault(when, set()).add(self.launched)
        return taken_s

    def is_reference_slowed(self) -> bool:
        """Say whether the GPU was busy when the reference was timed, though nothing of the candidate was to run."""
        return len(self.busy.get(BESIDE, ())) >= BUSY_ROUNDS

    def doubt(self) -> str:
        """Say why the times are not confirmed; empty if they are."""
        return doubt_of(self.busy, self.later_s(), median(self.round_s), self.device.framework)

    def later_s(self) -> Dict[str, float]:
        """Return how much later than where nothing is to be done the GPU answered, by when."""
        return {
            # Each probe has its own baseline, as the GPU comes from another process's work in each of the three places.
            "behind the last word": median(self.behind_s or [0.0]) - self.empty.switch_s,
            NEW: median(self.laid_s or [0.0]) - self.same_s,
            "at the first gate": median(self.entered_s or [0.0]) - self.empty.entered_s,
        }

    def close(self) -> None:
        """Give the pages of words back."""
        for gated in self.pages:
            gated.close()
