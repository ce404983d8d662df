"""Fresh inputs on the CPU: every distribution and dtype, from a secret seed."""

from typing import Any, Callable, Dict

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

POOL = 1 << 18
"""Values drawn anew each round; larger tensors are mixed from pairs of its slices."""
CHUNK = 1 << 16


def bfloat16_bits(values: Array) -> NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype(np.uint16)


def bfloat16_values(bits: Array) -> NDArray[np.float32]:
    """Return bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Well:
    """A source of random tensors.

    Mixing two slices of a secret pool (sum over the root of two for the normal, sum modulo one for the uniform)
    keeps the distribution, costs a tenth of drawing, and gives values that no earlier round had.
    """

    def __init__(self, seed: str) -> None:
        self.rng: Any = np.random.Generator(np.random.PCG64(int(seed, 16)))
        self.pools: Dict[str, Array] = {}

    def next_round(self) -> None:
        """Forget the pools, so that this round shares nothing with the last."""
        self.pools.clear()

    def bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self.rng.bytes(count)

    def word(self) -> int:
        """Return 64 random bits."""
        return int(self.rng.integers(0, 1 << 63)) * 2 + int(self.rng.integers(0, 2))

    def positions(self, count: int, below: int) -> NDArray[np.int64]:
        """Return random positions."""
        return self.rng.integers(0, below, count)

    def fill(self, into: Array, dtype: str, distribution: str) -> None:
        """Fill a flat array (bfloat16 as its bits) with fresh values."""
        if distribution == "zeros":
            into[...] = 0
            return
        wide = dtype == "float64"
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            distribution = "integers"
        for start in range(0, into.size, CHUNK):
            part = into[start : start + CHUNK]
            values = self._draw(part.size, np.float64 if wide else np.float32, distribution)
            part[...] = bfloat16_bits(values) if dtype == "bfloat16" else values

    def _draw(self, count: int, kind: Any, distribution: str) -> Array:
        if distribution == "uniform":
            mixed = self._mix("uniform", count, kind)
            return np.subtract(mixed, 1, out=mixed, where=mixed >= 1)
        if distribution == "integers":
            mixed = self._mix("integers", count, kind)
            return np.subtract(mixed, 100, out=mixed, where=mixed >= 100)
        mixed = self._mix("normal", count, kind)
        mixed *= kind(0.5**0.5)
        if distribution == "offset":
            mixed += 3
        elif distribution == "large":
            mixed *= 1000
        elif distribution == "outliers":
            mixed *= self._slice("outliers", count, kind)
        return mixed

    def _mix(self, name: str, count: int, kind: Any) -> Array:
        return self._slice(name, count, kind) + self._slice(name, count, kind)

    def _slice(self, name: str, count: int, kind: Any) -> Array:
        key = name + kind.__name__
        if key not in self.pools:
            make: Dict[str, Callable[[], Array]] = {
                "normal": lambda: self.rng.standard_normal(POOL, dtype=kind),
                "uniform": lambda: self.rng.random(POOL, dtype=kind),
                "integers": lambda: self.rng.integers(0, 100, POOL).astype(kind),
                "outliers": lambda: np.where(self.rng.random(POOL) < 1e-3, 100, 1).astype(kind),
            }
            self.pools[key] = make[name]()
        at = int(self.rng.integers(0, POOL - count + 1))
        return self.pools[key][at : at + count]
