"""Tables and numbers as profilers print them: quoted CSV in a stream with other words, thousands commas, units."""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

MAX_ROWS = 200_000
MAX_FIELD = 1 << 20
MOST_COLUMNS = 500
"""Most columns of a table that is read by its columns' names."""
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "k": 1e3}
TIMES_NS = {
    unit: ns
    for ns, units in (
        (1.0, ("ns", "nsecond", "nsec")),
        (1e3, ("us", "usecond", "usec", "\u03bcs", "\u00b5s")),
        (1e6, ("ms", "msecond", "msec")),
        (1e9, ("s", "second", "sec")),
    )
    for unit in units
}
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d{1,2}")
_CONTINENTAL = re.compile(r"[+-]?(\d{1,3}(\.\d{3})*|\d+),(\d{1,2}|\d{4,})|[+-]?\d{1,3}(\.\d{3}){2,}")
_ENGLISH = re.compile(r"[+-]?\d{1,3}(,\d{3})*\.(\d{1,2}|\d{4,})|[+-]?\d{1,3}(,\d{3}){2,}|[+-]?\d{1,3}(,\d{3})+\.\d+")
_DIGITS = re.compile(r"[+-]?\d[\d.,]*")
_SCALED = re.compile(r"^([KMGTk])(byte|hz|inst|b|B)(\b.*)$", re.IGNORECASE)


def is_continental(values: Iterable[str]) -> bool:
    """Say whether a table has its decimals after a comma and its thousands after dots, as 65,77 and 27.595.520.

    117.344 alone tells nothing: ncu on such a host means a hundred thousand by it.
    """
    seen = False
    for value in values:
        cleaned = value.strip().rstrip("%").strip()
        if _ENGLISH.fullmatch(cleaned):
            return False
        seen = seen or _CONTINENTAL.fullmatch(cleaned) is not None
    return seen


def in_english(text: str) -> str:
    """Return a number of such a table with a dot before its decimals, and none elsewhere."""
    return text.replace(".", "").replace(",", ".") if _DIGITS.fullmatch(text.strip()) else text


def number(text: object) -> float | None:
    """Read a number, thousands after commas or decimals after one; `None` for anything else, infinities included."""
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, int | float):
        try:
            value = float(text)
        except OverflowError:
            return None
        return value if math.isfinite(value) else None
    cleaned = str(text)[:64].strip().rstrip("%").strip()
    if "," in cleaned:
        if _THOUSANDS.fullmatch(cleaned):
            cleaned = cleaned.replace(",", "")
        elif _DECIMAL_COMMA.fullmatch(cleaned):  # a locale whose decimals follow a comma: 9,00 is nine
            cleaned = cleaned.replace(",", ".")
    if not cleaned or "_" in cleaned or "," in cleaned:
        return None
    try:
        value = float(cleaned)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def whole(text: object) -> int | None:
    """Read a whole number."""
    value = number(text)
    return int(value) if value is not None else None


def in_base_units(value: float, unit: str) -> float:
    """Return a value with its prefix multiplied out; times become nanoseconds, rates a time those of a second."""
    if unit in TIMES_NS:
        return value * TIMES_NS[unit]
    what, _, time = unit.rpartition("/")
    if what and time in TIMES_NS:  # cycle/nsecond, as older versions write GHz
        return in_base_units(value, what) * 1e9 / TIMES_NS[time]
    match = _SCALED.match(unit)
    return value * PREFIXES[match[1].upper()] if match else value


def rows(text: str, first: str = "") -> Iterator[list[str]]:
    """Read CSV rows, from the first line that starts with `first`; what is no CSV is left out."""
    lines = text.replace("\0", "").splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith(first)), None)
    if start is None:
        return
    reader = csv.reader((line[:MAX_FIELD] + "\n" for line in lines[start:]), strict=False)
    for _ in range(MAX_ROWS):
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue


def records(text: str, *wanted: str) -> list[dict[str, str]]:
    """Read a table by the names of its columns, in any case, wherever its header stands; empty without all of `wanted`.

    Of a short row the wanted columns are empty and others absent; a column that is named twice counts the first time.
    """
    found: list[dict[str, str]] = []
    header: list[str] | None = None
    raw = list[str]()
    for row in rows(text):
        if header is None:
            if not len(wanted) <= len(row) <= MOST_COLUMNS:
                continue
            lower = {w.lower(): w for w in wanted}
            names = [lower.get(name.strip().lower(), name.strip()) for name in row]
            header, raw = (names, row) if set(wanted) <= set(names) else (None, [])
        elif row and row != raw:  # the header again: several tables of one kind in a file
            record: dict[str, str] = {}
            for name, value in zip(header, row, strict=False):
                record.setdefault(name, value)
            found.append({**dict.fromkeys(wanted, ""), **record})
    return found


def first_of(record: Mapping[str, str], *names: str) -> str | None:
    """Return the first of the columns that is there and not empty."""
    return next((record[n] for n in names if record.get(n)), None)


def shares(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values as percent of their sum, the greatest first."""
    total = sum(v for v in values.values() if v > 0)
    if total <= 0:
        return {}
    return {k: 100 * v / total for k, v in sorted(values.items(), key=lambda kv: -kv[1]) if v > 0}


def as_mapping(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list, or an empty one for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def dimensions(values: Sequence[object]) -> str | None:
    """Return sizes as `64x64x1`, without trailing ones."""
    sizes = [whole(v) for v in values]
    known = [s for s in sizes if s is not None]
    if len(known) != len(sizes) or not known:
        return None
    while len(known) > 1 and known[-1] == 1:
        known.pop()
    return "x".join(map(str, known))


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, `None` if nothing is."""
    known = [v for v in values if v is not None]
    return sum(known) if known else None
