"""Puts copies behind a candidate's calls, on the stream that they are given, to keep them apart."""

from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Dict, Optional

from ..devices.cuda_driver import Driver

Copy = CFUNCTYPE(c_int, c_uint64, c_uint64, c_size_t, c_void_p)
"""cuMemcpyDtoDAsync: where to, where from, bytes, stream. Source: cuda.h."""
Place = Callable[[int, int], Optional[int]]
"""Returns where an output of a call's answer lies, None where it is in its own place."""
LEGACY = None
"""The stream that calls are given. Streams that do not say otherwise wait for what is on it, and it for them."""


class Separators(Structure):
    """A copy of a few bytes of an answer behind each call, from another place of it each time; as calls.c reads it."""

    _fields_ = [
        ("copy", Copy),
        ("to", c_uint64),
        ("at", POINTER(c_int64)),  # where each output lies of the answer to the first call that is copied
        ("bytes", POINTER(c_int64)),  # that are copied of each output
        ("span", POINTER(c_int64)),  # places at which they may begin
        ("outputs", c_int64),
        ("first", c_int64),  # of call i, numbered from 0, output (first + i) % outputs is copied
        ("stride", c_int64),
        ("slot", c_int64),  # bytes from what is copied behind one call to what is behind the next
        ("offset", c_int64),
        ("step", c_int64),  # bytes are copied from (offset + i step) % span on
        ("count", c_int64),  # calls that have one behind them
        ("code", c_int64),
    ]
    code: int
    """What copying returned that went wrong."""

    def __call__(self, call: int, place: Optional[Place] = None) -> None:
        """Put the copy behind a call, whose output lies elsewhere if `place` says where."""
        if call < self.count:
            output = (self.first + call) % self.outputs
            answer = place(call, output) if place is not None else None
            answer = self.at[output] + call * self.stride if answer is None else answer
            at = answer + (self.offset + call * self.step) % self.span[output]
            self.code |= self.copy(self.to + call * self.slot, at, self.bytes[output], LEGACY)


def separators(driver: Driver, asked: Dict[str, Any], outputs: Dict[str, Any], base: int) -> Separators:
    """Return what the owner asked for (`CudaBuffers.separators`), of outputs mapped at `base` in the layout it told."""
    # The C loop gets the driver's function pointer and thus needs no CUDA header or library itself.
    copy, stride, count = Copy(("cuMemcpyDtoDAsync_v2", driver.library)), int(outputs["stride"]), len(asked["bytes"])
    at = [base + int(offset) + int(asked["ahead"]) * stride for offset in outputs["offsets"]]
    of_each = ((c_int64 * count)(*map(int, values)) for values in (at, asked["bytes"], asked["spans"]))
    numbers = (int(asked[name]) for name in ("slot", "offset", "step", "calls"))
    return Separators(copy, base + int(asked["room"]), *of_each, count, int(asked["first"]), stride, *numbers, 0)
