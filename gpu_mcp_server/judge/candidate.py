"""The candidate's process: loads somebody's library and calls it when the owner says so. Nothing here is believed."""

import ctypes
import os
import sys
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

from link import Link, LinkClosed
from mapping import Mapping

Reply = Dict[str, Any]
Arguments = Tuple[Any, ...]

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "candidate.so")


class CpuMemory:
    """Mapped memory files."""

    def __init__(self, task: Dict[str, Any]) -> None:
        # libgomp's idle threads spin for milliseconds by default, on the cores that must stop the clock.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        self.maps: List[Mapping] = []

    def open(self, fields: Dict[str, Any], descriptors: Sequence[int]) -> List[int]:
        """Return the base addresses of inputs and outputs."""
        if descriptors:
            self.maps = [Mapping(descriptors[0], writable=False), Mapping(descriptors[1], writable=True)]
        for each, where in zip(self.maps, (fields["inputs"], fields["outputs"])):
            each.populate(where["stride"] * where["sets"])
        return [m.address for m in self.maps]

    def close(self) -> None:
        """Keep the maps: the next shape lies in the same files."""

    def ping(self) -> None:
        """Do nothing: to be running again is all."""

    def finish(self) -> str:
        """Return an error of work that was still under way."""
        return ""

    def trailing(self) -> List[Any]:
        """Return arguments behind the dimensions."""
        return []

    def notes(self) -> List[str]:
        """Return what was weaker than usual."""
        return []


def memory_of(task: Dict[str, Any]) -> Any:
    """Return the memory of the task's device."""
    if task["device"] == "cuda":
        from memory_cuda_client import CudaMemory

        return CudaMemory(task)
    return CpuMemory(task)


class Candidate:
    """Answers the owner's requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.task: Dict[str, Any] = {}
        self.memory: Any = None
        self.launch: Any = None
        self.calls: List[Arguments] = []

    def serve(self) -> None:
        """Answer until the owner closes the link."""
        verbs: Dict[str, Callable[[Dict[str, Any], List[int]], Reply]] = {
            "hello": self.hello,
            "ping": self.ping,
            "load": self.load,
            "open": self.open,
            "close": self.close,
            "go": self.go,
        }
        while True:
            try:
                message, descriptors = self.link.receive_with_descriptors(None)
            except LinkClosed:
                return
            reply = verbs[message["do"]](message, descriptors)
            reply["seq"] = message["seq"]
            self.link.send(reply)

    def hello(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Take the public part of the task."""
        self.task = message["task"]
        self.memory = memory_of(self.task)
        return {"versions": {"python": sys.version.split()[0]}}

    def ping(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Switch in."""
        self.memory.ping()
        return {}

    def load(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Load the library and find its launcher."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            return {"error": "the library cannot be loaded: %s" % str(error)[:2000]}
        symbol = self.task["symbol"]
        try:
            self.launch = getattr(library, symbol)
        except AttributeError:
            return {
                "error": 'the library has no symbol %s: define extern "C" int %s(...) with default visibility'
                % (symbol, symbol)
            }
        self.launch.restype = ctypes.c_int
        return {}

    def open(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Map the buffers of a shape and prepare the arguments of every call."""
        inputs, outputs = message["inputs"], message["outputs"]
        self.calls = []
        bases = self.memory.open(message, descriptors)
        dims = [ctypes.c_int64(size) for size in message["dims"]]
        for number in range(inputs["sets"]):
            addresses = [bases[0] + number * inputs["stride"] + offset for offset in inputs["offsets"]]
            addresses += [bases[1] + number * outputs["stride"] + offset for offset in outputs["offsets"]]
            self.calls.append(tuple([ctypes.c_void_p(a) for a in addresses] + dims + self.memory.trailing()))
        return {"notes": self.memory.notes()}

    def close(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Let the buffers of a shape go."""
        self.calls = []
        self.memory.close()
        return {}

    def go(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Call the launcher once for each set."""
        if "spin_s" in message:
            return self.rehearse(float(message["spin_s"]))
        launch = self.launch
        for number, arguments in enumerate(self.calls[: message["calls"]], 1):
            code = launch(*arguments)
            if code:
                return {"code": code, "call": number}
        error = self.memory.finish()
        return {"error": error} if error else {}

    def rehearse(self, spin_s: float) -> Reply:
        """Be busy for a while instead of calling anything; nothing but this file is loaded yet."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < spin_s:
            pass
        self.memory.finish()
        return {"spun_s": time.perf_counter() - begin}


def main() -> int:
    """Serve the owner."""
    link = Link.from_environment("owner")
    if link is None:
        print("no LINK_OWNER in the environment", file=sys.stderr)
        return 2
    Candidate(link).serve()
    return 0
