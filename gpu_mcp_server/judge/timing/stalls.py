"""Makes rounds longer on a machine that stalls some: short ones would measure the stalls alone."""

from typing import Callable, Tuple

from ..devices.device import Buffers
from .rounds import Round

AGREE = 1.5
"""Times the quickest round that the next one takes at most, where they tell how long a round lasts."""
SURE = 0.05
"""Part of the quickest round by which the clock's own cost varies at most, likewise."""
MOST = 8
"""Rounds that are looked at where these do not tell."""
SHARE = 0.3
"""Part of a shape's budget that they may take, but for the second."""


def outlasted(
    first: Round, play: Callable[[Buffers], Round], buffers: Buffers, least_s: float, spread_s: float, budget_s: float
) -> Tuple[Round, Round]:
    """Return the quickest of a round that seems to last long enough and of others that are played now, and the last.

    A stall is no reason for short rounds, nor is what a candidate does at buffers that are new. One other round will do
    where the two agree and the clock's own cost is nothing beside them; a busy machine stalls several in a row.

    Args:
        first: The round.
        play: Plays another one.
        buffers: With which it does.
        least_s: What is long enough: a quicker one says all.
        spread_s: By how much the clock's own cost varies.
        budget_s: Of the shape.
    """
    quickest, took_s = first, [first.candidate_s]
    while True:
        last = play(buffers)
        took_s.append(last.candidate_s)
        # The minimum estimates undisturbed time: interference only ever adds to a round.
        quickest = min(quickest, last, key=lambda one: one.candidate_s)
        # Two independent rounds that agree near the minimum are unlikely to have stalled alike.
        quickest_s, next_s = sorted(took_s)[:2]
        steady = next_s <= AGREE * quickest_s and spread_s <= SURE * quickest_s
        if steady or quickest_s < least_s or len(took_s) >= MOST or sum(took_s) >= SHARE * budget_s:
            return quickest, last
