"""From a place to its entries: which reader reads what."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gpu_mcp_server.knowledge.readers.c_headers import Headers
from gpu_mcp_server.knowledge.readers.cpp_headers import Classes
from gpu_mcp_server.knowledge.readers.docstrings import UnreadablePackage, package_entries
from gpu_mcp_server.knowledge.readers.entries import Entry
from gpu_mcp_server.knowledge.readers.library_strings import variable_entries
from gpu_mcp_server.knowledge.readers.manpages import lapack_entries, page_entries
from gpu_mcp_server.knowledge.readers.markup import document_entries
from gpu_mcp_server.knowledge.readers.ptxdocs import instruction_entry
from gpu_mcp_server.knowledge.readers.sources import InstalledSource
from gpu_mcp_server.knowledge.readers.user_documents import FORMS, decode_text, read_documents
from gpu_mcp_server.knowledge.readers.user_documents import ReadResult as DocumentReading

KEYWORDS = 30
_FRONT = re.compile(r"^---\n(.*?)\n---\n", re.DOTALL)
_CODED = re.compile(r"(CUDA|HIP|NCCL) error (\d+)\b")
"""How the meaning of a message with a number begins."""
_INTERNAL = re.compile(r"\n## (?:Supported SM|Supported OSes|Supported CPU|Prerequisites)")


@dataclass
class Edition:
    """A library in one version, read."""

    place: InstalledSource
    entries: list[Entry]
    notes: list[str] = field(default_factory=list[str])


def read_place(place: InstalledSource) -> Edition:
    """Return the entries of a place; what could not be read is in the notes."""
    source = place.source
    if source.format == "docstrings":
        try:
            return Edition(place, package_entries(source.modules))
        except UnreadablePackage as error:
            return Edition(place, [], [f"{source.id}: {error}"])
    if source.format == "documents" and not source.files:
        reading = read_documents(place.root)
        return Edition(place, reading.entries, [f"{source.library}: {note}" for note in reading.notes])
    if source.format == "manpages":
        return Edition(place, page_entries(place.files))
    if source.format == "strings":
        found = [variable_entries(p, p.relative_to(place.root).as_posix(), source.variables) for p in place.files]
        return Edition(place, list({entry.name: entry for each in reversed(found) for entry in each}.values()))
    if source.format == "lapack":
        return Edition(place, lapack_entries(place.files))
    reading = DocumentReading()
    readers = {"headers": _headers, "classes": _classes}
    entries = list(readers.get(source.format, _documents)(place, reading))
    return Edition(place, entries, reading.notes)


def _headers(place: InstalledSource, reading: DocumentReading) -> list[Entry]:
    headers = Headers(skip=place.source.skip, any_comment=place.source.any_comment)
    for path in place.files:
        name = path.relative_to(place.root).as_posix()
        text = decode_text(path, name, reading)
        if text is not None:
            headers.read(text, name)
    return headers.entries


def _classes(place: InstalledSource, reading: DocumentReading) -> list[Entry]:
    classes = Classes(undocumented=place.source.undocumented)
    namespaces = [each.split("=") for each in place.source.modules]
    for path in place.files:
        name = path.relative_to(place.root).as_posix()
        text = decode_text(path, name, reading)
        namespace = next((space for folder, space in namespaces if name.startswith(folder)), "")
        if text is not None and namespace:
            classes.read(text, name, namespace)
    return classes.entries


def _documents(place: InstalledSource, reading: DocumentReading) -> Iterator[Entry]:
    source = place.source
    for path in place.files:
        name = path.relative_to(place.root).as_posix()
        text = decode_text(path, name, reading)
        if text is None:
            continue
        if source.format == "messages":
            yield from message_entries(text, name)
        elif source.format == "names":
            yield from name_entries(text, name)
        elif source.format == "instructions":
            yield instruction_entry(text, name)
        elif source.format == "readmes":
            yield _readme(text, name)
        else:
            form = "tutorial" if path.suffix == ".py" else FORMS.get(path.suffix, "text")
            variables = bool(source.variables and re.search(source.variables, name))
            text, keywords = _without_front(text)
            found = document_entries(text, name, form, variables=variables, kind=source.kind, apart=source.apart)
            yield from _with_keywords(found, keywords)


def _without_front(text: str) -> tuple[str, list[str]]:
    """Return a document without its YAML front matter, and the keywords that stood there."""
    front = _FRONT.match(text)
    if front is None:
        return text, []
    listed = re.search(r"^keywords:\s*\[(.*?)\]", front.group(1), re.MULTILINE | re.DOTALL)
    words = [word.strip().strip("\"'") for word in listed.group(1).split(",")] if listed else []
    blank = "\n" * front.group().count("\n")  # lines keep their numbers
    return blank + text[front.end() :], [word for word in words if word][:KEYWORDS]


def _with_keywords(entries: list[Entry], keywords: list[str]) -> list[Entry]:
    """Return the entries, the first with the document's keywords below its text."""
    if not keywords or not entries:
        return entries
    first = replace(entries[0], text=f"{entries[0].text}\n\nKeywords: {', '.join(keywords)}.")
    return [first, *entries[1:]]


def _readme(text: str, place: str) -> Entry:
    """Return a sample's description with the calls that it shows."""
    name = place.split("/")[-2]
    calls = "".join(re.findall(r"\n## CUDA APIs involved.*?(?=\n## |\Z)", text, re.DOTALL))
    said = f"{_INTERNAL.split(text)[0]}\n{calls}".strip()
    return Entry("example", (name,), f"CUDA sample {name}", said, "", place, 1, text.count("\n") + 1)


def message_entries(text: str, place: str) -> list[Entry]:
    """Return an entry for each message that a file of `knowledge_base/messages` explains."""
    entries: list[Entry] = []
    lines = text.split("\n")
    for each in cast("list[dict[str, Any]]", tomllib.loads(text).get("message", [])):
        said = str(each["text"])
        line = next((n for n, row in enumerate(lines, 1) if said[:30] in row), 1)
        body = f"{each['means']}\n\n{each.get('mends', '')}\n\nSee also: {', '.join(each.get('see', []))}".strip()
        coded = _CODED.match(body)
        library, value = (coded[1].lower(), int(coded[2])) if coded else ("", None)
        symbols = tuple(each.get("symbols", []))
        entries.append(Entry("error", symbols, said, body, "", place, line, line, group=library, value=value))
    return entries


def name_entries(text: str, place: str) -> list[Entry]:
    """Return an entry for each name that a file of `knowledge_base/environment` or `builtins` explains."""
    content = tomllib.loads(text)
    lines = text.split("\n")
    entries: list[Entry] = []
    for each in cast("list[dict[str, Any]]", content.get("entry", [])):
        names = tuple(each["names"])
        line = next((n for n, row in enumerate(lines, 1) if row.startswith(f'names = ["{names[0]}"')), 1)
        default = f" Default: {each['default']}." if "default" in each else ""
        body = f"{each['means']}{default}\n\nOf {content['of']}. Source: {content['source']}"
        kind = str(content["kind"])
        signature = f"{names[0]}={each['values']}" if kind == "env" else str(each["values"])
        entries.append(Entry(kind, names, ", ".join(names), body, signature, place, line, line))
    return entries
