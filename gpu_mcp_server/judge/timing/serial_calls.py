"""Detects calls that overlap: a round's time divided by its calls would make each look faster than it is.

Work on streams that are never joined ends with its round, and the fence sees no output change. But then calls run
side by side: a round tells how many of them the GPU can do at once, not the time of one. A candidate that knows the
number of calls may also answer all by one launch, and compare the inputs at each call. Therefore the owner asks for
some calls one by one. It waits for each before it writes the next one's inputs, and compares its time on the GPU with
its part of a round.
"""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from ..devices.device import Buffers
from ..numerics.stats import median
from ..verdicts import cheat
from .clock_overhead import request_s
from .rounds import Rounds
from .timed_pass import reported_us

FEWEST, MOST = 6, 32
"""Calls that are asked for one by one. The number is drawn: no candidate knows the last one."""
SHARE = 1.25
"""Of a call's part of a round, that the GPU may need for a call by itself."""
SLACK_S = 10e-6
"""And besides, for a GPU that is idle before each call."""
LAUNCHING, LAUNCHING_S = 2.0, 20e-6
"""Times a call's part of a round, and besides, that launching one is believed to take by itself. It takes the processor
up to three times as long as in a loop (C++ 10 us instead of 3 on an H100). A higher report counts as work."""
CERTAIN = 2.0
"""Times what it may need, from which on it is a cheat, if the quickest call and what the candidate says of itself say
so too. Otherwise there is no time."""
NOTHING = 4.0
"""Times what a request for no call took before the candidate was loaded, that one is believed to take: a machine that
has become busy delays it, and the others alike."""
AGAIN = 3
"""How often calls are asked for once more before anything is said: a busy machine delays them."""


class Single(NamedTuple):
    """Seconds of calls that were asked for one by one; medians where nothing else is said."""

    call_s: float
    """From the request to the reply."""
    launch_s: float
    """Of it, until the launcher had returned: a round does that beside the GPU's work. As the candidate says."""
    nothing_s: float
    """What a request for no call took, which took turns with the others. A candidate could be slow to answer it."""
    known_s: float
    """And before the candidate was loaded."""
    quickest_s: float
    """As `call_s`, of the quickest call: a busy machine delays many, hardly every one of them."""

    def device_s(self, share_s: float) -> float:
        """Return what the device needed at least, if a call's part of a round is `share_s`."""
        nothing_s = min(self.nothing_s, NOTHING * self.known_s)
        return self.call_s - nothing_s - min(self.launch_s, LAUNCHING * share_s + LAUNCHING_S)

    def told_s(self) -> float:
        """Return what the quickest needed by all that the candidate says, which may be what an honest one says."""
        return self.quickest_s - self.nothing_s - self.launch_s


def doubt(singles: List[Single], share_s: float, again: Callable[[], Single]) -> str:
    """Say what speaks against a round's times; empty if nothing does.

    Args:
        singles: Of calls by themselves; more are added where those so far look suspicious.
        share_s: A call's part of a round.
        again: Asks for some more, one by one.

    Raises:
        Judged: If it is certain.
    """
    allowed_s = SHARE * share_s + SLACK_S
    for _ in range(AGAIN):
        # The minimum counts in the candidate's favour: one undisturbed sample suffices to clear it.
        if min(one.device_s(share_s) for one in singles) <= allowed_s:
            return ""
        singles.append(again())
    needed_s = min(one.device_s(share_s) for one in singles)
    if needed_s <= allowed_s:
        return ""
    text = "calls overlap on the GPU, or share work: alone a call keeps the GPU busy for %.3g us, in a round it takes "
    text += "%.3g us; join every stream of your own into the given one"
    text = text % (needed_s * 1e6, share_s * 1e6)
    if min(needed_s, *(one.told_s() for one in singles)) < CERTAIN * allowed_s:
        return "no time: " + text
    raise cheat(text)


class OneByOne:
    """Asks for the calls of a round one by one."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.well = rounds, rounds.well

    def doubt(self, buffers: Buffers, share_s: float) -> Tuple[str, List[Single]]:
        """Return what speaks against a round's times, of which a call's part is `share_s`, and what calls took.

        Raises:
            Judged: If it is certain, or the candidate did not pass.
        """
        singles = [self.play(buffers)]
        return doubt(singles, share_s, lambda: self.play(buffers)), singles

    def play(self, buffers: Buffers) -> Single:
        """Play the first calls of a round so.

        Raises:
            Judged: If the candidate did not pass.
        """
        rounds, player = self.rounds, self.rounds.candidate
        # The reference answers all sets first, so that nothing but the candidate runs between the requests.
        rounds.expect(buffers)
        with rounds.ledger.part("fill"):
            buffers.poison()
        count = min(buffers.sets, FEWEST + self.well.word() % (MOST - FEWEST + 1))
        took_s: List[float] = []
        launched_s: List[float] = []
        empty_s: List[float] = []
        reply: Dict[str, Any] = {}
        begin = time.perf_counter()
        with rounds.ledger.part("wait"):
            player.thaw()
            for number in range(count):
                # Only this call's inputs are shown: work for later calls has nothing to read yet.
                buffers.publish_sets(number, number + 1)
                request_s(player, 0, number, rounds.timeout_s)  # the GPU changes hands
                empty_s.append(request_s(player, 0, number, rounds.timeout_s)[0])
                one_s, reply = request_s(player, 1, number, rounds.timeout_s)
                took_s.append(one_s)
                launched_s.append((reported_us(reply.get("launch_us")) or 0.0) / 1e6)
                if reply.get("error") or (isinstance(reply.get("code"), int) and reply["code"]):
                    break
            player.freeze()
            player.quiet()
            # The rest is shown before the check, which compares the candidate's inputs with the owner's in full.
            buffers.publish_sets(len(took_s), buffers.sets)
            rounds.ledger.move(time.perf_counter() - begin, "candidate")
        with rounds.ledger.part("check"):
            rounds.judge(buffers, reply, buffers.check_first(len(took_s)), 0.0)
        known_s = rounds.costs["candidate"].request_s
        return Single(median(took_s), median(launched_s), median(empty_s), known_s, min(took_s))
