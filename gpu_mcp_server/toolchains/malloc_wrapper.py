"""Report a launcher's allocations when the GPU's memory was not enough: wrappers, put in at link time.

The CUDA runtime is linked statically and hides its symbols, so nothing can be put before it later. A source that
allocates gets a header in front; the linker turns its calls of `cudaMalloc` and its kin into calls of these functions.
Source: GNU ld, option --wrap; CUDA Runtime API 13.0, section Memory Management.
"""

import re
from typing import Final

HEADER: Final = "gpu_mcp_allocations.h"
MENTIONED: Final = re.compile(r"\bcuda(?:Malloc|HostAlloc)|\bthrust\b")
FUNCTIONS: Final = {
    "cudaMalloc": ("G **at, S bytes", "at, bytes"),
    "cudaMallocAsync": ("G **at, S bytes, G *stream", "at, bytes, stream"),
    "cudaMallocFromPoolAsync": ("G **at, S bytes, G *pool, G *stream", "at, bytes, pool, stream"),
    "cudaMallocManaged": ("G **at, S bytes, unsigned flags", "at, bytes, flags"),
    "cudaMallocHost": ("G **at, S bytes", "at, bytes"),
    "cudaHostAlloc": ("G **at, S bytes, unsigned flags", "at, bytes, flags"),
    "cudaMallocPitch": ("G **at, S *pitch, S width, S bytes", "at, pitch, width, bytes"),
}
"""By name, in the order in which judge/candidate/shared_library.py knows them; `bytes` of the last are rows."""


def _wrapper(number: int, name: str, parameters: str, arguments: str) -> str:
    declared = re.sub(r"\bG\b", "void", re.sub(r"\bS\b", "unsigned long", parameters))
    size = "width * bytes" if "width" in parameters else "bytes"
    return (
        f"int __real_{name}({declared});\n"
        f"int __wrap_{name}({declared}) {{\n"
        f"  int code = __real_{name}({arguments});\n"
        f"  if (code) gpu_mcp_asked[0] = code, gpu_mcp_asked[1] = {number}, gpu_mcp_asked[2] = {size};\n"
        "  return code;\n"
        "}\n"
    )


TEXT: Final = "\n".join(
    [
        "#pragma once",
        'extern "C" {',
        '__attribute__((visibility("default"))) unsigned long gpu_mcp_asked[3] = {0, 0, 0};',
        *(_wrapper(number, name, *both) for number, (name, both) in enumerate(FUNCTIONS.items())),
        "}",
        "",
    ]
)
"""`gpu_mcp_asked`: error code, function and bytes of the allocation that failed last."""

ARGUMENTS: Final = ("-include", HEADER, *(f"-Xlinker=--wrap={name}" for name in FUNCTIONS))
"""For nvcc."""
