"""A round: fresh inputs, the reference, the candidate under the owner's clock, the check, and why it failed."""

import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union, cast

import numpy as np

from ..catch_log import CATCHES
from ..channel.supervisor_client import Player
from ..correctness.discrete_ties import Ties
from ..correctness.error_statistics import coarse_difference, tf32_default
from ..correctness.named_equals import may_tie
from ..correctness.own_check import OwnCheck
from ..correctness.replay_detector import History
from ..correctness.sampled_errors import judged_by_samples
from ..correctness.suite_rule import SuiteRule
from ..devices.device import Buffers, RoundCheck
from ..inputs.input_transfer import draw
from ..numerics.compare import LARGE, compare, describe
from ..numerics.error_location import grid
from ..numerics.input_views import input_memories
from ..numerics.tensors import symbols, tensors
from ..verdicts import Judged, JudgeFailed, ReferenceFailed, calls_text, cheat, incorrect
from .extra_rounds import ONTO_JUNK, look_again, written_onto
from .judging_setup import JudgingSetup
from .machine_state import State, Watch
from .run_delay import While
from .timed_pass import own_clock_s, timed_pass

LATE_S = 0.05
LATE_AT_MOST_S = 5.0
"""How long outputs that are wrong are watched for becoming right, not counting what others on the cores take of it."""
OPEN_S = 60.0
CODES = 1 << 31
"""Beyond what a launcher can return."""


class Round(NamedTuple):
    """One round that passed."""

    candidate_s: float
    reference_s: float
    check: RoundCheck
    state: Optional[State] = None
    """Of the machine, before and after; `None` where nobody looked."""
    outside_s: float = 0.0
    """What the candidate took by the owner's clock, with all that it covers besides; 0 where no other clock counts."""


def named(reply: Dict[str, Any], what: str) -> Dict[str, Any]:
    """Return a reply of the reference, or fail with its error."""
    if reply.get("error"):
        raise ReferenceFailed("the reference failed to %s: %s" % (what, reply["error"]))
    return reply


