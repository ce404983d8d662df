"""Interface of a toolchain, and the plan of one build. Nothing here touches a file or starts a program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from gpu_mcp_server.models.build import LANGUAGES, CandidateLanguage, Language

OUTPUT = "kernel.so"
"""The library that every plan makes."""

SUFFIXES: Mapping[str, str] = {name: PurePosixPath(facts.source_name).suffix for name, facts in LANGUAGES.items()}


@dataclass(frozen=True)
class Toolchain:
    """A compiler as the host's probe found it."""

    name: str
    path: str
    """On the host."""
    version: str
    roots: tuple[str, ...] = ()
    """Folders to show inside the sandbox, when the compiler is not below `/usr` as it stands."""
    archs: tuple[str, ...] = ()
    """GPU architectures that it generates code for, as `sm_90`; empty when it did not say."""
    device_libs: str = ""
    """HIP: folder of AMD's device libraries."""
    libraries: str = ""
    """HIP: folder of libamdhip64, when the compiler does not know it."""
    builtins: tuple[str, ...] = ()
    """NVRTC: libraries that it needs beside itself."""
    include: tuple[str, ...] = ()
    """NVRTC: the toolkit's folders of headers."""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class CompilePlan:
    """One build, ready to become a job: run `argv` in a folder that holds `files`, then take `output`."""

    argv: tuple[str, ...]
    """With a `worker`, its arguments; the first only says its name."""
    files: Mapping[str, str]
    """Text by name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    output: str = OUTPUT
    listings: tuple[str, ...] = ()
    """Further files worth bringing back, that may not exist: PTX, to trace messages of ptxas to the source."""
    roots: tuple[str, ...] = ()
    """Folders of the host that the job needs to see."""
    headers: tuple[str, ...] = ()
    """Trees of headers that it reads, each with its digest."""
    worker: str = ""
    """Name of our program in `workers` that does it, instead of a compiler's executable."""
    python: str = ""
    """Interpreter of the worker, when it is not the one that runs hostd."""
    wall_s: float | None = None
    """What it may take by the clock; unset means what its kind may."""
    long: bool = False
    """Whether it may read a tree of headers, and so take minutes of processor time."""
    warm: str = ""
    """Python put before the worker's source: what it may prepare ahead of the job."""


def toolchains_of(probe: Mapping[str, Any], language: Language) -> list[Toolchain]:
    """Return the compilers that a host's probe found for a language, best first."""
    more: Mapping[str, Any] = probe.get("toolchains") or {}
    if language == "cuda":
        found = [(n, f) for n, f in (("nvcc", probe.get("nvcc")), ("nvrtc", more.get("nvrtc"))) if f]
        return [
            Toolchain(
                name,
                f["path"],
                f["version"],
                _roots(f),
                tuple(f.get("archs", ())),
                builtins=tuple(f.get("builtins", ())),
                include=tuple(f.get("include", ())),
            )
            for name, f in found
        ]
    if language == "hip":
        known = [
            Toolchain(
                h["name"], h["path"], h["version"], _roots(h), tuple(h["archs"]), h["device_libs"], h["libraries"]
            )
            for h in more.get("hip", ())
        ]
        rtc = more.get("hiprtc")
        more_of_it = [Toolchain("hiprtc", rtc["path"], rtc["version"], _roots(rtc), tuple(rtc["archs"]))] if rtc else []
        return known + more_of_it
    if language == "launcher":
        return [Toolchain(language, p["path"], p["version"], _roots(p)) for p in more.get("pythons", ()) if p["torch"]]
    if language == "triton":
        return [
            Toolchain("triton", p["path"], p["triton"], _roots(p), archs=tuple(p.get("archs", ())))
            for p in more.get("pythons", ())
            if p["triton"]
        ]
    found_by_name: Mapping[str, Mapping[str, Any]] = {**(more.get("tools") or {}), **(probe.get("compilers") or {})}
    known_there = [(name, found_by_name[name]) for name in LANGUAGES[language].compilers if name in found_by_name]
    return [Toolchain(name, f["path"], f["version"], _roots(f)) for name, f in known_there]


def host_compiler_of(probe: Mapping[str, Any], language: Language = "cpp") -> Toolchain | None:
    """Return the compiler for host code that a probe found; nvcc needs one as well."""
    return next(iter(toolchains_of(probe, language)), None)


def source_name(name: str, language: CandidateLanguage) -> str:
    """Return a file name with the suffix by which compilers know the language."""
    stem = name.rpartition("/")[2]
    known = (*LANGUAGES[language].suffixes, *((".cpp", ".cu") if language == "hip" else ()))
    plain = stem.isascii() and all(c.isalnum() or c in "._-" for c in stem) and not stem.startswith(("-", "."))
    if plain and stem.endswith(known or SUFFIXES[language]) and len(stem) <= 100:
        return stem
    return "kernel" + SUFFIXES[language]


def _roots(found: Mapping[str, Any]) -> tuple[str, ...]:
    roots: list[str] = list(found.get("roots") or ([found["root"]] if found.get("root") else []))
    return tuple(roots)
