"""The candidate's side of GPU memory: the owner's allocations, inputs mapped read-only."""

import ctypes
from typing import Any, Dict, List, Sequence

from cuda_driver import CudaError, Driver, Shared

SCRATCH_BYTES = 256


class CudaMemory:
    """Mapped allocations of the owner, in the primary context that a runtime API in the library will use."""

    def __init__(self, task: Dict[str, Any]) -> None:
        self.driver = Driver(int(task.get("gpu_index") or 0))
        self.scratch = self.driver.allocate(SCRATCH_BYTES)
        self.shared: List[Shared] = []
        self.said: List[str] = []

    def open(self, fields: Dict[str, Any], descriptors: Sequence[int]) -> List[int]:
        """Return the base addresses of inputs and outputs."""
        self.close()
        inputs, narrow = Shared.adopt(self.driver, descriptors[0], fields["inputs"]["bytes"], writable=False)
        outputs, _ = Shared.adopt(self.driver, descriptors[1], fields["outputs"]["bytes"], writable=True)
        self.shared = [inputs, outputs]
        self.said = [] if narrow else ["the driver gave no read-only mapping of the inputs: their bytes are compared"]
        return [inputs.address, outputs.address]

    def close(self) -> None:
        """Unmap."""
        for each in self.shared:
            each.close()
        self.shared = []

    def ping(self) -> None:
        """Switch in: a tiny piece of work on the GPU, and wait for it."""
        self.driver.call("cuMemsetD8_v2", self.scratch, 1, SCRATCH_BYTES)
        self.driver.synchronize()

    def finish(self) -> str:
        """Wait for the work and return its error."""
        try:
            self.driver.synchronize()
        except CudaError as error:
            hint = ": an access outside the buffers, or a write to an input (inputs are read-only)"
            return error.name + (hint if "ADDRESS" in error.name else "")
        return ""

    def trailing(self) -> List[Any]:
        """Return the stream: the legacy default one."""
        return [ctypes.c_void_p(0)]

    def notes(self) -> List[str]:
        """Return what was weaker than usual."""
        return self.said
