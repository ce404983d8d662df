"""Buffers in memory files: the owner writes the inputs, nobody else can."""

import fcntl
import mmap
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ..channel.supervisor_client import Player
from ..numerics.compare import CHUNK, STORAGE, compare
from ..numerics.parallel_map import spread
from ..numerics.random_inputs import SLAB
from ..numerics.tensors import MADE, Array, Layout, Tensor
from .device import Buffers, RoundCheck

F_ADD_SEALS = 1033
F_SEAL_SEAL = 0x1
F_SEAL_SHRINK = 0x2
F_SEAL_GROW = 0x4
F_SEAL_FUTURE_WRITE = 0x10
MFD_ALLOW_SEALING = 0x2
"""By number, because Python 3.9 has no name for all of them.

Source: Linux, include/uapi/linux/fcntl.h and memfd.h.
"""

FENCE_SAMPLES = 4096
"""Elements of a round's outputs, of each call's outputs at least one, that are taken when a candidate says done."""
COUNT_BYTES = 8
"""Behind the outputs, for the number of calls that have returned."""

QUIET_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
QUIET_NAN.update({"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E})
LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F, "float32": 0x7F7FFFFF, "float64": 0x7FEFFFFFFFFFFFFF}
LARGEST.update({"float8_e4m3fn": 0x7E, "float8_e5m2": 0x7B})
PAYLOAD_BITS = {"float16": 9, "bfloat16": 6, "float32": 22, "float64": 51, "float8_e4m3fn": 0, "float8_e5m2": 0}
WORDS: Dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def poison_word(dtype: str, item_bytes: int, random: int) -> int:
    """Return a quiet NaN with random sign and payload, or for integers random bits; a byte is not 0, 1 or 255."""
    if dtype not in QUIET_NAN:
        if item_bytes == 1:  # many an answer is nothing but one of those, and would look as if nobody had written it
            return 2 + random % 253
        return random & ((1 << (8 * item_bytes)) - 1)
    sign = (random >> 63) << (8 * item_bytes - 1)
    return sign | QUIET_NAN[dtype] | (random & ((1 << PAYLOAD_BITS[dtype]) - 1))


def end_words(dtype: str, item_bytes: int) -> Tuple[int, int]:
    """Return the largest and the least finite number of a type, as its bits."""
    sign = 1 << (8 * item_bytes - 1)
    if dtype in LARGEST:
        return LARGEST[dtype], sign | LARGEST[dtype]
    if dtype.startswith("int"):
        return sign - 1, sign
    return 1 if dtype == "bool" else 2 * sign - 1, 0


class Region:
    """A memory file that this process maps for writing."""

    def __init__(self, size: int, *, writable_by_others: bool) -> None:
        self.fd = os.memfd_create("judge", os.MFD_CLOEXEC | MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # A player that shrank a file would end the owner by SIGBUS at its next look.
        seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
        # Our own mapping is older than this seal and stays writable; no process can make another such one.
        if not writable_by_others:
            seals |= F_SEAL_FUTURE_WRITE
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        self.bytes: Array = np.frombuffer(self.map, dtype=np.uint8)

    def tensor(self, where: Layout, item: Tensor, number: int) -> Array:
        """Return tensor `number` of all sets as [sets, count]."""
        rows = self.rows(where)
        start = where.offsets[number]
        return rows[:, start : start + item.nbytes].view(STORAGE[item.dtype])

    def rows(self, where: Layout) -> Array:
        """Return the bytes of a layout as [sets, stride]; it begins where the file does."""
        return self.bytes[: where.total].reshape(where.sets, where.stride)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last array."""
        os.close(self.fd)


def share(where: Layout) -> Dict[str, Any]:
    """Return a layout as a message."""
    return {"offsets": list(where.offsets), "stride": where.stride, "sets": where.sets}


class SampleFence:
    """Takes elements at secret places of every output, at once when a candidate says done.

    An output that is still missing then is another one later, or is written before it looks: the owner's clock covers
    that.
    """

    def __init__(self, buffers: "CpuBuffers") -> None:
        """Choose the places."""
        self.buffers = buffers
        # Places are drawn anew for each round: elements that were looked at before tell nothing of the next.
        random, sets = np.random.default_rng(buffers.well.word()), buffers.sets
        rows, each = np.arange(sets)[:, None], max(1, FENCE_SAMPLES // (sets * len(buffers.outputs)))
        self.places = [(rows, random.integers(0, item.count, (sets, each))) for item in buffers.outputs]
        self.seen: List[Array] = []

    def look(self) -> None:
        """Take what is at the places now."""
        self.seen = self._elements()

    def has_changed(self) -> bool:
        """Say whether something else is there now than when it looked."""
        return any(was.tobytes() != now.tobytes() for was, now in zip(self.seen, self._elements()))

    def _elements(self) -> List[Array]:
        return [self.buffers.every(number)[1][at] for number, at in enumerate(self.places)]


class CpuBuffers(Buffers):
    """The layouts of one shape in the files."""

    def __init__(self, device: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> None:
        super().__init__(device, inputs, outputs, sets)
        self.rtol, self.atol = device.rtol, device.atol
        self.input_region, self.output_region, self.expected_region = device.files
        self.told: Set[str] = device.told
        self.count_at = self.output_layout.total
        """Where in the file of the outputs, behind them, the candidate's loop counts the calls that have returned."""
        self.guard: Array = np.zeros(0, dtype=np.uint8)

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors for `role`: the candidate never gets the expected outputs."""
        mine, where = (
            (self.output_region, self.output_layout)
            if role == "candidate"
            else (self.expected_region, self.expected_layout)
        )
        fields: Dict[str, Any] = {"inputs": share(self.input_layout), "outputs": share(where)}
        if role == "candidate":
            fields["returned"] = self.count_at
        # Players keep the files mapped, and every sending would open one more descriptor in them.
        if role in self.told:
            return fields, []
        self.told.add(role)
        return fields, [self.input_region.fd, mine.fd]

    def fill(self) -> None:
        """Draw fresh inputs, set after set."""
        for number, item in enumerate(self.inputs):
            if item.distribution in MADE:
                continue
            self.well.fill(self._given(number), item.dtype, item.distribution)

    def _given(self, number: int) -> Array:
        """Return an input of all calls, [sets, count]."""
        return self.input_region.tensor(self.input_layout, self.inputs[number], number)

    def put_input(self, number: int, values: Array, first: int = 0) -> None:
        """Take over an input that was made elsewhere."""
        self._given(number)[first : first + len(values)] = values

    def poison(self, words: Optional[Sequence[int]] = None) -> None:
        """Overwrite outputs and guards; no call has returned."""
        self._count()[0] = 0
        self.fence = SampleFence(self)
        self.guard = np.frombuffer(self.well.bytes(max(self.output_layout.guard_bytes)), dtype=np.uint8)
        rows = self.output_region.rows(self.output_layout)
        for number, item in enumerate(self.outputs):
            every = self.every(number)[1]
            word = WORDS[every.itemsize]
            drawn = poison_word(item.dtype, every.itemsize, self.well.word())
            self.words[number] = drawn if words is None else words[number]
            every.view(word)[...] = self.words[number]
            for start, size in self._guards(number, item):
                rows[:, start : start + size] = self.guard[:size]

    def returned(self) -> int:
        """Return how many calls of the round have returned, as the candidate's loop says."""
        # The candidate can write to this counter, so its value is clamped before anything uses it as an index.
        return min(max(int(self._count()[0]), 0), self.sets)

    def _count(self) -> Array:
        return self.output_region.bytes[self.count_at : self.count_at + COUNT_BYTES].view(np.int64)

    def _guards(self, number: int, item: Tensor) -> List[Tuple[int, int]]:
        offset, size = self.output_layout.offsets[number], self.output_layout.guard_bytes[number]
        return [(offset - size, size), (offset + item.nbytes, size)]

    def stop(self, player: Player) -> None:
        """Take samples of the candidate's outputs; the reference is believed to be done when it says so."""
        if player.role == "candidate":
            self.fence.look()

    def every(self, output: int) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output of all calls, [sets, count]."""
        item = self.outputs[output]
        return (
            self.expected_region.tensor(self.expected_layout, item, output),
            self.output_region.tensor(self.output_layout, item, output),
        )

    def check(self) -> RoundCheck:
        """Compare all outputs in full."""
        return self.check_first(self.sets)

    def check_first(self, count: int) -> RoundCheck:
        """Compare the outputs of the first `count` calls in full."""
        wrong = np.zeros((count, len(self.outputs)), dtype=np.int64)
        worst: List[Tuple[float, float]] = [(0.0, 0.0)]
        for number, item in enumerate(self.outputs):
            expected, got = self.every(number)
            worst += self._check_tensor(item, expected[:count], got[:count], wrong[:, number])
        return RoundCheck(wrong, max(w[0] for w in worst), max(w[1] for w in worst))

    def _check_tensor(self, item: Tensor, expected: Array, got: Array, wrong: Array) -> List[Tuple[float, float]]:
        step = max(1, CHUNK // max(1, item.count))
        slab = max(step, SLAB // max(1, item.count) // step * step)
        sets = len(wrong)
        found: List[Tuple[float, float]] = []

        def some(number: int) -> None:
            for first in range(number * slab, min(sets, (number + 1) * slab), step):
                rows = slice(first, min(first + step, (number + 1) * slab))
                result = compare(expected[rows].ravel(), got[rows].ravel(), item.dtype, self.rtol, self.atol)
                found.append((result.max_abs, result.max_rel))
                if result.mask is not None:
                    wrong[rows] = np.count_nonzero(result.mask.reshape(-1, item.count), axis=1)

        spread((sets + slab - 1) // slab, some)
        return found

    def untouched(self) -> bool:
        """Say whether every output still holds this round's poison."""
        for number, value in enumerate(self.words):
            every = self.every(number)[1]
            word = WORDS[every.itemsize]
            if not (every.view(word) == word(value)).all():
                return False
        return True

    def trespass(self) -> str:
        """Say which guard was written; inputs cannot be."""
        rows = self.output_region.rows(self.output_layout)
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
        want, have = self.every(output)
        return want[call], have[call]

    def input_elements(self, number: int) -> Array:
        """Return an input of the first call."""
        return self._given(number)[0]

    def pieces(self, number: int, calls: Array, first: int, count: int) -> Array:
        """Return a copy of elements of an input."""
        return self._given(number)[calls, first : first + count]

    def put_pieces(self, number: int, calls: Array, first: int, values: Array) -> None:
        """Give an input other elements; both players read the same."""
        self._given(number)[calls, first : first + values.shape[1]] = values

    def samples(self, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements at `positions`."""
        want, have = self.every(output)
        return want[:, positions], have[:, positions]

    def close(self) -> None:
        """Do nothing: the files serve the next shape."""
