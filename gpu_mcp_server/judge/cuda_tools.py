"""The owner's own kernels and a little device memory for their results; the fence that stops the clock."""

import os
from ctypes import c_double, c_int64, c_uint64
from typing import Any, List, Sequence

import numpy as np
from check import STORAGE
from cuda_driver import Driver, Kernels
from tensors import ITEM_BYTES, Array, Tensor

TYPES = {name: number for number, name in enumerate(ITEM_BYTES)}
TYPES.update(dict.fromkeys(list(TYPES)[8:], TYPES["uint8"]))
"""As numbered in kernels.cu, to which the newer ones are a byte; outputs of eight bits it does not compare."""
FENCE_SAMPLES = 64
"""Positions of every output that the fence looks at."""
KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.ptx")


class Tools:
    """The driver, the owner's kernels, and a little device memory for their results."""

    def __init__(self, ordinal: int) -> None:
        self.driver = Driver(ordinal)
        with open(KERNELS, "rb") as file:
            self.kernels = Kernels(self.driver, file.read() + b"\0")
        self.results = self.driver.allocate(4096)

    def count(self, name: str, work: int, arguments: Sequence[Any], start: Sequence[int] = (0,)) -> List[int]:
        """Launch a kernel whose last argument is an array of counters, and return them."""
        self.set_counters(self.results, start)
        self.kernels.launch(name, work, [*arguments, c_uint64(self.results)])
        return self.counters(self.results, len(start))

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


class Fence:
    """One launch that compares secret positions of every output; its end stops the clock."""

    def __init__(self, tools: Tools, rows: Sequence[Sequence[int]], sets: int, rtol: float, atol: float) -> None:
        self.tools, self.items, self.sets = tools, len(rows), sets
        table = np.array(rows, dtype=np.int64)
        self.table = tools.driver.allocate(table.nbytes)
        tools.driver.upload(self.table, table.ctypes.data, table.nbytes)
        self.wrong = tools.driver.allocate(8)
        self.key = c_uint64(0)
        self.tolerances = (c_double(rtol), c_double(atol))

    def arm(self, key: int) -> None:
        """Choose new positions; outside the clock."""
        self.key = c_uint64(key)
        self.tools.set_counters(self.wrong, [0])
        self.tools.driver.synchronize()

    def passes(self) -> bool:
        """Run, wait, and say whether every position is right."""
        arguments = [c_uint64(self.table), c_int64(self.items), c_int64(self.sets), c_int64(FENCE_SAMPLES), self.key]
        arguments += [*self.tolerances, c_uint64(self.wrong)]
        self.tools.kernels.launch("fence", self.items * self.sets * FENCE_SAMPLES, arguments)
        return self.tools.counters(self.wrong, 1)[0] == 0

    def close(self) -> None:
        """Free the table."""
        self.tools.driver.free(self.table)
        self.tools.driver.free(self.wrong)
