"""Inputs of calls, changed while calls before them run: what was computed of them ahead of its call is wrong then.

A candidate that answers all calls of a round at once may keep the answers to itself and hand out one at a call, so
that nothing of it is seen in the outputs. The new elements are those of other calls' inputs; they are what the
reference answers, once, so that a candidate is frozen for hardly longer than before any other round.
"""

from typing import List, NamedTuple, Optional

import numpy as np

from ..devices.device import Buffers
from ..numerics.random_inputs import Well
from ..numerics.tensors import ITEM_BYTES, MADE, Array
from ..timing.rounds import Rounds
from ..verdicts import Judged, cheat

MANY_CALLS = 64
MOST_PART = 2
"""Of a round's calls all are drawn if they are no more than `MANY_CALLS`, else one in so many, the same one more than
once: who reads the inputs of some calls anew must not know by them whether those of others changed."""
MOST_BYTES = 8 << 20
"""Of what is changed."""
PART = 64
"""Of an input's elements one is changed, which nobody finds who does not read them all, or one of so many."""


class Piece(NamedTuple):
    """Consecutive elements of an input, of each changed call."""

    number: int
    first: int
    before: Array
    """[calls, elements]."""
    after: Array


class Exchange:
    """The inputs of some calls as they are at first, and as the reference has them."""

    def __init__(self, buffers: Buffers, well: Well, first: int) -> None:
        """Draw them, of the calls from `first` on: those before may have begun before anything can be changed."""
        self.buffers = buffers
        spans = _spans(buffers, well)
        each = sum(count * ITEM_BYTES[buffers.inputs[number].dtype] for number, _, count in spans)
        most = min(max(MANY_CALLS, buffers.sets // MOST_PART), MOST_BYTES // max(1, each))
        calls = np.arange(first, buffers.sets, dtype=np.int64)
        if calls.size > most:
            calls = np.unique(calls[well.positions(most, calls.size)]) if most else calls[:0]
        # The shift is never 0 modulo the calls, so no call gets its own elements back as a change.
        donors = (calls + 1 + well.word() % (buffers.sets - 1)) % buffers.sets
        self.calls: Array = calls
        self.apart = not any(buffers.inputs[number].distribution in MADE for number, _, _ in spans)
        """Whether what is changed hangs together with nothing else."""
        self.pieces: List[Piece] = []
        for number, first, count in spans if calls.size else ():
            before, after = (buffers.pieces(number, some, first, count) for some in (calls, donors))
            self.pieces.append(Piece(number, first, before, after))

    def put(self, *, after: bool) -> None:
        """Give the reference the inputs as they will be, or as they were."""
        for piece in self.pieces:
            values = piece.after if after else piece.before
            self.buffers.put_pieces(piece.number, self.calls, piece.first, values)

    def hide(self) -> None:
        """Show the candidate the inputs as they were."""
        for piece in self.pieces:
            self.buffers.show_pieces(piece.number, self.calls, piece.first, piece.before)

    def show(self, calls: Array) -> None:
        """Show it those of some of the calls as they will be."""
        which = np.flatnonzero(np.isin(self.calls, calls))
        for piece in self.pieces:
            self.buffers.show_pieces(piece.number, self.calls[which], piece.first, piece.after[which])

    def stale_verdict(self, rounds: Rounds, wrong: Array, count: int, where: str) -> Optional[Judged]:
        """Return the verdict on wrong calls of the first `count`, if the answer of one is that to its inputs at first.

        Args:
            rounds: Of the shape.
            wrong: Calls that were changed in time and answered wrongly.
            count: Of calls that were made.
            where: Words for the place where the judge changed the inputs.
        """
        self.put(after=False)
        rounds.solve(self.buffers, count)
        right = wrong[~self.buffers.check_first(count).wrong[wrong].any(axis=1)]
        if not right.size:
            return None
        text = "worked on a call before it was called: the judge changed inputs of call %d of %d %s, and the answer is "
        text += "to the old inputs; work that calls share is in no call's time"
        return cheat(text % (int(right[0]) + 1, count, where))


def _spans(buffers: Buffers, well: Well) -> List[List[int]]:
    """Draw what is changed: number of the input, first element, elements.

    Elements of what the owner draws depend on nothing. What the problem's code makes may hang together (offsets and
    what they point to), so it is changed as a whole, and only where there is nothing else.
    """
    items = list(enumerate(buffers.inputs))
    drawn = [(number, item.count) for number, item in items if item.distribution not in MADE]
    if not drawn:
        return [[number, 0, item.count] for number, item in items if item.distribution == "made"]
    number, count = drawn[well.word() % len(drawn)]
    some = max(1, count // PART) if well.word() % 2 else 1
    return [[number, well.word() % (count - some + 1), some]]
