"""The candidate's side of GPU memory: the owner's allocations, inputs mapped read-only."""

from typing import Any, Dict, List, Optional, Sequence

from ..devices.cuda_driver import CudaError, Driver, Shared
from ..memory.mapped_file import Mapping
from ..timing.gpu_context_switch import GpuTurns
from .stream_copies import Separators, separators

NOT_READ_ONLY = "the driver gave no read-only mapping of the inputs: their bytes are compared"


class CudaMemory:
    """Mapped allocations of the owner, in the primary context that a runtime API in the library will use."""

    trailing = (0,)
    """The stream behind the dimensions: the legacy default one."""

    def __init__(self) -> None:
        self.driver: Any = None
        self.turns: Any = None
        self.shared: List[Shared] = []
        self.said: List[str] = []
        self.outputs: Dict[str, Any] = {}
        """The layout of what is written."""
        self.returned = None
        """What has returned may still be at work: nobody asks."""
        self.names: Optional[Mapping] = None
        """Where a model's outputs are named."""

    def start(self) -> None:
        """Create the context, in the job's turn: it takes the GPU's memory, and disturbs a job that is timed there."""
        self.driver = Driver()
        self.driver.keep_pooled()
        self.turns = GpuTurns(self.driver)
        self.ping, self.spin = self.turns.ping, self.turns.spin

    def open(self, fields: Dict[str, Any], descriptors: Sequence[int]) -> List[int]:
        """Return the base addresses of inputs and outputs."""
        self.close()
        writable = fields.get("writable") is True
        inputs, narrow = Shared.adopt(self.driver, descriptors[0], fields["inputs"]["bytes"], writable=writable)
        outputs, _ = Shared.adopt(self.driver, descriptors[1], fields["outputs"]["bytes"], writable=True)
        self.shared, self.outputs = [inputs, outputs], fields["outputs"]
        self.said = [] if narrow or writable else [NOT_READ_ONLY]
        if "arena" not in fields:
            return [inputs.address, outputs.address]
        arena, _ = Shared.adopt(self.driver, descriptors[2], fields["arena"]["bytes"], writable=True)
        self.shared.append(arena)
        self.names = Mapping(descriptors[3], writable=True)
        return [inputs.address, outputs.address, arena.address, self.names.address]

    def keep_arena(self) -> None:
        """Leave the arena mapped for good, because the candidate keeps something there."""
        self.shared = self.shared[:2]

    def close(self) -> None:
        """Unmap."""
        if self.names is not None:
            self.names.close()
            self.names = None
        for each in self.shared:
            each.close()
        self.shared = []

    def separators(self, asked: Dict[str, Any]) -> Separators:
        """Return what is put behind each call."""
        return separators(self.driver, asked, self.outputs, self.shared[1].address)

    def finish(self) -> str:
        """Wait for the work and return its error."""
        try:
            self.driver.synchronize()
        except CudaError as error:
            # The GPU reports a write to a read-only mapping as an illegal address, which puzzles authors.
            hint = ": an access outside the buffers, a write to an input (inputs are read-only), or a CUDA graph that "
            hint += "reads an earlier call's input, which is gone"
            return error.name + (hint if "ADDRESS" in error.name else "")
        return ""
