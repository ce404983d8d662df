"""Editions that a question is about: every library in its preferred version, unless the question says otherwise."""

import sqlite3
from dataclasses import dataclass
from functools import cached_property

from gpu_mcp_server.errors import BadRequest

RELATED = {
    "blas": ("blas", "cublas", "rocblas", "cusolver", "lapack"),
    "mpi": ("mpi", "openmpi", "environment", "builtins"),
    "nccl": ("nccl", "environment"),
    "openmp": ("openmp", "environment"),
    "torch": ("torch", "environment"),
    "ptx": ("ptx", "cccl", "cutlass", "cuda-device", "builtins"),
    "cuda": ("cuda", "guides", "messages", "environment", "builtins"),
    "hip": ("hip", "rocm", "guides"),
    "rocm": ("rocm", "guides"),
}
"""Words for several libraries or families; every other word is a library or a family itself."""

FAMILY_WORDS = {
    "cuda": ("cuda",), "hip": ("rocm",), "rocm": ("rocm",), "amd": ("rocm",), "nvidia": ("cuda",), "nccl": ("nccl",),
    "rccl": ("rccl", "nccl"), "mpi": ("mpi",), "openmpi": ("mpi",), "triton": ("triton",), "gluon": ("triton",),
    "sycl": ("sycl",), "opencl": ("opencl",), "lapack": ("blas",), "cutlass": ("cutlass",), "cub": ("cccl",),
    "thrust": ("cccl",), "cublas": ("cublas",), "cufft": ("cufft",), "cusparse": ("cusparse",), "cupti": ("cupti",),
}  # fmt: skip
"""Words in a question that say which families or libraries are meant."""
GUIDES = ("guides", "messages")
"""Libraries of our own that answer questions; our others explain one name each, as a reference does."""
BUILTINS = "builtins"
STRINGS = "variables"
"""Library of variables that no text explains."""
OURS = (*GUIDES, "environment", BUILTINS)
"""Libraries of our own text."""


@dataclass(frozen=True, slots=True)
class EditionRow:
    """A library in one version, as it stands in the index."""

    id: int
    source: str
    library: str
    version: str
    family: str
    title: str
    licence: str
    root: str
    preferred: bool
    entries: int
    built_at: str
    first_piece: int
    last_piece: int

    @property
    def is_guide(self) -> bool:
        """Return whether it is our own text that answers questions, and not one that explains names."""
        return self.library in GUIDES

    @property
    def is_own_text(self) -> bool:
        """Return whether it is our own text."""
        return self.library in OURS


@dataclass(frozen=True)
class Scope:
    """Editions that a search looks at."""

    editions: tuple[EditionRow, ...]
    others: tuple[EditionRow, ...] = ()
    """Other versions of the same libraries."""
    whole: bool = True
    """Whether no library was named."""
    notes: tuple[str, ...] = ()

    def holds(self, edition: int) -> bool:
        """Return whether an edition is looked at."""
        return edition in self._ids

    @cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset(each.id for each in self.editions)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of pieces, adjacent ones as one."""
        ranges: list[tuple[int, int]] = []
        for each in sorted(self.editions, key=lambda e: e.first_piece):
            if ranges and ranges[-1][1] + 1 == each.first_piece:
                ranges[-1] = (ranges[-1][0], each.last_piece)
            elif each.last_piece >= each.first_piece:
                ranges.append((each.first_piece, each.last_piece))
        return ranges


def read_editions(db: sqlite3.Connection) -> tuple[EditionRow, ...]:
    """Return what an index holds."""
    rows = db.execute(
        "SELECT id, source, library, version, family, title, licence, root, preferred, entries, built_at, first_piece, "
        "last_piece FROM edition ORDER BY id"
    )
    return tuple(EditionRow(*row) for row in rows)


def scope_of(editions: tuple[EditionRow, ...], library: str | None, version: str | None) -> Scope:
    """Return what a library (or family) in a version is; without either, everything preferred.

    Raises:
        BadRequest: If nothing of that name is indexed.
    """
    chosen, whole = editions, library is None
    if library is not None:
        word = library.strip().lower()
        words = RELATED.get(word, (word,))
        chosen = tuple(e for e in editions if e.library.lower() in words or e.family.lower() in words)
        if not chosen:
            there = ", ".join(dict.fromkeys(e.library for e in editions)) or "nothing yet"
            raise BadRequest(
                f"No library {library!r} is indexed.",
                hint=f"There is: {there}. Add your own with gpu-mcp-server docs add PATH --library {word[:40]}.",
            )
    if version is None:
        preferred = tuple(e for e in chosen if e.preferred)
        return Scope(preferred, tuple(e for e in chosen if not e.preferred), whole)
    exact = tuple(e for e in chosen if e.version == version or e.version.startswith(f"{version}."))
    if exact:
        return Scope(exact, tuple(e for e in chosen if e not in exact), whole)
    there = ", ".join(sorted({f"{e.library} {e.version}" for e in chosen if e.version != "ours"})[:12])
    note = f"Version {version} is not indexed; there is {there}. Answered from what is installed."
    preferred = tuple(e for e in chosen if e.preferred)
    return Scope(preferred, tuple(e for e in chosen if not e.preferred), whole, (note,))
