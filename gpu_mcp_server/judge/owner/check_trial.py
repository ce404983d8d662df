"""A problem's own check on trial: it must take the reference's answers, and none that takes no work."""

from typing import Dict, List, Sequence, Tuple

import numpy as np

from ..numerics.compare import numbers
from ..numerics.small_floats import bfloat16_values, short_bits
from ..numerics.tensors import Array, Tensor
from .trivial_answers import to_storage, trivial_answers

ONE_IN = 1000
"""One element of so many is changed, at least one of each output."""
HALF = 0.5
"""Change of an element, as a part of its value and of the output's usual size."""
ROUNDED = ("float32", "float64")
Named = Tuple[str, List[Array]]


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
