"""Inputs that only the problem's own code can make: masks, indices, weights.

The reference writes them, and they travel from its process into the sets of a round.
"""

import resource
import time
from typing import Any, Dict, List

import numpy as np

from ..channel.supervisor_client import Player
from ..devices.device import Buffers, Device
from ..devices.memory_cpu import Region, share
from ..numerics.tensors import Layout, layout
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


def draw(device: Device, buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Fill all inputs; return what went wrong in the problem's code, empty if nothing.

    What the owner can draw it draws. Weights do not change: the reference writes them once for a round's buffers,
    and where they travel in a file once for all shapes.
    """
    buffers.fill()
    wrong = ""
    if not buffers.weights_written:
        wrong = _weights(device, buffers, reference, timeout_s)
        buffers.weights_written = True
    begin = time.perf_counter()
    wrong = wrong or _make(device, buffers, reference, seed, timeout_s)
    buffers.made_s = time.perf_counter() - begin
    return wrong


def _which(buffers: Buffers, kind: str) -> List[int]:
    return [i for i, item in enumerate(buffers.inputs) if item.distribution == kind]


def _weights(device: Device, buffers: Buffers, reference: Player, timeout_s: float) -> str:
    """Give every set the weights, which travel from the reference's process when they are first wanted."""
    which = _which(buffers, "weights")
    if not which:
        return ""
    where = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    device.weights_bytes = where.total
    carrier = device.weights or carrier_of(device, buffers, where.total)
    try:
        if carrier is not device.weights:
            wrong = _asked(reference, carrier, where, timeout_s, which=which, seed=0, kind="weights")
            if wrong:
                return wrong
            if isinstance(carrier, ByFile) and not device.by_case:
                device.weights = carrier  # on a GPU another copy is had sooner than room to keep one
        for place, number in enumerate(which):
            carrier.spread(buffers, number, where, place)
    finally:
        if carrier is not device.weights:
            carrier.close()
    return ""


def _make(device: Device, buffers: Buffers, reference: Player, seed: int, timeout_s: float) -> str:
    """Have the reference write inputs, as many sets at a time as travel together."""
    which, sets = _which(buffers, "made"), buffers.sets
    if not which:
        return ""
    one = layout([buffers.inputs[i] for i in which], 1, guarded=False)
    carrier = carrier_of(device, buffers, one.stride, sets)
    try:
        for first in range(0, sets, carrier.calls):
            where = one._replace(sets=min(carrier.calls, sets - first))
            # The seed advances by sets, so batches of another size make the very same inputs.
            wrong = _asked(reference, carrier, where, timeout_s, which=which, seed=seed + first, kind="made")
            if wrong:
                return wrong
            for place, number in enumerate(which):
                carrier.put(buffers, number, where, place, first)
    finally:
        carrier.close()
    return ""


def _asked(reference: Player, carrier: Any, where: Layout, timeout_s: float, **task: Any) -> str:
    """Have the reference write into what travels; return its error, empty if there is none."""
    reference.thaw()
    reply = reference.ask("make", timeout_s, [carrier.descriptor], **carrier.told(where), **task)
    return str(reply.get("error") or "")
