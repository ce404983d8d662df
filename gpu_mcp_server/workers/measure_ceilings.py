"""Measures what this GPU reaches at best: bytes a second of a copy, and float32 FMAs a second; prints both as JSON.

It needs the driver alone: the kernel is PTX, which the driver compiles for any of NVIDIA's GPUs since CC 5.0.

Source: cuda.h; device attribute 16 is the number of multiprocessors.
"""

import ctypes
import json
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

SUMS, UNROLLED, THREADS, BLOCKS = 16, 16, 256, 8
"""Independent sums of a thread, FMAs of each before the loop ends, threads of a block, blocks for each SM."""
LOOPS = 4096
COPY_BYTES = 1 << 30
COPIES = 8
"""In a row, so that starting them counts little."""
REPEATS = 5
WARM_S = 0.3
"""For the clocks to rise."""


def ptx() -> bytes:
    """Return a kernel of FMAs whose sums depend on the thread, so that no assembler can leave them out."""
    loop = "".join(
        "fma.rn.f32 %%f%d, %%f%d, %%f%d, %%f%d;\n" % (n, n, SUMS, SUMS + 1)
        for _ in range(UNROLLED)
        for n in range(SUMS)
    )
    begin = "".join("mov.f32 %%f%d, %%f%d;\n" % (n, SUMS + 1) for n in range(SUMS))
    add = "".join("add.rn.f32 %%f0, %%f0, %%f%d;\n" % n for n in range(1, SUMS))
    text = """.version 6.0
.target sm_50
.address_size 64
.visible .entry fma_loop(.param .u64 out, .param .u32 loops) {
    .reg .pred %%p<3>;
    .reg .f32 %%f<%d>;
    .reg .b32 %%r<4>;
    .reg .b64 %%rd<3>;
    mov.u32 %%r1, %%tid.x;
    cvt.rn.f32.u32 %%f%d, %%r1;
    mov.f32 %%f%d, 0f3F7FFFFF;
    ld.param.u32 %%r2, [loops];
    mov.u32 %%r3, 0;
    %s
AGAIN:
    %s
    add.u32 %%r3, %%r3, 1;
    setp.lt.u32 %%p1, %%r3, %%r2;
    @%%p1 bra AGAIN;
    %s
    setp.eq.f32 %%p2, %%f0, 0fBF800000;
    ld.param.u64 %%rd1, [out];
    cvta.to.global.u64 %%rd2, %%rd1;
    @%%p2 st.global.f32 [%%rd2], %%f0;
    ret;
}
\0""" % (SUMS + 2, SUMS + 1, SUMS, begin, loop, add)
    return text.encode()


class MeasuredGpu:
    """The driver's calls, with the first GPU that is visible."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.device = device

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver.

        Raises:
            OSError: With the driver's name of the error.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise OSError("%s: %s" % (name, (text.value or b"error %d" % code).decode()))

    def describe_device(self) -> Tuple[str, int]:
        """Return the device's name and how many multiprocessors it has."""
        name, count = ctypes.create_string_buffer(200), ctypes.c_int()
        self.call("cuDeviceGetName", name, 200, self.device)
        self.call("cuDeviceGetAttribute", ctypes.byref(count), 16, self.device)
        return name.value.decode("utf-8", "replace"), count.value

    def allocate(self, size: int) -> Any:
        """Return memory of the device."""
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory

    def shortest_s(self, work: Callable[[], None]) -> float:
        """Return how long work takes at best, by the device's own events, after the clocks have risen."""
        events: List[Any] = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        until = time.monotonic() + WARM_S
        while time.monotonic() < until:
            work()
            self.call("cuCtxSynchronize")
        best = float("inf")
        for _ in range(REPEATS):
            took = ctypes.c_float()
            self.call("cuEventRecord", events[0], None)
            work()
            self.call("cuEventRecord", events[1], None)
            self.call("cuEventSynchronize", events[1])
            self.call("cuEventElapsedTime", ctypes.byref(took), events[0], events[1])
            best = min(best, took.value / 1000)
        return best


def measure_copy(driver: MeasuredGpu) -> float:
    """Return gigabytes a second, read and written, of copies much larger than the caches."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    size = min(COPY_BYTES, free.value // 4)
    source, target = driver.allocate(size), driver.allocate(size)
    driver.call("cuMemsetD8_v2", source, ctypes.c_ubyte(1), ctypes.c_size_t(size))

    def work() -> None:
        for _ in range(COPIES):
            driver.call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), None)

    return 2e-9 * size * COPIES / driver.shortest_s(work)


def measure_fma(driver: MeasuredGpu, sms: int) -> float:
    """Return teraFLOPs a second of float32 FMAs, of which each is two operations."""
    module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), driver.allocate(256)
    driver.call("cuModuleLoadData", ctypes.byref(module), ptx())
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"fma_loop")
    loops = ctypes.c_uint(LOOPS)
    pointers: Sequence[Any] = [ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in (memory, loops)]
    arguments = (ctypes.c_void_p * 2)(*pointers)
    sizes = [ctypes.c_uint(n) for n in (BLOCKS * sms, 1, 1, THREADS, 1, 1, 0)]

    def work() -> None:
        driver.call("cuLaunchKernel", function, *sizes, None, arguments, None)

    done = 2e-12 * SUMS * UNROLLED * LOOPS * THREADS * BLOCKS * sms
    return done / driver.shortest_s(work)


def main() -> None:
    """Measure and print; what cannot be measured says why."""
    found: Dict[str, Any] = {}
    try:
        driver = MeasuredGpu()
        found["device"], sms = driver.describe_device()
        found["copy_gb_s"] = measure_copy(driver)
        found["fma_tflop_s"] = measure_fma(driver, sms)
    except (OSError, AttributeError) as error:
        found["why"] = str(error)[:200]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
