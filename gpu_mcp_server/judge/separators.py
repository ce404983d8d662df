"""What a candidate puts behind calls that are to be kept apart: copies on the stream that they are given."""

from ctypes import CFUNCTYPE, Structure, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Dict

from cuda_driver import Driver

Copy = CFUNCTYPE(c_int, c_uint64, c_uint64, c_size_t, c_void_p)
"""cuMemcpyDtoDAsync: where to, where from, bytes, stream. Source: cuda.h."""
LEGACY = None
"""The stream that calls are given. Streams that do not say otherwise wait for what is on it, and it for them."""


class Separators(Structure):
    """A copy of a few bytes of each call's answer, as calls.c reads it."""

    _fields_ = [("copy", Copy), ("to", c_uint64), ("at", c_uint64), ("stride", c_int64), ("bytes", c_int64)]

    copy: Any
    to: int
    at: int
    stride: int
    bytes: int

    def __call__(self, call: int) -> None:
        """Put the copy behind a call, numbered from 0; an error shows when the work is waited for."""
        self.copy(self.to + call * self.bytes, self.at + call * self.stride, self.bytes, LEGACY)


def separators(driver: Driver, asked: Dict[str, Any], outputs: Dict[str, Any], base: int) -> Separators:
    """Return what the owner asked for: `bytes` of output number `output` from `offset` on, copied to `room` and on.

    Args:
        driver: Of the device.
        asked: By the owner.
        outputs: Their layout, as it was told when they were mapped.
        base: Where they are mapped.
    """
    copy = Copy(("cuMemcpyDtoDAsync_v2", driver.library))
    at = base + int(outputs["offsets"][asked["output"]]) + int(asked["offset"])
    return Separators(copy, base + int(asked["room"]), at, int(outputs["stride"]), int(asked["bytes"]))


def rehearse(driver: Driver, scratch: int, size: int, count: int) -> None:
    """Copy so often in memory of the process's own, and wait: what separators cost where nothing is between them."""
    half = size // 2
    one = Separators(Copy(("cuMemcpyDtoDAsync_v2", driver.library)), scratch, scratch + half, 0, half)
    for _ in range(count):
        one(0)
    driver.synchronize()
