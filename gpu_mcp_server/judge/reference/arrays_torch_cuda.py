"""The reference's buffers as torch tensors on the GPU, over the owner's allocations."""

import contextlib
import threading
from typing import Any, Dict, List, Optional, Sequence

from ..devices.cuda_driver import Driver, Shared
from ..memory.torch_views import tensors_at
from ..numerics.tensors import Tensor
from ..timing.gpu_context_switch import GpuTurns
from ..verdicts import JudgeFailed
from .arrays_torch import TorchArrays, torch


class TorchCudaArrays(TorchArrays):
    """Maps the owner's GPU memory, inputs read-only. Results are kept and stored after the clock has stopped."""

    store_later = True

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda", 0)
        self.ahead: Optional[threading.Thread] = None
        self.turns: Any = None
        self.driver: Any = None
        self.shared: List[Shared] = []

    def begin(self) -> None:
        """Begin to create the context while the processor has something else to do."""
        self.ahead = threading.Thread(target=self._retain)
        self.ahead.start()

    def _retain(self) -> None:
        with contextlib.suppress(JudgeFailed):  # it comes again in `start`
            Driver()

    def start(self) -> None:
        """Create the context."""
        if self.ahead is not None:
            self.ahead.join()
            self.ahead = None
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self.driver = Driver()
        self.turns = GpuTurns(self.driver)

    def versions(self) -> Dict[str, str]:
        """Return what computes."""
        return {"torch": str(torch.__version__)}

    def open(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], message: Dict[str, Any], descriptors: List[int]
    ) -> None:
        """Map inputs and expected outputs."""
        self.close()
        given, _ = Shared.adopt(self.driver, descriptors[0], message["inputs"]["bytes"], writable=False)
        answers, _ = Shared.adopt(self.driver, descriptors[1], message["outputs"]["bytes"], writable=True)
        self.shared, self.outputs = [given, answers], outputs
        self.inputs = tensors_at(torch, given.address, message["inputs"], inputs, self.device)
        self.targets = tensors_at(torch, answers.address, message["outputs"], outputs, self.device)

    def adopt(self, descriptor: int, size: int) -> Shared:
        """Map memory of the owner's that is to be written."""
        return Shared.adopt(self.driver, descriptor, size, writable=True)[0]

    def close(self) -> None:
        """Unmap."""
        self.inputs, self.targets = [], []
        torch.cuda.synchronize()
        for each in self.shared:
            each.close()
        self.shared = []

    def ping(self) -> None:
        """Switch in."""
        self.turns.ping()

    def spin(self, seconds: float) -> float:
        """Be busy for a while; return for how long."""
        return self.turns.spin(seconds)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Return the most memory of the GPU that torch ever had."""
        return int(torch.cuda.max_memory_allocated())
