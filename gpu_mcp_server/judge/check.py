"""Comparison of outputs with what is expected, on the CPU, and where they differ, in words."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from fill import bfloat16_values
from numpy.typing import NDArray
from tensors import FLOATS, Tensor

Array = NDArray[Any]

CHUNK = 1 << 16
"""Elements compared at a time, so that the temporaries stay in the cache."""

STORAGE: Dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}


class Difference(NamedTuple):
    """How two tensors compare."""

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
    return stored


def _compare_part(expected: Array, got: Array, dtype: str, rtol: float, atol: float) -> Tuple[Array, float, float]:
    if dtype not in FLOATS:
        equal = expected == got
        if equal.all():
            return ~equal, 0.0, 0.0
        expected, got = expected.astype(np.float64), got.astype(np.float64)
    expected, got = numbers(expected, dtype), numbers(got, dtype)
    with np.errstate(all="ignore"):
        error = np.abs(got - expected)
        size = np.abs(expected)
        allowed = size * expected.dtype.type(rtol)
        allowed += expected.dtype.type(atol)
        wrong = ~(error <= allowed)
        if not np.isfinite(allowed.max()):
            wrong |= np.isinf(allowed) & (got != expected)
        if wrong.any():
            wrong &= ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
        finite = error if np.isfinite(error.max()) else np.where(np.isfinite(error), error, 0)
        relative = finite / np.maximum(size, max(atol, 1e-30))
        return wrong, float(finite.max()), float(np.nanmax(relative)) if not np.isnan(relative).all() else 0.0


def compare(expected: Array, got: Array, dtype: str, rtol: float, atol: float) -> Difference:
    """Compare flat arrays: |got - expected| <= atol + rtol |expected|; NaN matches NaN, an infinity itself."""
    count, max_abs, max_rel = 0, 0.0, 0.0
    mask: Optional[Array] = None
    for start in range(0, expected.size, CHUNK):
        part = slice(start, start + CHUNK)
        wrong, worst_abs, worst_rel = _compare_part(expected[part], got[part], dtype, rtol, atol)
        max_abs, max_rel = max(max_abs, worst_abs), max(max_rel, worst_rel)
        bad = int(np.count_nonzero(wrong))
        if bad:
            mask = np.zeros(expected.size, dtype=bool) if mask is None else mask
            mask[part] = wrong
            count += bad
    return Difference(count, max_abs, max_rel, mask)


def _along(hit: Array, axis: str) -> str:
    size = hit.size
    where = np.flatnonzero(hit)
    first, last, found = int(where[0]), int(where[-1]), int(where.size)
    if found == size:
        return ""
    if found == 1:
        return "%s = %d%s" % (axis, first, " (the last)" if first == size - 1 else "")
    if last - first + 1 == found:
        if last == size - 1:
            return "the last %d of %d along %s" % (found, size, axis)
        if first == 0:
            return "the first %d of %d along %s" % (found, size, axis)
        return "%s %d to %d of %d" % (axis, first, last, size)
    steps = np.unique(np.diff(where))
    if steps.size == 1:
        return "every %dth along %s from %d" % (int(steps[0]), axis, first)
    return ""


def whereabouts(mask: Array, tensor: Tensor) -> str:
    """Say where the wrong elements lie, if they have a pattern."""
    cube = mask.reshape(tensor.shape)
    if cube.all():
        return "every element"
    parts: List[str] = []
    for axis, name in enumerate(tensor.axes):
        others = tuple(i for i in range(cube.ndim) if i != axis)
        text = _along(np.atleast_1d(cube.any(axis=others)), name)
        if text:
            parts.append(text)
    return "all in " + " and ".join(parts) if parts else "scattered"


def describe(expected: Array, got: Array, difference: Difference, tensor: Tensor) -> str:
    """Return the reason for a wrong tensor: first wrong element, how many, and where."""
    assert difference.mask is not None
    flat = int(np.flatnonzero(difference.mask)[0])
    index = ", ".join(str(int(i)) for i in np.unravel_index(flat, tensor.shape)) if tensor.shape else ""
    want = numbers(expected[flat : flat + 1], tensor.dtype)[0]
    have = numbers(got[flat : flat + 1], tensor.dtype)[0]
    text = "output %s[%s] is %.9g, expected %.9g; %d of %d elements are wrong, %s" % (
        tensor.name,
        index,
        have,
        want,
        difference.wrong,
        tensor.count,
        whereabouts(difference.mask, tensor),
    )
    if tensor.dtype in FLOATS:
        bad = numbers(got[difference.mask], tensor.dtype)
        good = numbers(expected[difference.mask], tensor.dtype)
        lost = int(np.count_nonzero(~np.isfinite(bad) & np.isfinite(good)))
        if lost:
            text += "; %d of them NaN or infinite where the reference is finite" % lost
    return text
