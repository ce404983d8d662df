"""Documentation as tools ask for it: the index is opened, made and renewed here, never in the way of an answer."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from gpu_mcp_server.knowledge.readers.entries import KINDS
from gpu_mcp_server.models.docs import DocHit, DocPage, DocSearch
from gpu_mcp_server.package_files import AGENT_PAGES, page_title
from gpu_mcp_server.package_files import page as content_page
from gpu_mcp_server.runtime.result_limits import json_size
from gpu_mcp_server.settings.server_settings import Settings

if TYPE_CHECKING:
    from gpu_mcp_server.knowledge.search.hybrid_search import Hit
    from gpu_mcp_server.knowledge.search.index_reader import IndexReader, Page
    from gpu_mcp_server.knowledge.vectors.vector_index import Vectors

T = TypeVar("T")

ANSWER_CHARS = 2_100
"""Of a search's answer, as data and as text: 700 tokens at three characters a token, as names and addresses have."""
SIGNATURE_CHARS = 160
SAYS_CHARS = 140
PAGE_CHARS = 6_000
ADD_MORE = "Only our own guides are indexed: no toolkit was found. Add yours: gpu-mcp-server docs add PATH --library X."
BEING_BUILT = "The index of installed libraries is still being built: a missing name may be there in a minute."
FIRST_INDEX_S = 10.0
"""That a question waits for the first index; 8,900 entries took 5 s."""
FIRST_VECTORS_S = 10.0
"""That a question in words waits for the model and the vectors to be loaded; 0.7 s where nothing else runs."""

BUILD_COMMAND = ("docs", "build", "--vectors", "--json")
"""Of our own command line."""
FIRST_LOOK_S = 0.1
BUILD_LOOK_S = 0.5
"""Between two looks whether a build has ended."""

_OUTLIVING: set["subprocess.Popen[bytes]"] = set()
"""Builds that go on when their server closes; kept, so that Python does not take them for forgotten."""

_log = structlog.get_logger()


