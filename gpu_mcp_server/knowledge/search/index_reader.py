"""The index in use, opened for questions: search, one entry, addresses. Not for several threads at once."""

import re
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.knowledge.index.identifiers import IDENTIFIER, compound, normalize_name
from gpu_mcp_server.knowledge.index.index_schema import open_index
from gpu_mcp_server.knowledge.index.index_store import DATABASE
from gpu_mcp_server.knowledge.search.edition_scope import EditionRow, read_editions, scope_of
from gpu_mcp_server.knowledge.search.hybrid_search import GROUPS, SURE, Dense, Search, SearchAnswer
from gpu_mcp_server.knowledge.search.missing_names import describe_missing_name

LONGEST_QUERY = 10_000
SEE_ALSO = 6


@dataclass(frozen=True, slots=True)
class Page:
    """An entry as it is read."""

    uri: str
    kind: str
    name: str
    title: str
    signature: str
    text: str
    place: str
    first_line: int
    last_line: int
    edition: EditionRow


class IndexReader:
    """One index."""

    def __init__(self, folder: Path) -> None:
        """Open it.

        Raises:
            ConfigError: If it is damaged or of another version.
        """
        self.folder = folder
        self._db = open_index(folder / DATABASE)
        self.editions = read_editions(self._db)
        self._search = Search(self._db, self.editions)

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, for measuring."""
        return self._db

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def ask(
        self,
        query: str,
        *,
        library: str | None = None,
        version: str | None = None,
        kinds: Sequence[str] = (),
        limit: int = 5,
        dense: Dense | None = None,
    ) -> SearchAnswer:
        """Return the best entries for a question.

        Raises:
            BadRequest: If it is empty, too long, or names a library or kind that there is not.
        """
        if not query.strip():
            raise BadRequest("The query is empty.", hint="Give a name, an error, or a question in words.")
        if len(query) > LONGEST_QUERY:
            raise BadRequest(
                f"The query has {len(query)} characters; at most {LONGEST_QUERY} are taken.",
                hint="Ask with the message's decisive line, or with one name.",
            )
        if unknown := [kind for kind in kinds if kind not in GROUPS]:
            raise BadRequest(f"There is no kind {unknown[0]!r}.", hint=f"There are: {', '.join(GROUPS)}.")
        scope = scope_of(self.editions, library, version)
        return self._search.find(query, scope, kinds=kinds, limit=limit, dense=dense)

    def page(self, uri: str) -> Page:
        """Return the entry at an address, or of a name.

        Raises:
            NotFound: If there is none; says what is near.
        """
        row = self._row("uri = ?", uri.strip()) or self._row("name = ? ORDER BY id", uri.strip())
        if row is None:
            raise NotFound("document", uri[:300], hint=self._near(uri.rstrip("/").rsplit("/", 1)[-1][:200]))
        return Page(*row[:5], zlib.decompress(row[5]).decode(), *row[6:9], self._edition(row[9]))

    def _near(self, name: str) -> str:
        """Say where a name is, or that it is missing, of which library, and only then what looks like it."""
        scope = scope_of(self.editions, None, None)
        named, _, missed = self._search.symbols.entries_named_in(name, scope)
        if named and not missed:
            return f"The name is at {', '.join(dict.fromkeys(self._uri(entry) for entry in named[:3]))}."
        said = describe_missing_name(missed[0] if missed else name, self.editions)
        near = [self._uri(entry) for _, entry, _ in self._search.symbols.similar_names(name, scope, 3)]
        alike = f" Look-alikes: {', '.join(dict.fromkeys(near))}." if near else " search_docs gives addresses."
        return f"{said[0].upper()}{said[1:]}.{alike}"

    def _row(self, condition: str, value: str) -> tuple[str, str, str, str, str, bytes, str, int, int, int] | None:
        return self._db.execute(
            "SELECT uri, kind, name, title, signature, body, place, first_line, last_line, edition "  # noqa: S608 - ours
            f"FROM entry WHERE {condition} LIMIT 1",
            (value,),
        ).fetchone()

    def _edition(self, number: int) -> EditionRow:
        return next(each for each in self.editions if each.id == number)

    def _uri(self, entry: int) -> str:
        return self._db.execute("SELECT uri FROM entry WHERE id = ?", (entry,)).fetchone()[0]

    def named_in(self, page: Page, limit: int = SEE_ALSO) -> list[str]:
        """Return the addresses of entries that a page names after "See also", or else anywhere in it."""
        after = page.text.partition("See also:")[2]
        words = [w for w in dict.fromkeys(IDENTIFIER.findall(after or page.text)) if compound(w) and w != page.name]
        found: list[str] = []
        for word in words[:40]:
            rows = self._db.execute(
                "SELECT e.uri, e.edition FROM symbol s JOIN entry e ON e.id = s.entry WHERE s.norm = ? AND s.name = ? "
                "AND s.place = 0 ORDER BY e.edition = ? DESC, e.id LIMIT 1",
                (normalize_name(word), word, page.edition.id),
            ).fetchall()
            found += [uri for uri, _ in rows if uri not in found and uri != page.uri]
            if len(found) >= limit:
                break
        return found[:limit]

    def names(self, *, library: str = "", version: str = "", kind: str = "", prefix: str = "") -> list[str]:
        """Return what may stand last in an address and begins with `prefix`, for completion; at most 50."""
        pattern = re.sub(r"([%_\\])", r"\\\1", prefix[:200]) + "%"
        rows = self._db.execute(
            "SELECT DISTINCT substr(e.uri, length('doc://' || d.library || '/' || d.version || '/' || e.kind) + 2) "
            "AS tail FROM entry e JOIN edition d ON d.id = e.edition WHERE tail LIKE ? ESCAPE '\\' "
            "AND (? = '' OR d.library = ?) AND (? = '' OR d.version = ?) AND (? = '' OR e.kind = ?) "
            "ORDER BY tail LIMIT 50",
            (pattern, library, library, version, version, kind, kind),
        )
        return [row[0] for row in rows]

    def of_name(self, name: str, family: str = "") -> str | None:
        """Return the address of the entry of exactly this name, in the preferred version, `None` if there is none."""
        rows = self._db.execute(
            "SELECT e.uri FROM symbol s JOIN entry e ON e.id = s.entry JOIN edition d ON d.id = e.edition "
            "WHERE s.norm = ? AND s.name = ? AND d.preferred AND (? = '' OR d.family = ?) "
            "ORDER BY s.place, e.id LIMIT 1",
            (normalize_name(name), name, family, family),
        )
        return next((uri for (uri,) in rows), None)

    def nearest(self, name: str) -> str | None:
        """Return the address of what a misspelt name surely means, `None` if that is not sure."""
        scope = scope_of(self.editions, None, None)
        near = self._search.symbols.similar_names(name, scope, 1)
        return self._uri(near[0][1]) if near and near[0][2] >= SURE else None

    def messages(self) -> list[tuple[str, str]]:
        """Return the messages that we explain ourselves: how they read, `…` for what varies, and their address."""
        rows = self._db.execute(
            "SELECT e.title, e.uri FROM entry e JOIN edition d ON d.id = e.edition WHERE d.source = 'messages'"
        )
        return [(str(said), str(uri)) for said, uri in rows]
