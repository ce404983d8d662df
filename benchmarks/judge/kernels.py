"""The judge's own kernels of two versions, side by side: `python benchmarks/judge/kernels.py OLD.ptx`.

They draw inputs, compare outputs and poison them. First both do it on tensors of every type and of odd sizes, and what
differs is told; then each is timed, by turns, on float32 tensors as large as a round's. Takes 15 s on a GPU of 40 GB.
"""

import argparse
import json
import statistics
import sys
import time
from ctypes import c_double, c_int, c_int64, c_uint64
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import judge_package  # noqa: E402

judge_package.load()

from gpu_mcp_judge.devices.cuda_driver import Driver, Kernels  # noqa: E402

SIZES = [2, 2, 4, 8, 1, 1, 4, 8]
"""Bytes of an element, by the number of its type in kernels.cu."""
ODD = [(1, 3), (1000, 5), (8192, 7), (5003, 4), (100_003, 3)]
LARGE = [(8192 * 8192, 40), (1 << 20, 1264)]
"""Elements of a call, and calls."""
DISTRIBUTIONS = 7
TIMES = 7


class Tensors(NamedTuple):
    """Arguments of the kernels for `sets` runs of `count` elements."""

    at: int
    other: int
    stride: int
    count: int
    sets: int
    number: int
    """Of the type."""

    def span(self, at: int) -> list[Any]:
        """Return where they lie."""
        return [c_uint64(at), c_int64(self.stride), c_int64(self.count), c_int64(self.sets)]

    def drawn(self, distribution: int, key: int) -> tuple[str, int, list[Any]]:
        """Return a launch that draws them."""
        arguments = [*self.span(self.at), c_int(self.number), c_int(distribution), c_uint64(key)]
        return "fill", self.count * self.sets // 4, arguments

    def compared(self, rtol: float, wrong: int, worst: int) -> tuple[str, int, list[Any]]:
        """Return a launch that compares them with the others."""
        both = [c_uint64(self.at), c_int64(self.stride), *self.span(self.other)]
        arguments = [*both, c_int(self.number), c_double(rtol), c_double(1e-6), c_uint64(wrong), c_uint64(worst)]
        return "compare", self.count * self.sets, arguments

    def poisoned(self, size: int) -> tuple[str, int, list[Any]]:
        """Return a launch that overwrites the others with a word of so many bytes."""
        where = self._replace(count=self.count * SIZES[self.number] // size).span(self.other)
        return "set_words", self.count * self.sets, [*where, c_int(size), c_uint64(0x0123456789ABCDEF)]


class Bench:
    """A driver and two versions."""

    def __init__(self, old: Path) -> None:
        self.driver = Driver(0)
        self.versions = {
            name: Kernels(self.driver, path.read_bytes() + b"\0")
            for name, path in (("old", old), ("new", judge_package.JUDGE / "devices/kernels.ptx"))
        }

    def bytes(self, at: int, size: int) -> np.ndarray[Any, Any]:
        """Return what lies there."""
        data = np.zeros(size, dtype=np.uint8)
        self.driver.download(data.ctypes.data, at, size)
        return data

    def clear(self, at: int, size: int, value: int = 0) -> None:
        """Set bytes."""
        self.driver.call("cuMemsetD8_v2", at, value, size)

    def differences(self, number: int, count: int, sets: int) -> list[str]:
        """Return what the two do differently with a type and a size."""
        stride = -(-count * SIZES[number] // 256) * 256 + 256
        total = stride * sets
        at, other, counters = (self.driver.allocate(size) for size in (total, total, 8 * sets + 16))
        tensors = Tensors(at, other, stride, count, sets, number)
        found: list[str] = []
        found += [
            f"fill {number} {count} {distribution}"
            for distribution in range(DISTRIBUTIONS)
            if not self._same(tensors.drawn(distribution, 12345), at, total)
        ]
        some = np.random.default_rng(1)
        raw, places = self.bytes(at, total), some.integers(0, total, size=max(1, total // 50))
        raw[places] ^= some.integers(0, 255, size=places.size).astype(np.uint8)
        self.driver.upload(other, raw.ctypes.data, total)
        found += [
            f"compare {number} {count} {rtol}"
            for rtol in (0.0, 1e-3, 0.5)
            if not self._same(tensors.compared(rtol, counters, counters + 8 * sets), counters, 8 * sets + 16, 0)
        ]
        found += [
            f"set_words {number} {count} {size}"
            for size in (1, 2, 4, 8)
            if not self._same(tensors.poisoned(size), other, total)
        ]
        for memory in (at, other, counters):
            self.driver.free(memory)
        return found

    def _same(self, launch: tuple[str, int, list[Any]], at: int, size: int, before: int = 7) -> bool:
        """Say whether both leave the same bytes behind."""
        left = []
        for kernels in self.versions.values():
            self.clear(at, size, before)
            kernels.launch(*launch)
            self.driver.synchronize()
            left.append(self.bytes(at, size))
        return bool((left[0] == left[1]).all())

    def times(self, count: int, sets: int) -> None:
        """Print milliseconds, medians of `TIMES`, of each version and then of each again."""
        size = 4 * count * sets
        at, other, counters = (self.driver.allocate(each) for each in (size, size, 8 * sets + 16))
        tensors = Tensors(at, other, 4 * count, count, sets, 2)
        comparison = tensors.compared(1e-4, counters, counters + 8 * sets)
        for name, kernels in [*self.versions.items()] * 2:
            row: dict[str, Any] = {"version": name, "GB": round(size / 1e9, 2)}
            row["fill, normal"] = self._median_ms(kernels, tensors.drawn(0, 5))
            row["fill, uniform"] = self._median_ms(kernels, tensors.drawn(1, 5))
            self.driver.copy(other, at, size)
            self.clear(counters, 8 * sets + 16)
            row["compare, equal"] = self._median_ms(kernels, comparison)
            self.clear(other, size, 1)
            row["compare, all wrong"] = self._median_ms(kernels, comparison)
            row["set_words"] = self._median_ms(kernels, tensors.poisoned(4))
            print(json.dumps(row), flush=True)
        for memory in (at, other, counters):
            self.driver.free(memory)

    def _median_ms(self, kernels: Kernels, launch: tuple[str, int, list[Any]]) -> float:
        taken = []
        for _ in range(TIMES):
            self.driver.synchronize()
            begin = time.perf_counter()
            kernels.launch(*launch)
            self.driver.synchronize()
            taken.append(1e3 * (time.perf_counter() - begin))
        return round(statistics.median(taken), 3)


def main() -> None:
    """Compare, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other version's kernels.ptx")
    bench = Bench(parser.parse_args().old)
    print("differences:", [d for n in range(len(SIZES)) for size in ODD for d in bench.differences(n, *size)])
    for size in LARGE:
        bench.times(*size)


if __name__ == "__main__":
    main()
