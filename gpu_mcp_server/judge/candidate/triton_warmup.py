"""Triton's compiler, used once before there is a job: its first kernel takes a third of a second more than the next.

Until Triton 3.6 a C compiler makes the module that launches a kernel, after the kernel is compiled and for as long
again, though of the types of its parameters alone. From Triton 3.4 on it is made beside the kernel here: Triton finds
it in its cache.

Imported only in processes that wait for a job on a GPU, after Triton; touches no GPU, as the target is named.
"""
# pyright: reportUnknownArgumentType=false

import importlib
import os
import threading
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
        if hasattr(driver, "make_launcher") and hasattr(driver, "include_dirs"):
            make_launchers_beside(compiler, driver)
    except Exception:
        return  # another version, no C compiler, no driver: the candidate's own first kernel says what is missing


def make_launchers_beside(compiler: Any, driver: Any) -> None:
    """Have the launcher's module of each kernel made while the kernel is compiled."""
    compile_kernel = compiler.compile

    def compile_both(source: Any, *arguments: Any, **named: Any) -> Any:
        beside = threading.Thread(target=_make_launcher, args=(driver, source), daemon=True)
        try:
            beside.start()
        except RuntimeError:  # as many threads as may be
            return compile_kernel(source, *arguments, **named)
        try:
            return compile_kernel(source, *arguments, **named)
        finally:
            beside.join()

    compiler.compile = compile_both


def _make_launcher(driver: Any, source: Any) -> None:
    """Make what Triton's `CudaLauncher` is about to make; what goes wrong here goes wrong there again, and is told."""
    try:
        names = source.fn.arg_names
        constants = {(names.index(k),) if isinstance(k, str) else k: v for k, v in source.constants.items()}
        driver.compile_module_from_src(
            src=driver.make_launcher(constants, dict(source.signature), None),
            name="__triton_launcher",
            library_dirs=driver.library_dirs(),
            include_dirs=driver.include_dirs,
            libraries=driver.libraries,
        )
    except Exception:
        return
