"""What a toolchain is, and the plan of one build. Nothing here touches a file or starts a program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_mcp_server.models.build import Language

OUTPUT = "kernel.so"
"""The library that every plan makes."""

SUFFIXES: Mapping[Language, str] = {"c": ".c", "cpp": ".cpp", "cuda": ".cu"}
CC_OF: Mapping[Language, tuple[str, ...]] = {
    "c": ("gcc", "clang"),
    "cpp": ("g++", "clang++"),
    "cuda": ("g++", "clang++"),
}


@dataclass(frozen=True)
class Toolchain:
    """A compiler as the host's probe found it."""

    name: str
    path: str
    """On the host."""
    version: str
    root: str | None = None
    """Folder to show inside the sandbox, when the compiler is not below `/usr` as it stands."""
    archs: tuple[str, ...] = ()
    """GPU architectures that it generates code for, as `sm_90`; empty when it did not say."""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class BuildPlan:
    """One build, ready to become a job: run `argv` in a folder that holds `files`, then take `output`."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    """Text by name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    output: str = OUTPUT
    listings: tuple[str, ...] = ()
    """Further files worth bringing back, that may not exist: PTX, to trace messages of ptxas to the source."""
    roots: tuple[str, ...] = ()
    """Folders of the host that the job needs to see."""


def toolchain_of(probe: Mapping[str, Any], language: Language) -> Toolchain | None:
    """Return the compiler that a host's probe found for a language, `None` if there is none."""
    if language == "cuda":
        found = probe.get("nvcc")
        if not found:
            return None
        return Toolchain("nvcc", found["path"], found["version"], found.get("root"), tuple(found.get("archs", ())))
    return host_compiler_of(probe, language)


def host_compiler_of(probe: Mapping[str, Any], language: Language = "cpp") -> Toolchain | None:
    """Return the compiler for host code that a probe found; nvcc needs one as well."""
    compilers: Mapping[str, Mapping[str, str]] = probe.get("compilers") or {}
    for name in CC_OF[language]:
        if name in compilers:
            return Toolchain(name, compilers[name]["path"], compilers[name]["version"])
    return None


def source_name(name: str, language: Language) -> str:
    """Return a file name with the suffix by which compilers know the language."""
    stem = name.rpartition("/")[2]
    known = {"c": (".c",), "cpp": (".cpp", ".cc", ".cxx"), "cuda": (".cu",)}[language]
    plain = stem.isascii() and all(c.isalnum() or c in "._-" for c in stem) and not stem.startswith(("-", "."))
    if plain and stem.endswith(known) and len(stem) <= 100:
        return stem
    return "kernel" + SUFFIXES[language]
