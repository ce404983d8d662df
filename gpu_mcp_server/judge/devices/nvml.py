"""Reads a GPU's state from NVML by ctypes; without NVML there is none."""

import ctypes
from typing import Any, Dict, Optional

from .cuda_driver import is_shown

SM_CLOCK = 1
MEMORY_CLOCK = 2
GPU_TEMPERATURE = 0
"""Source: nvml.h, nvmlClockType_t and nvmlTemperatureSensors_t."""

THROTTLE_REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Source: nvml.h, nvmlClocksThrottleReason*."""


INSUFFICIENT_SIZE = 7
"""Source: nvml.h, NVML_ERROR_INSUFFICIENT_SIZE: of a list without room only the length is told."""
LIBRARY = "libnvidia-ml.so.1"


def prepare() -> None:
    """Begin to use NVML where a GPU is shown already."""
    if is_shown():
        begun()


def begun() -> Any:
    """Return the library, which counts how often it was begun with; `None` where there is none, or no driver to it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    # The library may be installed without a driver, as in images of CUDA; then its start fails.
    return library if library.nvmlInit_v2() == 0 else None


class Nvml:
    """One GPU, found by its UUID."""

    def __init__(self, uuid: str) -> None:
        self.handle: Optional[ctypes.c_void_p] = None
        self.library: Any = begun()
        handle = ctypes.c_void_p()
        if self.library is not None:
            find = self.library.nvmlDeviceGetHandleByUUID
            find.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
            if find(uuid.encode(), ctypes.byref(handle)) == 0:
                self.handle = handle

    def driver(self) -> Optional[str]:
        """Return the driver's version."""
        if self.handle is None:
            return None
        text = ctypes.create_string_buffer(96)
        known = self.library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96)) == 0
        return text.value.decode("utf-8", "replace") if known else None

    def _number(self, name: str, kind: Any, *arguments: int) -> Optional[int]:
        value = kind()
        function = getattr(self.library, name, None)
        if function is None or function(self.handle, *arguments, ctypes.byref(value)) != 0:
            return None
        return None if value.value == kind(-1).value else int(value.value)  # all ones: NVML_VALUE_NOT_AVAILABLE

    def snapshot(self) -> Dict[str, Any]:
        """Return clocks, throttle reasons, temperature and power now."""
        if self.handle is None:
            return {}
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        power = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return {
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK),
            "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", ctypes.c_uint, MEMORY_CLOCK),
            "throttle_reasons": None
            if reasons is None
            else ", ".join(text for bit, text in THROTTLE_REASONS.items() if reasons & bit) or "none",
            "temperature_c": self._number("nvmlDeviceGetTemperature", ctypes.c_int, GPU_TEMPERATURE),
            "power_w": None if power is None else power / 1000,
        }

    def processes(self) -> Optional[int]:
        """Return how many processes compute on this GPU, as far as this namespace is shown them."""
        if self.handle is None:
            return None
        count = ctypes.c_uint(0)
        ask = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if ask is None or ask(self.handle, ctypes.byref(count), None) not in (0, INSUFFICIENT_SIZE):
            return None
        return int(count.value)
