"""Buffers in memory files: the owner writes the inputs, nobody else can."""

import fcntl
import mmap
import os
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from check import STORAGE, compare
from devices import Array, Buffers, Device, RoundCheck
from fill import Well
from supervisor import Player
from tensors import Layout, Tensor, layout

F_ADD_SEALS = 1033
F_SEAL_SEAL = 0x1
F_SEAL_SHRINK = 0x2
F_SEAL_GROW = 0x4
F_SEAL_FUTURE_WRITE = 0x10
MFD_ALLOW_SEALING = 0x2
"""By number, because Python 3.9 has no name for all of them.

Source: Linux, include/uapi/linux/fcntl.h and memfd.h.
"""

QUIET_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
PAYLOAD_BITS = {"float16": 9, "bfloat16": 6, "float32": 22, "float64": 51}
WORDS: Dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def poison_word(dtype: str, item_bytes: int, random: int) -> int:
    """Return a quiet NaN with random sign and payload, or for integers random bits."""
    if dtype not in QUIET_NAN:
        return random & ((1 << (8 * item_bytes)) - 1)
    sign = (random >> 63) << (8 * item_bytes - 1)
    return sign | QUIET_NAN[dtype] | (random & ((1 << PAYLOAD_BITS[dtype]) - 1))


class Region:
    """A memory file that this process maps for writing."""

    def __init__(self, size: int, *, writable_by_others: bool) -> None:
        self.fd = os.memfd_create("judge", os.MFD_CLOEXEC | MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
        if not writable_by_others:
            seals |= F_SEAL_FUTURE_WRITE
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        self.bytes: Array = np.frombuffer(self.map, dtype=np.uint8)

    def tensor(self, where: Layout, item: Tensor, number: int) -> Array:
        """Return tensor `number` of all sets as [sets, count]."""
        rows = self.bytes.reshape(where.sets, where.stride)
        start = where.offsets[number]
        return rows[:, start : start + item.nbytes].view(STORAGE[item.dtype])

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last array."""
        os.close(self.fd)


def share(where: Layout) -> Dict[str, Any]:
    """Return a layout as a message."""
    return {"offsets": list(where.offsets), "stride": where.stride, "sets": where.sets}


class CpuBuffers(Buffers):
    """Three memory files: inputs (sealed against every other writer), outputs, expected outputs."""

    def __init__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int, well: Well, rtol: float, atol: float
    ) -> None:
        self.inputs, self.outputs, self.sets, self.well = inputs, outputs, sets, well
        self.rtol, self.atol = rtol, atol
        self.input_layout = layout(inputs, sets, guarded=False)
        self.output_layout = layout(outputs, sets, guarded=True)
        self.expected_layout = layout(outputs, sets, guarded=False)
        self.input_region = Region(self.input_layout.total, writable_by_others=False)
        self.output_region = Region(self.output_layout.total, writable_by_others=True)
        self.expected_region = Region(self.expected_layout.total, writable_by_others=True)
        self.words: List[int] = [0] * len(outputs)
        self.guard: Array = np.zeros(0, dtype=np.uint8)

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors for `role`: the candidate never gets the expected outputs."""
        mine, where = (
            (self.output_region, self.output_layout)
            if role == "candidate"
            else (self.expected_region, self.expected_layout)
        )
        fields = {"inputs": share(self.input_layout), "outputs": share(where)}
        return fields, [self.input_region.fd, mine.fd]

    def fill(self) -> None:
        """Draw fresh inputs, set after set."""
        self.well.next_round()
        for number, item in enumerate(self.inputs):
            every = self.input_region.tensor(self.input_layout, item, number)
            for one in every:
                self.well.fill(one, item.dtype, item.distribution)

    def poison(self) -> None:
        """Overwrite outputs and guards."""
        self.guard = np.frombuffer(self.well.bytes(max(self.output_layout.guard_bytes)), dtype=np.uint8)
        rows = self.output_region.bytes.reshape(self.sets, self.output_layout.stride)
        for number, item in enumerate(self.outputs):
            every = self.output_region.tensor(self.output_layout, item, number)
            word = WORDS[every.itemsize]
            self.words[number] = poison_word(item.dtype, every.itemsize, self.well.word())
            every.view(word)[...] = word(self.words[number])
            for start, size in self._guards(number, item):
                rows[:, start : start + size] = self.guard[:size]

    def _guards(self, number: int, item: Tensor) -> List[Tuple[int, int]]:
        offset, size = self.output_layout.offsets[number], self.output_layout.guard_bytes[number]
        return [(offset - size, size), (offset + item.nbytes, size)]

    def stop(self, player: Player) -> bool:
        """Stop the clock by freezing the player."""
        player.freeze()
        return True

    def check(self) -> RoundCheck:
        """Compare all outputs in full."""
        wrong = np.zeros((self.sets, len(self.outputs)), dtype=np.int64)
        worst_abs = worst_rel = 0.0
        for number, item in enumerate(self.outputs):
            expected = self.expected_region.tensor(self.expected_layout, item, number)
            got = self.output_region.tensor(self.output_layout, item, number)
            step = max(1, (1 << 16) // item.count)
            for first in range(0, self.sets, step):
                rows = slice(first, first + step)
                found = compare(expected[rows].ravel(), got[rows].ravel(), item.dtype, self.rtol, self.atol)
                worst_abs, worst_rel = max(worst_abs, found.max_abs), max(worst_rel, found.max_rel)
                if found.mask is not None:
                    wrong[rows, number] = np.count_nonzero(found.mask.reshape(-1, item.count), axis=1)
        return RoundCheck(wrong, worst_abs, worst_rel)

    def untouched(self) -> bool:
        """Say whether every output still holds this round's poison."""
        for number, item in enumerate(self.outputs):
            every = self.output_region.tensor(self.output_layout, item, number)
            word = WORDS[every.itemsize]
            if not (every.view(word) == word(self.words[number])).all():
                return False
        return True

    def trespass(self) -> str:
        """Say which guard was written; inputs cannot be."""
        rows = self.output_region.bytes.reshape(self.sets, self.output_layout.stride)
        for number, item in enumerate(self.outputs):
            for side, (start, size) in zip(("before", "behind"), self._guards(number, item)):
                touched = rows[:, start : start + size] != self.guard[:size]
                if touched.any():
                    call = int(np.flatnonzero(touched.any(axis=1))[0])
                    return "wrote outside its outputs: %d bytes %s output %s in call %d" % (
                        touched[call].sum(),
                        side,
                        item.name,
                        call + 1,
                    )
        return ""

    def pair(self, call: int, output: int) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output."""
        item = self.outputs[output]
        return (
            self.expected_region.tensor(self.expected_layout, item, output)[call],
            self.output_region.tensor(self.output_layout, item, output)[call],
        )

    def input_elements(self, number: int) -> Array:
        """Return an input of the first call."""
        return self.input_region.tensor(self.input_layout, self.inputs[number], number)[0]

    def samples(self, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements at `positions`."""
        item = self.outputs[output]
        return (
            self.expected_region.tensor(self.expected_layout, item, output)[:, positions],
            self.output_region.tensor(self.output_layout, item, output)[:, positions],
        )

    def close(self) -> None:
        """Give the descriptors back."""
        for region in (self.input_region, self.output_region, self.expected_region):
            region.close()


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


class CpuDevice(Device):
    """This machine's processor."""

    kind = "cpu"
    memory = "memfd, inputs sealed"
    max_sets = 512

    def __init__(self, well: Well, rtol: float, atol: float) -> None:
        self.well, self.rtol, self.atol = well, rtol, atol
        self.label = cpu_model()

    def max_bytes(self) -> int:
        """Return 192 MiB: beyond it, filling and checking would take longer than timing."""
        return 192 << 20

    def set_bytes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """Return bytes of inputs, outputs with guards, and expected outputs."""
        plain = layout(inputs, 1, guarded=False).stride + layout(outputs, 1, guarded=False).stride
        return plain + layout(outputs, 1, guarded=True).stride

    def buffers(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> Buffers:
        """Allocate memory files."""
        return CpuBuffers(inputs, outputs, sets, self.well, self.rtol, self.atol)

    def stop_idle(self, player: Player) -> None:
        """Freeze."""
        player.freeze()

    def snapshot(self) -> Dict[str, Any]:
        """Return the load."""
        return {"load_average": [round(v, 2) for v in os.getloadavg()]}

    def evidence(self) -> Dict[str, Any]:
        """Return the machine."""
        return {
            "cpu": self.label,
            "cores": len(os.sched_getaffinity(0)),
            "memory": self.memory,
            "gomp_spincount": 10000,
        }
