"""This machine's processor, as the owner has it: its clock, its memory, what the system says of it."""

import os
from typing import Any, Dict, List, Sequence, Set, Tuple

from ..numerics.input_views import input_memories
from ..numerics.random_inputs import Well
from ..numerics.tensors import Tensor, brings_check, layout, tensors
from .device import Buffers, Device
from .memory_cpu import COUNT_BYTES, CpuBuffers, Region

MAX_BYTES = 100 << 20
"""Of a round: beyond it new pages, filling and checking take longer than timing."""
MOST_BYTES = 400 << 20
"""Where a round would be too short to be timed otherwise."""


def cpu_model() -> str:
    """Return what /proc/cpuinfo calls this processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "Model")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return os.uname().machine


FREQUENCY = "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq"
CORES_READ = 8
STEAL = 8
"""Column of a `cpu` line in /proc/stat, in clock ticks. Source: Linux, Documentation/filesystems/proc.rst."""


CACHES = "/sys/devices/system/cpu/cpu%d/cache"


def largest_cache_bytes() -> int:
    """Return the size of the largest cache of a core that may be used, 0 where the system does not say."""
    folder = CACHES % min(os.sched_getaffinity(0))
    sizes = [0]
    try:
        for index in os.listdir(folder):
            path = os.path.join(folder, index, "size")
            if os.path.exists(path):
                with open(path, encoding="ascii") as text:
                    size = text.read().strip()
                sizes.append(int(size.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1))
    except (OSError, ValueError):
        pass
    return max(sizes)


class CpuDevice(Device):
    """This machine's processor."""

    kind = "cpu"
    stops_calls = True
    memory = "memfd, inputs sealed"
    max_sets = 4096

    def __init__(self, well: Well, task: Dict[str, Any]) -> None:
        self.well, self.task = well, task
        self.rtol, self.atol = float(task["rtol"]), float(task["atol"])
        self.by_case = bool(task.get("cases"))
        self.own_check = brings_check(task)
        self.label = cpu_model()
        self.files = self._files()
        """Of inputs (sealed against other writers), outputs and expected outputs, of all shapes one after the other.

        They have pages only where somebody wrote: a page that is new costs more than all that is done with it.
        """
        self.told: Set[str] = set()

    def _files(self) -> List[Region]:
        longest = [0, 0, 0]
        for dims in [*self.task["shapes"], *self.task.get("hidden", [])]:
            inputs, outputs = input_memories(self.task, dims), tensors(self.task["outputs"], dims)
            # The files are sized for the longest round of any shape, as sealed files cannot grow later.
            sets = max(1, min(self.max_sets, MOST_BYTES // self.set_bytes(inputs, outputs)))
            plans = [(inputs, False), (outputs, True), (outputs, False)]
            sizes = [layout(items, sets, guarded=guarded).total + COUNT_BYTES for items, guarded in plans]
            longest = [max(pair) for pair in zip(longest, sizes)]
        return [Region(length, writable_by_others=number > 0) for number, length in enumerate(longest)]

    def error_text(self, code: int, asked: Any) -> str:
        """Say what a launcher returns here; one whose end is missing returns what happens to be there."""
        return " (0 is success; a launcher that ends without `return 0` gives any number)"

    def max_bytes(self) -> Tuple[int, int]:
        """Return 100 and 400 MiB."""
        return MAX_BYTES, MOST_BYTES

    def set_bytes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """Return bytes of inputs, outputs with guards, and expected outputs."""
        plain = layout(inputs, 1, guarded=False).stride + layout(outputs, 1, guarded=False).stride
        return plain + layout(outputs, 1, guarded=True).stride

    def buffers(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> Buffers:
        """Lay a shape out in the files."""
        if self.task["mode"] == "writes":
            from .writable_inputs import WritableCpuBuffers

            return WritableCpuBuffers(self, inputs, outputs, sets)
        return CpuBuffers(self, inputs, outputs, sets)

    def snapshot(self) -> Dict[str, Any]:
        """Return the load."""
        return {"load_average": [round(v, 2) for v in os.getloadavg()]}

    def cache_bytes(self) -> int:
        """Return the size of the last-level cache."""
        return largest_cache_bytes()

    def state(self) -> Dict[str, Any]:
        """Return load of a minute, seconds stolen so far by the hypervisor, and the mean frequency in MHz.

        What cannot be read is left out; virtual machines have no frequency.
        """
        state: Dict[str, Any] = {"load_1min": round(os.getloadavg()[0], 2)}
        # Only cores that this process may use matter: a core of somebody else may run at any clock.
        cores = sorted(os.sched_getaffinity(0))
        try:
            with open("/proc/stat", encoding="ascii") as lines:
                state["steal_s"] = int(lines.readline().split()[STEAL]) / os.sysconf("SC_CLK_TCK")
            clocks: List[int] = []
            for core in cores[:CORES_READ]:
                with open(FREQUENCY % core, encoding="ascii") as text:
                    clocks.append(int(text.read()))
            state["cpu_mhz"] = round(sum(clocks) / len(clocks) / 1000)
        except (OSError, ValueError, IndexError):
            pass
        return state

    def evidence(self) -> Dict[str, Any]:
        """Return the machine."""
        return {"cpu": self.label, "cores": len(os.sched_getaffinity(0)), "memory": self.memory}
