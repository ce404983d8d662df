"""Reader of a user's folders of PDF, HTML, Markdown and text. Untrusted, so all has limits, each said when met."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpu_mcp_server.knowledge.readers.entries import Entry, Section, section_entries
from gpu_mcp_server.knowledge.readers.html_documents import page_markdown
from gpu_mcp_server.knowledge.readers.markup import DEFINING_WORDS, document_entries
from gpu_mcp_server.package_files import WORKERS

FILE_BYTES = 64 * 2**20
"""Largest file that is read; one page of documentation has kilobytes, a dump of a site in one file is divided first."""
FOLDER_BYTES = 512 * 2**20
"""Of all files of a folder together."""
FOLDER_FILES = 20_000
MOST_ENTRIES = 60_000
TEXT_BYTES = 16 * 2**20
"""Of an HTML, Markdown or text file: parsing takes about 1 s for each 8 MB."""
PDF_PAGES = 3_000
PDF_MEGABYTES = 2_048
PDF_SECONDS = 900
"""pypdf reads 10 to 17 pages a second."""

FORMS = {
    ".md": "markdown", ".markdown": "markdown", ".mdx": "markdown", ".rst": "rst", ".html": "html", ".htm": "html",
    ".xhtml": "html", ".pdf": "pdf", ".txt": "text", ".adoc": "asciidoc", ".asciidoc": "asciidoc",
}  # fmt: skip
WORKER = WORKERS / "pdftext.py"


@dataclass
class ReadResult:
    """Result of reading documents."""

    entries: list[Entry] = field(default_factory=list[Entry])
    files: int = 0
    notes: list[str] = field(default_factory=list[str])
    """What was left out, and why."""

    def note(self, text: str) -> None:
        """Add a note, at most 20 of them."""
        if len(self.notes) < 20:
            self.notes.append(text)


def read_documents(root: Path) -> ReadResult:
    """Return the entries of a file or a folder; a file that cannot be read is noted and left out."""
    reading, total = ReadResult(), 0
    for path in _files(root, reading):
        size = path.stat().st_size
        name = path.name if path == root else path.relative_to(root).as_posix()
        if size > FILE_BYTES:
            reading.note(f"{name}: {size >> 20} MB is over the limit of {FILE_BYTES >> 20} MB a file; divide it")
            continue
        total += size
        if total > FOLDER_BYTES:
            reading.note(f"stopped at {name}: the folder has more than {FOLDER_BYTES >> 20} MB; add parts of it")
            break
        _read(path, name, reading)
        if len(reading.entries) > MOST_ENTRIES:
            del reading.entries[MOST_ENTRIES:]
            reading.note(f"stopped at {name}: more than {MOST_ENTRIES} sections; add parts of the folder")
            break
    return reading


def _files(root: Path, reading: ReadResult) -> Iterator[Path]:
    """Return documents below `root` in a fixed order; symbolic links are not followed out of it."""
    if root.is_file():
        yield root
        return
    count, inside = 0, root.resolve()
    for path in sorted(root.rglob("*")):
        if path.suffix.lower() not in FORMS or not path.is_file():
            continue
        if not path.resolve().is_relative_to(inside):
            reading.note(f"{path.relative_to(root)}: a link that leaves the folder")
            continue
        count += 1
        if count > FOLDER_FILES:
            reading.note(f"stopped after {FOLDER_FILES} files; add parts of the folder")
            return
        yield path


def _read(path: Path, name: str, reading: ReadResult) -> None:
    form = FORMS.get(path.suffix.lower(), "text")
    try:
        if form == "pdf":
            found = _pdf_entries(path, name, reading)
        else:
            text = decode_text(path, name, reading)
            if text is None:
                return
            if form == "html":
                text, form = page_markdown(text), "markdown"
            found = document_entries(text, name, form, apart=True, defining=True)
    except (OSError, RecursionError, ValueError) as error:
        reading.note(f"{name}: {error or type(error).__name__}")
        return
    reading.files += 1
    reading.entries += found


def decode_text(path: Path, name: str, reading: ReadResult) -> str | None:
    """Return a file as text; in another encoding than UTF-8 it is read as such and noted, as binary it is left out."""
    with path.open("rb") as file:
        raw = file.read(TEXT_BYTES + 1)
    if len(raw) > TEXT_BYTES:
        reading.note(f"{name}: only its first {TEXT_BYTES >> 20} MB were read")
        raw = raw[:TEXT_BYTES]
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace")
    if b"\0" in raw[:8192]:
        reading.note(f"{name}: binary, not text")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return raw.decode("utf-8-sig", "ignore")
        reading.note(f"{name}: not UTF-8 (byte {error.start}); read as Windows-1252")
        return raw.decode("cp1252", "replace")


def _pdf_entries(path: Path, name: str, reading: ReadResult) -> list[Entry]:
    command = [sys.executable, "-I", str(WORKER), str(path), str(PDF_PAGES), str(PDF_MEGABYTES), str(PDF_SECONDS)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=2 * PDF_SECONDS, check=False)  # noqa: S603 - ours
    except subprocess.TimeoutExpired:
        raise ValueError(f"the PDF took more than {2 * PDF_SECONDS} s") from None
    sections: list[Section] = []
    chapter: list[str] = []
    for line in done.stdout.splitlines():
        try:
            page = json.loads(line)
        except ValueError:
            break
        for depth, title in page["titles"]:
            chapter = [*chapter[:depth], str(title)[:200]]
        number = int(page["page"])
        where = (name, *chapter[-2:], f"page {number}")
        text = str(page["text"])
        if text.strip():
            sections.append(Section(where, text, number, number))
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it ended without a message"]
        reading.note(f"{name}: the PDF is broken or over a limit ({said[0][:200]}); {len(sections)} pages were read")
    if not sections and not done.returncode:
        reading.note(f"{name}: no text in it (scanned pages need OCR first)")
    return section_entries(sections, name, apart=True, shortest=DEFINING_WORDS)
