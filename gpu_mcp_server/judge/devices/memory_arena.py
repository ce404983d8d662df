"""Outputs where ModelNew's own allocator put them: in an arena of the owner's, which the candidate only names.

The candidate says for each call and output at which offset it begins. The owner reads the names once, checks bounds,
alignment and that no two overlap, points the fence at them, and copies what it found there into its own layout, outside
the clock, where every other check takes place. A name that is a lie is a wrong answer. What was named in one round is
poisoned before the next.
"""

from ctypes import c_int, c_int64, c_uint64
from typing import Any, Dict, List, Optional, Sequence, Tuple, cast

import numpy as np

from ..channel.supervisor_client import Player
from ..numerics.tensors import ITEM_BYTES, Array, Tensor
from ..verdicts import incorrect
from .cuda_driver import Shared
from .device import RoundCheck
from .memory_cpu import Region
from .memory_cuda import CudaBuffers
from .owner_kernels import Fence

LONGEST_STRIDE = 1 << 40
"""Elements, so that no product of it and a size is beyond 64 bits."""
SPARE_BYTES = 512 << 20
"""Of the arena, for what a model allocates besides its outputs; beyond it its memory comes from the device."""
FITS = 4
"""Times the answer to a call that must be free for the arena to hold one more."""
POISONED = 256
"""Of the regions named in a round, how many are poisoned before the next, drawn at random."""
HERE = -1
"""Name of an output that the candidate copied into its place."""


