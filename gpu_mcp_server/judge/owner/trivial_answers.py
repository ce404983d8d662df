"""Answers that take no work, and what is said of a problem of which one is right."""

from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ..numerics.compare import STORAGE, numbers
from ..numerics.small_floats import SHORT, short_bits
from ..numerics.tensors import FLOATS, Array, Tensor

NARROWER = (1.0, 0.1, 0.01, 0.001)
"""Of the relative tolerance, which parts are looked at."""
ROUNDING = 1e-5
"""Part of an output's largest element below which differences may be rounding alone: 84 last places of float32."""


class Trivial(NamedTuple):
    """An answer without work that is right."""

    kind: str
    """constant, or copy of an input."""
    reason: str
    helps: Mapping[str, Any] = MappingProxyType({})
    """Wishes with which it would be wrong."""


def to_storage(values: Array, dtype: str) -> Array:
    """Return numbers in the storage of `dtype`."""
    if dtype in SHORT:
        return short_bits(values.astype(np.float32), dtype)
    with np.errstate(all="ignore"):
        return values.astype(STORAGE[dtype])


def trivial_answers(item: Tensor, expected: Array, inputs: Sequence[Tuple[Tensor, Array]]) -> List[Tuple[str, Array]]:
    """Return answers that take no work: what they are called, and their elements."""
    values = numbers(expected, item.dtype)
    with np.errstate(all="ignore"):
        # Averages of many random inputs concentrate, so their mean alone may pass a wide tolerance.
        mean = np.full(expected.size, np.mean(values, dtype=np.float64))
    answers = [
        ("zeros", to_storage(np.zeros(expected.size), item.dtype)),
        ("ones", to_storage(np.ones(expected.size), item.dtype)),
    ]
    if item.count > 1:  # the mean of one value is the answer itself
        answers.append(("mean", to_storage(mean, item.dtype)))
    for other, elements in inputs:
        if other.count == item.count:
            answers.append(("copy of %s" % other.name, to_storage(numbers(elements, other.dtype), item.dtype)))
    return answers


def reason_of(values: Array, answer: Array, rtol: float, atol: float) -> str:
    """Say why an answer without work is right for outputs of these values."""
    if values.size and (values == answer).all():
        alike = (values == values[0]).all()
        which = "each of its elements is %.6g" % (float(values[0]) + 0.0) if alike else "it is exactly that"
        return which + ", so no tolerance helps"
    finite = np.abs(values[np.isfinite(values)].astype(np.float64)) if values.size else np.zeros(1)
    largest = float(finite.max()) if finite.size else 0.0
    if atol >= largest:
        return "atol %g is larger than the outputs, the largest of which is %.3g" % (atol, largest)
    text = "with rtol %g and atol %g an answer without any work is right; tighten them or change the problem"
    return text % (rtol, atol)


def narrower_tolerances(values: Array, answer: Array, dtype: str, rtol: float, atol: float) -> Dict[str, Any]:
    """Return tolerances with which an answer would be wrong by more than rounding; empty if there are none."""
    expected, got = values.astype(np.float64), answer.astype(np.float64)
    seen = np.isfinite(expected) & np.isfinite(got)
    if dtype not in FLOATS or not seen.any():
        return {}
    size, off = np.abs(expected[seen]), np.abs(expected[seen] - got[seen])
    for part in NARROWER:
        beyond = float((off - part * rtol * size).max())
        if beyond > ROUNDING * float(size.max()):
            # A hundredth of the gap leaves honest rounding room and still fails the work-free answer.
            found = {"atol": float("%.0e" % min(beyond / 100, atol))}
            return found if part == 1.0 else dict(found, rtol=part * rtol)
    return {}
