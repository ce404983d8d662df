"""Fresh inputs on the CPU: every distribution and dtype, from a secret seed."""

import contextlib
import hashlib
from typing import Any, Dict, Generator

import numpy as np

from .element_loops import ELEMENTS
from .parallel_map import spread
from .small_floats import FLOAT4, SHORT, short_bits
from .tensors import FLOATS, Array

CHUNK = 1 << 16
"""Elements made at a time: in the cache for every step, and long enough steps for threads to run side by side."""
SLAB = 1 << 20
"""Elements from one generator; whoever makes a slab, its content is the same."""
LEVELS = 1 << 16
OFFSETS = 1 << 16
JITTER = 1 / 16
"""Part of a normal value's deviation that comes from the jitter."""
OUTLIERS = 1e-3
WHOLE = {"integers": 100, "bool": 2, FLOAT4: 256, "int8": 256, "uint8": 256}
"""Distributions of whole numbers from 0, below which; those of a byte by its type, and of int8 the upper half is
negative. Of less than all its values a candidate that mistakes the sign would be right."""
LONG = ("int32", "int64")
"""Whole numbers that may be indices: 0 to 99, and with the distribution `full` all values, drawn byte by byte."""
FACTORS = {"offset": (1, 3), "large": (1000, 0), "small": (1e-3, 0)}
"""What a normal value is multiplied by, and what is added, where that is not 1 and 0."""


def normal_quantiles() -> Array:
    """Return the middles of `LEVELS` equally likely parts of the standard normal distribution."""
    grid = np.linspace(-6, 6, 1 << 14)
    density = np.exp(-grid * grid / 2)
    below = np.cumsum(density) - density / 2
    below -= below[0]
    return np.interp((np.arange(LEVELS) + 0.5) / LEVELS, below / below[-1], grid)


