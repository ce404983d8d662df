"""CUDA C++ by nvcc.

Source: `nvcc --help` of CUDA 13.0, and its documentation, section "GPU Feature List" for the suffixes `a` and `f`.
"""

import re
from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains import malloc_wrapper
from gpu_mcp_server.toolchains.architectures import nvcc_options
from gpu_mcp_server.toolchains.base import OUTPUT, CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.flags import checked_nvcc_flags, libraries
from gpu_mcp_server.toolchains.linking import Linking

_ARCH = re.compile(r"(sm_\d{2,3})[af]?\Z")


def checked_arch(arch: str, toolchain: Toolchain) -> str:
    """Return the architecture if this nvcc knows it.

    Raises:
        BadRequest: If it does not; the hint names those that it knows.
    """
    match = _ARCH.match(arch)
    known = sorted(toolchain.archs, key=lambda a: (len(a), a))
    says_suffixes = any(not a[-1].isdecimal() for a in known)
    if match is None or (known and (arch if says_suffixes else match.group(1)) not in known):
        names = ", ".join(known) or "such as sm_90"
        raise BadRequest(
            f"{toolchain.title} does not generate code for {arch!r}.",
            hint=f"Known are {names}{'' if says_suffixes else '; sm_90 and later also with the suffix a'}.",
        )
    return arch


def plan(
    source: str,
    toolchain: Toolchain,
    arch: str,
    flags: Sequence[str] = (),
    host_compiler: str | None = None,
    *,
    name: str = "kernel",
    linking: Linking | None = None,
) -> CompilePlan:
    """Plan the build of one translation unit into a shared library, with the CUDA runtime inside.

    Args:
        source: CUDA C++.
        toolchain: nvcc, as found on the host.
        arch: As `sm_90a`.
        flags: Further flags, from the caller.
        host_compiler: Path of g++ or clang++; nvcc searches PATH without it.
        name: File name, for messages.
        linking: In place of its `-l` flags, where the host was asked for the libraries.

    Raises:
        BadRequest: If the architecture or a flag cannot be used.
    """
    given = checked_nvcc_flags(flags)
    file = source_name(name, "cuda")
    argv = [toolchain.path, "-shared", "-Xcompiler=-fPIC", "-Xlinker=-z,defs"]
    argv += [*nvcc_options(checked_arch(arch, toolchain)), "-cudart=static", "-Xptxas=-v"]
    if not any(f.startswith("-O") and not f.startswith("-Ofast") for f in given):
        argv.append("-O3")
    if not any(f.startswith("-std=") for f in given):
        argv.append("-std=c++17")
    if "-G" not in given and "-lineinfo" not in given:
        argv.append("-lineinfo")
    if host_compiler is not None:
        argv.append(f"-ccbin={host_compiler}")
    # ptxas names lines of its own input, or kernels; only a kept listing leads from there to the source.
    argv.append("-keep")
    listings = (file.rpartition(".")[0] + ".ptx",)
    files = {file: source}
    if malloc_wrapper.MENTIONED.search(source):
        argv += malloc_wrapper.ARGUMENTS
        files[malloc_wrapper.HEADER] = malloc_wrapper.TEXT
    late = libraries(given)
    given = tuple(f for f in given if f not in late)
    linking = linking or Linking(libraries=late)
    argv += [*given, *linking.include, "-o", OUTPUT, file, *linking.libraries]
    path = ":".join([*(f"{root}/bin" for root in toolchain.roots), "/usr/local/bin", "/usr/bin", "/bin"])
    return CompilePlan(
        tuple(argv),
        files,
        {"LC_ALL": "C", "PATH": path},
        listings=listings,
        roots=(*toolchain.roots, *linking.roots),
        long=True,
    )
