"""Text of others on a page: what steers is made visible, what is long is cut and says so. Escaping is Jinja's."""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_mcp_server.text_safety import escape_controls
from gpu_mcp_server.time_format import format_elapsed, format_time, format_time_range

LINES = 1500
"""Of a source, an output or a difference."""
LINE_CHARS = 300
COMPARED_CHARS = 200_000
"""Of each of two sources; difflib takes time with the square of what it is given."""


@dataclass(frozen=True)
class ListingLine:
    """One line of a listing."""

    number: str
    text: str
    kind: str = ""
    """add, del or at (where it is), in a difference."""


@dataclass(frozen=True)
class Listing:
    """Lines to show, and what was left out of them."""

    lines: Sequence[ListingLine]
    left_out: str = ""


@dataclass(frozen=True)
class LinePair:
    """A line of each of two sources beside each other; the empty line stands where one has none."""

    left: ListingLine
    right: ListingLine


@dataclass(frozen=True)
class PairedListing:
    """Two sources beside each other, without what is the same far from any change."""

    pairs: Sequence[LinePair]
    left_out: str = ""


def display_text(text: object, limit: int = 400) -> str:
    """Return a text as one that can be looked at: control and bidirectional characters escaped, the end cut."""
    said = "" if text is None else str(text)
    cut = escape_controls(said[:limit])
    return f"{cut} [… {len(said) - limit} more characters]" if len(said) > limit else cut


def listing(text: str, *, limit: int = LINES) -> Listing:
    """Return numbered lines, the first ones where there are too many."""
    lines = _lines(text)
    found = [ListingLine(str(number), display_text(line, LINE_CHARS)) for number, line in enumerate(lines[:limit], 1)]
    left = len(lines) - limit
    return Listing(found, f"{left} of {len(lines)} lines left out" if left > 0 else "")


def log_listing(text: str, *, limit: int = LINES) -> Listing:
    """Return numbered lines of an output, the last ones where there are too many."""
    lines = _lines(text)
    left = max(0, len(lines) - limit)
    found = [ListingLine(str(n), display_text(line, LINE_CHARS)) for n, line in enumerate(lines[left:], left + 1)]
    return Listing(found, f"{left} earlier of {len(lines)} lines left out" if left else "")


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return lines


def difference(before: str, after: str) -> Listing:
    """Return what changed from one source to the other, with three lines around each place."""
    why = _why_not_compared(before, after)
    if why:
        return Listing([], why)
    old, new = before.splitlines(), after.splitlines()
    found: list[ListingLine] = []
    for line in difflib.unified_diff(old, new, lineterm="", n=3):
        if line.startswith(("---", "+++")) and len(found) < 2 and not any(x.kind == "at" for x in found):
            continue
        kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1], "")
        found.append(
            ListingLine(
                line[:1] if kind in ("add", "del") else "", display_text(line[1:] if kind != "at" else line), kind
            )
        )
    return Listing(found[:LINES], f"{len(found) - LINES} lines left out" if len(found) > LINES else "")


def paired_difference(before: str, after: str) -> PairedListing:
    """Return both sources line beside line, with three lines around each change."""
    why = _why_not_compared(before, after)
    if why:
        return PairedListing([], why)
    old, new = before.splitlines(), after.splitlines()
    blank = ListingLine("", "")
    found: list[LinePair] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3):
        place = ListingLine("", f"lines {group[0][1] + 1} and {group[0][3] + 1}", "at")
        found.append(LinePair(place, ListingLine("", "", "at")))
        for kind, i1, i2, j1, j2 in group:
            left = [_numbered(n, old, "" if kind == "equal" else "del") for n in range(i1, i2)]
            right = [_numbered(n, new, "" if kind == "equal" else "add") for n in range(j1, j2)]
            found += [LinePair(a, b) for a, b in itertools.zip_longest(left, right, fillvalue=blank)]
    return PairedListing(found[:LINES], f"{len(found) - LINES} lines left out" if len(found) > LINES else "")


def _numbered(index: int, lines: Sequence[str], kind: str) -> ListingLine:
    return ListingLine(str(index + 1), display_text(lines[index], LINE_CHARS), kind)


def _why_not_compared(before: str, after: str) -> str:
    if max(len(before), len(after)) > COMPARED_CHARS:
        return f"not compared: sources above {COMPARED_CHARS:,} characters take too long"
    if max(len(before.splitlines()), len(after.splitlines())) > LINES:
        return f"not compared: sources above {LINES:,} lines take too long"
    return ""


def format_age(iso: str) -> str:
    """Return how long ago a moment was."""
    try:
        then = datetime.fromisoformat(iso)
    except ValueError:
        return display_text(iso, 40)
    return f"{format_elapsed((datetime.now(UTC) - then).total_seconds())} ago"


def format_microseconds(value: float | None) -> str:
    """Return a measured time that is given in microseconds."""
    return format_time(None if value is None else value / 1e6)


def format_microsecond_range(low: float | None, high: float | None) -> str:
    """Return an interval that is given in microseconds."""
    return format_time_range(None if low is None else low / 1e6, None if high is None else high / 1e6)


def clock(iso: str) -> str:
    """Return a moment as date and time, UTC."""
    return display_text(iso, 40)[:19].replace("T", " ")


def format_number(value: float | None) -> str:
    """Return a number with three digits that mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def size(count: int | None) -> str:
    """Return bytes in binary units."""
    if count is None:
        return ""
    value, unit = float(count), 0
    while value >= 1024 and unit < 5:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]}"
