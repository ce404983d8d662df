"""The one order of times: by trust, then by the bound that is worse for each, and which of them are tied.

`services.records.trust` says the same to the store.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
TRUSTS = ("confirmed", "provisional", "unconfirmable")
"""Words before a colon, from the most trusted on."""

Range = tuple[float, float] | None
"""95 % interval, its lower end first."""


def trust_word(trust: str | None) -> str:
    """Return the trust of a time in a word."""
    return (trust or "unknown").partition(":")[0]


def trust_place(trust: str | None) -> int:
    """Return where a time belongs by its trust: 0 is the first; what has no such word is last."""
    word = trust_word(trust)
    return TRUSTS.index(word) if word in TRUSTS else len(TRUSTS)


def bound_of(speedup: float | None, speedups: Range, us: float | None, times_us: Range) -> tuple[float, float]:
    """Return what the faster of two is less by: the speed-up that it has at least, without one the time at most.

    Args:
        speedup: Times as fast as the reference; None where that is no baseline.
        speedups: Interval of it.
        us: Time of a call.
        times_us: Interval of that.
    """
    if speedup is not None:
        return -(speedups[0] if speedups else speedup), 0.0
    return 0.0, (times_us[1] if times_us else us) or math.inf


def overlap(better: tuple[Range, Range], worse: tuple[Range, Range]) -> bool | None:
    """Say whether intervals overlap: of two speed-ups, or of two times without a baseline; None where one is unknown.

    Args:
        better: Interval of the speed-up and of the time of what ranks first.
        worse: The same of the other.
    """
    (one, one_us), (other, other_us) = better, worse
    if one and other:
        return other[1] >= one[0]
    if one_us and other_us and not (one or other):
        return other_us[0] <= one_us[1]
    return None


def share_ranks(
    ordered: Sequence[T], ranks: Callable[[T], bool], tied: Callable[[T, T], bool]
) -> list[tuple[T, int | None, T | None]]:
    """Return each of a ranking with its rank, which those share that are tied with the first of it, and that first.

    Args:
        ordered: The best first.
        ranks: Whether one has a rank at all.
        tied: Whether the second is tied with the first.
    """
    found: list[tuple[T, int | None, T | None]] = []
    first: T | None = None
    rank = 0
    for place, each in enumerate(ordered, 1):
        if not ranks(each):
            found.append((each, None, None))
        elif first is not None and tied(first, each):
            found.append((each, rank, first))
        else:
            first, rank = each, place
            found.append((each, rank, None))
    return found
