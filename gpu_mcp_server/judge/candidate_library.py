"""Kind `library`: a shared library with a C launcher that writes into the owner's outputs."""

import ctypes
import os
from typing import Any, Dict, List, Tuple

Reply = Dict[str, Any]

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "candidate.so")


class Library:
    """Calls `int launch(inputs..., outputs..., dimensions...[, stream])`."""

    def __init__(self, task: Dict[str, Any], memory: Any) -> None:
        self.symbol, self.memory = str(task["symbol"]), memory
        self.launch: Any = None
        self.calls: List[Tuple[Any, ...]] = []

    def versions(self) -> Dict[str, str]:
        """Return what runs it besides this Python."""
        return {}

    def load(self, message: Dict[str, Any]) -> Reply:
        """Load the library and find its launcher."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            return {"error": "the library cannot be loaded: %s" % str(error)[:2000]}
        try:
            self.launch = getattr(library, self.symbol)
        except AttributeError:
            return {
                "error": 'the library has no symbol %s: define extern "C" int %s(...) with default visibility'
                % (self.symbol, self.symbol)
            }
        self.launch.restype = ctypes.c_int
        return {}

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Prepare the arguments of every call."""
        inputs, outputs = message["inputs"], message["outputs"]
        self.calls = []
        dims = [ctypes.c_int64(size) for size in message["dims"]]
        for number in range(inputs["sets"]):
            addresses = [bases[0] + number * inputs["stride"] + offset for offset in inputs["offsets"]]
            addresses += [bases[1] + number * outputs["stride"] + offset for offset in outputs["offsets"]]
            self.calls.append(tuple([ctypes.c_void_p(a) for a in addresses] + dims + self.memory.trailing()))

    def close(self) -> None:
        """Forget the buffers."""
        self.calls = []

    def run(self, calls: int) -> Reply:
        """Call the launcher once for each of the first `calls` sets."""
        launch = self.launch
        for number, arguments in enumerate(self.calls[:calls], 1):
            code = launch(*arguments)
            if code:
                return {"code": code, "call": number}
        return {}

    def notes(self) -> List[str]:
        """Return what was weaker than usual."""
        return []