class Recipe:
    """Map of random 16-bit words to elements: a table, and a jitter that is added at a random offset.

    Elements of float64 have all their bits from NumPy's own generators instead: of few bits a candidate that computes
    in float32 would be exact, and numbers be equal by chance.
    """

    def __init__(self, distribution: str, kind: Any, rng: Any) -> None:
        self.kind, self.distribution = kind, distribution
        self.table: Any = None
        self.jitter: Any = None
        self.factor, self.shift = FACTORS.get(distribution, (1, 0))
        if distribution in WHOLE:
            # Multiply and shift spreads the slight bias over all values, where a modulo favours the low ones.
            self.table = (np.arange(LEVELS) * WHOLE[distribution] >> 16).astype(kind)
        elif kind == np.float64:
            return
        elif distribution == "uniform":
            self.table = (np.arange(LEVELS) / LEVELS).astype(kind)
            self.jitter = (rng.integers(0, 256, OFFSETS + CHUNK) / (256 * LEVELS)).astype(kind)
        else:
            # Variances add, so the table is scaled down by what the jitter contributes.
            table = normal_quantiles() * (self.factor * (1 - JITTER**2) ** 0.5) + self.shift
            self.table = table.astype(kind)
            self.jitter = rng.standard_normal(OFFSETS + CHUNK, dtype=kind.type) * kind.type(self.factor * JITTER)

    def draw(self, rng: Any, into: Array) -> None:
        """Fill `into`, an array of the recipe's type with at most `CHUNK` elements.

        The highest 16 bits of the first word are the jitter's offset.
        """
        if self.table is None:
            (rng.random if self.distribution == "uniform" else rng.standard_normal)(out=into)
            into *= self.factor
            into += self.shift
        else:
            size = into.size
            words = rng.integers(0, (1 << 64) - 1, 1 + (size + 3) // 4, dtype=np.uint64, endpoint=True)
            np.take(self.table, words[1:].view(np.uint16)[:size], out=into, mode="wrap")
            if self.jitter is not None:
                at = int(words[0]) >> 48
                np.add(into, self.jitter[at : at + size], out=into)
        if self.distribution == "outliers":
            into[rng.integers(0, into.size, rng.binomial(into.size, OUTLIERS))] *= 100

    def draw_compiled(self, into: Array, state: Array) -> bool:
        """Fill a flat array of any length by compiled code, the same as `draw` would; False where that cannot be."""
        if self.jitter is None or self.distribution == "outliers" or self.kind != into.dtype:
            return False
        return ELEMENTS.draw(into, CHUNK, self.table, self.jitter, state)


class Well:
    """A source of random tensors.

    Every slab of every round has its own SFC64 generator, whose whole state is a BLAKE2b hash of the secret seed and a
    counter: whatever inputs a process has seen, and even if it works a generator's state out, it can tell nothing
    about a later round. Each element takes 16 bits of its own through a table of quantiles, so no two elements depend
    on each other; a jitter, whose offset is drawn for each chunk, fills the gaps between the table's levels. The
    jitter repeats within a job. That helps nobody: it is a sixteenth of the deviation (a part in 65536 of the
    uniform's range), and what a function makes of the fresh part is not to be had from what it made of another.
    Elements of float64 have all their bits from the generator instead.
    """

    def __init__(self, seed: str) -> None:
        self.seed = bytes.fromhex(seed)
        self.blocks = 0
        self.recipes: Dict[Any, Recipe] = {}
        self.rng = self._generator(self._block())

    def _block(self) -> bytes:
        """Return the next 32 secret bytes."""
        self.blocks += 1
        return hashlib.blake2b(self.blocks.to_bytes(8, "little"), key=self.seed, digest_size=32).digest()

    def _generator(self, block: bytes) -> Any:
        # The state is replaced below; a constant seed only spares the constructor's read of system entropy.
        bits: Any = np.random.SFC64(0)
        state = {"state": np.frombuffer(block, dtype=np.uint64)}
        bits.state = {"bit_generator": "SFC64", "state": state, "has_uint32": 0, "uinteger": 0}
        return np.random.Generator(bits)

    @contextlib.contextmanager
    def rewind_to(self, blocks: int) -> Generator[None, None, None]:
        """Draw in a block what was drawn when so many blocks had been; what comes after it is fresh again."""
        later, self.blocks = self.blocks, blocks
        try:
            yield
        finally:
            self.blocks = max(later, self.blocks)

    def bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self._generator(self._block()).bytes(count)

    def word(self) -> int:
        """Return 64 random bits."""
        return int.from_bytes(self._block()[:8], "little")

    def positions(self, count: int, below: int) -> Array:
        """Return random positions."""
        return self._generator(self._block()).integers(0, below, count)

    def fill(self, every: Array, dtype: str, distribution: str) -> None:
        """Fill [sets, count] (bfloat16 as its bits) with fresh values."""
        if distribution == "zeros":
            every[...] = 0
            return
        if distribution == "full" and dtype in LONG:
            every, dtype = every.view(np.uint8), "uint8"
        recipe = self._recipe(dtype, distribution)
        count = every.shape[1]
        whole = max(1, SLAB // count)
        pieces = [(row, row + whole, 0, count) for row in range(0, every.shape[0], whole)]
        if count > SLAB:
            starts = range(0, count, SLAB)
            pieces = [(row, row + 1, at, at + SLAB) for row in range(every.shape[0]) for at in starts]
        # Keys are drawn in order before the threads start, so scheduling cannot change the content.
        keys = [self._block() for _ in pieces]

        def make(number: int) -> None:
            first, last, start, stop = pieces[number]
            state = np.frombuffer(keys[number], dtype=np.uint64).copy()
            rows = list(every[first:last, start:stop])
            while rows and recipe.draw_compiled(rows[0], state):
                del rows[0]
            rng = self._generator(keys[number]) if rows else None
            for one in rows:
                self._fill_one(one, dtype, recipe, rng)

        spread(len(pieces), make)

    def _fill_one(self, one: Array, dtype: str, recipe: Recipe, rng: Any) -> None:
        direct = recipe.kind == one.dtype
        for start in range(0, one.size, CHUNK):
            part = one[start : start + CHUNK]
            if direct:
                recipe.draw(rng, part)
                continue
            values = np.empty(part.size, dtype=np.float32)
            recipe.draw(rng, values)
            part[...] = short_bits(values, dtype) if dtype in SHORT else values

    def _recipe(self, dtype: str, distribution: str) -> Recipe:
        if dtype not in FLOATS:
            distribution = dtype if dtype in WHOLE else "integers"
            kind = np.dtype("uint8" if dtype in ("bool", FLOAT4) else dtype)
        else:
            kind = np.dtype("float64" if dtype == "float64" else "float32")
        key = (distribution, kind.str)
        if key not in self.recipes:
            self.recipes[key] = Recipe(distribution, kind, self.rng)
        return self.recipes[key]
