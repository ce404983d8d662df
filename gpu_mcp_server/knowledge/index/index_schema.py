"""The index: entries, full text with weighted fields, names, trigrams of names, error codes, in one SQLite file."""

import contextlib
import datetime
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.errors import ConfigError, DiskFull
from gpu_mcp_server.knowledge.index.identifiers import expand_names, normalize_name, split
from gpu_mcp_server.knowledge.readers.entries import API_KINDS, Entry, pieces, slug, summary_of
from gpu_mcp_server.knowledge.readers.reader_dispatch import Edition
from gpu_mcp_server.knowledge.readers.task_descriptions import TaskDescription
from gpu_mcp_server.store.filesystem import NO_ROOM

SCHEMA = 2
"""Raised when the tables change; an index of a newer one is not opened."""
NAMED = 30
"""Names of an entry in the full text; all of them are in the table of names."""
SPLIT = 6
"""Names of an entry that are taken apart."""
SHORT_TITLE = 25
"""Characters up to which a title says little without those above it."""
MEMBER_KINDS = ("enum", "type", "instruction")

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE edition (id INTEGER PRIMARY KEY, source TEXT, library TEXT, version TEXT, family TEXT, title TEXT,
    licence TEXT, root TEXT, preferred INTEGER, entries INTEGER, built_at TEXT, first_piece INTEGER,
    last_piece INTEGER);
CREATE TABLE entry (id INTEGER PRIMARY KEY, edition INTEGER, uri TEXT UNIQUE, kind TEXT, name TEXT, title TEXT,
    signature TEXT, summary TEXT, body BLOB, place TEXT, first_line INTEGER, last_line INTEGER, headings TEXT);
CREATE TABLE piece (id INTEGER PRIMARY KEY, entry INTEGER);
CREATE VIRTUAL TABLE words USING fts5(sym, title, sig, body, split, brief, content='', detail=full,
    tokenize="porter unicode61 remove_diacritics 2 tokenchars '_'");
