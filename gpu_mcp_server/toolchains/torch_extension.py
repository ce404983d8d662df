"""Extensions of torch by the plain compilers: the plan of a C++ or CUDA source, with torch's headers and libraries.

The compiler itself runs, not torch's builder: what it says has lines, and ptxas says registers.

Source: torch/utils/cpp_extension.py of torch 2.13 (flags, libraries); Python's `sysconfig` for Python.h.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpu_mcp_server.models.toolchains import Python
from gpu_mcp_server.toolchains.base import CompilePlan
from gpu_mcp_server.toolchains.torch_bindings import MODULE

NO_OPERATORS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)
"""As torch gives them to nvcc: its own operators stand in for CUDA's."""
GENERATED = {"c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"}
"""What a torch without CUDA lacks of its own headers for CUDA: enough to compile there, though nothing runs."""
NO_UNDEFINED = ("-Wl,-z,defs", "-Xlinker=-z,defs")
"""Options that an extension of tvm-ffi cannot have: symbols are its package's. Torch's is warned: Python's are the
interpreter's, and what else is missing is another file's."""


def standard_flags(flags: Sequence[str], python: Python) -> tuple[str, ...]:
    """Return the flags with the standard of C++ that torch's headers need, unless one is given."""
    if any(flag.startswith("-std=") for flag in flags) or python.torch_build is None:
        return tuple(flags)
    return (f"-std={python.torch_build.standard}", *flags)


def with_torch(plan: CompilePlan, python: Python, *, cuda: bool) -> CompilePlan:
    """Return a plan of `cc` or `nvcc` that builds an extension for a Python's torch.

    Args:
        plan: With the flags of `standard_flags`.
        python: It has torch.
        cuda: Whether nvcc compiles it.
    """
    build = python.torch_build
    if build is None:
        return plan
    torch = f"{python.site}/torch"
    folders = (f"{torch}/include", f"{torch}/include/torch/csrc/api/include", build.include)
    system = [f"-isystem={f}" for f in folders] if cuda else [w for f in folders for w in ("-isystem", f)]
    libraries = [f"-l{name}" for name in build.libraries]
    generated = GENERATED if cuda and "c10_cuda" not in build.libraries else {}
    more = (
        f"-DTORCH_EXTENSION_NAME={MODULE}",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(build.cxx11)}",
        *(NO_OPERATORS if cuda else ()),
        *(("-isystem=.",) if generated else ()),
        *system,
        f"-L{torch}/lib",
        *libraries,
    )
    return replace(
        plan,
        files={**plan.files, **generated},
        argv=(*plan.argv, f"-{'Xlinker=' if cuda else 'Wl,'}--warn-unresolved-symbols", *more),
        roots=tuple(dict.fromkeys((*plan.roots, *python.roots))),
        long=True,
    )
