"""Measure of the difference between texts."""

import difflib
import itertools
import statistics
from collections.abc import Sequence

COMPARED = 20_000
"""Characters of a text that are compared with another's."""


def mean_difference(texts: Sequence[str]) -> float | None:
    """Return how different texts are, as the mean over all pairs; None of fewer than two.

    Source:
        1 - difflib.SequenceMatcher.ratio (Ratcliff and Obershelp), over lines.
    """
    pairs = list(itertools.combinations([text[:COMPARED].splitlines() for text in texts], 2))
    if not pairs:
        return None
    alike = [difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() for one, other in pairs]
    return 1 - statistics.fmean(alike)
