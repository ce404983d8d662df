"""The calls of a round, prepared: made by a compiled loop, or by Python's where there is none."""

import ctypes
import os
from typing import Any, Callable, Dict, List, Optional

from ..folders import CODE

Reply = Dict[str, Any]

LOOP = os.path.join(CODE, "calls.so")
MOST_ARGUMENTS = 40
"""As many as calls.c knows."""
COMPILED = "compiled C"


def loop_or_why() -> Any:
    """Return the compiled loop, or a text that says why there is none."""
    if not os.path.exists(LOOP):
        return "Python: no C compiler on this host"
    try:
        loop = ctypes.CDLL(LOOP).make_calls
    except (OSError, AttributeError) as error:
        return "Python: %s" % str(error)[:200]
    loop.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loop.argtypes = [pointer, pointer, number, number, ctypes.POINTER(ctypes.c_int), pointer, pointer]
    return loop


def saying(returned: Optional[int]) -> Callable[[int], None]:
    """Return what says at an address how many calls have returned; of no address, what does nothing."""
    if returned is None:
        return lambda calls: None
    # An aligned 64-bit store is atomic on x86-64 and AArch64: the owner never reads half a number.
    place = ctypes.c_int64.from_address(returned)
    return lambda calls: setattr(place, "value", calls)


class BetweenWords:
    """Comes behind each call: says that it has ended, waits for the GPU, sweeps, and says that the next one begins."""

    def __init__(self, gate: Any, value: int, calls: int, finish: Callable[[], str]) -> None:
        """Say that the first one begins, by the word's `value`; `finish` waits and returns an error."""
        self.gate, self.value, self.calls, self.finish, self.error = gate, value, calls, finish, ""
        gate.begin_swept(value)

    def __call__(self, call: int, place: Any = None) -> None:
        """Come behind a call, numbered from 0, wherever its answer lies."""
        self.gate.end(self.value + call)
        self.error = self.error or self.finish()
        if call + 1 < self.calls:
            self.gate.begin_swept(self.value + call + 1)


class Calls:
    """The arguments of every call of a round, each an address or a 64-bit integer."""

    def __init__(self, loop: Any, launch: Any, rows: List[List[int]], returned: Optional[int] = None) -> None:
        """Prepare a call of `launch` for each of some rows, by what `loop_or_why` returns.

        How many calls of a round have returned is written to the address `returned`, where somebody reads it.
        """
        self.launch, self.width, self.returned = launch, len(rows[0]), returned
        # Without a compiled loop a candidate is still judged; Python's overhead only makes its time longer.
        self.loop = None if isinstance(loop, str) or self.width > MOST_ARGUMENTS else loop
        self.code = ctypes.c_int(0)
        if self.loop is None:
            # The arguments are converted ahead, as boxing them in the loop would be timed.
            self.rows = [tuple(ctypes.c_int64(v) for v in row) for row in rows]
        else:
            self.block = (ctypes.c_int64 * (self.width * len(rows)))(*(v for row in rows for v in row))
            self.address = ctypes.cast(launch, ctypes.c_void_p)

    def make(self, count: int, first: int = 0, behind: Any = None) -> Reply:
        """Make `count` calls from `first` on, with `behind` behind each; stop where a launcher does not return 0."""
        if isinstance(behind, BetweenWords):  # the compiled loop knows copies alone
            for number in range(first, first + count):
                failed = self.make(1, number)
                if failed:
                    return failed
                behind(number)
            return {}
        if self.loop is not None:
            # An offset into the block, so that a round from any call on needs no copy of its arguments.
            rows = ctypes.byref(self.block, first * self.width * ctypes.sizeof(ctypes.c_int64))
            copies = None if behind is None else ctypes.byref(behind)
            call = self.loop(self.address, rows, self.width, count, ctypes.byref(self.code), copies, self.returned)
            return {"code": self.code.value, "call": first + call} if call else {}
        launch, say = self.launch, saying(self.returned)
        for number, arguments in enumerate(self.rows[first : first + count], first + 1):
            code = launch(*arguments)
            if code:
                return {"code": code, "call": number}
            if behind is not None:
                behind(number - 1)
            say(number)
        return {}