def rows_of(told: Any) -> List[List[Any]]:
    """Return lists of a list, empty ones for what is none."""
    every = cast("List[Any]", told) if isinstance(told, list) else []
    return [cast("List[Any]", one) if isinstance(one, list) else [] for one in every]


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether elements follow each other; the stride of a single element does not matter."""
    step = 1
    for size, stride in reversed(list(zip(shape, strides))):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


class PooledBuffers(CudaBuffers):
    """Buffers with an arena besides the outputs' own places."""

    copied = True

    def __init__(self, device: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> None:
        super().__init__(device, inputs, outputs, sets)
        # At first a call is made twice, and both answers lie there at once.
        twice = self.expected_layout.stride if FITS * self.expected_layout.stride <= device.free_bytes() else 0
        self.arena = Shared.create(self.tools.driver, self.expected_layout.total * 5 // 4 + SPARE_BYTES + twice)
        self.file = Region(8 * sets * len(outputs), writable_by_others=True)
        self.names: Array = self.file.bytes.view(np.int64).reshape(sets, len(outputs))
        # Without a name the output is read at its own place, where the poison shows that nothing was written.
        self.names[...] = HERE
        self.taken: Array = self.names.copy()
        self.fresh = False
        """Whether this round's names were not read yet."""
        calls = np.arange(sets, dtype=np.int64)[:, None]
        places = np.array(self.output_layout.offsets, dtype=np.int64)[None, :]
        self.places: Array = self.got.address + calls * self.output_layout.stride + places
        self.rows: Array = np.zeros((sets, len(outputs), 5), dtype=np.int64)
        self.rows[:, :, 0] = self.places
        self.rows[:, :, 2] = [item.count for item in outputs]
        self.rows[:, :, 3] = [ITEM_BYTES[item.dtype] for item in outputs]
        self.sizes: Array = np.array([item.nbytes for item in outputs], dtype=np.int64)[None, :]
        """Bytes of memory that each result spans."""
        self.items: Array = np.array([ITEM_BYTES[item.dtype] for item in outputs], dtype=np.int64)[None, :]
        self.views: List[int] = [0] * len(outputs)
        """Addresses at which the kernels read how the elements of an output lie, 0 where one after the other."""
        self.fence.close()
        flat: Any = self.rows.reshape(-1, 5).tolist()
        self.fence = Fence(self.tools, flat, 1)

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors; the candidate's with arena and names."""
        fields, descriptors = super().describe(role)
        if role != "candidate":
            return fields, descriptors
        return dict(fields, arena={"bytes": self.arena.size}), [*descriptors, self.arena.descriptor, self.file.fd]

    def take_strides(self, told: Any) -> None:
        """Take over the strides of results, which are not believed but looked at: each place is the owner's to read.

        Raises:
            Judged: If they are none, or lead out of the arena.
        """
        if told is None:
            return
        rows = rows_of(told)
        fits = [len(one) for one in rows] == [len(item.shape) for item in self.outputs]
        if not fits or any(type(step) is not int or not 0 <= step <= LONGEST_STRIDE for one in rows for step in one):
            raise incorrect("named outputs with strides that are none")
        for number, (item, strides) in enumerate(zip(self.outputs, rows)):
            span = 1 + sum((size - 1) * step for size, step in zip(item.shape, strides))
            # Python's integers do not overflow, so a hostile stride cannot wrap around this bound.
            if span * ITEM_BYTES[item.dtype] > self.arena.size:
                raise incorrect("named outputs that do not lie in the judge's memory")
            self.sizes[0, number] = span * ITEM_BYTES[item.dtype]
            if not is_row_major(item.shape, strides):
                self._view(number, [item.shape, strides])

    def _view(self, number: int, view: List[Sequence[int]]) -> None:
        """Tell the owner's kernels how the elements of an output lie."""
        pairs = [value for pair in reversed(list(zip(*view))) for value in pair]
        table = np.array([len(view[0]), *pairs], dtype=np.int64)
        if not self.views[number]:
            self.views[number] = self.tools.driver.allocate(table.nbytes)
        self.tools.driver.upload(self.views[number], table.ctypes.data, table.nbytes)

    def poison(self, words: Optional[Sequence[int]] = None) -> None:
        """Overwrite outputs and guards, and what was named in the round before."""
        super().poison(words)
        calls, numbers = np.nonzero(self.taken >= 0)
        some = range(calls.size)
        if calls.size > POISONED:
            # Each region costs one launch; a secret sample suffices, as a stale answer is wrong for fresh inputs
            # anyway.
            some = sorted({int(p) for p in self.well.positions(POISONED, calls.size)})
        for place in some:
            number = int(numbers[place])
            item = self.outputs[number]
            at, size = self.arena.address + int(self.taken[calls[place], number]), ITEM_BYTES[item.dtype]
            what = [c_int(size), c_uint64(self.words[number])]
            if self.views[number]:
                where = [c_uint64(at), c_uint64(self.views[number]), c_int64(item.count)]
                self.tools.kernels.launch("set_places", item.count, [*where, *what])
                continue
            span = [c_uint64(at), c_int64(0), c_int64(item.count), c_int64(1)]
            self.tools.kernels.launch("set_words", item.count, [*span, *what])
        self.tools.driver.synchronize()
        self.names[...] = HERE
        self.taken = self.names.copy()
        self.fresh = True

    def _take(self) -> None:
        """Read this round's names, once.

        Raises:
            Judged: If one is no place in the arena.
        """
        if not self.fresh:
            return
        self.fresh = False
        # Checked and used is this copy: the candidate can change the names at any time.
        found = self.names.copy()
        # Misaligned offsets are refused as well: a load there would fault, and end the owner's context.
        outside = (found != HERE) & ((found < 0) | (found > self.arena.size - self.sizes) | (found % self.items != 0))
        if outside.any():
            raise incorrect("named outputs that do not lie in the judge's memory")
        self.taken = found

    def _overlap(self) -> bool:
        """Say whether results of two calls do; those of one call may lie between each other's elements."""
        calls, numbers = np.nonzero(self.taken >= 0)
        starts = self.taken[calls, numbers]
        ends = starts + self.sizes[0, numbers]
        # Sorted by start, one sweep finds any overlap; `others` keeps the furthest end of any other call.
        furthest, others, whose = 0, 0, -1
        for at in np.argsort(starts):
            start, end, call = int(starts[at]), int(ends[at]), int(calls[at])
            if start < (others if call == whose else furthest):
                return True
            if call == whose:
                furthest = max(furthest, end)
            elif end > furthest:
                furthest, others, whose = end, furthest, call
            else:
                others = max(others, end)
        return False

    def stop(self, player: Player) -> None:
        """Stop the candidate's clock by the fence, over the places that were named."""
        if player.role != "candidate":
            return
        self._take()
        self.rows[:, :, 4] = np.where(self.taken >= 0, np.array(self.views)[None, :], 0)
        self.rows[:, :, 0] = np.where(self.taken >= 0, self.arena.address + self.taken, self.places)
        # The upload is within the clock: the places are known only once the candidate has named them.
        self.tools.driver.upload(self.fence.table, self.rows.ctypes.data, self.rows.nbytes)
        self.fence.look()

    def _adopt(self) -> None:
        """Copy what lies at the named places into the outputs' own."""
        self._take()
        calls, numbers = np.nonzero(self.taken >= 0)
        for call, number in zip(calls.tolist(), numbers.tolist()):
            at = self.arena.address + int(self.taken[call, number])
            item, into = self.outputs[number], int(self.places[call, number])
            if self.views[number]:
                where = [c_uint64(at), c_uint64(self.views[number]), c_int64(item.count)]
                what = [c_int(ITEM_BYTES[item.dtype]), c_uint64(into)]
                self.tools.kernels.launch("collect", item.count, [*where, *what])
                continue
            self.tools.driver.call("cuMemcpyDtoD_v2", into, at, item.nbytes)
        self.tools.driver.synchronize()

    def check(self) -> RoundCheck:
        """Compare all outputs in full, wherever they lie.

        Raises:
            Judged: If two outputs of the round share memory.
        """
        self._adopt()
        if self._overlap():
            raise incorrect("ModelNew returned the same memory for two calls of a round; let it return new tensors")
        return super().check()

    def separators(self, *, ahead: bool) -> Dict[str, Any]:
        """Choose bytes of an output, always of a call's own answer: where the next one's will lie nobody knows."""
        return super().separators(ahead=False)

    def _there(self, output: int, calls: Array, places: Array) -> Array:
        """Return what is at bytes of an output, of each call where it was named."""
        named = self.taken[calls, output]
        starts: Array = cast("Any", np.where(named >= 0, self.arena.address + named, self.places[calls, output]))
        one = self.output_layout._replace(sets=1)
        return self.tools.gather(0, one, "uint8", np.ravel(starts[:, None] + places)).reshape(places.shape)

    def close(self) -> None:
        """Free everything."""
        super().close()
        for view in filter(None, self.views):
            self.tools.driver.free(view)
        self.arena.close()
        self.file.close()
