"""The owner's own kernels and a little device memory for their results; the fence that stops the clock."""

import hashlib
import os
import threading
import time
from ctypes import c_int, c_int64, c_uint64
from typing import Any, List, Sequence, Tuple

import numpy as np

from ..folders import CODE, JUDGE
from ..numerics.compare import STORAGE
from ..numerics.tensors import ITEM_BYTES, Array, Layout, Tensor
from .cuda_driver import MAJOR, MINOR, CudaError, Driver, Kernels

TYPES = {name: number for number, name in enumerate(ITEM_BYTES)}
TYPES.update(dict.fromkeys(("bool", *list(TYPES)[15:]), TYPES["uint8"]))
"""As numbered in kernels.cu, to which bool and the types of inputs alone are bytes."""
FENCE_SAMPLES = 64
"""Positions of every output that the fence looks at."""
WORD_BYTES = 8
SEEN_BYTES = 2 * WORD_BYTES * FENCE_SAMPLES
"""Of each output of a call: what the fence took, and what is there later."""
AFTERMATH_S = 10.0
PTX = os.path.join(JUDGE, "devices/kernels.ptx")
CUBIN = os.path.join(CODE, "sm_%d%d.cubin")
"""The same, assembled for an architecture: the driver of an H100 needs 0.8 to 1.3 s to compile the PTX."""


