"""Answers that are indices into an input: do they name equal elements?"""

import math
from typing import List, Sequence, Tuple

import numpy as np

from ..devices.device import Buffers
from ..numerics.tensors import Array, Tensor

WHOLES = ("int8", "uint8", "int16", "uint16", "uint32", "int32", "int64", "bool")
MOST_READ = 1 << 24
"""Elements of an input, of all calls, that are read for advice."""
INDICES = ("int32", "int64")
"""Types that place something: an int8 beside its scale is a rounded number, and no rule for equals mends it."""


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


def all_name_equals(
    buffers: Buffers, calls: Sequence[int], items: Sequence[Tensor], expected: Array, found: Sequence[Array]
) -> bool:
    """Say whether answers, [calls, elements], are where the candidate's differ indices of what equals the expected.

    Args:
        buffers: Of the round.
        calls: Which ones of it.
        items: Discrete outputs, one behind the other in each answer.
        expected: The reference's answers.
        found: The candidate's, and others that must name equals with it.
    """
    which, end = np.array(calls), 0
    inputs = [(buffers.pieces(number, which, 0, x.count), x.shape) for number, x in enumerate(buffers.inputs)]
    for item in items:
        part, end = slice(end, end + item.count), end + item.count
        for row in np.flatnonzero((expected[:, part] != found[0][:, part]).any(axis=1)).tolist():
            sides = [side[row, part] for side in (expected, *found)]
            named = any(name_equals(x[row].reshape(shape), item, *sides) for x, shape in inputs)
            if item.dtype not in INDICES or not named:
                return False
    return True


def may_tie(buffers: Buffers, at: Tuple[int, int], wrong: Array, expected: Array, got: Array) -> str:
    """Return what to do if equals explain a wrong output; empty where nothing speaks for that.

    Args:
        buffers: Of the round.
        at: Which call it is of, and which output.
        wrong: By call and output, how many elements are.
        expected: Of that call, as is `got`.
        got: The answer.
    """
    (call, output), outputs, sides = at, buffers.outputs, (expected, got)
    item = outputs[output]
    if item.dtype == "bool" and got.view(np.uint8).max(initial=0) > 1:
        return "; a bool is 0 or 1, and some are other bytes"
    floats = [number for number, each in enumerate(outputs) if not each.discrete]
    others = [number for number in range(len(outputs)) if number != output]
    beside = floats or others
    said = ""
    if item.dtype in INDICES and beside and not wrong[:, beside].any():
        # Equals are few, or the indices show them: most indices are otherwise wrong because they count otherwise.
        few = 2 * np.count_nonzero(expected != got) <= got.size
        if few or any(_most_alike(each, item, sides) for each in _inputs_of(buffers, call)):
            said = ", ".join(outputs[number].name + " is right" for number in beside)
    elif item.shape and (output not in floats or (others and not wrong[:, others].any())):
        rows = [each.reshape(-1, item.shape[-1]) for each in sides]
        # Each row names places once, as sorting does: a transposed answer or a mask does not.
        if distinct(rows[0]) and (np.sort(rows[0], axis=1) == np.sort(rows[1], axis=1)).all():
            said = "it has the same numbers in another order"
    rule = "; %s: where values are equal, let the reference choose by a rule that it states (a stable sort), or return "
    return rule % said + "values alone" if said else ""


def _inputs_of(buffers: Buffers, call: int) -> List[Array]:
    """Return a call's inputs, but large ones: each is read of all calls."""
    every = [(number, item) for number, item in enumerate(buffers.inputs) if item.count * buffers.sets <= MOST_READ]
    return [buffers.pieces(number, np.array([call]), 0, item.count).reshape(item.shape) for number, item in every]


def _most_alike(given: Array, item: Tensor, sides: Tuple[Array, Array]) -> bool:
    """Say whether most indices that differ name elements of an input that are equal."""
    for lines, (expected, got) in [*_readings(given, item.shape, sides), *_planes(given, item.shape, sides)]:
        inside = [(each >= 0) & (each < lines.shape[1]) for each in (expected, got)]
        values = [np.take_along_axis(lines, each * ok, 1) for each, ok in zip((expected, got), inside)]
        other = expected != got
        if 2 * np.count_nonzero(other & inside[0] & inside[1] & (values[0] == values[1])) > np.count_nonzero(other):
            return True
    return False


def _alike(lines: Array, one: Array, other: Array) -> bool:
    inside = all(bool(((each >= 0) & (each < lines.shape[1])).all()) for each in (one, other))
    return (
        inside
        and bool((np.take_along_axis(lines, one, 1) == np.take_along_axis(lines, other, 1)).all())
        and (distinct(other) or not distinct(one))
    )


def _planes(given: Array, shape: Tuple[int, ...], flat: Sequence[Array]) -> List[Tuple[Array, List[Array]]]:
    """Return likewise each way to read them as indices into what the first sizes of both choose, as in pooling.

    Such equals are not forgiven: they may lie in another window.
    """
    axes = [n for n in range(1, min(given.ndim, len(shape))) if given.shape[:n] == shape[:n]]
    parts = [math.prod(shape[:n]) for n in axes]
    return [(given.reshape(part, -1), [each.reshape(part, -1) for each in flat]) for part in parts]


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
