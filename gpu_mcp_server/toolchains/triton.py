"""Triton kernels ahead of time, for NVIDIA and AMD, without a GPU.

Source: triton/tools/compile.py (types and `:16`), triton/backends/*/compiler.py (options, sizes of a wave).
"""

import json
import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions, Diagnostic, KernelResources
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.occupancy import limits_of

RESULT = "result.json"
OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
    "enable_fp_fusion", "allow_fp8e4nv", "default_dot_input_precision", "schedule_hint",
)  # fmt: skip
_TYPE = re.compile(r"\*?(?:k)?(?:i1|[iu](?:8|16|32|64)|fp(?:16|32|64)|bf16|fp8e(?:4nv|4b8|4b15|5|5b16))(?::16)?\Z")
_ARCH = re.compile(r"sm_(\d{2,3})[af]?\Z|(gfx[0-9a-f]{3,4})\Z")


def plan(source: str, toolchain: Toolchain, arch: str, wish: BuildOptions, *, name: str = "kernel") -> CompilePlan:
    """Plan the compilation of one kernel.

    Raises:
        BadRequest: If the architecture, a type or a flag cannot be used.
    """
    if wish.flags:
        raise BadRequest("Triton takes no compiler flags.", hint=f"Options go into constants: {', '.join(OPTIONS)}.")
    for argument, kind in wish.signature.items():
        if not _TYPE.match(kind):
            raise BadRequest(
                f"{kind!r} is no type of a Triton argument ({argument}).",
                hint="The signature is the kernel's, not its launcher's: such as *fp32, *bf16:16 (divisible by 16), "
                "i32, i32:16, fp32; constexprs go into constants.",
            )
    number = _checked_arch(arch, toolchain)
    limits = limits_of(arch)
    amd = arch.startswith("gfx")
    file = source_name(name, "triton")
    request = {
        "file": file,
        "kernel": wish.kernel,
        "signature": wish.signature,
        "constants": wish.constants,
        "backend": "hip" if amd else "cuda",
        "arch": number,
        "warp": limits.warp if limits else (64 if arch.startswith("gfx9") else 32),
        "options": {k: v for k, v in wish.constants.items() if k in OPTIONS},
    }
    env = {
        "HOME": "/tmp",  # noqa: S108 - the sandbox's own
        "TRITON_CACHE_DIR": "/tmp/triton",  # noqa: S108
        "TRITON_DUMP_PTXAS_LOG": "1",
        "TRITON_DEFAULT_FP_FUSION": "1",  # what 3.9 does unasked, without its warning
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
    }
    return CompilePlan(
        (toolchain.path, json.dumps(request, sort_keys=True)),
        {file: source},
        env,
        output="kernel.hsaco" if amd else "kernel.cubin",
        listings=("kernel.amdgcn" if amd else "kernel.ptx", RESULT),
        roots=toolchain.roots,
        worker="triton_aot",
        python=toolchain.path,
        long=True,
    )


def _checked_arch(arch: str, toolchain: Toolchain) -> str:
    match = _ARCH.match(arch)
    if match is None or (toolchain.archs and (f"sm_{match[1]}" if match[1] else match[2]) not in toolchain.archs):
        raise BadRequest(
            f"{toolchain.title} does not generate code for {arch!r}.", hint=f"Known are {', '.join(toolchain.archs)}."
        )
    return match[1] or match[2]


def with_launch(kernels: Sequence[KernelResources], about: Mapping[str, object]) -> list[KernelResources]:
    """Return the kernels with the shared memory that a launch gives them: Triton's is all dynamic."""
    shared = about.get("shared")
    return [
        k.model_copy(update={"shared_bytes": max(k.shared_bytes, shared)}) if isinstance(shared, int) else k
        for k in kernels
    ]


def block_of(about: Mapping[str, object], arch: str) -> int | None:
    """Return the threads of a block: warps times their size."""
    warps, limits = about.get("num_warps"), limits_of(arch)
    return warps * limits.warp if isinstance(warps, int) and limits else None


def shared_memory_error(about: Mapping[str, object], arch: str) -> Diagnostic | None:
    """Return what Triton itself says only at the first launch (OutOfResources)."""
    shared, limits = about.get("shared"), limits_of(arch)
    if not isinstance(shared, int) or limits is None or shared <= limits.block_shared:
        return None
    return Diagnostic(
        severity="warning",
        message=f"out of resource: shared memory, a block needs {shared} bytes, {arch} has {limits.block_shared}",
        code="launch",
        hint="Smaller blocks or fewer num_stages; it compiles, and every launch would fail.",
    )
