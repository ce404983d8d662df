"""Estimates the error of an output that is too large to be compared as a whole."""

from typing import Tuple

import numpy as np

from ..devices.device import Buffers, RoundCheck
from ..numerics.compare import compare, format_numbers, numbers
from ..numerics.error_location import grid
from ..verdicts import Judged, incorrect
from .error_statistics import coarse_difference
from .replay_detector import History

LARGE_SAMPLES = 1 << 16


def judged_by_samples(
    history: History, number: int, buffers: Buffers, check: RoundCheck, answer: Tuple[int, int]
) -> Judged:
    """Return the verdict on a wrong answer, a call and an output of round `number`, by some elements of it."""
    call, output = answer
    item = buffers.outputs[output]
    # Ascending positions make the gather read memory in order, and the first wrong one is the first by index.
    places = np.sort(history.well.positions(LARGE_SAMPLES, item.count))
    expected, got = (part[call] for part in buffers.samples(output, places))
    difference = compare(expected, got, item.dtype, history.rtol, history.atol)
    text = "output %s: %d of %d elements are wrong (of %d looked at, %d; max abs error %.3g)"
    # Count and largest error come from the full check; only the place in words rests on samples.
    words = text % (item.name, check.wrong[call, output], item.count, places.size, difference.wrong, check.max_abs)
    if difference.mask is not None and difference.wrong:
        first = int(np.flatnonzero(difference.mask)[0])
        want, have = (numbers(part, item.dtype)[first] for part in (expected, got))
        words += ", such as element %d: expected %s, got %s" % (int(places[first]), *format_numbers(want, have))
    words += coarse_difference(expected, got, item.dtype, item.name)
    judged = incorrect("%s (call %d of %d, round %d)" % (words, call + 1, buffers.sets, number))
    judged.answer = answer
    if difference.mask is not None:
        judged.where = grid(item, places[np.flatnonzero(difference.mask)], places)
    return judged
