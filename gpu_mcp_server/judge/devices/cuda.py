"""One GPU, as the owner has it: its clock's probes, its memory, what it says of itself."""

import os
import time
from ctypes import c_int64, c_uint64
from typing import Any, Dict, List, Sequence, Tuple

from ..channel.supervisor_client import Player
from ..numerics.random_inputs import Well
from ..numerics.tensors import Tensor, brings_check, layout
from ..verdicts import JudgeFailed, TooLarge
from .cuda_driver import L2_BYTES, MAJOR, MINOR, OutOfMemory
from .cuda_errors import meaning
from .device import Buffers, Device
from .gpu_idle_check import Idleness
from .memory_cuda import CudaBuffers
from .nvml import Nvml
from .owner_kernels import SEEN_BYTES, Fence, Tools, answer_of

ALLOWED = 8
"""One of so many parts of the memory may be a candidate's own; its workspace and context are seldom more."""
MEMORY_SHARE = 0.3
"""Of what is free, for a round, where a task names none."""
MOST_SHARE = 0.6
"""Of what is free, for a round that could not be timed otherwise."""
STAGED_BYTES = 1 << 30
"""With a reference on the CPU, whose inputs and answers travel through files each round; a job's files are limited."""
SPARE_CORES = 4
SWEPT = 2
"""Times the L2 cache that is read to sweep it."""
IDLE_SETS = 256


