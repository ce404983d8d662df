"""What calls take when something is between them on the stream that they are given.

A call is done when that stream has passed it: who uses its output puts the next work there. Work on a stream of the
candidate's own that was not joined may not be done by then; its outputs are right when the round ends, and all the
same somebody reads too soon. Streams that wait for the given one by themselves are only held up by work that is there,
so that calls run beside each other in a round as in no program. Therefore some rounds have a copy of a few bytes of
each answer behind each call: what was copied must be what is there in the end, and a call takes no longer than in other
rounds, but for the copies.
"""

from typing import Callable, List, Tuple

from devices import Buffers
from rounds import Rounds
from verdicts import cheat, incorrect

ROUNDS = 2
"""That are played so, at each shape."""
MORE = 3
"""And besides, where a call seems to take longer: a busy machine delays some."""
SHARE = 1.15
"""Of a call's part of a round, that it may take there."""
COPIES, SLACK_S = 2.0, 4e-6
"""Times a copy takes in a row of them, and besides, that one may take between two kernels."""
CERTAIN = 2.0
"""Times what it may take, from which on it is a cheat."""


def doubt(call_s: List[float], share_s: float, separator_s: float, again: Callable[[], float]) -> str:
    """Say what speaks against a round's times; empty if nothing does.

    Args:
        call_s: What a call took in rounds with separators; more are added where those so far look suspicious.
        share_s: A call's part of a round without.
        separator_s: What a separator takes by itself.
        again: Plays another one.

    Raises:
        Judged: If it is certain.
    """
    allowed_s = SHARE * share_s + COPIES * separator_s + SLACK_S
    for _ in range(MORE):
        if min(call_s) <= allowed_s:
            return ""
        call_s.append(again())
    took_s = min(call_s)
    if took_s <= allowed_s:
        return ""
    text = "calls run beside each other: with something between them on the stream that they are given one takes %.3g "
    text += "us, in a round %.3g us; every stream of your own must be joined into the one that is given"
    text = text % (took_s * 1e6, share_s * 1e6)
    if took_s < CERTAIN * allowed_s:
        return "no time: " + text
    raise cheat(text)


class Separation:
    """Plays rounds whose calls are kept apart."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def doubt(self, buffers: Buffers, share_s: float) -> Tuple[str, List[float]]:
        """Return what speaks against a round's times, of which a call's part is `share_s`, and what calls took.

        Raises:
            Judged: If it is certain, or the candidate did not pass.
        """
        call_s = [self.play(buffers) for _ in range(ROUNDS)]
        separator_s = self.rounds.costs["candidate"].separator_s
        return doubt(call_s, share_s, separator_s, lambda: self.play(buffers)), call_s

    def play(self, buffers: Buffers) -> float:
        """Play a round and return seconds a call.

        Raises:
            Judged: If the candidate did not pass, or an answer was not there when the stream had passed its call.
        """
        rounds = self.rounds
        rounds.more = {"separators": buffers.separators()}
        try:
            played = rounds.play(buffers)
        finally:
            rounds.more = {}
        with rounds.ledger.part("check"):
            late = buffers.passed_over()
        if late.size:
            raise incorrect(
                "the stream that is given had passed call %d of %d and output was still missing (of %d calls): work on "
                "a stream of your own must be joined into the given one (record an event there, cudaStreamWaitEvent), "
                "or whoever uses the output next reads too soon" % (int(late[0]) + 1, buffers.sets, late.size)
            )
        return played.candidate_s / buffers.sets
