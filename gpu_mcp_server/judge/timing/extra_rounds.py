"""Rounds after a wrong answer, played to say more of it: with other inputs, or with numbers in the outputs."""

from typing import Any, Callable, List, Optional, Tuple

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..devices.memory_cpu import end_words
from ..numerics.compare import compare
from ..numerics.tensors import ITEM_BYTES, Array

ONTO_JUNK = "outputs hold junk before every call, so set each element before you %s it"
UNSTEADY = "; another answer to the same inputs in one more round, as with a race, unset memory or state that is kept"
ENDS = ("largest", "least")
PATTERN = 14
"""Rounds that show whether writing goes with what outputs held; one that writes at will passes one time in 16382."""


Play = Callable[..., Optional[RoundCheck]]
"""Plays one more round onto outputs that hold some words, or junk, with `fresh` inputs or those of the round before.

Returns `None` if it did not come to an end.
"""


def look_again(
    buffers: Buffers,
    check: RoundCheck,
    answer: Tuple[int, int],
    tolerances: Tuple[float, float],
    ties: Any,
    play: Optional[Play],
    *,
    whole: bool,
    first: bool,
) -> Tuple[List[Array], str]:
    """Return where an output is wrong in another call, and what that and more rounds say of the fault.

    Args:
        buffers: Of the round that failed.
        check: Its result.
        answer: The call and the output that are known to be wrong.
        tolerances: Relative and absolute.
        ties: Say which wrong elements are no ties.
        play: Absent where no more rounds are played.
        whole: Whether each element is wrong, so that no place is worth naming.
        first: Whether no call before was right.
    """
    call, output = answer
    others: List[Array] = []
    known = [int(number) for number in np.flatnonzero(check.wrong[:, output]) if number != call and not whole]
    # With fresh inputs, only where no other call of the round tells; the verdict stands without it.
    again = play() if play and not (whole or known) else None
    if known or again:
        at = known[0] if known else 0
        mask = compare(*buffers.pair(at, output), buffers.outputs[output].dtype, *tolerances).mask
        mask = ties.inexcusable_at(at, output, mask)
        if (again and (mask is None or again.passed)) or (mask is not None and not mask.any()):
            return [], "; one more, with other inputs, was right"
        others = [] if mask is None else [mask]
    if play is None or not (others or whole):
        return others, ""
    if _answers_otherwise(buffers, answer, tolerances, play):
        return others, UNSTEADY
    if first and _needs_zeros(buffers, play):
        return others, "; right in a round whose outputs held zeros: " + ONTO_JUNK % "add to"
    return others, ""


def _answers_otherwise(buffers: Buffers, answer: Tuple[int, int], tolerances: Tuple[float, float], play: Play) -> bool:
    """Say whether the last answer is another one in a round with the same inputs, onto the same junk.

    What differs by less than the tolerances is an order of additions.
    """
    got = buffers.pair(*answer)[1].copy()
    if play(list(buffers.words), fresh=False) is None:
        return False
    return compare(got, buffers.pair(*answer)[1], buffers.outputs[answer[1]].dtype, *tolerances).wrong > 0


def _needs_zeros(buffers: Buffers, play: Play) -> bool:
    """Say whether a candidate is right in a round whose outputs held zeros, and wrong in the next, onto junk."""
    onto_zeros = play([0] * len(buffers.outputs))
    if onto_zeros is None or not onto_zeros.passed or buffers.untouched():
        return False
    onto_junk = play()  # what was wrong by chance, as a race is, may be right here, too
    return onto_junk is not None and not onto_junk.passed


def written_onto(buffers: Buffers, play: Play, random: int) -> str:
    """Return what outputs must hold for a candidate to write, that left them as they were; empty if none is known.

    A candidate that adds to junk may leave it as it was: on many processors a NaN plus a number is the same NaN, bit
    for bit. So may one that keeps the larger of junk and of a small whole number. The owner therefore plays the same
    junk and the same inputs in each of these rounds. It draws in secret which rounds hold junk: a candidate that
    computes in some calls only cannot follow that order.

    Args:
        buffers: Of the round that failed.
        play: Plays one more.
        random: Of the owner, and large.
    """
    junk = list(buffers.words)
    ends = [end_words(item.dtype, ITEM_BYTES[item.dtype]) for item in buffers.outputs]
    kinds = {"zeros": [0] * len(ends)}
    kinds.update({"their type's %s number" % name: [end[i] for end in ends] for i, name in enumerate(ENDS)})
    held = next((held for held in kinds if play(kinds[held], fresh=False) and not buffers.untouched()), "")
    if not held:
        return ""
    order = 1 + random % ((1 << PATTERN) - 2)  # of either one round at least
    for number in range(PATTERN):
        writes = bool(order >> number & 1)
        if not play(kinds[held] if writes else junk, fresh=False) or buffers.untouched() is writes:
            return ""
    return held
