"""Python launchers ahead of time, without a GPU: the file is called, and its languages compile instead of launching."""

import json
import math
import re
from collections.abc import Mapping

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, source_name
from gpu_mcp_server.toolchains.triton import RESULT

NAME = "launcher"
TITLE_CHARACTERS = 80
MOST_ITEMS = 1 << 30
"""Most elements of a tensor; nothing touches its memory."""
_TENSOR = re.compile(r"\*?(?:fp(?:16|32|64)|bf16|i1|[iu]8|i16|i32|i64)\[\d{1,9}(?:,\d{1,9}){0,7}\]")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def plan(
    source: str,
    toolchain: Toolchain,
    arch: str,
    wish: BuildOptions,
    *,
    name: str,
    environment: Mapping[str, str],
    roots: tuple[str, ...],
) -> CompilePlan:
    """Plan the compilation of what a launcher launches.

    Args:
        source: The Python file.
        toolchain: The Python that has its packages.
        arch: An architecture of NVIDIA's.
        wish: Types of the launcher's tensors, its numbers, and its name.
        name: The file's name.
        environment: In which nvcc is found.
        roots: Folders to show for that, besides Python's.

    Raises:
        BadRequest: If the architecture or a type cannot be used, or there are flags.
    """
    if wish.flags:
        raise BadRequest("A Python launcher takes no compiler flags.", hint="Call again without flags.")
    if not _ARCH.fullmatch(arch):
        raise BadRequest(f"Launchers are compiled for NVIDIA alone, not for {arch!r}.", hint="Name one such as sm_90a.")
    for argument, kind in wish.signature.items():
        sizes = kind[:-1].partition("[")[2] if _TENSOR.fullmatch(kind) else ""
        if not sizes or math.prod(map(int, sizes.split(","))) > MOST_ITEMS:
            raise BadRequest(
                f"{kind!r} is no tensor type ({argument}).",
                hint=f"Such as fp32[64,1000], of at most {MOST_ITEMS} elements; numbers go into constants.",
            )
    file = source_name(name, "launcher")
    request = {
        "file": file,
        "entry": wish.kernel,
        "signature": wish.signature,
        "constants": wish.constants,
        "arch": arch,
    }
    own = {"HOME": "/tmp", "LC_ALL": "C.UTF-8", "TRITON_DEFAULT_FP_FUSION": "1"}  # noqa: S108 - the sandbox's own
    return CompilePlan(
        (toolchain.path, json.dumps(request)),
        {file: source},
        {**environment, **own},
        output="kernel.cubin",
        listings=("kernel.ptx", RESULT),
        roots=(*toolchain.roots, *roots),
        worker="launcher_aot",
        python=toolchain.path,
        long=True,
    )


def compiler_of(about: Mapping[str, object]) -> str:
    """Return which languages compiled, as the worker wrote it beside hostile code; empty where it did not."""
    said = about.get("compiler")
    return said[:TITLE_CHARACTERS] if isinstance(said, str) and said.isprintable() else ""
