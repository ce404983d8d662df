"""Environment variables that a shared library names in its strings: that they are there, if no page explains them."""

import mmap
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_mcp_server.knowledge.readers.entries import Entry

MOST_NAMES = 2_000
LONGEST_NAME = 80


def variable_entries(path: Path, place: str, pattern: str) -> list[Entry]:
    """Return an entry for each string of a library that is a whole name of `pattern`.

    A string is no proof of a variable: libraries keep names of constants beside them, so the text says what is known.
    """
    if path.stat().st_size == 0:
        return []
    whole = re.compile(rb"(?<=\0)(?:" + pattern.encode() + rb")(?=\0)")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = {match.group() for match in whole.finditer(content)}
    names = sorted(name.decode() for name in found if len(name) <= LONGEST_NAME)[:MOST_NAMES]
    return [
        Entry("env", (name,), name, f"{name} stands in the strings of {path.name}. {UNEXPLAINED}", f"{name}=", place)
        for name in names
    ]


UNEXPLAINED = (
    "Such strings are mostly environment variables that the library reads, some are names of constants. No text that "
    "is indexed here says what it does or takes: it is unknown here, not without effect."
)


def without_explained(strings: Sequence[Entry], others: Iterable[Entry]) -> list[Entry]:
    """Return the variables that no other entry is called by."""
    names = {name for entry in others for name in entry.symbols}
    return [entry for entry in strings if entry.name not in names]
