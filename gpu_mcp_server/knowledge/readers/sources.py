"""Sources of documentation: `knowledge_base/sources/*.toml`, and their files on this machine."""

import hashlib
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server import __version__
from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.package_files import content_path

FORMATS = (
    "headers", "manpages", "lapack", "docstrings", "documents", "instructions", "readmes", "messages", "names",
    "classes", "strings",
)  # fmt: skip
MOST_FILES = 5_000
"""Of one source; the largest, Open MPI's pages, has about 1,000."""


@dataclass(frozen=True)
class DocSource:
    """One kind of documentation, wherever it lies."""

    id: str
    library: str
    title: str
    licence: str
    """What may be done with the text; where it may not be redistributed it is only read where it is installed."""
    format: str
    """One of FORMATS."""
    family: str = ""
    """Libraries that are searched together: cuda, rocm, mpi ..."""
    roots: tuple[str, ...] = ()
    """Patterns of folders, best first. {toolkit}, {hip}, {mpi}: where nvcc, hipcc, mpicc are installed; {site}:
    Python's packages; {prefix}: where this Python's other files are; {content}: knowledge_base."""
    files: tuple[str, ...] = ()
    """Patterns below a root; the first must match."""
    exclude: str = ""
    """Pattern of paths that are left out."""
    version_file: str = ""
    version_macros: tuple[str, ...] = ()
    """Macros of `version_file` that make the version, or one that encodes it, as CUDA does or CCCL."""
    package: str = ""
    """Python package whose version it is."""
    version: str = ""
    """A fixed version, or one that `docs add` gave."""
    kind: str = "guide"
    """Of sections."""
    skip: str = ""
    """Pattern of names that are left out."""
    any_comment: bool = False
    apart: bool = False
    """Whether each section stands for itself: written as the answer to one question."""
    variables: str = ""
    """Pattern of files whose sections in capitals are environment variables; of strings, of the variables."""
    modules: tuple[str, ...] = ()
    """Of docstrings: MODULE=PREFIX; of classes: FOLDER=NAMESPACE, the first that fits."""
    undocumented: bool = False
    """Whether functions without a comment count, too."""
    repository: str = ""
    """Where a checkout comes from; `docs add` is given its folder."""


@dataclass(frozen=True)
class InstalledSource:
    """A source that was found on this machine."""

    source: DocSource
    root: Path
    version: str
    files: tuple[Path, ...] = field(default=(), repr=False)

    def fingerprint(self) -> str:
        """Return what changes when anything that was read changes: files, sizes, times, how it is read."""
        digest = hashlib.sha256(repr((self.source, self.version, str(self.root), READING)).encode())
        for path in self.files:
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:24]


READING = 3
"""Number of the way in which sources are read; raised when entries of the same files come out otherwise."""


def content_folder() -> Path | None:
    """Return the folder `knowledge_base`, `None` where the content is not installed."""
    folder = content_path("knowledge_base")
    return folder if (folder / "sources").is_dir() else None


@cache
def known_sources() -> dict[str, DocSource]:
    """Return every source that is described, by id.

    Raises:
        ConfigError: If a description has an unknown key or format.
    """
    folder = content_folder()
    found: dict[str, DocSource] = {}
    for path in sorted((folder / "sources").glob("*.toml")) if folder else []:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
        common = {key: value for key, value in described.items() if key != "source"}
        for each in cast("list[dict[str, Any]]", described.get("source", [{}])):
            source = _source({**common, **each}, path)
            found[source.id] = source
    return found


def _source(values: dict[str, Any], path: Path) -> DocSource:
    values.setdefault("id", path.stem)
    values.setdefault("family", values.get("library", ""))
    known = {each.name for each in fields(DocSource)}
    if unknown := set(values) - known:
        raise ConfigError(f"{path}: {', '.join(sorted(unknown))} is no key of a source.")
    if values.get("format") not in FORMATS:
        raise ConfigError(f"{path}: format {values.get('format')!r} is none of {', '.join(FORMATS)}.")
    given: dict[str, Any] = {k: tuple(cast("list[str]", v)) if isinstance(v, list) else v for k, v in values.items()}
    return DocSource(**given)


