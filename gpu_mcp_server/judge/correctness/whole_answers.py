"""Answers whose floats follow from discrete ones, as the means of clusters do from what is in them.

Such floats are right with a discrete answer that rounding decided otherwise, if the reference gives both to the same
moved inputs. Nothing else that moves with the inputs is covered: to whatever moved inputs the reference gives the
candidate's discrete answer, the candidate's floats must belong; and where it gives its own again, its own must.
"""

from typing import Iterable, Optional, Sequence, Tuple

import numpy as np

from ..devices.device import Buffers
from ..numerics.compare import compare, numbers
from ..numerics.tensors import Array, Tensor

AGREEING = 3
"""Answers to moved inputs that must agree, one by the candidate's side at least: a float that moves by itself, beyond
the tolerance, would meet what a candidate says in one of them, by chance, and not in three."""


def follow(
    buffers: Buffers, call: int, wrong: Array, answers: Iterable[Optional[Array]], tolerances: Tuple[float, float]
) -> bool:
    """Say whether the floats of a call's answer follow from its discrete outputs.

    Args:
        buffers: Of the round.
        call: Which one of it.
        wrong: How many elements of each output were wrong.
        answers: What the reference says, first to the inputs as they are, then to moved ones: all outputs' elements,
            each as 64 bits; `None` where it says nothing.
        tolerances: The relative and the absolute one.
    """
    outputs = buffers.outputs
    pairs = [tuple(side.copy() for side in buffers.pair(call, number)) for number in range(len(outputs))]
    for item, (want, have), count in zip(outputs, pairs, wrong.tolist()):
        finite = [np.isfinite(numbers(side, item.dtype)) for side in (want, have) if not item.discrete]
        # What changed since its check is still being written. A NaN or an infinity follows from nothing.
        if compare(want, have, item.dtype, *tolerances).wrong != count or any((finite[0] != x).any() for x in finite):
            return False
    expected, got = zip(*pairs)
    ends, agreeing, met = np.cumsum([item.count for item in outputs])[:-1], 0, False
    for number, answer in enumerate(answers):
        if answer is None:
            return False
        found = np.split(answer.ravel(), ends)
        side = next((x for x in (got, expected) if _agrees(outputs, found, x, tolerances, discrete=True)), None)
        if side is None:
            continue
        if not _agrees(outputs, found, side, tolerances, discrete=False):
            return False
        agreeing, met = agreeing + 1, met or side is got
        if met and (agreeing >= AGREEING or not number):
            return True
    return False


def _agrees(
    outputs: Sequence[Tensor],
    found: Sequence[Array],
    answer: Sequence[Array],
    tolerances: Tuple[float, float],
    *,
    discrete: bool,
) -> bool:
    """Say whether an answer's outputs, the discrete ones or the others, are what the reference found."""
    for item, want, have in zip(outputs, found, answer):
        if item.discrete != discrete:
            continue
        sides, kind = (want.astype(have.dtype), have), item.dtype
        if not discrete:
            sides, kind = (want.view(np.float64), numbers(have, item.dtype).astype(np.float64)), "float64"
        if compare(*sides, kind, *tolerances).wrong:
            return False
    return True
