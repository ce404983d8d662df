"""Answers that are indices into whole numbers: do they name equal ones?"""

from typing import List, Sequence, Tuple

import numpy as np

from ..numerics.tensors import Array, Tensor

WHOLES = ("int8", "uint8", "int16", "uint16", "uint32", "int32", "int64", "bool")


def distinct(rows: Array) -> bool:
    """Say whether in no row of [rows, length] two elements are equal."""
    ordered = np.sort(rows, axis=1)
    return bool((ordered[:, 1:] != ordered[:, :-1]).all())


def name_equals(given: Array, item: Tensor, expected: Array, *found: Array) -> bool:
    """Say whether answers [shape of `item`] name what equals the expected elements of an input.

    Where it names none twice, so must the others. All name elements along an axis, as in sorting, or in all of the
    input.
    """
    return any(
        all(_alike(lines, first, each) for each in others)
        for lines, (first, *others) in _readings(given, item.shape, (expected, *found))
    )


def _alike(lines: Array, one: Array, other: Array) -> bool:
    inside = all(bool(((each >= 0) & (each < lines.shape[1])).all()) for each in (one, other))
    return (
        inside
        and bool((np.take_along_axis(lines, one, 1) == np.take_along_axis(lines, other, 1)).all())
        and (distinct(other) or not distinct(one))
    )


def _readings(given: Array, shape: Tuple[int, ...], flat: Sequence[Array]) -> List[Tuple[Array, List[Array]]]:
    """Return each way to read answers of a shape as indices: lines [lines, length], and per answer [lines, indices]."""
    found = [(given.reshape(1, -1), [each.reshape(1, -1) for each in flat])]
    for axis in range(given.ndim):
        rest = given.shape[:axis] + given.shape[axis + 1 :]
        lines = np.moveaxis(given, axis, -1).reshape(-1, given.shape[axis])
        # A reduction may leave its axis out, or keep it with one element.
        fulls = [full for full in (shape, (*shape[:axis], 1, *shape[axis:])) if len(full) == given.ndim]
        found += [
            (lines, [np.moveaxis(each.reshape(full), axis, -1).reshape(len(lines), -1) for each in flat])
            for full in fulls
            if full[:axis] + full[axis + 1 :] == rest
        ]
    return found
