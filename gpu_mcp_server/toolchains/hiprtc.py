"""HIP kernels without host code, by HIPRTC: the compiler without the cost of starting three programs.

Source: ROCm documentation, "HIP RTC Programming Guide"; outputs of the HIPRTC in libamdhip64 5.2 (clang 15).
"""

import re
from collections.abc import Sequence

from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.c_source import strip_comments_and_strings
from gpu_mcp_server.toolchains.flags import checked_hip_flags

NAME = "hiprtc"
OBJECT = "kernel.hsaco"
_HEADERS = ("stdint", "stddef", "math", "float", "limits")
BUILT_IN = ("hip/hip_runtime.h", "hip/hip_fp16.h", *(f"{h}.h" for h in _HEADERS), *(f"c{h}" for h in _HEADERS))
"""What it knows without a file, or the worker stands in for."""

_HOST = re.compile(
    r"<<<|\bmain\s*\(|\bhip(?!_|blas)[A-Z]\w*\s*\(|\bstd\s*::|\bextern\s+\"\"\s+int\b|__host__|__hip_bfloat|rocwmma"
)
_INCLUDE = re.compile(r"^[^\S\n]*#\s*include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_NOT_FOR_HIPRTC = re.compile(r"file not found|redefinition of|typedef redefinition|unknown type name|no type named")


def device_only(source: str) -> bool:
    """Say whether a source looks like kernels and nothing for the host; HIPRTC has the last word."""
    includes = _INCLUDE.findall(source)
    code = strip_comments_and_strings(source)
    return "__global__" in code and not _HOST.search(code) and all(name.strip() in BUILT_IN for name in includes)


def knows(toolchain: Toolchain, arch: str) -> bool:
    """Say whether it may be given an architecture: the library of ROCm 5.2 aborts at one that it does not know."""
    return arch.partition(":")[0] in toolchain.archs


def should_retry_with_clang(diagnostics: Sequence[Diagnostic]) -> bool:
    """Say whether the errors may be HIPRTC's limits and not the source's."""
    return any(d.severity == "error" and _NOT_FOR_HIPRTC.search(d.message) for d in diagnostics)


def plan(
    source: str, toolchain: Toolchain, arch: str, flags: Sequence[str] = (), *, name: str = "kernel"
) -> CompilePlan:
    """Plan the build of kernels into a code object.

    Raises:
        BadRequest: If a flag cannot be used.
    """
    file = source_name(name, "hip")
    given = [f for f in checked_hip_flags(flags) if not f.startswith("-l")]
    options = [f"--offload-arch={arch}"]
    if not any(f.startswith("-O") for f in given):
        options.append("-O3")
    if not any(f.startswith("-std=") for f in given):
        options.append("-std=c++17")
    if not any(f.startswith("-g") and not f.startswith("-gpu") for f in given):
        options.append("-gline-tables-only")
    return CompilePlan(
        (NAME, file, OBJECT, *options, *given),
        {file: source},
        {"LC_ALL": "C"},
        output=OBJECT,
        roots=toolchain.roots,
        worker=NAME,
        warm=f"LIBRARY = {toolchain.path!r}\nBUILT_IN = {list(BUILT_IN)!r}\n",
    )
