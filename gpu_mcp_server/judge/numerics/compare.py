"""Comparison of outputs on the CPU with what is expected, and with themselves; where they differ, in words."""

import math
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .element_loops import ELEMENTS
from .error_location import describe_common_error, index_of, misplaced, whereabouts
from .small_floats import FLOAT4, FLOAT8, bfloat16_values, float4_values, table
from .tensors import FLOATS, STORED, Array, Tensor

CHUNK = 1 << 16
"""Elements compared at a time: in the cache for every step, and long enough steps for threads to run side by side."""

LARGE = 1 << 24
"""Elements of a tensor from which only samples of it are looked at outside the check itself."""

STORAGE: Dict[str, Any] = {name: np.dtype(stored).type for name, stored in STORED.items()}
SAMPLES = 1 << 16
"""Elements that are kept of an output too large to be kept as a whole."""

Pair = Tuple[Array, Array]


class Difference(NamedTuple):
    """Difference between two tensors."""

    wrong: int
    max_abs: float
    """Largest finite absolute error."""
    max_rel: float
    """Largest absolute error over max(|expected|, atol)."""
    mask: Optional[Array]
    """True where wrong; `None` when nothing is."""


def numbers(stored: Array, dtype: str) -> Array:
    """Return stored elements as floats (or integers) that can be subtracted."""
    if dtype == "bfloat16":
        return bfloat16_values(stored)
    if dtype == "float16":
        return stored.astype(np.float32)
    return table(dtype)[stored] if dtype in FLOAT8 else stored


def relative_to(dtype: str, rtol: float) -> float:
    """Return the relative tolerance of a type: none for whole numbers."""
    return rtol if dtype in FLOATS or dtype == FLOAT4 else 0.0


def _compare_part(expected: Array, got: Array, rtol: float, atol: float) -> Tuple[Array, float, float]:
    error = np.abs(got - expected)
    size = np.abs(expected)
    allowed = size * expected.dtype.type(rtol)
    allowed += expected.dtype.type(atol)
    relative = error / np.maximum(size, max(atol, 1e-30))
    worst, most = float(error.max()), float(relative.max())
    # max() propagates NaN, so one test of the maximum covers every element.
    if math.isfinite(worst) and math.isfinite(most):
        return error > allowed, worst, most
    wrong = ~(error <= allowed) | (np.isinf(allowed) & (got != expected))
    # Equal infinities have a NaN as their difference, so equality is asked separately.
    wrong &= ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    finite = np.where(np.isfinite(error), error, 0)
    relative = finite / np.maximum(size, max(atol, 1e-30))
    return wrong, float(finite.max()), 0.0 if np.isnan(relative).all() else float(np.nanmax(relative))


def _compare_whole(expected: Array, got: Array, atol: float) -> Tuple[Array, float, float]:
    """Compare whole numbers: their difference is exact, while from 2^53 on neighbours are the same double."""
    want, have = expected.astype(np.int64), got.astype(np.int64)
    # The unsigned difference of two int64 always fits 64 bits, where a signed one overflows.
    above = np.maximum(want, have).view(np.uint64) - np.minimum(want, have).view(np.uint64)
    error = above.astype(np.float64)
    size = np.maximum(np.abs(want.astype(np.float64)), max(atol, 1e-30))
    return error > atol, float(error.max()), float((error / size).max())


def _compare_fours(expected: Array, got: Array, rtol: float, atol: float) -> Difference:
    """Compare bytes of two codes each: one is wrong if either of its numbers is."""
    want, have = (float4_values(part.reshape(-1, 1)).ravel() for part in (expected, got))
    wrong, max_abs, max_rel = _compare_part(want, have, rtol, atol)
    mask: Array = np.any(wrong.reshape(-1, 2), axis=1)
    bad = int(np.count_nonzero(mask))
    return Difference(bad, max_abs, max_rel, mask if bad else None)


