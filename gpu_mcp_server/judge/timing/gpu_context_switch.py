"""Plays a player's part on a GPU besides calls: it switches in, and is busy for a known time in empty passes."""

import time
from ctypes import c_uint64

from ..devices.cuda_driver import Driver, Kernels

SCRATCH_BYTES = 256
KERNELS = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry touch(.param .u64 at)
{
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [at];
    cvta.to.global.u64 %a, %a;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %begin, %now, %limit;
    .reg .pred %early;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
    ret;
}
\0"""
"""Source: PTX ISA, special register %globaltimer: nanoseconds of a clock that all multiprocessors share."""


class GpuTurns:
    """A process's turns on the GPU, by kernels of the judge's own in the context that is current."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.scratch = driver.allocate(SCRATCH_BYTES)
        self.kernels = Kernels(driver, KERNELS)

    def ping(self) -> None:
        """Switch in by a kernel: a small memset goes another way and leaves the multiprocessors to the owner."""
        self.launch_touch()
        self.driver.synchronize()

    def launch_touch(self) -> None:
        """Launch the kernel that switches in, without a wait for it."""
        self.kernels.launch("touch", 1, [c_uint64(self.scratch)])

    def spin(self, seconds: float) -> float:
        """Keep the GPU busy for a while by its own clock, and wait for it; return for how long.

        Launching and waiting are a part of what a pass costs, as they are of a round. The GPU leaves a context that has
        just been at work later than one that only waited: with passes that were busy on the processor medians lay up to
        0.45 ms a round above those of CUDA events (benchmarks/results/h200-repeats.md).
        """
        begin = time.perf_counter()
        self.kernels.launch("spin", 1, [c_uint64(int(seconds * 1e9))])
        self.driver.synchronize()
        # The GPU's clock and the host's may differ, and no more than the host saw may be taken off.
        return min(seconds, time.perf_counter() - begin)
