"""Rounds after a wrong answer, played to say more of it: with other inputs, or with zeros in the outputs."""

from typing import TYPE_CHECKING, List, Optional, Tuple

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.compare import compare
from ..numerics.tensors import Array
from ..verdicts import Judged, JudgeFailed
from .timed_pass import timed_pass

if TYPE_CHECKING:
    from .rounds import Rounds

ONTO_JUNK = "outputs hold junk before every call, so set each element before you add to it"
PATTERN = 6
"""Rounds that show whether writing goes with what outputs held; one that writes at will passes one time in 62."""


def other_masks(
    rounds: "Rounds", buffers: Buffers, check: RoundCheck, answer: Tuple[int, int], *, twice: bool
) -> List[Array]:
    """Return where an output is wrong in another call: of this round, or of one more with fresh inputs.

    Args:
        rounds: They were played by.
        buffers: Of the round that failed.
        check: Its result.
        answer: The call and the output that are known to be wrong.
        twice: Whether one more round may be played.
    """
    call, output = answer
    dtype, tolerances = buffers.outputs[output].dtype, (rounds.history.rtol, rounds.history.atol)
    others = [int(number) for number in np.flatnonzero(check.wrong[:, output]) if number != call]
    if others:
        mask = compare(*buffers.pair(others[0], output), dtype, *tolerances).mask
        mask = rounds.ties.inexcusable_at(others[0], output, mask)
        return [] if mask is None else [mask]
    again = _play_again(rounds, buffers) if twice else None
    if again is None:
        return []  # the verdict stands without it
    mask = compare(*buffers.pair(0, output), dtype, *tolerances).mask
    mask = rounds.ties.inexcusable_at(0, output, mask)
    return [np.zeros(buffers.outputs[output].count, dtype=bool) if mask is None or again.passed else mask]


def is_right_onto_zeros(rounds: "Rounds", buffers: Buffers) -> bool:
    """Say whether a candidate that was never right before is so in a round whose outputs held zeros."""
    again = None if rounds.calls_checked else _play_again(rounds, buffers, zeros=True)
    return again is not None and again.passed and not buffers.untouched()


def writes_by_what_was_there(rounds: "Rounds", buffers: Buffers) -> bool:
    """Say whether a candidate that left its outputs as they were writes where, and only where, they held zeros.

    What is added to a NaN is that NaN, on many a processor to the last bit, as if nobody had written. The order of
    zeros and junk is a secret, or one that computes in some calls only would look the same.
    """
    if rounds.calls_checked:
        return False
    order = 1 + rounds.history.well.word() % ((1 << PATTERN) - 2)  # of zeros and of junk one round at least
    for number in range(PATTERN):
        zeros = bool(order >> number & 1)
        if _play_again(rounds, buffers, zeros=zeros) is None or buffers.untouched() is zeros:
            return False
    return True


def _play_again(rounds: "Rounds", buffers: Buffers, *, zeros: bool = False) -> Optional[RoundCheck]:
    """Play one more round with fresh inputs; return what is wrong in it, `None` if it does not come to an end."""
    if rounds.candidate.lost:
        return None
    try:
        rounds.expect(buffers)
        buffers.poison(zeros=zeros)
        buffers.publish()
        timed_pass(rounds.candidate, buffers, rounds.timeout_s, **rounds.more)
        rounds.candidate.freeze()
        return rounds.without_ties(buffers, buffers.check())
    except (Judged, JudgeFailed):
        return None