def compare(expected: Array, got: Array, dtype: str, rtol: float, atol: float) -> Difference:
    """Compare flat arrays: |got - expected| <= atol + rtol |expected|; NaN matches NaN, an infinity itself.

    Whole numbers may be off by `atol` alone: a share of an index or a code means nothing.
    """
    rtol = relative_to(dtype, rtol)
    if dtype == FLOAT4:
        return _compare_fours(expected, got, rtol, atol)
    count, max_abs, max_rel = 0, 0.0, 0.0
    mask: Optional[Array] = None
    for start in range(0, expected.size, CHUNK):
        part = slice(start, start + CHUNK)
        want, have = expected[part], got[part]
        if dtype not in FLOATS:
            # Whole numbers are mostly equal: exact inequality filters before the costly 64-bit steps.
            wrong: Array = want != have
            if not wrong.any():
                continue
            wrong[wrong], worst_abs, worst_rel = _compare_whole(want[wrong], have[wrong], atol)
        else:
            want, have = numbers(want, dtype), numbers(have, dtype)
            marked = ELEMENTS.mark(want, have, rtol, atol, max(atol, 1e-30))
            with np.errstate(all="ignore"):
                wrong, worst_abs, worst_rel = marked or _compare_part(want, have, rtol, atol)
        max_abs, max_rel = max(max_abs, worst_abs), max(max_rel, worst_rel)
        bad = int(np.count_nonzero(wrong))
        if bad:
            mask = np.zeros(expected.size, dtype=bool) if mask is None else mask
            mask[part] = wrong
            count += bad
    return Difference(count, max_abs, max_rel, mask)


def format_numbers(have: Any, want: Any) -> Tuple[str, str]:
    """Return two numbers in words that differ where the numbers do: as many digits as that takes."""
    texts = ("%.9g" % have, "%.9g" % want) if isinstance(want, np.floating) else (str(have), str(want))
    return texts if texts[0] != texts[1] else (str(have.item()), str(want.item()))


def describe(
    expected: Array,
    got: Array,
    difference: Difference,
    tensor: Tensor,
    poison: Optional[int] = None,
    others: Sequence[Array] = (),
) -> str:
    """Return the reason for a wrong tensor: first wrong element, how many, and where.

    `expected` and `got` are flat, as stored. Elements that still hold the poison, which was there before the call, were
    not written; a byte may be like it by chance. `others` are masks of the same output in calls with other inputs.
    """
    assert difference.mask is not None
    flat = int(np.flatnonzero(difference.mask)[0])
    want = numbers(expected[flat : flat + 1], tensor.dtype)[0]
    have = numbers(got[flat : flat + 1], tensor.dtype)[0]
    # A random byte equals its poison once in 256 times, too often to call it unwritten.
    known = poison is not None and (got.itemsize > 1 or (tensor.dtype == "bool" and poison > 1))
    blank = got.view("u%d" % got.itemsize) == poison if known else np.zeros(got.shape, dtype=bool)
    is_what, expects = format_numbers(have, want)
    where = whereabouts([difference.mask, *others], tensor)
    text = "output %s%s %s, expected %s; %d of %d elements are wrong%s" % (
        tensor.name,
        "[%s]" % index_of(flat, tensor) if tensor.shape else "",
        "was not written" if blank[flat] else "is " + is_what,
        expects,
        difference.wrong,
        tensor.count,
        ", " + where if where else "",
    )
    every = numbers(expected, tensor.dtype), numbers(got, tensor.dtype)
    instead = misplaced(*every, difference.mask, tensor) or describe_common_error(*every, difference.mask)
    if instead:
        text += "; " + instead
    unwritten = int(np.count_nonzero(blank & difference.mask))
    if unwritten:
        text += "; %d of them were not written" % unwritten
    if tensor.dtype in FLOATS:
        bad = numbers(got[difference.mask & ~blank], tensor.dtype)
        good = numbers(expected[difference.mask & ~blank], tensor.dtype)
        lost = int(np.count_nonzero(~np.isfinite(bad) & np.isfinite(good)))
        if lost:
            text += "; %d of them NaN or infinite where the reference is finite" % lost
    return text


class Kept:
    """The first call's answer in one output, kept to see whether the same inputs get the same bits again."""

    def __init__(self, buffers: Any, number: int) -> None:
        self.buffers, self.number = buffers, number
        self.before: Array = self._now().copy()

    def _now(self) -> Array:
        count = self.buffers.outputs[self.number].count
        if count <= LARGE:
            return self.buffers.pair(0, self.number)[1]
        return self.buffers.samples(self.number, np.arange(0, count, count // SAMPLES))[1][0]

    def other(self) -> Optional[Pair]:
        """Return what was kept and what is there now, `None` if they are the same bits."""
        now = self._now()
        return None if self.before.tobytes() == now.tobytes() else (self.before, now)