CREATE TABLE symbol (norm TEXT, name TEXT, entry INTEGER, place INTEGER);
CREATE VIRTUAL TABLE trigrams USING fts5(norm, content='', tokenize='trigram');
CREATE TABLE name (id INTEGER PRIMARY KEY, norm TEXT, name TEXT, entry INTEGER);
CREATE TABLE code (value INTEGER, entry INTEGER, family TEXT);
CREATE TABLE description (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE described (description INTEGER, place INTEGER, entry INTEGER, PRIMARY KEY (description, place, entry))
    WITHOUT ROWID;
CREATE VIRTUAL TABLE description_words USING fts5(text, content='', tokenize='porter unicode61 remove_diacritics 2');
"""
_INDEXES = """
CREATE INDEX symbol_norm ON symbol (norm);
CREATE INDEX code_value ON code (value);
CREATE INDEX piece_entry ON piece (entry);
CREATE INDEX entry_edition ON entry (edition, name);
"""


@dataclass
class Counts:
    """Numbers of rows written."""

    editions: int = 0
    entries: int = 0
    pieces: int = 0
    names: int = 0


def write_index(path: Path, editions: Iterable[Edition], descriptions: Iterable[TaskDescription] = ()) -> Counts:
    """Write a new index; of the editions of one source the first is the preferred one.

    Descriptions of names that no edition has are left out.

    Raises:
        DiskFull: If there is no room.
    """
    db = sqlite3.connect(path)
    try:
        db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
        counts = _Writer(db).write(editions)
        db.executescript(_INDEXES)
        _write_descriptions(db, descriptions)
        db.execute("INSERT INTO words (words) VALUES ('optimize')")
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
        db.commit()
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise DiskFull(f"There is no room for the documentation's index in {path.parent}.", hint=NO_ROOM) from error
        raise
    finally:
        db.close()
    return counts


def _write_descriptions(db: sqlite3.Connection, descriptions: Iterable[TaskDescription]) -> None:
    """Write the descriptions that lead to an entry, in every edition that has the name."""
    number = 0
    for each in descriptions:
        found = [(place, entry) for place, name in enumerate(each.names) for entry in _entries_called(db, name)]
        if not found:
            continue
        number += 1
        db.execute("INSERT INTO description VALUES (?, ?)", (number, each.text))
        db.execute("INSERT INTO description_words (rowid, text) VALUES (?, ?)", (number, each.text))
        db.executemany("INSERT OR IGNORE INTO described VALUES (?, ?, ?)", ((number, *pair) for pair in found))


def _entries_called(db: sqlite3.Connection, name: str) -> list[int]:
    """Return the entries whose own name this is, but for variables, which libraries name in their strings."""
    rows = db.execute(
        "SELECT DISTINCT s.entry FROM symbol s JOIN entry e ON e.id = s.entry "
        "WHERE s.norm = ? AND s.name = ? AND s.place = 0 AND e.kind != 'env'",
        (normalize_name(name), name),
    )
    return [entry for (entry,) in rows]


def open_index(path: Path) -> sqlite3.Connection:
    """Open an index for reading.

    Raises:
        ConfigError: If it is damaged, or a newer version made it.
    """
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    except sqlite3.DatabaseError as error:
        db.close()
        raise ConfigError(
            f"The documentation's index {path} is damaged: {error}.", hint="gpu-mcp-server docs build --rebuild"
        ) from error
    schema = int(row[0]) if row else 0
    if schema != SCHEMA:
        db.close()
        newer = schema > SCHEMA
        raise ConfigError(
            f"The documentation's index {path} was made by {'a newer' if newer else 'an older'} version (schema "
            f"{schema}, this is {SCHEMA}).",
            hint="Update gpu-mcp-server, or build it again: gpu-mcp-server docs build --rebuild.",
        )
    db.execute("PRAGMA cache_size=-8000")
    return db


def is_outdated(path: Path) -> bool:
    """Return whether an index is damaged or of an older version, so that only a new one helps."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
            (schema,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            return int(schema) < SCHEMA
    except (sqlite3.DatabaseError, TypeError, ValueError):
        return True


class _Writer:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._counts = Counts()
        self._uris: set[str] = set()

    def write(self, editions: Iterable[Edition]) -> Counts:
        seen: set[str] = set()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        for edition in editions:
            place, source = edition.place, edition.place.source
            self._counts.editions += 1
            first = self._counts.pieces + 1
            for entry in edition.entries:
                self._entry(self._counts.editions, edition, entry)
            preferred = int(source.id not in seen)
            seen.add(source.id)
            row = (source.id, source.library, place.version, source.family, source.title, source.licence)
            self._db.execute(
                f"INSERT INTO edition VALUES ({', '.join('?' * 13)})",  # noqa: S608 - question marks
                (
                    *(self._counts.editions, *row, str(place.root), preferred, len(edition.entries), now, first),
                    self._counts.pieces,
                ),
            )
        return self._counts

    def _uri(self, edition: Edition, entry: Entry) -> str:
        source = edition.place.source
        kind = entry.kind if entry.symbols or entry.kind == "error" else "guide"
        tail = entry.name if entry.symbols else f"{_stem(entry.place)}/{entry.title.split(' > ')[-1]}"
        parts = "/".join(slug(part) for part in tail.split("/"))
        base = f"doc://{slug(source.library)}/{slug(edition.place.version)}/{kind}/{parts}"
        uri, number = base, 2
        while uri in self._uris:
            uri, number = f"{base}~{number}", number + 1
        self._uris.add(uri)
        return uri

    def _entry(self, edition_id: int, edition: Edition, entry: Entry) -> None:
        self._counts.entries += 1
        number, uri = self._counts.entries, self._uri(edition, entry)
        signature = entry.signature
        self._db.execute(
            f"INSERT INTO entry VALUES ({', '.join('?' * 13)})",  # noqa: S608 - question marks
            (
                *(number, edition_id, uri, entry.kind, entry.name, entry.title, signature, summary_of(entry.text)),
                *(zlib.compress(entry.text.encode(), 3), entry.place, entry.first_line, entry.last_line),
                "\n".join(entry.headings),
            ),
        )
        for position, text in enumerate(pieces(entry.text)):
            self._piece(number, entry, text, first=position == 0)
        self._names(number, entry)
        if entry.value is not None:
            family = re.sub(r"[A-Z_].*", "", entry.group[:1].lower() + entry.group[1:]) or entry.group
            self._db.execute("INSERT INTO code VALUES (?, ?, ?)", (entry.value, number, family))

    def _piece(self, number: int, entry: Entry, text: str, *, first: bool) -> None:
        self._counts.pieces += 1
        signature = entry.signature if first else ""
        symbols = entry.symbols[:NAMED]
        if entry.kind in MEMBER_KINDS and len(entry.symbols) > 1:
            inside = set(re.findall(r"[A-Za-z_]\w*", text))
            symbols = (entry.symbols[0], *(s for s in entry.symbols[1:] if s in inside))[:NAMED]
        split = f"{expand_names(symbols[:SPLIT])} {expand_names([entry.title])} {expand_names([signature])}"
        titles = "\n".join(dict.fromkeys([entry.title, *entry.headings])) if first else entry.title
        brief = summary_of(text, 300) if first else ""
        self._db.execute("INSERT INTO piece VALUES (?, ?)", (self._counts.pieces, number))
        self._db.execute(
            "INSERT INTO words (rowid, sym, title, sig, body, split, brief) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._counts.pieces, " ".join(symbols), titles, signature, text, split, brief),
        )

    def _names(self, number: int, entry: Entry) -> None:
        if entry.kind not in API_KINDS:
            return
        for position, name in enumerate(entry.symbols):
            keys = {normalize_name(name)}
            short = re.split(r"\.|::", name)[-1]
            if len(short) > 5:
                keys.add(normalize_name(short))
            for key in keys:
                if len(key) >= 3:
                    row = (key, name, number, min(position, 1))
                    self._db.execute("INSERT INTO symbol VALUES (?, ?, ?, ?)", row)
            if position == 0 or entry.kind == "enum":
                self._counts.names += 1
                key = normalize_name(name)
                self._db.execute("INSERT INTO name VALUES (?, ?, ?, ?)", (self._counts.names, key, name, number))
                self._db.execute("INSERT INTO trigrams (rowid, norm) VALUES (?, ?)", (self._counts.names, key))


def _stem(place: str) -> str:
    """Return a document's place without its suffix, at most its last two parts."""
    return "/".join(re.sub(r"\.\w{1,9}$", "", place).split("/")[-2:])


def texts_of_pieces(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Return every piece as ENTRY/NUMBER with what is embedded of it: the name in words, or the title, then the text.

    Signatures are left out and names taken apart: that raised recall at 5 by meaning alone from .85 to .95 on 223
    briefs of HIP functions for which CUDA's were wanted.
    """
    rows = db.execute(
        "SELECT p.id, p.entry, e.kind, e.name, e.title, e.body FROM piece p JOIN entry e ON e.id = p.entry "
        "ORDER BY p.id"
    )
    last, parts, at = 0, list[str](), 0
    for number, entry, kind, name, title, body in rows:
        if entry != last:
            last, parts, at = entry, pieces(zlib.decompress(body).decode()), 0
        head = " ".join(split(name)) if kind in API_KINDS else title
        yield f"{entry}/{number}", f"{head}\n{parts[at] if at < len(parts) else ''}"
        at += 1


def texts_of_briefs(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Return what every entry is about as ENTRY/NUMBER: name in words and first sentence, or titles of sections."""
    rows = db.execute("SELECT id, kind, name, title, summary, headings FROM entry ORDER BY id")
    for entry, kind, name, title, summary, headings in rows:
        if kind in API_KINDS:
            texts = [f"{' '.join(split(name))}: {summary}"]
        else:
            paths = dict.fromkeys(each for each in (str(title), *str(headings).split("\n")) if each)
            own = [(path, path.rsplit(" > ", 1)[-1]) for path in paths]
            texts = [last if len(last) > SHORT_TITLE else path for path, last in own] + [summary] * bool(summary)
        yield from ((f"{entry}/{number}", text) for number, text in enumerate(texts))


def texts_of_descriptions(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Return every description by its number, in their order."""
    for number, text in db.execute("SELECT id, text FROM description ORDER BY id"):
        yield str(number), text
