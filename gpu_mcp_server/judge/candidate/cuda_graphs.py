"""A round's calls as one CUDA graph: the launcher is recorded once, what it launched is replayed without it."""

from ctypes import POINTER, byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, Tuple

from ..devices.cuda_driver import CudaError, Driver

Reply = Dict[str, Any]

NON_BLOCKING = 1
RELAXED = 2
"""Source: cuda.h, CU_STREAM_NON_BLOCKING and CU_STREAM_CAPTURE_MODE_RELAXED."""

SIGNATURES: Dict[str, List[Any]] = {
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamBeginCapture_v2": [c_void_p, c_int],
    "cuStreamEndCapture": [c_void_p, POINTER(c_void_p)],
    "cuGraphGetNodes": [c_void_p, c_void_p, POINTER(c_size_t)],
    "cuGraphInstantiateWithFlags": [POINTER(c_void_p), c_void_p, c_uint64],
    "cuGraphLaunch": [c_void_p, c_void_p],
    "cuGraphDestroy": [c_void_p],
    "cuGraphExecDestroy": [c_void_p],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
}


def prepared(driver: Driver, names: Tuple[str, ...]) -> None:
    """Declare functions of the driver; an old one may lack some.

    Raises:
        CudaError: Naming the first that is missing.
    """
    for name in names:
        function = getattr(driver.library, name, None)
        if function is None:
            raise CudaError(name, "this driver has none")
        function.argtypes = SIGNATURES[name]
        function.restype = c_int


class Graph:
    """Calls recorded on a stream of their own."""

    def __init__(self, driver: Driver) -> None:
        prepared(driver, tuple(name for name in SIGNATURES if "Graph" in name or "Stream" in name))
        self.driver = driver
        stream = c_void_p()
        # The legacy default stream cannot be captured, and a blocking stream is joined to it implicitly.
        driver.call("cuStreamCreate", byref(stream), NON_BLOCKING)
        self.stream = int(stream.value or 0)
        self.nodes = 0
        self.whole: Any = None

    def record(self, make: Callable[[int], Reply], calls: int) -> Reply:
        """Record calls; return how many nodes they made, a launcher's code, or why there is no graph."""
        self.forget()
        graph, count = c_void_p(), c_size_t(0)
        try:
            # Relaxed mode permits calls such as cudaMalloc during capture, which launchers make at their first call.
            self.driver.call("cuStreamBeginCapture_v2", self.stream, RELAXED)
            reply = make(calls)
            self.driver.call("cuStreamEndCapture", self.stream, byref(graph))
            self.driver.call("cuGraphGetNodes", graph, None, byref(count))
            # An empty graph replays in no time and would count as the fastest candidate of all.
            if reply or not count.value:
                return reply or {"error": "the launcher put nothing on the stream that it is given"}
            whole = c_void_p()
            self.driver.call("cuGraphInstantiateWithFlags", byref(whole), graph, 0)
            self.whole = whole
            return {"nodes": count.value}
        except CudaError as error:
            return {"error": str(error)}
        finally:
            if graph.value:
                # The executable graph is independent of its template, which holds memory for every node.
                self.driver.call("cuGraphDestroy", graph)

    def replay(self) -> Reply:
        """Launch what was recorded."""
        try:
            self.driver.call("cuGraphLaunch", self.whole, self.stream)
        except CudaError as error:
            return {"error": str(error)}
        return {}

    def forget(self) -> None:
        """Let the graph go."""
        if self.whole is not None:
            self.driver.call("cuGraphExecDestroy", self.whole)
        self.whole = None


def by_events(driver: Driver, run: Callable[[], Reply]) -> Reply:
    """Run a round between two events on the legacy default stream; add what they say, which nobody believes."""
    first, last = c_void_p(), c_void_p()
    elapsed_ms = c_float()
    try:
        prepared(driver, tuple(name for name in SIGNATURES if "Event" in name))
        for event in (first, last):
            # Default flags: an event with timing disabled could not be read afterwards.
            driver.call("cuEventCreate", byref(event), 0)
        driver.call("cuEventRecord", first, None)
    except CudaError:
        # Without events the round still counts, as nothing rests on what they say.
        return run()
    reply = run()
    if reply.get("error") or reply.get("code"):
        return reply
    try:
        driver.call("cuEventRecord", last, None)
        driver.call("cuEventSynchronize", last)
        driver.call("cuEventElapsedTime", byref(elapsed_ms), first, last)
    except CudaError as error:
        return {"error": str(error)}
    return dict(reply, events_us=elapsed_ms.value * 1000)
