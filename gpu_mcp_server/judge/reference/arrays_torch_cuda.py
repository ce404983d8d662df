"""The reference's buffers as torch tensors on the GPU, over the owner's allocations."""

import contextlib
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..devices.cuda_driver import Driver, Shared
from ..memory.torch_views import tensors_at
from ..numerics.tensors import Tensor
from ..timing.gpu_context_switch import GpuTurns
from ..timing.stream_gate import StreamGate
from ..verdicts import JudgeFailed
from .arrays_torch import accepted, torch


class TorchCudaArrays:
    """Maps the owner's GPU memory, inputs read-only. Results are kept and stored after the clock has stopped."""

    store_later = True

    def __init__(self, task: Dict[str, Any]) -> None:
        self.ordinal = int(task.get("gpu_index") or 0)
        self.device = torch.device("cuda", self.ordinal)
        self.ahead: Optional[threading.Thread] = None
        self.turns: Any = None
        self.driver: Any = None
        self.shared: List[Shared] = []
        self.inputs: List[Tuple[Any, ...]] = []
        self.targets: List[Tuple[Any, ...]] = []
        self.outputs: Sequence[Tensor] = ()
        self.said: Dict[str, None] = {}

    def begin(self) -> None:
        """Begin to create the context while the processor has something else to do."""
        self.ahead = threading.Thread(target=self._retain)
        self.ahead.start()

    def _retain(self) -> None:
        with contextlib.suppress(JudgeFailed):  # it comes again in `start`
            Driver(self.ordinal)

    def start(self) -> None:
        """Create the context."""
        if self.ahead is not None:
            self.ahead.join()
            self.ahead = None
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self.driver = Driver(self.ordinal)
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
        self.inputs = self._view(given.address, message["inputs"], inputs)
        self.targets = self._view(answers.address, message["outputs"], outputs)

    def adopt(self, descriptor: int, size: int) -> Shared:
        """Map memory of the owner's that is to be written."""
        return Shared.adopt(self.driver, descriptor, size, writable=True)[0]

    def _view(self, base: int, where: Dict[str, Any], items: Sequence[Tensor]) -> List[Tuple[Any, ...]]:
        return tensors_at(torch, base, where, items, self.device)

    def close(self) -> None:
        """Unmap."""
        self.inputs, self.targets = [], []
        torch.cuda.synchronize()
        for each in self.shared:
            each.close()
        self.shared = []

    def store(self, number: int, results: Sequence[Any]) -> None:
        """Convert and copy the results of one call."""
        for item, target, result in zip(self.outputs, self.targets[number], results):
            target.copy_(accepted(self, item, result))

    def answers(self, call: int) -> Tuple[Any, ...]:
        """Return what a call's answers are."""
        return self.targets[call]

    def gate(self, descriptor: int, offsets: Dict[str, int]) -> StreamGate:
        """Return gates by words of the owner's page; torch launches on the legacy default stream."""
        return StreamGate(self.driver, self.turns, descriptor, offsets)

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

    def notes(self) -> List[str]:
        """Return what was converted."""
        return list(self.said)
