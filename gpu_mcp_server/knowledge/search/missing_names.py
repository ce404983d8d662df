"""Names that nothing indexed has: said first, with the library that they are of where their beginning tells it."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from gpu_mcp_server.knowledge.readers.sources import content_folder
from gpu_mcp_server.knowledge.search.edition_scope import EditionRow


@dataclass(frozen=True, slots=True)
class KnownLibrary:
    """A library whose names can be told by their beginning."""

    library: str
    """As `docs add --library` calls it."""
    title: str
    names: str
    """Pattern of beginnings."""
    package: str
    """pip package that is read where it is installed, or ""."""
    repository: str
    source: str
    """Id of the source that reads a checkout of `repository`."""
    without: str
    """What is found as long as it is not indexed."""
    dependencies: bool = False
    """Whether `package` alone holds nothing to read."""

    def holds(self, name: str) -> bool:
        """Return whether a name begins as those of this library do."""
        return re.match(self.names, name, re.IGNORECASE) is not None

    def way_into_index(self) -> str:
        """Return what to do to have it indexed."""
        if self.package:
            alone = "" if self.dependencies else "--no-deps "
            return f"pip install {alone}{self.package} beside the server, then gpu-mcp-server docs build"
        if self.repository:
            return f"gpu-mcp-server docs add FOLDER --source {self.source}, a checkout of {self.repository}"
        return f"gpu-mcp-server docs add PATH --library {self.library}"


@cache
def known_libraries() -> tuple[KnownLibrary, ...]:
    """Return the libraries of `knowledge_base/libraries.toml`, none where the content is not installed."""
    folder = content_folder()
    if folder is None:
        return ()
    rows = cast("list[dict[str, Any]]", tomllib.loads((folder / "libraries.toml").read_text("utf-8"))["library"])
    return tuple(
        KnownLibrary(
            library=row["library"],
            title=row["title"],
            names="|".join(f"(?:{each})" for each in row["names"]),
            package=row.get("package", ""),
            repository=row.get("repository", ""),
            source=row.get("source", ""),
            without=row["without"],
            dependencies=row.get("dependencies", False),
        )
        for row in rows
    )


def library_of(name: str) -> KnownLibrary | None:
    """Return the library that a name belongs to by its beginning, `None` if that tells nothing."""
    return next((each for each in known_libraries() if each.holds(name)), None)


def describe_missing_name(name: str, editions: Sequence[EditionRow]) -> str:
    """Say that nothing indexed has a name, and how its library would be added where that is not indexed."""
    text = f"nothing indexed is called {name}"
    library = library_of(name)
    if library is None:
        return text
    indexed = [e for e in editions if library.library in (e.library.lower(), e.family.lower()) and not e.is_own_text]
    if indexed:
        there = ", ".join(dict.fromkeys(f"{e.library} {e.version}" for e in indexed[:2]))
        return f"{text}; of {library.title} there is {there}, without an entry of this name"
    way = library.way_into_index()
    return f"{text}; {library.title} is not indexed here: {way}. Until then: {library.without}"
