"""Triton's compiler, used once before there is a job: its first kernel takes a third of a second more than the next.

Imported only in processes that wait for a job on a GPU, after Triton; touches no GPU, as the target is named.
"""
# pyright: reportUnknownArgumentType=false

import importlib
import os
from typing import Any

from ..folders import WORK
from .python_file import CACHES
from .triton_cache_key import shorten_cache_keys

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")
TARGET = ("cuda", 80, 32)
"""Of the kernel that is thrown away; what is loaded for it serves all of NVIDIA's."""
SIGNATURE = {"x": "*fp32", "y": "*fp32", "n": "i32"}


@triton.jit  # type: ignore[misc]
def scale(x, y, n):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - Triton reads annotations
    """Be compiled; goes through the passes for loops and matrix units."""
    at = tl.arange(0, 32)
    total = tl.zeros((32, 32), dtype=tl.float32)
    for start in range(0, n, 32):
        part = tl.load(x + (start + at)[:, None] * 32 + at[None, :])
        total = tl.dot(part, part, total)
    tl.store(y + at[:, None] * 32 + at[None, :], total)


def prepare() -> None:
    """Compile a kernel, and Triton's own C module, which the first launch builds and finds then."""
    os.environ["TRITON_CACHE_DIR"] = folder = os.path.join(WORK, ".cache", CACHES["TRITON_CACHE_DIR"])
    os.makedirs(folder, exist_ok=True)
    shorten_cache_keys()
    try:
        compiler: Any = importlib.import_module("triton.compiler")
        backends: Any = importlib.import_module("triton.backends.compiler")
        triton.compile(compiler.ASTSource(scale, SIGNATURE, {}), target=backends.GPUTarget(*TARGET))
        driver: Any = importlib.import_module("triton.backends.nvidia.driver")
        driver.CudaUtils()
    except Exception:
        return  # another version, no C compiler, no driver: the candidate's own first kernel says what is missing