def installed_places(sources: dict[str, DocSource] | None = None) -> list[InstalledSource]:
    """Return what is on this machine, of each source every version once, the best root of each first."""
    found: list[InstalledSource] = []
    for source in (sources if sources is not None else known_sources()).values():
        versions: set[str] = set()
        for root in _roots(source):
            place = place_at(source, root)
            if place is not None and place.version not in versions:
                versions.add(place.version)
                found.append(place)
    return found


def place_at(source: DocSource, root: Path) -> InstalledSource | None:
    """Return a source at a folder, `None` if its first file is not there."""
    files = _files(source, root)
    if not files:
        return None
    return InstalledSource(source, root, _version(source, root), files)


def _files(source: DocSource, root: Path) -> tuple[Path, ...]:
    excluded = re.compile(source.exclude).search if source.exclude else None
    found: dict[Path, None] = {}
    for number, pattern in enumerate(source.files):
        matches = sorted(path for path in root.glob(pattern) if path.is_file())
        if not matches and number == 0:
            return ()
        for path in matches:
            if excluded is None or not excluded(path.relative_to(root).as_posix()):
                found[path] = None
            if len(found) >= MOST_FILES:
                return tuple(found)
    return tuple(found)


def _version(source: DocSource, root: Path) -> str:
    if source.version:
        return __version__ if source.version == "ours" else source.version
    macros = _macros(root / source.version_file, source.version_macros) if source.version_file else []
    if len(macros) == 1 and macros[0] >= 1_000_000:
        return f"{macros[0] // 1_000_000}.{macros[0] % 1_000_000 // 1000}"
    if len(macros) == 1 and macros[0] >= 1000:
        return f"{macros[0] // 1000}.{macros[0] % 1000 // 10}"
    if macros:
        return ".".join(map(str, macros))
    with suppress(PackageNotFoundError):
        return package_version(source.package) if source.package else "unknown"
    return "unknown"


def _macros(path: Path, names: tuple[str, ...]) -> list[int]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = [re.search(rf"^\s*#\s*define\s+{name}\s+\(?(\d+)", text, re.MULTILINE) for name in names]
    return [int(each.group(1)) for each in found if each]


def _roots(source: DocSource) -> Iterator[Path]:
    """Return the folders that the patterns of a source name, each once, best first."""
    seen: set[Path] = set()
    for pattern in source.roots:
        name = re.match(r"\{(\w+)\}/?", pattern)
        bases = _BASES[name.group(1)]() if name else [Path("/")]
        rest = pattern[name.end() :] if name else pattern.lstrip("/")
        for base in bases:
            matches = sorted(base.glob(rest), key=_numbers, reverse=True) if rest else [base]
            for root in matches:
                real = root.resolve()
                if root.is_dir() and real not in seen:
                    seen.add(real)
                    yield root


def _numbers(path: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", str(path))]


def _prefix(program: str) -> list[Path]:
    found = shutil.which(program)
    if found is None:
        return []
    return list(dict.fromkeys(path.parents[1] for path in (Path(found), Path(found).resolve()) if len(path.parts) > 2))


def _sites() -> list[Path]:
    return [Path(entry) for entry in sys.path if entry.rstrip("/").endswith(("site-packages", "dist-packages"))]


def _prefixes() -> list[Path]:
    return [Path(sys.prefix)]


def _content() -> list[Path]:
    folder = content_folder()
    return [folder] if folder else []


_BASES: dict[str, Callable[[], list[Path]]] = {
    "toolkit": partial(_prefix, "nvcc"),
    "hip": partial(_prefix, "hipcc"),
    "mpi": partial(_prefix, "mpicc"),
    "site": _sites,
    "prefix": _prefixes,
    "content": _content,
}


def added_source(path: Path, library: str, version: str, title: str = "") -> DocSource:
    """Return the source for documents that a user added."""
    return DocSource(
        id=f"added-{library}-{version}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}",
        library=library,
        title=title or path.name,
        licence="the user's own copy",
        format="documents",
        family=library,
        version=version,
    )


def with_version(source: DocSource, version: str) -> DocSource:
    """Return a source with a version that was given instead of found."""
    return replace(source, version=version)
