"""Plays rounds with copies between calls, to see work that does not wait for the given stream.

A call may begin when that stream has come to it, and is done when the stream has passed it: its inputs are made and
its output is used there. Work on a stream of the candidate's own that does not wait for the given one, or is not
joined into it, may run beside the calls before and behind it, and every output is right when the round ends. Therefore
some rounds have a copy of a few bytes of an answer behind each call, on that stream: of the call's own, which must be
what is there in the end, or of the next one's, which must not have been written. Streams that wait for the given one by
themselves are only held up by work that is there; then a call takes longer with a copy behind it than without.
"""

from typing import Any, Callable, Dict, List, NamedTuple

from ..devices.device import Buffers
from ..numerics.stats import median
from ..timing.rounds import Rounds
from ..verdicts import incorrect
from .trial_setup import Agenda

AT_END = 2
"""Rounds that are played so at a shape's end, as among its first ones by turns of the two kinds."""
PAIRS = 5
"""Rounds with copies, each beside one without, that are played where a call seems to take longer: a busy machine delays
some. Most of them decide, as a candidate may be honest now and then."""
SHARE = 1.15
"""Of a call's part of a round, that it may take there."""
COPIES, SLACK_S = 3.0, 6e-6
"""Times what a copy takes between kernels of the judge's own, and besides, that one may take."""
NOTED_S, NOTED_PYTHON_S = 3e-6, 8e-6
"""What one may take besides, and one copy, before it is noted. On an H200 calls of C on one stream took less, calls
that fork and join streams took up to twice as much (benchmarks/results/h200-cheats.md). Python spends 1 to 3 us of its
own on each copy, and the driver's time besides, which a short call does not hide; not measured on a GPU."""
ADVICE = (
    "a stream of your own must wait for the given stream before its work, and the given stream for it afterwards "
    "(cudaEventRecord on one, cudaStreamWaitEvent on the other)"
)


class Pair(NamedTuple):
    """A round with copies and one without, in seconds a call."""

    apart_s: float
    share_s: float


class Found(NamedTuple):
    """Result of rounds with copies for a shape's times."""

    doubt: str = ""
    """What speaks against them; empty if nothing does."""
    exposed_s: float = 0.0
    """What a call takes at least that is kept apart, where that is clearly more than its part; otherwise 0."""


def found(apart_s: List[float], share_s: float, separator_s: float, noted_s: float, again: Callable[[], Pair]) -> Found:
    """Compare what a call took in rounds with copies with its part of the rounds that were timed.

    Args:
        apart_s: What a call took with copies; more are added where those so far look suspicious.
        share_s: A call's part of a timed round.
        separator_s: What a copy between two kernels takes.
        noted_s: What a call may take besides before it is noted.
        again: Plays another round of either kind.
    """
    typical_s, beside_s, text = median(apart_s), COPIES * separator_s + SLACK_S, ""
    if typical_s > SHARE * share_s + beside_s:
        pairs: List[Pair] = []
        votes = [0, 0]
        # Each round beside a plain one of the same moment: a machine that became slower delays both.
        while max(votes) <= PAIRS // 2:
            pairs.append(again())
            votes[pairs[-1].apart_s <= SHARE * max(share_s, pairs[-1].share_s) + beside_s] += 1
        # The pairs replace the first impression: the median of pairs alone is reported from here on.
        apart_s += [pair.apart_s for pair in pairs]
        typical_s, plain_s = (median(list(each)) for each in zip(*pairs))
        if votes[False] > votes[True]:
            text = "no time: calls overlap on the GPU: with a copy between them on the given stream a call takes "
            text += "%.3g us, in a round %.3g us; %s" % (typical_s * 1e6, share_s * 1e6, ADVICE)
        # Plain rounds slowed as well, so the copies show nothing and the earlier times are stale.
        elif plain_s > SHARE * share_s + SLACK_S:
            text = "no time: a call takes %.3g us now and took %.3g us in timed rounds: the machine or the candidate "
            text = text % (plain_s * 1e6, share_s * 1e6) + "became slower; judge it again"
    least_s = typical_s - separator_s - noted_s
    return Found(text, least_s if least_s > SHARE * share_s else 0.0)


def expose(result: Dict[str, Any], exposed_s: float) -> str:
    """Let the low end of a shape's speed-up tell what calls take that are kept apart, and say so; empty if no more.

    Args:
        result: Of the shape, with times in microseconds.
        exposed_s: See `Found`.
    """
    if not exposed_s:
        return ""
    exposed_us, timed_us = exposed_s * 1e6, result["candidate"]["median_us"]
    result["speedup_low"] = min(result["speedup_low"], result["reference"]["median_us"] / exposed_us)
    text = "a call takes at least %.3g us with a copy between calls, and %.3g us without, where it may overlap the "
    return text % (exposed_us, timed_us) + "next one; speedup_low counts the former"


class Separation:
    """Plays rounds with copies behind their calls, between those that are timed."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.noted_s = NOTED_S if rounds.task["candidate"] == "library" else NOTED_PYTHON_S
        self.ahead = bool(rounds.well.word() % 2)
        self.agenda = Agenda(rounds.well)
        self.apart_s: List[float] = []
        self.found = Found()

    def begin(self, first: int) -> None:
        """Draw behind which of so many first rounds one is played."""
        self.agenda.begin(first)
        self.apart_s, self.found = [], Found()

    def after(self, buffers: Buffers, played: int) -> None:
        """Play what is due behind a round.

        Raises:
            Judged: If the candidate did not pass.
        """
        if buffers.sets == 1 or self.rounds.device.stops_calls:  # nothing is between calls, or nothing goes on there
            return
        for _ in range(self.agenda.due(played)):
            self.apart_s.append(self.play(buffers))

    def doubt(self, buffers: Buffers, share_s: float) -> str:
        """Say what speaks against the times of the rounds so far, of which a call's part is `share_s`.

        Raises:
            Judged: If the candidate did not pass.
        """

        def again() -> Pair:
            return Pair(self.play(buffers), self.rounds.play(buffers).candidate_s / buffers.sets)

        self.apart_s += [self.play(buffers) for _ in range(AT_END)]
        separator_s = self.rounds.costs["candidate"].separator_s
        self.found = found(self.apart_s, share_s, separator_s, self.noted_s, again)
        return self.found.doubt

    def play(self, buffers: Buffers) -> float:
        """Play a round and return seconds a call.

        Raises:
            Judged: If the candidate did not pass, an answer was missing when the stream had passed its call, or was
                begun when the stream had not come to it.
        """
        rounds, watch = self.rounds, self.rounds.watch
        self.ahead = not self.ahead  # by turns: a call's own answer must be there, the next one's must not
        asked = buffers.separators(ahead=self.ahead)
        rounds.more, rounds.watch = {"separators": asked}, None
        try:
            played = rounds.play(buffers)
        finally:
            rounds.more, rounds.watch = {}, watch
        with rounds.ledger.part("check"):
            misplaced = buffers.misplaced()
        if misplaced:
            (call, output), many = misplaced[0], len({call for call, _ in misplaced})
            which = "output %s of call %d of %d" % (
                buffers.outputs[output].name,
                call + 1 + asked["ahead"],
                buffers.sets,
            )
            if asked["ahead"]:
                text = "%s was written before the given stream reached the call (in %d calls): %s, or it may "
                raise incorrect(text % (which, many, ADVICE) + "use inputs too soon")
            text = "%s was missing when the given stream had passed the call (in %d calls): %s, or the next user "
            raise incorrect(text % (which, many, ADVICE) + "reads it too soon")
        return played.candidate_s / buffers.sets