class Documents:
    """Search and pages of what is installed and what the user added."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._library: IndexReader | None = None
        self._vectors: Vectors | None = None
        self._renewed = False
        self._builder: subprocess.Popen[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def search(
        self,
        query: str,
        *,
        library: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        limit: int = 5,
    ) -> DocSearch:
        """Return the best entries, in at most `ANSWER_CHARS` characters.

        Raises:
            BadRequest: If the query or the library cannot be used.
            ConfigError: If the index is damaged, or of a newer version.
            DiskFull: If there is no room for an index.
        """
        kinds = [kind] if kind else ()

        def find(found: "IndexReader") -> "tuple[DocSearch, Vectors | None]":
            vectors = self._vectors_of(found)
            dense = vectors.channel()
            answer = found.ask(query, library=library, version=version, kinds=kinds, limit=limit, dense=dense)
            named = any(hit.match in ("symbol", "code") for hit in answer.hits)
            notes = [*answer.notes]
            if all(each.is_own_text for each in found.editions):
                notes.append(BEING_BUILT if self._tasks else ADD_MORE)
            if dense is None and not named:
                notes.append(vectors.missing())
            told = DocSearch(
                missing=answer.missing,
                hits=[_hit(hit) for hit in answer.hits],
                did_you_mean=answer.did_you_mean,
                notes=[note for note in notes if note],
            )
            return _fitting(told), vectors if vectors.is_loading and not named else None

        told, loading = await self._with_library(find, wait=True)
        if loading is not None:  # outside of the lock: others ask by name meanwhile
            await asyncio.to_thread(loading.wait, FIRST_VECTORS_S)
            told, _ = await self._with_library(find)
        return told

    async def read(self, uri: str, *, offset: int = 0) -> DocPage:
        """Return an entry or a page of our own, or the part of it from `offset`.

        Raises:
            NotFound: If there is none.
            ConfigError, DiskFull: As `search`.
        """
        if uri in AGENT_PAGES:
            text = content_page(AGENT_PAGES[uri])
            part, rest = _part(text, offset)
            return DocPage(
                uri=uri, title=page_title(text), library="gpu-mcp-server", source=f"docs/{AGENT_PAGES[uri]}",
                licence="as this server", document=part, next_offset=rest,
            )  # fmt: skip

        def page(found: "IndexReader") -> DocPage:
            entry = found.page(uri)
            return _page(entry, offset, found.named_in(entry) if offset == 0 else [])

        return await self._with_library(page, wait=True)

    async def completions(self, part: str, prefix: str, given: Mapping[str, str]) -> list[str]:
        """Return what a part of an address may be: library, version, kind or name that begins with `prefix`."""

        def list_names(library: "IndexReader") -> list[str]:
            editions = [e for e in library.editions if given.get("library", "") in ("", e.library)]
            if part == "library":
                return [name for name in dict.fromkeys(e.library for e in editions) if name.startswith(prefix)]
            if part == "version":
                return [v for v in dict.fromkeys(e.version for e in editions) if v.startswith(prefix)]
            if part == "kind":
                return [kind for kind in KINDS if kind.startswith(prefix)]
            where = {"library": given.get("library", ""), "version": given.get("version", "")}
            return library.names(**where, kind=given.get("kind", ""), prefix=prefix)

        return await self._with_library(list_names)

    async def libraries(self) -> list[dict[str, str | int]]:
        """Return what is indexed: library, version, entries, where from, licence."""

        def listed(found: "IndexReader") -> list[dict[str, str | int]]:
            return [
                {"library": e.library, "version": e.version, "entries": e.entries, "title": e.title, "root": e.root}
                | {"licence": e.licence, "built_at": e.built_at}
                for e in found.editions
            ]

        return await self._with_library(listed)

    async def explain_messages(self, messages: list[str]) -> list[str | None]:
        """Return for each message of a compiler or library the address of what explains it; never fails, never waits.

        Where no index is there yet nothing is explained, and none is begun: the first search does that.
        """
        from gpu_mcp_server.knowledge.search.error_lookup import address_of

        if not messages:
            return []
        try:
            if self._library is None and self._current() is None:
                return [None] * len(messages)
            return await self._with_library(lambda found: [address_of(found, message) for message in messages])
        except Exception as error:
            _log.warning("messages are not explained", error=str(error))
            return [None] * len(messages)

    async def lookup_names(self, names: Sequence[str]) -> list[str]:
        """Return the addresses of the entries of names, of those that are indexed; never fails, never waits."""
        try:
            if not names or (self._library is None and self._current() is None):
                return []
            found = await self._with_library(lambda library: [library.of_name(name) for name in names])
            return list(dict.fromkeys(uri for uri in found if uri))
        except Exception as error:
            _log.warning("names are not looked up", error=str(error))
            return []

    async def explain_output(self, *outputs: str) -> str:
        """Return "see ..." with the entries for errors of CUDA, NCCL or MPI that a program printed, "" for none."""
        from gpu_mcp_server.knowledge.search.error_lookup import error_lines

        found = await self.explain_messages([line for text in outputs for line in error_lines(text)])
        uris = list(dict.fromkeys(uri for uri in found if uri))[:2]
        return f"see {', '.join(uris)}" if uris else ""

    async def close(self) -> None:
        """Close the index; a build that runs goes on, as the next server wants it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        with self._lock:
            if self._vectors is not None:
                self._vectors.close()
            if self._library is not None:
                self._library.close()
                self._library = None

    async def _with_library(self, work: "Callable[[IndexReader], T]", *, wait: bool = False) -> T:
        """Return what `work` makes of the current index; with `wait`, of the first one when it is built."""

        def locked() -> T:
            with self._lock:
                return work(self._opened())

        if not self._renewed:
            self._renew()
        if wait and self._current() is None:
            await self._first_index()
        return await asyncio.to_thread(locked)

    async def _first_index(self) -> None:
        """Wait until the build that runs has made an index, has ended, or takes longer than `FIRST_INDEX_S`."""
        until = time.monotonic() + FIRST_INDEX_S
        while self._tasks and self._current() is None and time.monotonic() < until:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(FIRST_LOOK_S)

    def _opened(self) -> "IndexReader":
        """Return the current index; without one, that of our own guides, made on the spot."""
        from gpu_mcp_server.knowledge.search.index_reader import IndexReader

        folder = self._current()
        if self._library is not None and self._library.folder == folder:
            return self._library
        if folder is None:
            from gpu_mcp_server.knowledge.index.build import build
            from gpu_mcp_server.knowledge.index.index_store import Storage
            from gpu_mcp_server.knowledge.search.edition_scope import OURS

            build(Storage(self._settings.data_dir), only={*OURS}, if_none=True)
            folder = self._current()
            assert folder is not None
        opened = IndexReader(folder)
        if self._library is not None:
            self._library.close()
        if self._vectors is not None:
            self._vectors.close()
        self._library, self._vectors = opened, None
        return opened

    def _current(self) -> Path | None:
        from gpu_mcp_server.knowledge.index.index_store import Storage

        return Storage(self._settings.data_dir).current()

    def _renew(self) -> None:
        """Start a build in a process of its own, once: it changes nothing if nothing changed."""
        self._renewed = True
        if not self._settings.index_documentation:
            return
        task = asyncio.create_task(self._build(), name="knowledge build")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _build(self) -> None:
        arguments = ["-m", "gpu_mcp_server", *BUILD_COMMAND]
        environment = {**os.environ, "GPU_MCP_DATA_DIR": str(self._settings.data_dir)}
        with contextlib.suppress(OSError):
            self._builder = await asyncio.to_thread(_builder, [sys.executable, *arguments], environment)
            while (code := self._builder.poll()) is None:  # noqa: ASYNC110 - the process may outlive this loop
                await asyncio.sleep(BUILD_LOOK_S)
            _OUTLIVING.discard(self._builder)
            self._builder = None
            if code:
                _log.warning("the documentation's index was not built", exit_code=code)

    def _vectors_of(self, found: "IndexReader") -> "Vectors":
        if self._vectors is None:
            from gpu_mcp_server.knowledge.vectors.vector_index import Vectors

            self._vectors = Vectors(found.folder, self._settings.data_dir)
        return self._vectors


