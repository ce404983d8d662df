"""A player's side of gates: its stream waits for words of the owner's page, and writes when it has come so far."""

from ctypes import byref, c_float, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple

from ..devices.cuda_driver import CudaError, Driver
from ..memory.mapped_file import Mapping
from ..numerics.stats import median
from .gpu_context_switch import GpuTurns

DEVICE_MAP = 2
AT_LEAST = 0
"""Source: cuda.h, CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_WAIT_VALUE_GEQ; writes have no flags."""
LEGACY_STREAM = c_void_p()
SWEPT_BYTES = 256 << 20
"""Source: https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/timing.py (clear_l2_cache)."""
NO_GATES = "no stream can wait for a word of the host's here (%s)"


class StreamGate:
    """Gates on the legacy default stream, for which every blocking stream waits."""

    def __init__(
        self, driver: Driver, turns: GpuTurns, descriptor: int, offsets: Dict[str, int], *, sweeps: bool = False
    ) -> None:
        """Map the page and show it to the GPU.

        Args:
            driver: Whose context is current.
            turns: With a kernel that does nearly nothing.
            descriptor: Of the owner's page; it is closed.
            offsets: Of the words `first`, `entered`, `timed`, `end`.
            sweeps: Whether calls are to come behind a sweep.

        Raises:
            CudaError: If the driver does not take host memory, lets no stream wait, as in some virtual machines, or has
                no memory to sweep.
        """
        self.driver, self.turns, self.offsets = driver, turns, offsets
        self.page = Mapping(descriptor, writable=True)
        # Host memory, not device memory: the owner opens a gate by a plain store, without a launch or copy of its own.
        driver.call("cuMemHostRegister_v2", c_void_p(self.page.address), c_size_t(self.page.size), c_uint(DEVICE_MAP))
        address = c_uint64()
        driver.call("cuMemHostGetDevicePointer_v2", byref(address), c_void_p(self.page.address), c_uint(0))
        self.base = int(address.value)
        self.swept = driver.allocate(SWEPT_BYTES) if sweeps else 0
        # Both hold at once, as the words are 0: a driver that has neither says so here, and not behind a gate.
        self._wait("first", 0)
        self._write("entered", 0)

    def _wait(self, word: str, value: int) -> None:
        at = c_uint64(self.base + self.offsets[word])
        # A stream memory operation occupies no multiprocessor while it waits, unlike a kernel that spins.
        self.driver.call("cuStreamWaitValue32_v2", LEGACY_STREAM, at, c_uint32(value), c_uint(AT_LEAST))

    def _write(self, word: str, value: int) -> None:
        at = c_uint64(self.base + self.offsets[word])
        self.driver.call("cuStreamWriteValue32_v2", LEGACY_STREAM, at, c_uint32(value), c_uint(0))

    def enter(self, value: int) -> None:
        """Wait for the first gate, have the GPU change to this context by a kernel, and say so."""
        self._wait("first", value)
        self.turns.launch_touch()
        self.begin(value)

    def begin(self, value: int) -> None:
        """Say when the GPU has come to what is launched from now on."""
        self._write("entered", value)

    def begin_swept(self, value: int) -> None:
        """Overwrite as much memory as KernelBench does before a call, and say when the GPU has come to the call."""
        self._sweep()
        self.begin(value)

    def _sweep(self) -> None:
        words = c_size_t(SWEPT_BYTES // 4)
        self.driver.call("cuMemsetD32Async", c_uint64(self.swept), c_uint(0), words, LEGACY_STREAM)

    def time_events(self, count: int) -> float:
        """Return the median of so many times in seconds between two events behind a sweep, and nothing between them."""
        events, taken, between = [c_void_p(), c_void_p()], [0.0] * count, c_float()
        for event in events:
            self.driver.call("cuEventCreate", byref(event), c_uint(0))
        for number in range(count):
            self._sweep()
            for event in events:
                self.driver.call("cuEventRecord", event, LEGACY_STREAM)
            self.driver.synchronize()
            self.driver.call("cuEventElapsedTime", byref(between), *events)
            taken[number] = between.value / 1e3
        for event in events:
            self.driver.call("cuEventDestroy_v2", event)
        return median(taken)

    def close(self, value: int) -> None:
        """Hold back what is launched from now on."""
        self._wait("timed", value)

    def free(self) -> None:
        """Free the memory that is swept, for the gates of another shape."""
        if self.swept:
            self.driver.free(self.swept)
            self.swept = 0

    def end(self, value: int) -> None:
        """Say when all that was launched so far is done."""
        self._write("end", value)


def take_gate(
    before: Optional[StreamGate], gpu: Any, descriptor: int, message: Dict[str, Any]
) -> Tuple[Optional[StreamGate], Dict[str, Any]]:
    """Return gates by words of the owner's page, on a process's `driver` and `turns`, and its reply to the owner."""
    try:
        if before is not None:
            before.free()
        sweeps = message.get("sweeps") is True
        return StreamGate(gpu.driver, gpu.turns, descriptor, message["offsets"], sweeps=sweeps), {}
    except CudaError as error:
        return before, {"error": NO_GATES % error}
