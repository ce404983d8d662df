"""Kind `library`: a shared library with a C launcher that writes into the owner's outputs."""

import ctypes
import os
from typing import Any, Dict, List, Optional

from ..folders import WORK
from ..numerics.input_views import input_views
from ..numerics.tensors import ITEM_BYTES
from .call_loop import COMPILED, Calls, loop_or_why

Reply = Dict[str, Any]

LIBRARY = os.path.join(WORK, "candidate.so")
ALLOCATE = (
    "cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc",
    "cudaMallocPitch",
)  # fmt: skip
"""As numbered where a CUDA source's allocations are wrapped."""


class Library:
    """Calls `int launch(inputs..., outputs..., dimensions...[, stream])`."""

    def __init__(self, task: Dict[str, Any], memory: Any) -> None:
        self.task, self.symbol, self.memory = task, str(task["symbol"]), memory
        self.launch: Any = None
        self.loop = loop_or_why()
        self.calls: Optional[Calls] = None
        self.asked: Any = None
        """Code, function and bytes of its allocation that failed last, where it allocates."""

    def versions(self) -> Dict[str, str]:
        """Return what makes the calls."""
        return {"calls_by": self.loop if isinstance(self.loop, str) else COMPILED}

    def load(self, message: Dict[str, Any]) -> Reply:
        """Load the library and find its launcher."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            return {"error": "the library cannot be loaded: %s" % str(error)[:2000]}
        try:
            self.launch = getattr(library, self.symbol)
        except AttributeError:
            text = "the library has no symbol %s: define int %s(...), not static, in C++ and CUDA with"
            text += ' extern "C" before it, or give the name that it has as entry'
            return {"error": text % (self.symbol, self.symbol)}
        self.launch.restype = ctypes.c_int
        try:
            # Only a build that wraps allocations exports this symbol, so its absence is usual.
            self.asked = (ctypes.c_ulong * 3).in_dll(library, "gpu_mcp_asked")
        except ValueError:
            self.asked = None
        return {}

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Prepare the arguments of every call."""
        inputs, outputs = message["inputs"], message["outputs"]
        views = input_views(self.task, message["named_dims"])
        places = [inputs["offsets"][v.memory] + v.offset * ITEM_BYTES[v.item.dtype] for v in views]
        rows: List[List[int]] = []
        for number in range(inputs["sets"]):
            addresses = [bases[0] + number * inputs["stride"] + place for place in places]
            addresses += [bases[1] + number * outputs["stride"] + offset for offset in outputs["offsets"]]
            rows.append([*addresses, *message["dims"], *self.memory.trailing])
        self.calls = Calls(self.loop, self.launch, rows, self.memory.returned)

    def close(self) -> None:
        """Forget the buffers."""
        self.calls = None

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Call the launcher once for each of `calls` sets, from `first` on."""
        reply: Reply = self.calls.make(calls, first, behind) if self.calls else {}
        code = reply.get("code")
        # The words lie in the candidate's memory and may hold anything, so the index is checked here.
        if code and self.asked is not None and self.asked[0] == code and self.asked[1] < len(ALLOCATE):
            reply["asked"] = {"by": ALLOCATE[self.asked[1]], "bytes": self.asked[2]}
        return reply

    def notes(self) -> List[str]:
        """Return what was weaker than usual."""
        return []
