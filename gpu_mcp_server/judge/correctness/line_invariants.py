"""Finds the invariant of a discrete answer under moves of its inputs: the set of values in each line of it.

A sorted order names every index once, a mask of the largest has one element a row, the number of different values is
that of all. An answer among ties keeps that. One that breaks it counts equals, or makes up what each of its elements
could be, though never all of them.
"""

import math
from typing import List, Sequence, Set, Tuple

import numpy as np

from ..numerics.tensors import Array, Tensor
from .named_equals import distinct

Axis = Tuple[int, int]
"""An output's number, and one of its axes, counted from 1."""
BY_CHANCE = 1e-6
"""The probability below which something is no chance."""


def by_rule(rows: Array) -> bool:
    """Say whether rows of [rows, length] have no two equal elements, and not by chance (the birthday problem)."""
    if not rows.size or not distinct(rows[:1]) or not distinct(rows):
        return False
    values = float(rows.max()) - float(rows.min()) + 1
    pairs = rows.shape[0] * rows.shape[1] * (rows.shape[1] - 1) / 2
    # Rows of random values would have no equal pair with a probability of about exp(-pairs / values).
    return pairs / values > -math.log(BY_CHANCE)


def repeats_places(items: Sequence[Tensor], expected: Array, got: Array) -> bool:
    """Say whether answers have an element twice in a row where by a rule, as in sorted orders, no row has one twice."""
    start = 0
    for item in items:
        part = slice(start, start + item.count)
        start += item.count
        length = item.shape[-1] if item.shape else 1
        want, have = (side[:, part].reshape(-1, length) for side in (expected, got))
        if by_rule(want) and not distinct(have):
            return True
    return False


class Lines:
    """The axes of discrete outputs along which lines kept their values in all answers that were seen."""

    def __init__(self) -> None:
        self.loose: Set[Axis] = set()
        """Where they did not."""

    def strict_axes(self, items: Sequence[Tensor]) -> List[Axis]:
        """Return the axes along which they did."""
        every = ((number, axis + 1) for number, item in enumerate(items) for axis in range(max(1, len(item.shape))))
        # An axis is strict until evidence loosens it; two answers that differ along it are such evidence.
        return [each for each in every if each not in self.loose]

    def see(self, items: Sequence[Tensor], one: Array, other: Array) -> None:
        """Take note of two answers, [calls, elements], to the same inputs, moved."""
        self.loose.update(self.broken(items, one, other))

    def broken(self, items: Sequence[Tensor], moved: Array, answer: Array) -> List[Axis]:
        """Return along which axes an answer breaks what has stayed as it is in all moved ones."""
        ends = np.cumsum([item.count for item in items])
        found: List[Axis] = []
        for number, axis in self.strict_axes(items):
            part = slice(int(ends[number]) - items[number].count, int(ends[number]))
            # A scalar counts as one axis of one element, so it needs no special case.
            shape = (-1, *(items[number].shape or (1,)))
            # Sorted lines are equal exactly where they hold the same values with the same multiplicity.
            want, have = (np.sort(each[:, part].reshape(shape), axis=axis) for each in (moved, answer))
            if (want != have).any():
                found.append((number, axis))
        return found
