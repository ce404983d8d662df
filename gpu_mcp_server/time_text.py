"""Times for people: one format everywhere, three significant digits and a unit."""

from math import isfinite

UNITS = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))
"""Seconds in a unit, and its name, the shortest first."""
DIGITS = 3


def format_seconds(seconds: float | None) -> str:
    """Return a time as `38.7 ms`; `unknown` where there is none.

    Args:
        seconds: The time, in seconds.
    """
    if seconds is None or not isfinite(seconds):
        return "unknown"
    if seconds == 0:
        return "0 s"
    size = abs(float(f"{seconds:.{DIGITS}g}"))  # rounded first: 999.9 us is 1 ms, not 1e+03 us
    length, unit = next((u for u in reversed(UNITS) if size >= u[0]), UNITS[0])
    shown = float(f"{seconds / length:.{DIGITS}g}")
    whole = len(str(int(abs(shown))))
    text = f"{shown:.{max(0, DIGITS - whole)}f}"
    return f"{text} {unit}"
