"""Rounds after a wrong answer, played to say more of it: with other inputs, or with zeros in the outputs."""

from typing import Any, Callable, List, Optional, Tuple

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.compare import compare
from ..numerics.tensors import Array

Play = Callable[[bool], Optional[RoundCheck]]
"""Plays one more round with fresh inputs, onto zeros or junk; `None` if it did not come to an end."""
ONTO_JUNK = "outputs hold junk before every call, so set each element before you add to it"
PATTERN = 14
"""Rounds that show whether writing goes with what outputs held; one that writes at will passes one time in 16382."""


def other_masks(
    buffers: Buffers,
    check: RoundCheck,
    answer: Tuple[int, int],
    tolerances: Tuple[float, float],
    ties: Any,
    play: Optional[Play],
) -> List[Array]:
    """Return where an output is wrong in another call: of this round, or of one more with fresh inputs.

    Args:
        buffers: Of the round that failed.
        check: Its result.
        answer: The call and the output that are known to be wrong.
        tolerances: Relative and absolute.
        ties: Say which wrong elements are no ties.
        play: Absent where no more rounds are played.
    """
    call, output = answer
    dtype = buffers.outputs[output].dtype
    others = [int(number) for number in np.flatnonzero(check.wrong[:, output]) if number != call]
    if others:
        mask = compare(*buffers.pair(others[0], output), dtype, *tolerances).mask
        mask = ties.inexcusable_at(others[0], output, mask)
        return [] if mask is None else [mask]
    again = play(False) if play else None
    if again is None:
        return []  # the verdict stands without it
    mask = compare(*buffers.pair(0, output), dtype, *tolerances).mask
    mask = ties.inexcusable_at(0, output, mask)
    return [np.zeros(buffers.outputs[output].count, dtype=bool) if mask is None or again.passed else mask]


def is_right_onto_zeros(buffers: Buffers, play: Play) -> bool:
    """Say whether a candidate is right in a round whose outputs held zeros."""
    again = play(True)
    return again is not None and again.passed and not buffers.untouched()


def writes_by_what_was_there(buffers: Buffers, play: Play, random: int) -> bool:
    """Say whether a candidate that left its outputs as they were writes where, and only where, they held zeros.

    What is added to a NaN is that NaN, on many a processor to the last bit, as if nobody had written. The order of
    zeros and junk is a secret, or one that computes in some calls only would look the same.

    Args:
        buffers: Of the round that failed.
        play: Plays one more.
        random: Of the owner, and large.
    """
    order = 1 + random % ((1 << PATTERN) - 2)  # of zeros and of junk one round at least
    for number in range(PATTERN):
        zeros = bool(order >> number & 1)
        if play(zeros) is None or buffers.untouched() is zeros:
            return False
    return True
