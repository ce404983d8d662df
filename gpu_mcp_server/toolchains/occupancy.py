"""Compute how many blocks of a kernel fit on one multiprocessor, from what it takes; nothing is run.

Source: NVIDIA, CUDA C++ Programming Guide 13.0, "Compute Capabilities", table "Technical Specifications per Compute
Capability"; the arithmetic is that of `cuda_occupancy.h` of the toolkit (registers are given out to a warp in units of
256 within a quarter of the multiprocessor, shared memory in units of 128 bytes, 1 KiB a block is the system's own from
8.0 on). AMD: LLVM, `AMDGPUBaseInfo.cpp` (getTotalNumVGPRs, getVGPRAllocGranule, getMaxWavesPerEU,
getMaxWorkGroupsPerCU, getAddressableLocalMemorySize), and AMD's ISA documents of CDNA 2, CDNA 3 and RDNA 2, 3.
"""

import re
from dataclasses import dataclass

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import KernelResources, Occupancy

KIB = 1024
MAX_BLOCK = 1024


@dataclass(frozen=True)
class MultiprocessorLimits:
    """Limits of one multiprocessor (compute unit).

    Attributes:
        warps: Warps (waves) at once.
        blocks: Blocks at once.
        shared: Bytes of shared memory (LDS).
        block_shared: Bytes that one block may take at most.
        warp: Threads of a warp.
        registers: 32-bit registers, for NVIDIA of the multiprocessor, for AMD vector registers of a lane of one SIMD.
        granule: Registers are given out in multiples of it: to a warp, for AMD to a thread.
        parts: Quarters or SIMDs among which warps are spread.
        reserved: Bytes of shared memory that each block takes besides its own.
        shared_granule: Bytes in which shared memory is given out.
    """

    warps: int
    blocks: int
    shared: int
    block_shared: int
    warp: int = 32
    registers: int = 65536
    granule: int = 256
    parts: int = 4
    reserved: int = 1 * KIB
    shared_granule: int = 128

    @property
    def threads(self) -> int:
        """Threads at once."""
        return self.warps * self.warp


def _cdna(lds: int = 64 * KIB) -> MultiprocessorLimits:
    return MultiprocessorLimits(32, 16, lds, lds, 64, 512, 8, 4, 0, 512)


def _rdna(registers: int, granule: int) -> MultiprocessorLimits:
    # A compute unit of two SIMDs, wave32; its half of the workgroup processor's 128 KiB.
    return MultiprocessorLimits(32, 16, 64 * KIB, 64 * KIB, 32, registers, granule, 2, 0, 512)


NVIDIA = {
    "75": MultiprocessorLimits(32, 16, 64 * KIB, 64 * KIB, reserved=0, shared_granule=256),
    "80": MultiprocessorLimits(64, 32, 164 * KIB, 163 * KIB),
    "86": MultiprocessorLimits(48, 16, 100 * KIB, 99 * KIB),
    "87": MultiprocessorLimits(48, 16, 164 * KIB, 163 * KIB),
    "88": MultiprocessorLimits(48, 16, 100 * KIB, 99 * KIB),
    "89": MultiprocessorLimits(48, 24, 100 * KIB, 99 * KIB),
    "90": MultiprocessorLimits(64, 32, 228 * KIB, 227 * KIB),
    "100": MultiprocessorLimits(64, 32, 228 * KIB, 227 * KIB),
    "103": MultiprocessorLimits(64, 32, 228 * KIB, 227 * KIB),
    "110": MultiprocessorLimits(48, 24, 228 * KIB, 227 * KIB),
    "120": MultiprocessorLimits(48, 24, 100 * KIB, 99 * KIB),
    "121": MultiprocessorLimits(48, 24, 100 * KIB, 99 * KIB),
}
AMD = {
    "gfx90a": _cdna(),
    "gfx940": _cdna(),
    "gfx941": _cdna(),
    "gfx942": _cdna(),
    "gfx950": _cdna(160 * KIB),
    "gfx1030": _rdna(1024, 16),
    "gfx1031": _rdna(1024, 16),
    "gfx1032": _rdna(1024, 16),
    "gfx1100": _rdna(1536, 24),
    "gfx1101": _rdna(1536, 24),
    "gfx1102": _rdna(1024, 16),
    "gfx1103": _rdna(1024, 16),
    "gfx1200": _rdna(1536, 24),
    "gfx1201": _rdna(1536, 24),
}


def limits_of(arch: str) -> MultiprocessorLimits | None:
    """Return the limits of an architecture such as sm_90a or gfx90a:xnack-, `None` if they are not in the table."""
    match = re.match(r"sm_(\d{2,3})[af]?$", arch)
    return NVIDIA.get(match[1]) if match else AMD.get(arch.partition(":")[0])


def checked_block(block: int) -> None:
    """Check the threads of a block.

    Raises:
        BadRequest: If no block has so many.
    """
    if not 0 < block <= MAX_BLOCK:
        raise BadRequest(f"A block has 1 to {MAX_BLOCK} threads, not {block}.", hint="Give `block` within that.")


def occupancy(kernel: KernelResources, block: int, dynamic_shared: int = 0) -> Occupancy | None:
    """Return how many blocks of so many threads fit at once, and what ends it; `None` for unknown architectures.

    Args:
        kernel: What it takes.
        block: Threads of a block.
        dynamic_shared: Bytes of shared memory given at the launch.

    Raises:
        BadRequest: If no block has so many threads.
    """
    checked_block(block)
    limits = limits_of(kernel.arch)
    if limits is None:
        return None
    warps = -(-block // limits.warp)
    shared = kernel.shared_bytes + dynamic_shared
    taken = _up(shared, limits.shared_granule) + limits.reserved
    by = {
        "warps": limits.warps // warps,
        "registers": _by_registers(kernel, warps, limits),
        "shared memory": (limits.shared // taken if taken else limits.blocks) if shared <= limits.block_shared else 0,
        "blocks": limits.blocks if warps > 1 or kernel.arch.startswith("sm_") else limits.warps,
    }
    limiter = min(by, key=lambda name: by[name])
    return Occupancy(
        block_threads=block,
        blocks=by[limiter],
        percent=round(100.0 * by[limiter] * warps / limits.warps, 1),
        limiter=limiter,
    )


def amd_waves(registers: int, limits: MultiprocessorLimits) -> int:
    """Return the waves of a SIMD that so many vector registers of a thread leave room for."""
    return min(limits.registers // max(_up(registers, limits.granule), 1), limits.warps // limits.parts)


def _by_registers(kernel: KernelResources, warps: int, limits: MultiprocessorLimits) -> int:
    if kernel.arch.startswith("gfx"):
        # From gfx90a on accumulation registers come from the same file, behind the others at a multiple of 4.
        both = _up(kernel.registers_per_thread, 4) + (kernel.accumulation_registers or 0)
        registers = both if kernel.accumulation_registers else kernel.registers_per_thread
        if _up(registers, limits.granule) > limits.registers:
            return 0
        return amd_waves(registers, limits) * limits.parts // warps
    a_warp = _up(max(kernel.registers_per_thread, 1) * limits.warp, limits.granule)
    in_part = limits.registers // limits.parts // a_warp
    return in_part * limits.parts // _up(warps, limits.parts)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