class Rounds:
    """Plays rounds at one shape."""

    def __init__(self, setup: JudgingSetup, dims: Dict[str, int]) -> None:
        self.task, self.device, self.candidate, self.reference, self.costs, self.well, self.ledger = setup
        self.dims = dims
        self.inputs, self.outputs = input_memories(self.task, dims), tensors(self.task["outputs"], dims)
        self.history = History(self.outputs, self.well, self.task["rtol"], self.task["atol"])
        self.timeout_s = float(self.task["round_timeout_s"])
        self.present: Tuple[Player, ...] = (self.reference, self.candidate)
        """Who maps the buffers: the reference alone once the candidate has been ended."""
        self.number = 0
        self.passes = 1
        """How often the reference goes through the inputs of a round, where once would be too short to time."""
        self.calls_checked = 0
        self.notes: Dict[str, None] = {}
        self.more: Dict[str, Any] = {}
        """What `go` says to the candidate besides the number of calls: to copy behind them."""
        self.took_s = 0.0
        """The candidate's time in the last round, by the owner's clock: interruptions come by it, so that one whose own
        clock says less could have them all at a round's begin."""
        self.peak_bytes = 0
        """The most memory that the reference ever had, as it says itself."""
        self.watch: Optional[Watch] = None
        """Looks at the machine around timed rounds."""
        self.prepared = not self.candidate.prepare_s
        """Whether the candidate has made its first, untimed call at this shape."""
        self.forgives: Optional[Callable[[Buffers, RoundCheck], RoundCheck]] = None
        """What of a comparison is held against the candidate all the same, by double precision."""
        self.picks: Optional[Callable[[RoundCheck], RoundCheck]] = None
        """Which wrong calls of a round are looked at, where not all are."""
        self.suite_rule = SuiteRule.from_task(self.task, dims)
        """Told beside a wrong answer."""
        self.timed = False
        """Whether this shape is timed: functions of torch.compile are compiled for it alone then."""
        self.strides: Any = None
        """What the candidate said of its results' layout in its first call."""
        self.differ = ""
        """In what a model's weights are not the problem's, as the candidate says: for the reason of a wrong answer."""
        self.twice = True
        """Whether where an answer is wrong is looked at in two calls before it is told."""
        self.ties: Union[Ties, OwnCheck] = Ties(
            self.reference, self.well, self.history.rtol, self.history.atol, self.timeout_s
        )
        self.ties.any_is_right = self.task.get("ties") != "reference"
        if self.device.own_check:
            self.ties = OwnCheck(self.reference, self.well, self.timeout_s)

    def open(self, sets: int) -> Buffers:
        """Return buffers for so many calls, which the players map; freeze them."""
        with self.ledger.part("map"):
            buffers = self.device.buffers(self.inputs, self.outputs, sets)
            sizes = [self.dims[name] for name in symbols(self.task)]
            for player in self.present:
                player.thaw()
                fields, descriptors = buffers.describe(player.role)
                player.tell("open", descriptors, dims=sizes, named_dims=self.dims, timed=self.timed, **fields)
            for player in self.present:
                reply = player.hear(OPEN_S)
                if player is self.reference:
                    named(reply, "map its buffers")
                elif reply.get("error"):
                    raise incorrect(str(reply["error"])[:500])
                self._note(reply)
                player.freeze()
            buffers.take_strides(self.strides)
            return buffers

    def lay(self, buffers: Buffers, words: Optional[Sequence[int]] = None) -> None:
        """Poison the candidate's outputs, or have them hold `words`, and show it the inputs that are there."""
        with self.ledger.part("fill"):
            buffers.poison(words)
            buffers.publish()

    def _prepare(self, buffers: Buffers) -> None:
        """Have the candidate make its first call at this shape, untimed: compilers run then."""
        self.prepared = True
        self.lay(buffers)
        with self.ledger.part("candidate"):
            self.candidate.thaw()
            begin = time.perf_counter()
            reply = self.candidate.ask("prepare", self.candidate.prepare_s)
            self.ledger.first_calls_s.append(round(time.perf_counter() - begin, 3))
            self.candidate.freeze()
        if reply.get("error"):
            raise incorrect(str(reply["error"])[:1500])
        self._note(reply)
        self.strides = reply.get("strides")
        buffers.take_strides(self.strides)
        self.differ = " ".join(str(reply.get("differ") or "").split())[:300]

    def close(self, buffers: Buffers) -> None:
        """Have the players let go of `buffers`, and free them."""
        with self.ledger.part("map"):
            for player in self.present:
                player.thaw()
                player.tell("close")
            for player in self.present:
                player.hear(OPEN_S)
                player.freeze()
            buffers.close()

    def _note(self, reply: Dict[str, Any]) -> None:
        notes: Any = reply.get("notes")
        if isinstance(notes, list):
            for note in cast("List[Any]", notes)[:8]:
                self.notes[" ".join(str(note).split())[:300]] = None

    def play(self, buffers: Buffers) -> Round:
        """Play one round.

        Raises:
            Judged: If the candidate did not pass.
        """
        return self.answer(buffers, self.expect(buffers))

    def expect(self, buffers: Buffers) -> float:
        """Draw fresh inputs and have the reference answer; return its time."""
        self.draw(buffers)
        return self.solve(buffers)

    def draw(self, buffers: Buffers) -> None:
        """Draw fresh inputs."""
        self.number += 1
        with self.ledger.part("fill"):
            wrong = draw(self.device, buffers, self.reference, self.well.word() >> 1, self.timeout_s * 6)
        if wrong:
            raise ReferenceFailed("the problem's code failed to make inputs: %s" % wrong)

    def solve(self, buffers: Buffers, calls: int = 0) -> float:
        """Have the reference answer the inputs that are there, or those of the first `calls`; return its time."""
        with self.ledger.part("wait"):
            reference_s = self._reference(buffers, calls)
        with self.ledger.part("fill"):
            buffers.collect_expected()
        return reference_s

    def answer(self, buffers: Buffers, reference_s: float) -> Round:
        """Have the candidate answer the inputs that are there, and check it.

        Raises:
            Judged: If the candidate did not pass.
        """
        if not self.prepared:
            self._prepare(buffers)
            reference_s = self.expect(buffers)
        if self.watch:
            with self.ledger.part("state"):
                self.watch.before()
        self.lay(buffers)
        with self.ledger.part("wait"):
            played = timed_pass(self.candidate, buffers, self.timeout_s, **self.more)
            reply, candidate_s = played.reply, max(played.elapsed_s - self.costs["candidate"].low_s, 1e-9)
            self.took_s = played.outside_s if self.device.stops_calls else candidate_s
            if self.device.stops_calls:
                candidate_s = own_clock_s(reply, played.outside_s)
            self.ledger.move(candidate_s, "candidate")
            self.candidate.freeze()
            self.candidate.quiet()
        state = None
        if self.watch:
            with self.ledger.part("state"):
                state = self.watch.after()
        with self.ledger.part("check"):
            check = buffers.check()
            if self.picks is not None:
                check = self.picks(check)
            with CATCHES.check():
                if not CATCHES.knows():
                    self.judge(buffers, reply, check, reference_s, twice=self.twice)
            self.history.add(self.number, buffers)
        self.calls_checked += buffers.sets
        outside_s = played.outside_s if self.device.stops_calls else 0.0
        return Round(candidate_s, reference_s, check, state, outside_s=outside_s)

    def _reference(self, buffers: Buffers, calls: int) -> float:
        elapsed, reply, *_ = timed_pass(self.reference, buffers, self.timeout_s * 6, calls, passes=self.passes)
        named(reply, "compute")
        self._note(reply)
        self.peak_bytes = int(reply.get("peak_bytes") or 0)
        told = reply.get("store_us")
        storing = min(float(told) / 1e6, elapsed) if isinstance(told, (int, float)) and told > 0 else 0.0
        reference_s = max(elapsed - storing - self.costs["reference"].low_s, 1e-9)
        if self.device.stops_calls:
            reference_s = own_clock_s(reply, elapsed)
        self.ledger.move(reference_s, "reference")
        reference_s /= self.passes
        if buffers.stores_later:
            self.reference.thaw()
            self._note(named(self.reference.ask("store", self.timeout_s * 6), "store its results"))
        self.reference.freeze()
        return reference_s

    def judge(
        self, buffers: Buffers, reply: Dict[str, Any], check: RoundCheck, reference_s: float, *, twice: bool = False
    ) -> None:
        """Return if the round passed; if not, see `twice` where one more call is wrong, before that is told.

        Raises:
            Judged: If not.
        """
        where = "in round %d (%s): " % (self.number, calls_text(buffers.sets))
        trespass = buffers.trespass()
        if trespass:
            raise cheat("%s (round %d of %s)" % (trespass, self.number, calls_text(buffers.sets)))
        code = reply.get("code")
        if isinstance(code, int) and code:
            means = self.device.error_text(code, reply.get("asked"))
            text = "the launcher returned %d in call %s of round %d%s"
            code, call = max(-CODES, min(code, CODES)), str(reply.get("call"))[:20]
            raise incorrect(text % (code, call, self.number, means))
        if reply.get("error"):
            raise incorrect("%s%s" % (where, str(reply["error"])[:1500]))
        # What is wrong for good does not change, and is for the full check to say.
        finished = not buffers.have_changed()
        if not check.passed:
            check = self._without_ties(buffers, check)
        if check.passed and finished:
            return
        if not check.passed and self.forgives is not None:
            left = self.forgives(buffers, check)
            if left.wrong.sum() < check.wrong.sum():
                left = self._without_ties(buffers, left)
            if left.passed and finished:
                return
            check = check._replace(wrong=check.wrong * left.wrong.any(axis=1, keepdims=True))
        if check.passed:
            raise cheat("finished after it said done: %sits outputs changed after the clock had stopped" % where)
        wrong = self._wrong(buffers, check, where, reference_s, reply.get("returned"), twice=twice)
        if wrong.verdict == "incorrect" and self.differ:
            wrong.reason += "; " + self.differ
        else:
            wrong.reason += tf32_default(self.task, wrong.reason)
        raise wrong

    def _without_ties(self, buffers: Buffers, check: RoundCheck) -> RoundCheck:
        """Return what is wrong besides discrete elements that are as right as the reference's."""
        left = self.ties.excuse(buffers, check)
        if left.passed and not check.passed:
            self.notes[self.ties.excuse_note(buffers)] = None
        return left

    def _wrong(
        self, buffers: Buffers, check: RoundCheck, where: str, reference_s: float, returned: Any, *, twice: bool
    ) -> Judged:
        # Before the watch below, in which late work may still write.
        untouched = buffers.untouched()
        bad, play = int(check.wrong.any(axis=1).sum()), partial(self._play_again, buffers)
        if self._becomes_right(buffers, check, reference_s):
            return cheat(
                "finished after it said done: %s%d of %s unfinished when it said done, and right later"
                % (where, bad, calls_text(buffers.sets))
            )
        if untouched and isinstance(returned, str):
            text = "%sno output was written; the launcher %s: write into the outputs, as y.copy_(...) does"
            return incorrect(text % (where, returned[:100]))
        onto = written_onto(buffers, play, self.well.word()) if untouched else ""
        if onto:
            text = "%sno output changed, though outputs that hold %s do: %s"
            return incorrect(text % (where, onto, ONTO_JUNK % ("add to" if onto == "zeros" else "read")))
        if untouched:
            return cheat("returned without computing: %sno output was written%s" % (where, self.device.empty_hint))
        call, output = (int(i[0]) for i in np.nonzero(check.wrong))
        repeated = self.repeated(buffers, call, output)
        if repeated:
            return repeated
        if self.ties.reason:
            return incorrect(where + self.ties.reason)
        rtol, atol = self.history.rtol, self.history.atol
        if buffers.outputs[output].count > LARGE:
            return judged_by_samples(self.history, self.number, buffers, check, (call, output))
        expected, got = (part.copy() for part in buffers.pair(call, output))
        difference = compare(expected, got, buffers.outputs[output].dtype, rtol, atol)
        mask = self.ties.inexcusable_at(call, output, difference.mask)
        if mask is None or not mask.any():
            return cheat("kept writing after it said done: %sa wrong output changed during the comparison" % where)
        which = "call %d of %d, round %d" % (call + 1, buffers.sets, self.number)
        which += "; wrong: %d of %s" % (bad, calls_text(buffers.sets)) if buffers.sets > 1 else ""
        difference, poison = difference._replace(wrong=int(np.count_nonzero(mask)), mask=mask), buffers.words[output]
        whole, first, again = bool(mask.all()), not self.calls_checked, play if twice else None
        hint = self.ties.advice  # of this round: another look is at other inputs
        others, more = look_again(
            buffers, check, (call, output), (rtol, atol), self.ties, again, whole=whole, first=first
        )
        words = describe(expected, got, difference, buffers.outputs[output], poison, others)
        if self.task.get("ties") != "reference":
            words += may_tie(buffers, (call, output), check.wrong, expected, got)
        words += hint
        words += coarse_difference(expected, got, buffers.outputs[output].dtype, buffers.outputs[output].name)
        words += self.suite_rule.words(expected, got, buffers.outputs[output]) if self.suite_rule else ""
        judged = incorrect("%s (%s)" % (words, which + more))
        judged.where, judged.answer = grid(buffers.outputs[output], np.flatnonzero(mask)), (call, output)
        return judged

    def _play_again(
        self, buffers: Buffers, words: Optional[Sequence[int]] = None, *, fresh: bool = True
    ) -> Optional[RoundCheck]:
        """Play one more round; return what is wrong in it, `None` if it does not come to an end."""
        if self.candidate.lost:
            return None
        try:
            if fresh:
                self.expect(buffers)
            self.lay(buffers, words)
            timed_pass(self.candidate, buffers, self.timeout_s, **self.more)
            self.candidate.freeze()
            return self._without_ties(buffers, buffers.check())
        except (Judged, JudgeFailed):
            return None

    def repeated(self, buffers: Buffers, call: int, output: int) -> Optional[Judged]:
        """Return the verdict on a wrong answer that is another call's."""
        said = self.history.repeated(self.number, buffers, call, output)
        if not said:
            return None
        text = "repeats an earlier answer: in round %d (%s): output %s of call %d is wrong for its inputs; %s"
        return cheat(text % (self.number, calls_text(buffers.sets), buffers.outputs[output].name, call + 1, said))

    def _becomes_right(self, buffers: Buffers, before: RoundCheck, reference_s: float) -> bool:
        """Watch wrong outputs for a while, the candidate running; say whether they are right in the end."""
        try:
            self.candidate.thaw()
            # Not by the wall clock: on a busy machine late work would not have run before such a wait is over.
            late = While(max(LATE_S, 4 * reference_s), LATE_AT_MOST_S)
            while late.lasts():
                if buffers.check().passed:
                    return True
        finally:
            self.candidate.freeze()
        now = buffers.check()
        mended = bool((now.wrong[: len(before.wrong)] < before.wrong).any())
        return now.passed or (mended and self.ties.excuse(buffers, now).passed)
