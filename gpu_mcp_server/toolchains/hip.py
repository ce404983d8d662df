"""HIP for AMD's GPUs, by hipcc or a plain clang.

Source: `clang --help`, LLVM's "User Guide for AMDGPU Backend" (target IDs, processors), HIP's documentation of hipcc.
"""

import re
from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains.base import OUTPUT, CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.flags import checked_hip_flags, libraries

_ARCH = re.compile(r"(gfx[0-9a-f]{3,4})(?::(?:sramecc|xnack)[+-]){0,2}\Z")


def choose(toolchains: Sequence[Toolchain], arch: str) -> Toolchain:
    """Return the first compiler that knows an architecture.

    Raises:
        BadRequest: If none does; the hint names those that each knows.
    """
    match = _ARCH.match(arch)
    for toolchain in toolchains:
        if match and match.group(1) in toolchain.archs:
            return toolchain
    known = "; ".join(f"{t.title}: {', '.join(a for a in t.archs if a >= 'gfx9' or len(a) > 6)}" for t in toolchains)
    raise BadRequest(
        f"No HIP compiler of this host generates code for {arch!r}.",
        hint=f"Known are {known}; features may follow, as in gfx90a:xnack-.",
    )


def plan(
    source: str, toolchain: Toolchain, arch: str, flags: Sequence[str] = (), *, name: str = "kernel"
) -> CompilePlan:
    """Plan the build of one translation unit into a shared library.

    HIP_PLATFORM is set: with nvcc on the PATH hipcc would otherwise hand the source to it.

    Raises:
        BadRequest: If a flag cannot be used.
    """
    given = checked_hip_flags(flags)
    file = source_name(name, "hip")
    argv = [toolchain.path, "-x", "hip", f"--offload-arch={arch}", "-shared", "-fPIC", "-Wl,-z,defs"]
    argv += ["-fno-color-diagnostics", "-Rpass-analysis=kernel-resource-usage"]
    if not any(f.startswith("-O") for f in given):
        argv.append("-O3")
    if not any(f.startswith("-std=") for f in given):
        argv.append("-std=c++17")
    if not any(f.startswith("-g") and not f.startswith("-gpu") for f in given):
        argv.append("-gline-tables-only")
    late = libraries(given)
    argv += [*(f for f in given if f not in late), "-o", OUTPUT, file, *late]
    worker = ""
    if toolchain.name != "hipcc":
        argv += [f"-L{toolchain.libraries}", "-lamdhip64"]
        argv = ["hip_clang", toolchain.device_libs, arch.partition(":")[0], *argv]
        worker = "hip_clang"
    env = {"LC_ALL": "C", "HIP_PLATFORM": "amd", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return CompilePlan(tuple(argv), {file: source}, env, roots=toolchain.roots, worker=worker, long=True)
