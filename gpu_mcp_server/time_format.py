"""Measured times as text: three significant digits and a unit, the same on every page and in every picture."""

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_time(seconds: float | None) -> str:
    """Return a measured time: 38.7 ms, 5.00 µs; nothing where it is unknown."""
    if seconds is None:
        return ""
    size, unit = _unit_of(seconds)
    return f"{three_digits(seconds / size)} {unit}"


def format_time_range(low: float | None, high: float | None) -> str:
    """Return an interval of seconds, both ends in the unit of the high one; nothing where an end is unknown."""
    if low is None or high is None:
        return ""
    size, unit = _unit_of(high)
    return f"{three_digits(low / size)}–{three_digits(high / size)} {unit}"  # noqa: RUF001 - a range has an en dash


def format_duration(seconds: float | None) -> str:
    """Return how long something took: 63.1 ms, 8.20 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is not None and seconds < 59.95:
        return format_time(max(0.0, seconds))
    return format_elapsed(seconds)


def format_elapsed(seconds: float | None) -> str:
    """Return what a clock shows that goes on, in whole seconds: 8 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    at = next((n for n, (_, size) in enumerate(units) if whole >= size), len(units) - 1)
    big, rest = divmod(whole, units[at][1])
    small = rest // units[at + 1][1] if at + 1 < len(units) else 0
    return f"{big} {units[at][0]}" + (f" {small} {units[at + 1][0]}" if small else "")


def three_digits(value: float) -> str:
    """Return a number with three significant digits, zeros at its end included; from 1,000 on it is whole."""
    if value == 0:
        return "0"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def _unit_of(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which the time, rounded to three digits, is at least 1."""
    return next(
        ((size, unit) for size, unit in UNITS if abs(seconds) >= 0.9995 * size), UNITS[0 if seconds == 0 else -1]
    )
