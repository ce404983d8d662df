"""Outputs where ModelNew's own allocator put them: in an arena of the owner's, which the candidate only names.

The candidate says for each call and output at which offset it begins. The owner reads the names once, checks bounds,
alignment and that no two overlap, points the fence at them, and copies what it found there into its own layout, outside
the clock, where every other check takes place. A name that is a lie is a wrong answer. What was named in one round is
poisoned before the next.
"""

from ctypes import c_int, c_int64, c_uint64
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..channel.supervisor_client import Player
from ..numerics.tensors import ITEM_BYTES, Array, Tensor, layout
from ..verdicts import incorrect
from .cuda_driver import Shared
from .device import RoundCheck
from .memory_cpu import Region
from .memory_cuda import CudaBuffers
from .owner_kernels import TYPES, Fence

SPARE_BYTES = 512 << 20
"""Of the arena, for what a model allocates besides its outputs; beyond it its memory comes from the device."""
ALIGNMENT = 16
POISONED = 256
"""Of the regions named in a round, how many are poisoned before the next, drawn at random."""
HERE = -1
"""Name of an output that the candidate copied into its place."""


def arena_bytes(outputs: Sequence[Tensor], sets: int) -> int:
    """Return the size of the arena for a round."""
    return layout(outputs, sets, guarded=False).total * 5 // 4 + SPARE_BYTES


class PooledBuffers(CudaBuffers):
    """Buffers with an arena besides the outputs' own places."""

    copied = True

    def __init__(self, device: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> None:
        super().__init__(device, inputs, outputs, sets)
        self.arena = Shared.create(self.tools.driver, arena_bytes(outputs, sets))
        self.file = Region(8 * sets * len(outputs), writable_by_others=True)
        self.names: Array = self.file.bytes.view(np.int64).reshape(sets, len(outputs))
        self.names[...] = HERE
        self.taken: Array = self.names.copy()
        self.fresh = False
        """Whether this round's names were not read yet."""
        calls = np.arange(sets, dtype=np.int64)[:, None]
        places = np.array(self.output_layout.offsets, dtype=np.int64)[None, :]
        self.places: Array = self.got.address + calls * self.output_layout.stride + places
        wanted = np.array(self.expected_layout.offsets, dtype=np.int64)[None, :]
        self.rows: Array = np.zeros((sets, len(outputs), 6), dtype=np.int64)
        self.rows[:, :, 0] = self.expected.address + calls * self.expected_layout.stride + wanted
        self.rows[:, :, 4] = [item.count for item in outputs]
        self.rows[:, :, 5] = [TYPES[item.dtype] for item in outputs]
        self.rows[:, :, 1] = self.places
        self.sizes: Array = np.array([item.nbytes for item in outputs], dtype=np.int64)[None, :]
        self.fence.close()
        flat: Any = self.rows.reshape(-1, 6).tolist()
        self.fence = Fence(self.tools, flat, 1, device.rtol, device.atol)

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors; the candidate's with arena and names."""
        fields, descriptors = super().describe(role)
        if role != "candidate":
            return fields, descriptors
        return dict(fields, arena={"bytes": self.arena.size}), [*descriptors, self.arena.descriptor, self.file.fd]

    def poison(self) -> None:
        """Overwrite outputs and guards, and what was named in the round before."""
        super().poison()
        calls, numbers = np.nonzero(self.taken >= 0)
        some = range(calls.size)
        if calls.size > POISONED:
            some = sorted({int(p) for p in self.well.positions(POISONED, calls.size)})
        for place in some:
            number = int(numbers[place])
            item = self.outputs[number]
            at, size = self.arena.address + int(self.taken[calls[place], number]), ITEM_BYTES[item.dtype]
            span = [c_uint64(at), c_int64(0), c_int64(item.count), c_int64(1)]
            self.tools.kernels.launch("set_words", item.count, [*span, c_int(size), c_uint64(self.words[number])])
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
        found = self.names.copy()
        outside = (found != HERE) & ((found < 0) | (found > self.arena.size - self.sizes) | (found % ALIGNMENT != 0))
        if outside.any():
            raise incorrect("named outputs that do not lie in the judge's memory")
        self.taken = found

    def _overlap(self) -> bool:
        named = self.taken >= 0
        starts = self.taken[named]
        ends = starts + np.broadcast_to(self.sizes, self.taken.shape)[named]
        order = np.argsort(starts)
        return bool((starts[order][1:] < ends[order][:-1]).any())

    def stop(self, player: Player) -> bool:
        """Stop the candidate's clock by the fence, over the places that were named."""
        if player.role != "candidate":
            return True
        self._take()
        self.rows[:, :, 1] = np.where(self.taken >= 0, self.arena.address + self.taken, self.places)
        self.tools.driver.upload(self.fence.table, self.rows.ctypes.data, self.rows.nbytes)
        return self.fence.passes()

    def _adopt(self) -> None:
        """Copy what lies at the named places into the outputs' own."""
        self._take()
        calls, numbers = np.nonzero(self.taken >= 0)
        for call, number in zip(calls.tolist(), numbers.tolist()):
            at = self.arena.address + int(self.taken[call, number])
            size = self.outputs[number].nbytes
            self.tools.driver.call("cuMemcpyDtoD_v2", int(self.places[call, number]), at, size)
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

    def close(self) -> None:
        """Free everything."""
        super().close()
        self.arena.close()
        self.file.close()
