"""Carries inputs that the problem's code makes from the reference's process into the sets of a round."""

import resource
from typing import Any, Dict

import numpy as np

from ..devices.device import Buffers, Device
from ..devices.memory_cpu import Region, share
from ..numerics.tensors import Layout
from ..verdicts import TooLarge

AT_ONCE_BYTES = 256 << 20
"""Of inputs that travel together: a job's files are limited, and a round's inputs may be many."""


def most_bytes(size: int) -> int:
    """Return how much may travel in a file.

    Raises:
        TooLarge: If `size` bytes, one call's, may not.
    """
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return AT_ONCE_BYTES
    if size > most:
        text = "the problem is too large: inputs that its own code makes take %.3g GB a call, the limit is %.3g GB"
        raise TooLarge(text % (size / 1e9, most / 1e9))
    return min(most, AT_ONCE_BYTES)


class ByFile:
    """A memory file, `size` bytes for each of as many calls as are wanted and one may hold."""

    def __init__(self, size: int, most_calls: int) -> None:
        self.calls = min(most_calls, max(1, most_bytes(size) // size))
        self.region = Region(size * self.calls, writable_by_others=True)
        self.descriptor = self.region.fd

    def told(self, where: Layout) -> Dict[str, Any]:
        """Return what the reference must know to write into it."""
        return {"where": share(where)}

    def put(self, buffers: Buffers, number: int, where: Layout, place: int, first: int) -> None:
        """Give tensor `place` of each set of `where` to input `number`, from set `first` on."""
        buffers.put_input(number, self.region.tensor(where, buffers.inputs[number], place), first)

    def spread(self, buffers: Buffers, number: int, where: Layout, place: int) -> None:
        """Give tensor `place` to input `number` of every set."""
        values = self.region.tensor(where, buffers.inputs[number], place)
        # A broadcast has stride 0, by which `put_input` knows that one upload serves all sets.
        buffers.put_input(number, np.broadcast_to(values, (buffers.sets, values.shape[1])))

    def close(self) -> None:
        """Free it."""
        self.region.close()


class ByGpu:
    """Memory of a GPU on which the reference computes: what it makes there need not leave it."""

    def __init__(self, driver: Any, size: int, most_calls: int) -> None:
        from ..devices.cuda_driver import Shared

        self.driver = driver
        self.calls = min(most_calls, max(1, AT_ONCE_BYTES // size))
        self.memory = Shared.create(driver, size * self.calls)
        self.descriptor = self.memory.descriptor

    def told(self, where: Layout) -> Dict[str, Any]:
        """Return what the reference must know to write into it."""
        return {"where": share(where), "gpu_bytes": self.memory.size}

    def _copy(self, buffers: Any, number: int, at: int, step: int, first: int, calls: int) -> None:
        where, size = buffers.input_layout, buffers.inputs[number].nbytes
        start = buffers.staged.address + where.offsets[number]
        for call in range(calls):
            self.driver.call("cuMemcpyDtoD_v2", start + (first + call) * where.stride, at + call * step, size)
        # The reference writes the next batch into the same memory, so the copies must have ended.
        self.driver.synchronize()

    def put(self, buffers: Buffers, number: int, where: Layout, place: int, first: int) -> None:
        """Give tensor `place` of each set of `where` to input `number`, from set `first` on."""
        self._copy(buffers, number, self.memory.address + where.offsets[place], where.stride, first, where.sets)

    def spread(self, buffers: Buffers, number: int, where: Layout, place: int) -> None:
        """Give tensor `place` to input `number` of every set."""
        self._copy(buffers, number, self.memory.address + where.offsets[place], 0, 0, buffers.sets)

    def close(self) -> None:
        """Free it."""
        self.memory.close()


def carrier_of(device: Device, buffers: Buffers, size: int, most_calls: int = 1) -> Any:
    """Return what `size` bytes for each of several calls, or as many of them as it holds, travel in."""
    if buffers.stores_later and device.kind == "cuda":
        from ..devices.cuda_driver import OutOfMemory

        try:
            return ByGpu(buffers.tools.driver, size, most_calls)  # type: ignore[attr-defined]
        except OutOfMemory:
            pass  # the round's buffers have all of it
    return ByFile(size, most_calls)
