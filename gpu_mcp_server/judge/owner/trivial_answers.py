"""Answers that take no work, and worse ones than the reference's: a problem must refuse the former."""

from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ..numerics.compare import STORAGE, numbers
from ..numerics.small_floats import SHORT, bfloat16_values, short_bits
from ..numerics.tensors import FLOATS, Array, Tensor

NARROWER = (1.0, 0.1, 0.01, 0.001)
"""Of the relative tolerance, which parts are looked at."""
ROUNDING = 1e-5
"""Part of an output's largest element below which differences may be rounding alone: 84 last places of float32."""
ONE_IN = 1000
"""One element of so many is changed, at least one of each output."""
HALF = 0.5
"""Change of an element, as a part of its value and of the output's usual size."""
ROUNDED = ("float32", "float64")
Named = Tuple[str, List[Array]]


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


def describe_trivial(item: Tensor, name: str, values: Array, answer: Array, rtol: float, atol: float) -> Trivial:
    """Return what is said of an answer without work that is right, and which wishes would make it wrong."""
    reason = "%s passes as %s: %s" % (name, item.name, reason_of(values, answer, rtol, atol))
    helps = narrower_tolerances(values, answer, item.dtype, rtol, atol)
    return Trivial("copy" if name.startswith("copy") else "constant", reason, helps)


def work_free_answers(
    outputs: Sequence[Tensor], answers: Sequence[Array], given: Sequence[Sequence[Tuple[Tensor, Array]]]
) -> List[Named]:
    """Return answers that take no work, of all outputs together; an output that has none of a kind is zeros."""
    each: List[Dict[str, Array]] = [
        dict(trivial_answers(item, expected, inputs)) for item, expected, inputs in zip(outputs, answers, given)
    ]
    names = dict.fromkeys(name for kinds in each for name in kinds)
    return [(name, [kinds.get(name, kinds["zeros"]) for kinds in each]) for name in names]


def spoiled_answers(outputs: Sequence[Tensor], answers: Sequence[Array]) -> List[Named]:
    """Return the reference's answers made worse: of lower precision, and with one element in a thousand changed."""
    found: List[Named] = []
    if any(item.dtype in ROUNDED for item in outputs):
        found.append(("rounded to bfloat16", [_rounded(item, each) for item, each in zip(outputs, answers)]))
    text = "with one element in %d changed by half" % ONE_IN
    return [*found, (text, [_changed(item, each) for item, each in zip(outputs, answers)])]


def _rounded(item: Tensor, elements: Array) -> Array:
    if item.dtype not in ROUNDED:
        return elements
    return bfloat16_values(short_bits(elements.astype(np.float32), "bfloat16")).astype(elements.dtype)


def _changed(item: Tensor, elements: Array) -> Array:
    values = numbers(elements, item.dtype)
    if item.dtype == "bool":
        other = 1 - values[::ONE_IN]
    else:
        wide = values.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        # Infinities are left out, or the change itself would become infinite.
        usual = float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0
        # The usual size is added, too: half of a value near zero would be no visible change. Away from zero, as the
        # two would cancel out in a value of about minus the usual size.
        part = wide[::ONE_IN]
        step = HALF * (np.abs(part) + (usual or 1.0))
        other = part + np.where(part < 0, -1.0, 1.0) * (np.ceil(step) if item.dtype[0] in "iu" else step)
    made = elements.copy()
    made[::ONE_IN] = to_storage(other, item.dtype)
    return made