def _builder(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a build that leaves the processor to whoever else wants it."""
    modest = [nice, "-n", "10"] if (nice := shutil.which("nice")) else []
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - our own command line
        [*modest, *command], env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    _OUTLIVING.add(process)
    return process


def _hit(hit: "Hit") -> DocHit:
    first, *more = hit.signature.split("\n")
    shown = first if len(first) <= SIGNATURE_CHARS else first[: SIGNATURE_CHARS - 1] + "…"
    says = hit.summary if len(hit.summary) <= SAYS_CHARS else hit.summary[: SAYS_CHARS - 1] + "…"
    return DocHit(
        uri=hit.uri,
        title=hit.title[:100],
        library=f"{hit.edition.library} {hit.edition.version}",
        signature=(shown + (f" (+{len(more)} overloads)" if more else "")) or None,
        says=says or None,
        match=hit.match,  # pyright: ignore[reportArgumentType]  # the words of knowledge.search
        also=list(hit.also[:2]),
    )


def _fitting(result: DocSearch) -> DocSearch:
    """Return the answer with as many hits as fit; what was left out is said."""
    for kept in range(len(result.hits), 0, -1):
        left_out = len(result.hits) - kept
        notes = [*result.notes, f"{left_out} more left out: narrow by library or kind."] if left_out else result.notes
        short = result.model_copy(update={"hits": result.hits[:kept], "notes": notes})
        if max(json_size(short.model_dump(mode="json", exclude_none=True)), len(short.summary())) <= ANSWER_CHARS:
            return short
    return result


def _part(text: str, offset: int) -> tuple[str, int | None]:
    """Return some lines of a text, and where the rest begins."""
    part = text[offset : offset + PAGE_CHARS]
    if offset + PAGE_CHARS < len(text) and "\n" in part[PAGE_CHARS // 2 :]:
        part = part[: part.rindex("\n")]
    end = offset + len(part)
    return part, end if end < len(text) else None


def _page(entry: "Page", offset: int, see_also: list[str]) -> DocPage:
    part, rest = _part(entry.text, offset)
    return DocPage(
        uri=entry.uri,
        title=entry.title,
        library=f"{entry.edition.library} {entry.edition.version}",
        source=f"{entry.place}:{entry.first_line}" if entry.first_line else entry.place,
        licence=entry.edition.licence,
        signature=entry.signature[:1_000] or None,
        document=part,
        next_offset=rest,
        see_also=see_also,
    )