class CudaDevice(Device):
    """One GPU."""

    kind = "cuda"
    memory = "exported allocations, inputs read-only"
    max_sets = 8192
    pause_s = 0.002
    spin_s = 0.005
    empty_hint = " (a kernel that failed to launch looks the same: return cudaGetLastError() from the launcher)"

    def __init__(self, well: Well, task: Dict[str, Any]) -> None:
        # MPS runs kernels of several processes at once, so an idle probe and a gate would prove nothing.
        if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or os.path.exists("/tmp/nvidia-mps/control"):
            raise JudgeFailed("the GPU is served by MPS, under which no time can be trusted; stop MPS on this host")
        self.well, self.framework = well, str(task["framework"])
        self.share = float(task.get("memory_share") or MEMORY_SHARE)
        self.pooled = bool(task.get("pool"))
        """Whether a ModelNew allocates its results from an arena."""
        self.writable = task.get("mode") == "writes"
        """Whether the candidate may write to its inputs, to see whether it does."""
        self.rtol, self.atol = float(task["rtol"]), float(task["atol"])
        self.by_case = bool(task.get("cases"))
        self.own_check = brings_check(task)
        self.tools = Tools()
        driver, begin = self.tools.driver, time.perf_counter()
        self.label = driver.name()
        # A spinning wait answers sooner than a blocking one, but on few cores it would take one from the candidate.
        self.spins = len(os.sched_getaffinity(0)) >= SPARE_CORES
        self.nvml = Nvml(driver.uuid())
        self.beside = False
        """Whether other jobs have been on the GPU before its windows: a kernel that one left may go on in them."""
        self.swept = 0
        """Memory whose writing sweeps the cache, once it was asked for."""
        self.contexts = 3 if self.framework == "torch" else 2
        self.scratch = driver.allocate(IDLE_SETS * 4096)
        driver.call("cuMemsetD8_v2", self.scratch, 0, IDLE_SETS * 4096)
        self.idle_fence = Fence(self.tools, [[self.scratch, 4096, 1024, 4, 0]], IDLE_SETS)
        self.idleness = Idleness(self.idle_fence.look)
        self.tools.seconds["probes"] = time.perf_counter() - begin

    def alone(self) -> None:
        """Learn how long a few empty fences take while nobody else is at work."""
        self.idleness.alone()

    def forget_looks(self, *, beside: bool) -> None:
        """Forget what was seen while other jobs may have been at work, and count their contexts, which are idle now."""
        self.idleness.forget()
        self.beside = beside
        if beside:
            self.contexts = max(self.contexts, self.nvml.processes() or 0)

    def remarks(self) -> List[str]:
        """Say so if the GPU was not idle between the rounds."""
        return self.idleness.remarks()

    def max_bytes(self) -> Tuple[int, int]:
        """Return parts of the free memory, no more than 1 GiB with a reference on the CPU."""
        room = self.room_bytes or self.free_bytes()
        staged = STAGED_BYTES if self.framework == "numpy" else room
        return min(int(self.share * room), staged), min(int(max(self.share, MOST_SHARE) * room), staged)

    def set_bytes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """Return bytes of inputs twice, outputs with guards, expected ones, an arena, what reference and fence keep."""
        given, plain = layout(inputs, 1, guarded=False).stride, layout(outputs, 1, guarded=False).stride
        own = (plain * 5 // 4 if self.pooled else 0) + (plain if self.framework == "torch" else 0)
        return 2 * given + layout(outputs, 1, guarded=True).stride + plain + own + SEEN_BYTES * len(outputs)

    def buffers(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> Buffers:
        """Allocate and export."""
        wanted, free = self.set_bytes(inputs, outputs) * sets, self.free_bytes()
        text = "the problem is too large for this GPU: %d calls at this shape take %.3g GB of buffers, %.3g GB are free"
        if wanted > free:
            raise TooLarge(text % (sets, wanted / 1e9, free / 1e9))
        try:
            if self.writable:
                from .writable_inputs import WritableCudaBuffers

                return WritableCudaBuffers(self, inputs, outputs, sets)
            if self.pooled:
                from .memory_arena import PooledBuffers

                return PooledBuffers(self, inputs, outputs, sets)
            return CudaBuffers(self, inputs, outputs, sets)
        # Free memory that was read above is no promise: another process may have taken it since.
        except OutOfMemory:
            raise TooLarge(text % (sets, wanted / 1e9, free / 1e9)) from None

    def error_text(self, code: int, asked: Any) -> str:
        """Return the CUDA error of this number."""
        return meaning(code, *self.tools.driver.memory(), asked)

    def aftermath(self) -> str:
        """Say whether the GPU answered an empty probe, and how soon."""
        return answer_of(self.tools.driver, self.idle_fence)

    def free_bytes(self) -> int:
        """Return the GPU's."""
        return self.tools.driver.memory()[0]

    def allowance(self) -> int:
        """Return an eighth of the memory, and what the model's weights take."""
        return self.tools.driver.memory()[1] // ALLOWED + self.weights_bytes

    def lead_in(self) -> None:
        """Copy a little, as inputs are copied last."""
        self.tools.driver.copy(self.scratch, self.scratch + IDLE_SETS * 2048, IDLE_SETS * 2048)

    def sweep_cache(self) -> None:
        """Read twice the L2 cache's size, so that calls find nothing of theirs there, and wait.

        What is read need not be written back: after a write the first calls would pay for that.
        """
        size = SWEPT * self.cache_bytes()
        if size and not self.swept:
            self.swept = self.tools.driver.allocate(size)
            self.tools.driver.call("cuMemsetD8_v2", self.swept, 0, size)
        if size:
            words = size // 16
            halves = [c_uint64(self.swept), c_uint64(self.swept + 8 * words), c_int64(words)]
            self.tools.count("count_differing", words, halves)
        self.tools.driver.synchronize()

    def probe_s(self) -> float:
        """Return what one empty fence takes: milliseconds as soon as another context's kernel runs."""
        begin = time.perf_counter()
        self.idle_fence.look()
        return time.perf_counter() - begin

    def stop_idle(self, player: Player) -> None:
        """Run a fence over nothing for the candidate."""
        if player.role == "candidate":
            self.idle_fence.look()

    def snapshot(self) -> Dict[str, Any]:
        """Return load, clock, throttle reasons, temperature and power."""
        return dict(self.nvml.snapshot(), load_average=[round(v, 2) for v in os.getloadavg()])

    def cache_bytes(self) -> int:
        """Return the size of the L2 cache."""
        return self.tools.driver.attribute(L2_BYTES)

    def state(self) -> Dict[str, Any]:
        """Return what NVML says, and how many processes compute on the GPU besides the judge's own."""
        state = self.nvml.snapshot()
        seen = self.nvml.processes()
        if seen is not None:
            # NVML counts the judge's own contexts as well, one for each of its processes.
            state["other_processes"] = max(0, seen - self.contexts)
        return state

    def evidence(self) -> Dict[str, Any]:
        """Return the GPU and what drives it."""
        driver = self.tools.driver
        return {
            "gpu": self.label,
            "gpu_uuid": driver.uuid(),
            "compute_capability": "%d.%d" % (driver.attribute(MAJOR), driver.attribute(MINOR)),
            "driver": self.nvml.driver(),
            "cuda_driver_api": driver.version(),
            "memory": self.memory,
            "stream": "legacy default",
            "kernels_compiled_by": self.tools.compiled_by,
            "kernels_sha256": self.tools.sha256,
            "device_seconds": {name: round(value, 4) for name, value in self.tools.seconds.items()},
            "baseline": "reference on the CPU" if self.framework == "numpy" else "reference on the same GPU",
            **self.idleness.evidence(),
        }
