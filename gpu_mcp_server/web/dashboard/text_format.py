"""Text of others on a page: what steers is made visible, what is long is cut and says so. Escaping is Jinja's."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_mcp_server.text_safety import escape_controls

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


def display_text(text: object, limit: int = 400) -> str:
    """Return a text as one that can be looked at: control and bidirectional characters escaped, the end cut."""
    said = "" if text is None else str(text)
    cut = escape_controls(said[:limit])
    return f"{cut} [… {len(said) - limit} more characters]" if len(said) > limit else cut


def listing(text: str, *, limit: int = LINES) -> Listing:
    """Return numbered lines."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    found = [ListingLine(str(number), display_text(line, LINE_CHARS)) for number, line in enumerate(lines[:limit], 1)]
    left = len(lines) - limit
    return Listing(found, f"{left} of {len(lines)} lines left out" if left > 0 else "")


def difference(before: str, after: str) -> Listing:
    """Return what changed from one source to the other, with three lines around each place."""
    if max(len(before), len(after)) > COMPARED_CHARS:
        return Listing([], f"not compared: sources above {COMPARED_CHARS:,} characters take too long")
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > LINES:
        return Listing([], f"not compared: sources above {LINES:,} lines take too long")
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


def format_duration(seconds: float | None) -> str:
    """Return a duration as people say it: 8 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s" if seconds >= 1 or seconds == 0 else f"{seconds:.2g} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    at = next(n for n, (_, size) in enumerate(units) if whole >= size)
    big, small = whole // units[at][1], whole % units[at][1] // units[at + 1][1]
    return f"{big} {units[at][0]}" + (f" {small} {units[at + 1][0]}" if small else "")


def format_age(iso: str) -> str:
    """Return how long ago a moment was."""
    try:
        then = datetime.fromisoformat(iso)
    except ValueError:
        return display_text(iso, 40)
    return f"{format_duration((datetime.now(UTC) - then).total_seconds())} ago"


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


GOOD = {"correct", "ok", "finished", "target", "held", "confirmed"}
BAD = {"incorrect", "failed", "compile_failed", "timeout", "oom", "disk_quota", "broken", "no_candidate", "error"}
BUSY = {"running", "queued", "unfinished"}
SHADES = {"cheat": "cheat", "note": "", "voided": "", "cancelled": "", "caller_lost": "", "abandoned": ""}


def status_class(word: str | None) -> str:
    """Return the class of colour for how something stands."""
    said = word or ""
    if said in SHADES:
        return SHADES[said]
    return "good" if said in GOOD else "bad" if said in BAD else "busy" if said in BUSY else "warn" if said else ""
