"""Names that a user's page defines: a heading that is a name, and rows of tables whose first cell is one."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from gpu_mcp_server.knowledge.readers.entries import TITLE_PARTS, Entry, Section

MOST_ROWS = 5_000
"""Of one document."""
_NAME = re.compile(r"[`*]*([A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z_][A-Za-z0-9_]*)*)(?:\(\))?[`*]*")
_NO_WORD = re.compile(r"_|[a-z0-9][A-Z]|\.|::|[A-Z]{2}.*[a-z]")
"""What no word of plain English has within."""
_RULE = re.compile(r":?-{2,}:?")


def name_in(text: str) -> str | None:
    """Return the name that a heading or a cell is, `None` if it is anything else."""
    found = _NAME.fullmatch(text.strip())
    return found.group(1) if found and _NO_WORD.search(found.group(1)) else None


def as_definition(entry: Entry) -> Entry:
    """Return a section whose heading is a name as the definition of that name, every other one as it is."""
    name = None if entry.symbols else name_in(entry.title.rsplit(" > ", 1)[-1])
    return replace(entry, kind="term", symbols=(name,)) if name else entry


def row_entries(sections: Sequence[Section], place: str) -> list[Entry]:
    """Return an entry for each row of a Markdown table that begins with a name, its cells below their headings."""
    return list(islice((entry for section in sections for entry in _rows(section, place)), MOST_ROWS))


def _rows(section: Section, place: str) -> Iterator[Entry]:
    heads: list[str] | None = None
    for offset, line in enumerate(section.text.split("\n"), 1):
        if not line.lstrip().startswith("|"):
            heads = heads if heads is not None and not line.strip() else None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if all(_RULE.fullmatch(cell) for cell in cells):
            continue
        if heads is None:
            heads = cells
        if name := name_in(cells[0]):
            number = section.first_line + offset
            yield Entry(
                "term",
                (name,),
                " > ".join([*section.path, name][-TITLE_PARTS:]),
                _told(heads, cells),
                place=place,
                first_line=number,
                last_line=number,
            )


def _told(heads: Sequence[str], cells: Sequence[str]) -> str:
    """Return a row as text: what it says of the name, each cell after its column's heading."""
    if list(heads) == list(cells):
        return " | ".join(cells)
    named = [*heads, *[""] * len(cells)]
    return "; ".join(f"{head}: {cell}" if head else cell for head, cell in zip(named, cells, strict=False) if cell)
