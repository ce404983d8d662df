"""Describes the places of wrong elements, and the elements whose values they hold instead."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .tensors import Array, Tensor

SAMPLES = 256
ALIKE = 0.9
"""Part of the wrong elements that a mistake of addressing must explain."""
CLOSE = 1e-5
PERIODS = 2
"""Full ones, from which on something is said to come again."""
FIRST = 4
"""Wrong elements that are named where no pattern is."""
GRID_ROWS, GRID_COLUMNS = 24, 48
"""Of the picture of where a tensor is wrong."""
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4, 8, -8, 16, -16, 32, -32)
PITCHES = (4, 8, 16, 32, 64, 128, 256)


def ordinal(number: int) -> str:
    """Return 2nd, 3rd, 11th."""
    tens = number // 10 % 10 == 1
    return "%d%s" % (number, "th" if tens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th"))


def _runs(where: Array) -> Tuple[Array, Array]:
    """Return starts and lengths of runs of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(where) != 1) + 1
    starts = where[np.concatenate([[0], breaks])]
    return starts, np.diff(np.concatenate([[0], breaks, [where.size]]))


def _period(where: Array, size: int) -> Tuple[int, int]:
    """Return after how many numbers below `size` runs begin again, to its end, and their length; 0 if they do not.

    Of less than two full periods nobody knows whether it is one.
    """
    starts, lengths = _runs(where)
    steps = np.unique(np.diff(starts))
    if steps.size != 1 or (lengths[:-1] != lengths[0]).any() or lengths[-1] > lengths[0]:
        return 0, 0
    step = int(steps[0])
    if starts[0] + PERIODS * step > size:
        return 0, 0
    whole = min(int(lengths[0]), size - int(starts[-1]))
    return (step, int(lengths[0])) if lengths[-1] == whole and starts[-1] + step >= size else (0, 0)


def along(hit: Array, axis: str) -> str:
    """Say in which indices of an axis something is, empty if in all or without a pattern."""
    size = hit.size
    where = np.flatnonzero(hit)
    first, last, found = int(where[0]), int(where[-1]), int(where.size)
    if found == size:
        return ""
    if found == 1:
        which = " (the last)" if first == size - 1 else " (the first)" if first == 0 else ""
        return "%s = %d%s" % (axis, first, which)
    if last - first + 1 == found:
        if last == size - 1:
            return "the last %d of %d along %s" % (found, size, axis)
        if first == 0:
            return "the first %d of %d along %s" % (found, size, axis)
        return "%s %d to %d of %d" % (axis, first, last, size)
    step, length = _period(where, size)
    if length == 1:
        return "every %s along %s from %d" % (ordinal(step), axis, first)
    return "%d of every %d along %s from %d" % (length, step, axis, first) if length else ""


def whereabouts(masks: Sequence[Array], tensor: Tensor) -> str:
    """Say where the wrong elements of calls with different inputs lie: in a pattern only if two calls show the same."""
    found = {pattern(mask, tensor) for mask in masks}
    said = found.pop()
    if len(masks) > 1 and not found and said:
        return "in two calls " + said
    places = [index_of(int(flat), tensor) for flat in np.flatnonzero(masks[0])[:FIRST]]
    # One place is in the message already, and of all places none is worth naming.
    alone = len(places) < 2 or bool(masks[0].all())
    return "" if alone else "the first at " + ", ".join("[%s]" % place for place in places)


def index_of(flat: int, tensor: Tensor) -> str:
    """Return an element's index in words, by its number."""
    return ", ".join(str(int(i)) for i in np.unravel_index(flat, tensor.shape)) if tensor.shape else ""


def pattern(mask: Array, tensor: Tensor) -> str:
    """Say where the wrong elements of one call lie, empty if that is everywhere or they have no pattern."""
    cube = mask.reshape(tensor.shape)
    if cube.all():
        return ""
    parts: List[str] = []
    for axis, name in enumerate(tensor.axes):
        others = tuple(i for i in range(cube.ndim) if i != axis)
        text = along(np.atleast_1d(cube.any(axis=others)), name)
        if text:
            parts.append(text)
    flat = np.flatnonzero(mask)
    first, last = int(flat[0]), int(flat[-1])
    if parts:
        block = ", one block of %d starting at element %d" % (flat.size, first)
        return "all in " + " and ".join(parts) + (block if flat.size > 1 and last - first + 1 == flat.size else "")
    if last == mask.size - 1 and last - first + 1 == flat.size:
        return "all elements from %d on, counted through" % first
    if last - first + 1 == flat.size:
        return "one block of %d starting at element %d" % (flat.size, first)
    step, length = _period(flat, int(mask.size))
    return "%d of every %d elements from %d" % (length, step, first) if length else ""


