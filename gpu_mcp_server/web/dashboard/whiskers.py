"""Intervals as whiskers: one logarithmic scale for a column, with ends that bracket all its intervals."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

STEPS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
SMALLEST = 1e-12
"""Of a value that a scale heeds; its inverse is the largest."""
WIDTH, MARGIN = 120, 5


@dataclass(frozen=True)
class WhiskerScale:
    """A logarithmic axis between two round numbers."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return where a value lies across the picture, in its pixels."""
        part = math.log(min(self.high, max(self.low, value)) / self.low) / math.log(self.high / self.low)
        return round(MARGIN + part * (WIDTH - 2 * MARGIN), 1)

    def holds(self, value: float) -> bool:
        """Say whether a value lies on the axis."""
        return self.low <= value <= self.high


def scale_of(values: Iterable[float | None]) -> WhiskerScale | None:
    """Return the narrowest scale with round ends around values that can be measured; None without any."""
    known = [value for value in values if value is not None and SMALLEST <= value <= 1 / SMALLEST]
    if not known:
        return None
    least, most = min(known), max(known)
    powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    ticks = [step * 10.0**power for power in powers for step in STEPS]
    low = max(tick for tick in ticks if tick <= least)
    return WhiskerScale(low, min(tick for tick in ticks if tick >= most and tick > low))


def range_of(evidence: Mapping[str, Any] | None, name: str) -> tuple[float, float] | None:
    """Return an interval that an attempt's evidence has; None where it has none, as of older versions."""
    found: Any = (evidence or {}).get(name)
    ends = cast("list[Any]", found) if isinstance(found, list) else []
    if len(ends) != 2 or not all(isinstance(end, int | float) and end > 0 for end in ends):
        return None
    return float(ends[0]), float(ends[1])
