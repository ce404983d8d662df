"""One piece of documentation that answers one question, and how long texts are divided."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

PIECE_WORDS = 420
"""Longest piece that is indexed as one, about 600 tokens. Source: API entries have 98 words (median), 428 (p95)."""
MERGED_WORDS = 230
"""Sections of one heading are joined up to this: alone they are found less often (+6 R@5 on forum questions)."""
SECTION_WORDS = 8
"""Fewest of a section that says something by itself."""
ENTRY_CHARS = 60_000
"""Longest text of an entry; a header's largest enumeration has about 40,000 characters."""
TITLE_PARTS = 3

API_KINDS = ("function", "type", "enum", "enumerator", "macro", "instruction", "env", "term")
"""Kinds whose first symbol is a name that code or a shell uses; a term is one that a user's page defines."""
SECTION_KINDS = ("guide", "example", "error")
KINDS = (*API_KINDS, *SECTION_KINDS)


@dataclass(frozen=True, slots=True)
class Entry:
    """A function, type, enumerator, macro, instruction, variable, term, section or message."""

    kind: str
    """One of KINDS."""
    symbols: tuple[str, ...]
    """Names that it answers to: its own first, then aliases and members. May be empty for a section."""
    title: str
    text: str
    """What the source says in prose, as plain text."""
    signature: str = ""
    place: str = ""
    """File within the source."""
    first_line: int = 0
    last_line: int = 0
    headings: tuple[str, ...] = ()
    """Titles of the sections that were joined in it."""
    value: int | None = None
    """Of an enumerator that is an error code."""
    group: str = ""
    """What an enumerator belongs to."""

    @property
    def name(self) -> str:
        """Its own symbol, or its title."""
        return self.symbols[0] if self.symbols else self.title


@dataclass(frozen=True, slots=True)
class Section:
    """Text below a heading."""

    path: tuple[str, ...]
    """Titles from the document's own down to this one."""
    text: str
    first_line: int
    last_line: int
    symbols: tuple[str, ...] = ()


def slug(text: str) -> str:
    """Return text as a part of an address."""
    return re.sub(r"[^A-Za-z0-9_.:+-]+", "-", text).strip("-")[:120] or "section"


def words(text: str) -> int:
    """Return the number of words."""
    return len(text.split())


def pieces(text: str, limit: int = PIECE_WORDS) -> list[str]:
    """Return text divided at paragraph breaks, each piece of about `limit` words or one paragraph."""
    parts: list[str] = []
    current: list[str] = []
    count = 0
    for paragraph in _paragraphs(text, limit):
        size = words(paragraph)
        if current and count + size > limit:
            parts.append("\n\n".join(current))
            current, count = [], 0
        current.append(paragraph)
        count += size
    if current:
        parts.append("\n\n".join(current))
    return parts or [""]


def _paragraphs(text: str, limit: int) -> Iterable[str]:
    for paragraph in re.split(r"\n[ \t]*\n", text):
        if words(paragraph) <= limit:
            yield paragraph
            continue
        lines: list[str] = []
        count = 0
        for line in _lines(paragraph, limit):
            size = words(line)
            if lines and count + size > limit:
                yield "\n".join(lines)
                lines, count = [], 0
            lines.append(line)
            count += size
        yield "\n".join(lines)


def _lines(paragraph: str, limit: int) -> Iterable[str]:
    """Return the lines of a paragraph; one that is longer than a whole piece is cut between words."""
    for line in paragraph.split("\n"):
        parts = line.split() if words(line) > limit else []
        yield from (" ".join(parts[i : i + limit]) for i in range(0, len(parts), limit)) if parts else (line,)


def summary_of(text: str, limit: int = 160) -> str:
    """Return the first sentence of a text on one line."""
    for paragraph in re.split(r"\n[ \t]*\n", text.strip()):
        plain = " ".join(re.sub(r"^\s*(?:```.*|[#>*|:=~^_-]+)\s*", "", paragraph, flags=re.MULTILINE).split())
        if len(plain) > 3 and plain[:1] not in "{}<\\":
            end = re.search(r"[.!?](?=\s|$)", plain)
            sentence = plain[: end.end()] if end and end.end() >= 20 else plain
            return sentence if len(sentence) <= limit else sentence[: limit - 1].rsplit(" ", 1)[0] + "…"
    return ""


def merge_small_sections(
    sections: Sequence[Section], *, variables: bool = False
) -> list[tuple[Section, tuple[str, ...]]]:
    """Return sections with small ones joined to their parent or elder sibling, each with the headings it took in.

    Args:
        sections: In the order of the document.
        variables: Whether sections with symbols are environment variables, whose sub-sections ("Values accepted")
            belong to them.
    """
    kept: list[tuple[Section, tuple[str, ...]]] = []
    for section in sections:
        title = " > ".join(section.path[-TITLE_PARTS:])
        if kept and _belongs(kept[-1][0], section, variables):
            elder, titles = kept[-1]
            text = f"{elder.text.rstrip()}\n\n### {section.path[-1] if section.path else ''}\n{section.text.strip()}"
            kept[-1] = (replace(elder, text=text, last_line=section.last_line), (*titles, title))
        else:
            kept.append((section, (title,)))
    return kept


def _belongs(elder: Section, section: Section, variables: bool) -> bool:
    child = bool(elder.path) and len(section.path) > len(elder.path) and section.path[: len(elder.path)] == elder.path
    sibling = len(elder.path) == len(section.path) > 1 and elder.path[:-1] == section.path[:-1]
    if section.symbols or not (child or sibling):
        return False
    if elder.symbols:
        return variables and child and words(elder.text) + words(section.text) <= PIECE_WORDS
    return words(elder.text) + words(section.text) <= MERGED_WORDS


def section_entries(
    sections: Sequence[Section],
    place: str,
    *,
    kind: str = "guide",
    symbol_kind: str = "function",
    apart: bool = False,
    shortest: int = SECTION_WORDS,
) -> list[Entry]:
    """Return an entry for each section of `shortest` words or more, small ones joined unless they stand `apart`."""
    entries: list[Entry] = []
    alone = [(section, (" > ".join(section.path[-TITLE_PARTS:]),)) for section in sections]
    for section, titles in alone if apart else merge_small_sections(sections, variables=symbol_kind == "env"):
        if words(section.text) < shortest and not section.symbols:
            continue
        title = " > ".join(section.path[-TITLE_PARTS:]) or place
        entries.append(
            Entry(
                symbol_kind if section.symbols else kind,
                section.symbols,
                title,
                section.text.strip()[:ENTRY_CHARS],
                place=place,
                first_line=section.first_line,
                last_line=section.last_line,
                headings=titles,
            )
        )
    return entries
