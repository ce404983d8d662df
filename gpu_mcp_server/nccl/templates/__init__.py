"""The code that a transformed program includes: frozen infrastructure, and kernels that may evolve."""

from importlib.resources import files
from typing import Literal

INFRASTRUCTURE = "ncclx.cuh"
KERNELS = "ncclx_kernels.cuh"

KernelApi = Literal["lsa", "gin"]


def infrastructure() -> str:
    """Return ncclx.cuh: registry of buffers, windows, device communicators, calls with counted fallback. All frozen."""
    return files(__name__).joinpath("ncclx.cuh").read_text(encoding="utf-8")


def kernels(api: KernelApi = "lsa") -> str:
    """Return ncclx_kernels.cuh: the device side, between EVOLVE-BLOCK markers."""
    return files(__name__).joinpath(f"kernels_{api}.cuh").read_text(encoding="utf-8")