def grid(tensor: Tensor, wrong: Array, looked: Optional[Array] = None) -> Dict[str, Any]:
    """Return the share of wrong elements in each cell of a grid over a tensor: a picture of where it is wrong.

    Rows are all axes but the last, counted through; columns are the last one. `wrong` are numbers of wrong elements,
    `looked` of those that were looked at: all, if absent.
    """
    columns = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.count // columns
    high, wide = min(rows, GRID_ROWS), min(columns, GRID_COLUMNS)

    def counted(places: Array) -> Array:
        cells = (places // columns) * high // rows * wide + (places % columns) * wide // columns
        return np.bincount(cells, minlength=high * wide).reshape(high, wide)

    if looked is None:
        along_rows = np.bincount(np.arange(rows) * high // rows, minlength=high)
        along_columns = np.bincount(np.arange(columns) * wide // columns, minlength=wide)
        there = np.outer(along_rows, along_columns)
    else:
        there = counted(looked)
    share = np.where(there > 0, counted(wrong) / np.maximum(there, 1), -1.0)
    return {
        "output": tensor.name,
        "shape": [int(size) for size in tensor.shape],
        "looked_at": int(tensor.count if looked is None else looked.size),
        "wrong": int(wrong.size),
        "share": [[round(float(cell), 3) for cell in line] for line in share],
    }


SCATTER = 0.01
"""By how much, of what they all have in common, such elements may be off besides."""
OTHER_SIGN = (
    "they are what is expected with the other sign; where either is right, as of eigenvectors, let the reference choose"
    " by a rule, such as a positive diagonal"
)


def misplaced(expected: Array, got: Array, mask: Array, tensor: Tensor) -> str:
    """Say so if wrong elements hold what is expected elsewhere: transposed, shifted, another row stride."""
    wrong = np.flatnonzero(mask)
    # Some hundred samples suffice: a mistake of addressing explains nearly all wrong elements or few.
    wrong = wrong[:: max(1, wrong.size // SAMPLES)]
    # With few elements or few values any permutation explains the answer by chance.
    if wrong.size < 4 or np.unique(expected).size < 4:
        return ""
    columns = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.count // columns
    row, column = wrong // columns, wrong % columns

    def explains(at: Array) -> bool:
        inside = (at >= 0) & (at < tensor.count)
        if np.count_nonzero(inside) < ALIKE * wrong.size:
            return False
        want, have = expected[at[inside]].astype(np.float64), got[wrong[inside]].astype(np.float64)
        near = np.isclose(have, want, rtol=CLOSE, atol=0.0)  # a finite value is near no infinity
        return bool(np.count_nonzero(near) >= ALIKE * wrong.size)

    ideas: List[Tuple[str, Callable[[], Array]]] = []
    if len(tensor.shape) >= 2 and rows > 1 < columns:
        ideas.append(
            ("they hold what belongs at the transposed index", lambda: (wrong % rows) * columns + wrong // rows)
        )
        if rows == tensor.shape[0]:
            ideas.append(("they hold what belongs at the transposed index", lambda: column * rows + row))
        pitches = {(columns + p - 1) // p * p for p in PITCHES} | {rows, columns - 1, columns + 1}
        for pitch in sorted(pitches - {columns, 0}):
            text = "they hold what a row stride of %d instead of %d gives" % (pitch, columns)
            ideas.append((text, lambda pitch=pitch: row * pitch + column))
            ideas.append((text, lambda pitch=pitch: wrong // pitch * columns + wrong % pitch))
    for shift in (*SHIFTS, columns, -columns):
        text = "they hold what belongs %d element%s %s" % (
            abs(shift), "s" * (abs(shift) > 1), "further on" if shift > 0 else "before",
        )  # fmt: skip
        ideas.append((text, lambda shift=shift: wrong + shift))
    with np.errstate(all="ignore"):
        return next((text for text, where in ideas if explains(where())), "")


def describe_common_error(expected: Array, got: Array, mask: Array) -> str:
    """Say so if wrong elements are all off by one factor, such as the other sign, or by one difference."""
    wrong = np.flatnonzero(mask)
    wrong = wrong[:: max(1, wrong.size // SAMPLES)]
    want, have = (part[wrong].astype(np.float64) for part in (expected, got))
    # Of a constant beside much smaller values both would be told.
    if wrong.size < 4 or np.unique(want).size < 4 or np.unique(have).size < 4:
        return ""
    with np.errstate(all="ignore"):
        for nothing, found, text in (
            (1, have / want, "%.6g times what is expected"),
            (0, have - want, "off by %+.6g each"),
        ):
            one = float(np.median(found))
            # What rounding makes of an answer scatters around nothing.
            near = np.abs(found - one) <= SCATTER * abs(one - nothing)
            if np.isfinite(one) and one and np.count_nonzero(near) >= ALIKE * wrong.size:
                return OTHER_SIGN if nothing and abs(one + 1) <= 2 * SCATTER else "they are " + text % one
    return ""
