"""CUDA kernels without host code, by NVRTC: the compiler without the cost of starting one.

Source: CUDA 13.0 documentation, "NVRTC", section "Supported Compile Options".
"""

import re
from collections.abc import Sequence

from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.c_source import strip_comments_and_strings
from gpu_mcp_server.toolchains.flags import checked_nvrtc_flags
from gpu_mcp_server.toolchains.nvcc import checked_arch

CUBIN = "kernel.cubin"
PTX = "kernel.ptx"

_HOST = re.compile(
    r"<<<|\bmain\s*\(|\bcuda(?!_)[A-Z]\w*|\bstd\s*::(?!\s*u?int(?:8|16|32|64)_t\b)|\bextern\s+\"\"\s+int\b|__host__"
)
_INCLUDE = re.compile(r"^[^\S\n]*#\s*include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_KNOWN_HEADER = re.compile(
    r"c?(?:stdint|stddef|float|limits|math)(?:\.h)?$|cuda_(?:fp16|bf16|fp8|fp6|fp4|runtime|pipeline)\.h(?:pp)?$|mma\.h$"
    r"|cooperative_groups(?:\.h|/.*)$|cuda/(?!std/)|cuda/std/|device_launch_parameters\.h$"
)
_MORE_THAN_MINIMAL = re.compile(r"\bcuda|\btex|\bsurf|cooperative_groups|#\s*include")
_NOT_FOR_NVRTC = re.compile(
    r"host functions are not allowed in JIT mode|open source file|namespace \"std\" has no member"
    r"|name followed by \"::\" must be a class or namespace"
)


def device_only(source: str) -> bool:
    """Say whether a source looks like kernels and nothing for the host; NVRTC has the last word."""
    includes = _INCLUDE.findall(source)
    code = strip_comments_and_strings(source)
    return (
        "__global__" in code and not _HOST.search(code) and all(_KNOWN_HEADER.match(name.strip()) for name in includes)
    )


def should_retry_with_nvcc(diagnostics: Sequence[Diagnostic]) -> bool:
    """Say whether the errors are NVRTC's limits and not the source's."""
    return any(d.severity == "error" and _NOT_FOR_NVRTC.search(d.message) for d in diagnostics)


def plan(
    source: str, toolchain: Toolchain, arch: str, flags: Sequence[str] = (), *, name: str = "kernel"
) -> CompilePlan:
    """Plan the build of kernels into a cubin; its PTX comes along.

    Raises:
        BadRequest: If the architecture or a flag cannot be used.
    """
    file = source_name(name, "cuda")
    given = checked_nvrtc_flags(flags)
    options = [f"-arch={checked_arch(arch, toolchain)}", "--ptxas-options=-v"]
    if not any(f.startswith("-std=") for f in given):
        options.append("-std=c++17")
    if "-G" not in given:
        options.append("-lineinfo")
    if not _MORE_THAN_MINIMAL.search(source):
        options.append("-minimal")  # leaves out textures and the runtime's own types
    options += [f"-I{folder}" for folder in toolchain.include]
    return CompilePlan(
        ("nvrtc", file, CUBIN, PTX, *options, *given),
        {file: source},
        {"LC_ALL": "C"},
        output=CUBIN,
        listings=(PTX,),
        roots=toolchain.roots,
        worker="nvrtc",
        warm=f"LIBRARIES = {[*toolchain.builtins, toolchain.path]!r}\n",
    )


def phases_ms(log: str) -> dict[str, float]:
    """Return what each phase took, from the table of `--time`."""
    return {
        match[1].strip(): float(match[2])
        for match in re.finditer(
            r"^[^,\n]{1,300},\s*([A-Za-z+ ]{2,40}),\s*(\d{1,9}(?:\.\d{1,6})?),\s*ms\s*$", log, re.MULTILINE
        )
    }