class Tools:
    """The driver, the owner's kernels, and a little device memory for their results."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.seconds, begin = dict(self.driver.seconds), time.perf_counter()
        """What the start of the device took, for the evidence."""
        self.compiled_by = "ptxas"
        """What made the kernels of the PTX, for the evidence."""
        self.sha256 = ""
        """Of what the driver took, for the evidence."""
        try:
            self.kernels = self._load(self._assembled())
        # The PTX runs on any architecture, after the driver's compilation.
        except (OSError, CudaError):
            self.compiled_by = "the driver"
            self.kernels = self._load(PTX, b"\0")
        self.seconds["kernels"] = time.perf_counter() - begin
        self.results = self.driver.allocate(4096)

    def _assembled(self) -> str:
        """Return the file for this GPU: of its major version the newest that is not newer than it.

        Source: CUDA C++ Programming Guide, Binary Compatibility: a cubin runs on later minor versions, on no others.

        Raises:
            FileNotFoundError: If there is none.
        """
        major, minor = self.driver.attribute(MAJOR), self.driver.attribute(MINOR)
        found = [CUBIN % (major, each) for each in range(minor, -1, -1) if os.path.exists(CUBIN % (major, each))]
        if not found:
            raise FileNotFoundError(CUBIN % (major, minor))
        return found[0]

    def _load(self, path: str, end: bytes = b"") -> Kernels:
        """Hand a file to the driver, and note the hash of what it was handed."""
        with open(path, "rb") as file:
            image = file.read()
        kernels = Kernels(self.driver, image + end)
        self.sha256 = hashlib.sha256(image).hexdigest()
        return kernels

    def count(self, name: str, work: int, arguments: Sequence[Any], start: Sequence[int] = (0,)) -> List[int]:
        """Launch a kernel whose last argument is an array of counters, and return them."""
        self.set_counters(self.results, start)
        self.kernels.launch(name, work, [*arguments, c_uint64(self.results)])
        return self.counters(self.results, len(start))

    def places(self, name: str, work: int, arguments: Sequence[Any], most: int) -> Tuple[int, Array]:
        """Launch a kernel that lists positions, with room for `most` of them; return how many, and them in order."""
        into = self.driver.allocate(8 * most)
        try:
            found = self.count(name, work, [*arguments, c_int64(most), c_uint64(into)])[0]
            positions = np.empty(min(found, most), dtype=np.int64)
            self.driver.download(positions.ctypes.data, into, positions.nbytes)
        finally:
            self.driver.free(into)
        return found, np.sort(positions)

    def set_counters(self, at: int, values: Sequence[int]) -> None:
        """Write counters."""
        data = np.array(values, dtype=np.uint64)
        self.driver.upload(at, data.ctypes.data, data.nbytes)

    def counters(self, at: int, count: int) -> List[int]:
        """Wait for the kernels and read counters."""
        data = np.zeros(count, dtype=np.uint64)
        self.driver.download(data.ctypes.data, at, data.nbytes)
        return [int(v) for v in data]

    def elements(self, at: int, item: Tensor) -> Array:
        """Return a tensor's elements."""
        data = np.empty(item.count, dtype=STORAGE[item.dtype])
        self.driver.download(data.ctypes.data, at, data.nbytes)
        return data

    def gather(self, address: int, where: Layout, dtype: str, positions: Array) -> Array:
        """Return elements at `positions` of every set, [sets, positions]."""
        into = np.empty((where.sets, positions.size), dtype=STORAGE[dtype])
        list_at, into_at = self.driver.allocate(positions.nbytes), self.driver.allocate(into.nbytes)
        self.driver.upload(list_at, positions.ctypes.data, positions.nbytes)
        arguments = [c_uint64(address), c_int64(where.stride), c_int64(where.sets), c_int(ITEM_BYTES[dtype])]
        arguments += [c_uint64(list_at), c_int64(positions.size), c_uint64(into_at)]
        self.kernels.launch("gather", into.size, arguments)
        self.driver.download(into.ctypes.data, into_at, into.nbytes)
        self.driver.free(list_at)
        self.driver.free(into_at)
        return into

    def scatter(self, address: int, stride: int, sets: Array, values: Array) -> None:
        """Write a row of `values` at `address` of each of some sets, and wait."""
        if not sets.size:
            return
        rows = np.ascontiguousarray(values)
        list_at, from_at = self.driver.allocate(sets.nbytes), self.driver.allocate(rows.nbytes)
        self.driver.upload(list_at, sets.ctypes.data, sets.nbytes)
        self.driver.upload(from_at, rows.ctypes.data, rows.nbytes)
        arguments = [c_uint64(address), c_int64(stride), c_uint64(list_at), c_int64(sets.size)]
        self.kernels.launch("scatter", rows.nbytes, [*arguments, c_int64(rows.nbytes // sets.size), c_uint64(from_at)])
        self.driver.synchronize()
        self.driver.free(list_at)
        self.driver.free(from_at)


class Fence:
    """One launch that takes elements at secret positions of every output; its end stops the clock.

    Whether they change afterwards says whether the work was done. Whether they are right is for the full check, so
    that nothing here needs to know the answers.
    """

    def __init__(self, tools: Tools, rows: Sequence[Sequence[int]], sets: int) -> None:
        """Begin with a row for each output: address, stride, elements, bytes of one, and the address of its view."""
        self.tools, self.items, self.sets = tools, len(rows), sets
        table = np.array(rows, dtype=np.int64)
        self.table = tools.driver.allocate(table.nbytes)
        tools.driver.upload(self.table, table.ctypes.data, table.nbytes)
        self.samples = self.items * sets * FENCE_SAMPLES
        self.seen = tools.driver.allocate(SEEN_BYTES * self.items * sets)
        """What was there when it looked, and behind that what is there later."""
        self.looked = False
        self.key = c_uint64(0)

    def arm(self, key: int) -> None:
        """Choose new positions; outside the clock."""
        self.key, self.looked = c_uint64(key), False

    def look(self) -> None:
        """Take what is there, and wait."""
        self._take(self.seen)
        self.looked = True

    def has_changed(self) -> bool:
        """Say whether other elements are there now than when it looked; outside the clock."""
        if not self.looked:
            return False
        later = self.seen + WORD_BYTES * self.samples
        self._take(later)
        arguments = [c_uint64(self.seen), c_uint64(later), c_int64(self.samples)]
        return self.tools.count("count_differing", self.samples, arguments)[0] > 0

    def _take(self, into: int) -> None:
        arguments = [c_uint64(self.table), c_int64(self.items), c_int64(self.sets), c_int64(FENCE_SAMPLES), self.key]
        self.tools.kernels.launch("fence", self.samples, [*arguments, c_uint64(into)])
        # The download waits for the kernel, so its end is the end of all work before it on the stream.
        self.tools.counters(into, 1)

    def close(self) -> None:
        """Free the table and what was seen."""
        self.tools.driver.free(self.table)
        self.tools.driver.free(self.seen)


def answer_of(driver: Driver, fence: Fence) -> str:
    """Say whether the GPU answers an empty fence, and how soon; a lost one never does, nor lets go of who asks."""
    begin = time.perf_counter()
    answered: List[float] = []

    def ask() -> None:
        # A CUDA context is current per thread, so the new thread must adopt it.
        driver.enter()
        fence.look()
        answered.append(time.perf_counter() - begin)

    # A call into a lost context may never return, and a daemon thread does not keep the process alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(AFTERMATH_S)
    if answered:
        return "the GPU answered afterwards, in %.3g ms" % (answered[0] * 1e3)
    return "the GPU did not answer within %.0f s afterwards" % AFTERMATH_S
