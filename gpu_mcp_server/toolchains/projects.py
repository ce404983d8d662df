"""Whole projects: CMake, make, ninja and SYCL compilers; which phases there are, and what their reports say.

Source: CMake 3.25 manual (cmake(1), ctest(1) --output-junit), GNU make 4.3, ninja 1.11; the DPC++ and AdaptiveCpp
documentation for `-fsycl` and `--acpp-targets`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains import hip, hiprtc, nvcc
from gpu_mcp_server.toolchains.base import Toolchain

System = Literal["cmake", "make", "ninja", "sycl"]

BUILD = "build"
JUNIT = "junit.xml"
FILES: tuple[tuple[str, System], ...] = (
    ("CMakeLists.txt", "cmake"),
    ("build.ninja", "ninja"),
    ("Makefile", "make"),
    ("makefile", "make"),
    ("GNUmakefile", "make"),
)
SYCL_COMPILERS = ("icpx", "acpp", "clang-sycl")
"""Tools by name; the last one is a clang++ that knows -fsycl with headers and library."""
SYCL_SUFFIXES = (".cpp", ".cc", ".cxx")
MISSING: Mapping[System, str] = {
    "cmake": "apt-get install cmake ninja-build.",
    "make": "apt-get install make.",
    "ninja": "apt-get install ninja-build.",
    "sycl": "Install Intel's oneAPI compiler (icpx), its open DPC++ (clang++ -fsycl; CLANG_SYCL names it) or "
    "AdaptiveCpp (acpp); neither Debian nor PyPI has one. For single "
    "kernels the extra [sycl] compiles at run time: pip install intel-sycl-rt intel-opencl-rt, into the Python of "
    "judge_python there.",
}
_OPTION = re.compile(r"(?:-D)?[A-Za-z_][A-Za-z0-9_:.]*=[^\0\n]{0,1000}\Z")
_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}\Z")


@dataclass(frozen=True)
class Project:
    """Project that is to be built."""

    system: System
    folder: str = "."
    targets: Sequence[str] = ()
    options: Sequence[str] = ()
    arch: str | None = None
    tests: bool = False


def system_of(paths: Sequence[str], folder: str) -> System:
    """Return the build system that a folder's files mean.

    Raises:
        BadRequest: If there is none of the known files.
    """
    prefix = "" if folder in ("", ".") else folder.rstrip("/") + "/"
    for name, system in FILES:
        if prefix + name in paths:
            return system
    raise BadRequest(
        f"There is no {', '.join(n for n, _ in FILES[:3])} in {folder or '.'!r} of the workspace.",
        hint="Name the folder, or set system; system sycl takes C++ sources as they are.",
    )


def validate_project(project: Project, toolchains: Sequence[Toolchain] = ()) -> None:
    """Check what a caller gave.

    Args:
        project: Project that is to be built.
        toolchains: The host's compilers of GPU code; those that there are know which architectures they make.

    Raises:
        BadRequest: If an option or target cannot be one, `native` is among the architectures, or none of the host's
            compilers knows the architecture.
    """
    for option in project.options:
        if not _OPTION.match(option):
            raise BadRequest(
                f"{option!r} is no option of a build.", hint="Give NAME=VALUE: CMake's cache, or make's variables."
            )
        if "native" in option.partition("=")[2] and "ARCH" in option:
            raise BadRequest(
                f"{option!r}: a build holds no GPU, so native means nothing to its compilers.",
                hint="Name an architecture: arch sm_90; arch native where the host has a GPU.",
            )
    if project.arch is not None:
        _checked_arch(project.arch, project.system, toolchains)
    for target in project.targets:
        if not _TARGET.match(target):
            raise BadRequest(f"{target!r} is no target.", hint="Give names, as the project has them.")


def _checked_arch(arch: str, system: System, toolchains: Sequence[Toolchain]) -> None:
    if system != "cmake":
        raise BadRequest(
            f"{system} is not told an architecture.", hint="Give what its files ask for in options: ARCH=sm_90 ..."
        )
    nvidia = [t for t in toolchains if t.name == "nvcc"]
    amd = [t for t in toolchains if t.archs and t.archs[0].startswith("gfx") and t.name != hiprtc.NAME]
    if arch.startswith("gfx") and amd:
        hip.choose(amd, arch)
    elif not arch.startswith("gfx") and nvidia:
        nvcc.checked_arch(arch, nvidia[0])


def phases(
    project: Project, tools: Mapping[str, str], jobs: int, sources: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Return the phases in order, each with its arguments.

    Args:
        project: What to build.
        tools: Path by name.
        jobs: How many commands may run at once.
        sources: For SYCL, the files.
    """
    match project.system:
        case "cmake":
            return _cmake(project, tools, jobs)
        case "sycl":
            compiler = next(tools[n] for n in SYCL_COMPILERS if n in tools)
            flags = ["--acpp-targets=generic"] if compiler.endswith("acpp") else ["-fsycl"]
            command = [compiler, *flags, "-O2", *project.options, "-o", f"{BUILD}/program", *sources]
            return [{"name": "build", "argv": command}]
        case _:
            folder = ["-C", project.folder or "."]
            options = [o.removeprefix("-D") for o in project.options]
            keep_going = ["-k", "0"] if project.system == "ninja" else ["-k", *options]
            command = [tools[project.system], *folder, f"-j{jobs}", *keep_going]
            found: list[dict[str, object]] = [{"name": "build", "argv": [*command, *project.targets]}]
            return [*found, {"name": "test", "argv": [*command, "test"]}] if project.tests else found


def _cmake(project: Project, tools: Mapping[str, str], jobs: int) -> list[dict[str, object]]:
    options = ["-D" + o.removeprefix("-D") for o in project.options]
    if project.arch and project.arch.startswith("sm_"):
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={project.arch.removeprefix('sm_')}")
    elif project.arch:
        options.append(f"-DCMAKE_HIP_ARCHITECTURES={project.arch}")
    generator = ["-G", "Ninja"] if "ninja" in tools else []
    configure = [tools["cmake"], "-S", project.folder or ".", "-B", BUILD, *generator]
    configure += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options]
    targets = ["--target", *project.targets] if project.targets else []
    build = [tools["cmake"], "--build", BUILD, f"-j{jobs}", *targets, "--", "-k", *(["0"] if generator else [])]
    found: list[dict[str, object]] = [{"name": "configure", "argv": configure}, {"name": "build", "argv": build}]
    if project.tests:
        report = ["--output-junit", JUNIT, "--output-on-failure", "--timeout", "120"]
        found.append({"name": "test", "argv": [tools["ctest"], "--test-dir", BUILD, *report]})
    return found
