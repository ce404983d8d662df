"""Work of known length for an empty pass, on the processor; on a GPU `gpu_context_switch` has it."""

import time


def spin(seconds: float) -> float:
    """Keep a core busy for a while; return for how long."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        pass
    return time.perf_counter() - begin
