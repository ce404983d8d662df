"""What a candidate puts behind calls that are to be kept apart: copies on the stream that they are given."""

from ctypes import CFUNCTYPE, Structure, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Dict, Optional

from cuda_driver import Driver

Copy = CFUNCTYPE(c_int, c_uint64, c_uint64, c_size_t, c_void_p)
"""cuMemcpyDtoDAsync: where to, where from, bytes, stream. Source: cuda.h."""
LEGACY = None
"""The stream that calls are given. Streams that do not say otherwise wait for what is on it, and it for them."""


class Separators(Structure):
    """A copy of a few bytes of an answer behind each call, from another place of it each time; as calls.c reads it."""

    _fields_ = [
        ("copy", Copy),
        ("to", c_uint64),
        ("at", c_uint64),
        ("stride", c_int64),
        ("bytes", c_int64),
        ("offset", c_int64),
        ("step", c_int64),
        ("span", c_int64),
        ("count", c_int64),
        ("code", c_int64),
    ]

    copy: Any
    to: int
    at: int
    """Where the answer to the first call lies that is copied."""
    stride: int
    bytes: int
    offset: int
    step: int
    span: int
    """Of call i, numbered from 0, bytes are copied from (offset + i step) % span on."""
    count: int
    """Calls that have one behind them."""
    code: int
    """What copying returned that went wrong."""
    output: int
    """Which one of the answer."""

    def __call__(self, call: int, answer: Optional[int] = None) -> None:
        """Put the copy behind a call, whose answer lies elsewhere if an address is given."""
        if call < self.count:
            answer = self.at + call * self.stride if answer is None else answer
            at = answer + (self.offset + call * self.step) % self.span
            self.code |= self.copy(self.to + call * self.bytes, at, self.bytes, LEGACY)


def separators(driver: Driver, asked: Dict[str, Any], outputs: Dict[str, Any], base: int) -> Separators:
    """Return what the owner asked for (`CudaBuffers.separators`).

    Args:
        driver: Of the device.
        asked: By the owner.
        outputs: Their layout, as it was told when they were mapped.
        base: Where they are mapped.
    """
    copy, stride = Copy(("cuMemcpyDtoDAsync_v2", driver.library)), int(outputs["stride"])
    at = base + int(outputs["offsets"][asked["output"]]) + int(asked["ahead"]) * stride
    numbers = (int(asked[name]) for name in ("bytes", "offset", "step", "span", "calls"))
    made = Separators(copy, base + int(asked["room"]), at, stride, *numbers, 0)
    made.output = int(asked["output"])
    return made
