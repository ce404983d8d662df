"""Manual pages: one entry a page, or for LAPACK one a routine, with the four precisions as one."""

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_mcp_server.knowledge.readers.entries import Entry

PAGE_BYTES = 4 * 2**20
"""Largest page that is read; LAPACK's grouped pages have about 1 MB."""

_ESCAPES = (
    ("\\-", "-"), ("\\&", ""), ("\\e", "\\"), ("\\(bu", "*"), ("\\(em", "--"), ("\\(aq", "'"),
    ("\\~", " "), ("\\|", ""),
)  # fmt: skip
_INLINE = ("B", "I", "BR", "BI", "IR", "RI", "RB", "IB", "TP", "IP")
_ROUTINE = re.compile(r"^### ((?:subroutine|(?:[a-z ]+)?function) (\w+) \(.*)$", re.MULTILINE)
_OTHER_LANGUAGES = re.compile(r"\n## (?:Fortran|Fortran 2008|C\+\+) Syntax.*?(?=\n## )", re.DOTALL | re.IGNORECASE)
_CREDITS = re.compile(
    r"Definition at line.*|Author:?\s*$|Univ\. of .*|NAG Ltd\.|References? \w+\(\).*|Referenced by .*", re.MULTILINE
)


def plain_roff(text: str) -> str:
    """Return a page's text with its headings as `##` and `###`."""
    text = re.sub(r"^[.']\\\".*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\\f[A-Z0-9]|\\f\(\w\w|\\s[+-]?\d", "", text)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    lines: list[str] = []
    for line in text.split("\n"):
        request = re.match(r"^[.'](\w+)\s*(.*)$", line)
        if request is None:
            lines.append(line)
            continue
        name, argument = request.group(1), request.group(2).replace('"', "").strip()
        if name in ("SH", "SS"):
            lines.append(f"\n{'##' if name == 'SH' else '###'} {argument}")
        elif name in _INLINE:
            lines.append(argument)
        elif name in ("sp", "PP", "LP", "P", "br", "Pp"):
            lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def read_page(path: Path) -> str:
    """Return the source of a page, compressed or not.

    Raises:
        OSError, EOFError: If it cannot be read.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(PAGE_BYTES).decode("utf-8", "replace")


def page_entries(paths: Iterable[Path]) -> list[Entry]:
    """Return an entry for each page; pages that only point to another one are its aliases."""
    texts: dict[str, str] = {}
    aliases: dict[str, list[str]] = {}
    for path in paths:
        name = path.name.split(".")[0]
        if path.is_symlink():
            aliases.setdefault(path.readlink().name.split(".")[0], []).append(name)
            continue
        try:
            text = read_page(path)
        except (OSError, EOFError):
            continue
        other = re.match(r"\s*\.so\s+\S*?/?(\w+)(?:\.\w+)?\.3", text)
        if other:
            aliases.setdefault(other.group(1), []).append(name)
        else:
            texts[name] = text
    return [_page(name, text, aliases.get(name, [])) for name, text in texts.items()]


def _page(name: str, source: str, aliases: Sequence[str]) -> Entry:
    text = _OTHER_LANGUAGES.sub("\n", plain_roff(source))
    heading = re.search(r"## NAME\s*\n(.*?)(?=\n## )", text, re.DOTALL | re.IGNORECASE)
    head = heading.group(1).strip() if heading else name
    listed = re.findall(r"\b(?:MPI|MPIX)_\w+", head.split(" - ")[0])
    synopsis = re.search(r"## (?:C Syntax|SYNOPSIS)\s*\n(.*?)(?=\n## )", text, re.DOTALL | re.IGNORECASE)
    shown = re.sub(r"#include.*", "", synopsis.group(1)).strip() if synopsis else ""
    body = re.sub(r"## (?:NAME|C Syntax|SYNTAX|SYNOPSIS).*?(?=\n## |\Z)", "", text, flags=re.DOTALL | re.IGNORECASE)
    symbols = tuple(dict.fromkeys([name, *aliases, *listed]))
    signature = " ".join(shown.split())[:1_500]
    said = f"{' '.join(head.split())}\n\n{body.strip()}"
    return Entry("function", symbols, name, said, signature, f"man3/{name}.3", 1, source.count("\n") + 1)


def lapack_entries(paths: Iterable[Path]) -> list[Entry]:
    """Return an entry for each routine that LAPACK's grouped pages document, the four precisions as one."""
    found: dict[str, Entry] = {}
    for path in paths:
        if path.is_symlink() or "TEST" in path.name or "testing" in path.name or "matgen" in path.name:
            continue
        try:
            raw = read_page(path)
        except (OSError, EOFError):
            continue
        if re.match(r"\s*\.so", raw):
            continue
        text, place = plain_roff(raw), f"man3/{path.name.removesuffix('.gz')}"
        starts = list(_ROUTINE.finditer(text))
        for start, end in zip(starts, [s.start() for s in starts[1:]] + [len(text)] * bool(starts), strict=True):
            body = _CREDITS.sub("", text[start.end() : end])
            first, last = text.count("\n", 0, start.start()) + 1, text.count("\n", 0, end) + 1
            name = start.group(2)
            entry = Entry("function", (name,), name, body.strip(), start.group(1)[:800], place, first, last)
            if name not in found or len(entry.text) > len(found[name].text):
                found[name] = entry
    return _folded(found)


def _folded(found: dict[str, Entry]) -> list[Entry]:
    """Return double precision's routine for each operation, with the other precisions' names as aliases."""

    def first(name: str) -> str:
        if len(name) > 2 and name[0] in "sdcz":
            return next((p + name[1:] for p in "dzsc" if p + name[1:] in found), name)
        return name

    names: dict[str, list[str]] = {}
    for name in found:
        names.setdefault(first(name), []).append(name)
    return [replace(found[name], symbols=(name, *sorted(set(others) - {name}))) for name, others in names.items()]
