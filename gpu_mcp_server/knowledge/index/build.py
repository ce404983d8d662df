"""Building the index: changed sources are read again, the rest comes from the last index."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.index.index_schema import Counts, is_outdated, write_index
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage
from gpu_mcp_server.knowledge.readers import task_descriptions
from gpu_mcp_server.knowledge.readers.entries import Entry
from gpu_mcp_server.knowledge.readers.library_strings import without_explained
from gpu_mcp_server.knowledge.readers.reader_dispatch import Edition, read_place
from gpu_mcp_server.knowledge.readers.sources import (
    DocSource,
    InstalledSource,
    added_source,
    installed_places,
    known_sources,
    place_at,
    with_version,
)


@dataclass
class BuiltIndex:
    """Result of building an index."""

    counts: Counts
    read: list[str] = field(default_factory=list[str])
    """Libraries and versions that were read again."""
    kept: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    unchanged: bool = False
    """Whether the index in use was already this."""


def build(
    storage: Storage,
    *,
    rebuild: bool = False,
    only: set[str] | None = None,
    if_none: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> BuiltIndex:
    """Build the index of everything that is installed or was added, and make it current.

    Args:
        storage: Where it is kept.
        rebuild: Read every source again, whatever the last index has.
        only: Ids of the sources to take; otherwise all.
        if_none: Whether an index that somebody else made while this waited for the lock is left as it is.
        tell: Is told each library as it is read.

    Raises:
        DiskFull: If there is no room; what was current stays.
        BadRequest: If an added folder names a source that there is not.
    """
    with storage.building():
        storage.tidy()
        begun = time.monotonic()
        places = [p for p in all_places(storage) if only is None or p.source.id in only]
        prints = {place: place.fingerprint() for place in places}
        current = storage.current()
        if if_none and current is not None:
            return BuiltIndex(Counts(), unchanged=True)
        state = _state_of(prints.values())
        if not rebuild and current is not None and _is_of(current, state):
            return BuiltIndex(Counts(), kept=[label(p) for p in places], unchanged=True)
        built = BuiltIndex(Counts())
        editions = [_edition(storage, place, prints[place], rebuild, built, tell) for place in places]
        _drop_explained(editions)
        with storage.new_index() as folder:
            built.counts = write_index(folder / DATABASE, editions, task_descriptions.read_descriptions())
            (folder / "places").write_text("\n".join(state), encoding="utf-8")
        storage.forget_editions(set(prints.values()))
        built.seconds = time.monotonic() - begun
        return built


def _drop_explained(editions: list[Edition]) -> None:
    """Leave of what libraries name in their strings only what no text of any edition explains."""
    before: list[Entry] = [e for each in editions if each.place.source.format != "strings" for e in each.entries]
    for edition in (each for each in editions if each.place.source.format == "strings"):
        edition.entries = without_explained(edition.entries, before)
        before += edition.entries


def all_places(storage: Storage) -> list[InstalledSource]:
    """Return what was fetched from hosts, where jobs compile; what is installed here; what was added.

    Raises:
        BadRequest: If an added folder names a source that there is not.
    """
    known = known_sources()
    fetched = [
        place_at(replace(known[source], title=f"{known[source].title}, of host {host}"), folder)
        for host, source, folder in storage.of_hosts()
        if source in known
    ]
    places: list[InstalledSource] = []
    for place in [*filter(None, fetched), *installed_places()]:
        if (place.source.id, place.version) not in {(p.source.id, p.version) for p in places}:
            places.append(place)
    for each in storage.added_folders():
        place = added_place(Path(each["path"]), each)
        if place is not None:
            places.append(place)
    return places


def added_place(path: Path, what: dict[str, str]) -> InstalledSource | None:
    """Return what the user added as a place, `None` if it is gone.

    Raises:
        BadRequest: If it names a source that there is not.
    """
    if not path.exists():
        return None
    version = what.get("version", "")
    if named := what.get("source"):
        source = source_called(named)
        return place_at(with_version(source, version) if version else source, path)
    source = added_source(path, what["library"], version or "unknown", what.get("title", ""))
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return InstalledSource(source, path, version or "unknown", tuple(files[:20_000]))


def source_called(name: str) -> DocSource:
    """Return the source of this id.

    Raises:
        BadRequest: If there is none.
    """
    known = known_sources()
    if name not in known:
        raise BadRequest(f"There is no source {name!r}.", hint=f"There are: {', '.join(known)}.")
    return known[name]


def label(place: InstalledSource) -> str:
    """Return how a place is named to people."""
    return f"{place.source.library} {place.version} ({place.source.title}, {place.root})"


def _state_of(places: Iterable[str]) -> list[str]:
    """Return what an index of these fingerprints would be made of."""
    return sorted([*places, task_descriptions.fingerprint()])


def _is_of(index: Path, state: list[str]) -> bool:
    """Return whether an index is made of this and can be read by this version, or only by a newer one."""
    return _state(index) == state and not is_outdated(index / DATABASE)


def _state(folder: Path) -> list[str]:
    try:
        return (folder / "places").read_text(encoding="utf-8").split()
    except OSError:
        return []


def _edition(
    storage: Storage,
    place: InstalledSource,
    fingerprint: str,
    rebuild: bool,
    built: BuiltIndex,
    tell: Callable[[str], None],
) -> Edition:
    entries = None if rebuild else storage.read_edition(fingerprint)
    if entries is not None:
        built.kept.append(label(place))
        return Edition(place, entries)
    tell(label(place))
    edition = read_place(place)
    built.read.append(label(place))
    built.notes += edition.notes
    if edition.entries:
        storage.write_edition(fingerprint, edition.entries)
    return edition
