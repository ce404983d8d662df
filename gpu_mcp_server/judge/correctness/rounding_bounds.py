"""Bounds the effect of rounding where the author declared no tolerance: other shapes and distributions.

Every element is allowed what rounding does to it. A bound for all of them by the largest would let elements of ordinary
size be anything beside a few huge ones, such as what a mask is filled with.
"""

from typing import NamedTuple, Optional, Sequence

import numpy as np

from ..numerics.tensors import Array, Tensor
from .fp64_reference import EPSILON, MOST_TERMS

NOISE = 8.0
"""How many times its sensitivity to half a last place of the inputs an answer may be off."""
PLACES = 2.0
"""Last places of the declared type that an answer may be off whatever it is computed from."""
COARSEST = EPSILON["bfloat16"]
"""Nobody computes with less, whatever the inputs are stored as."""
NEAR = 8
"""Elements of next smaller and next larger size, by which a sensitivity that is small by chance is made up for."""
REACH = 8.0
"""Times its sensitivity, in places of the inputs, that the partial sums behind an answer are large. Moved terms t add
to sqrt(sum t^2 / 12) places, partial sums of terms of both signs to a few times sqrt(sum t^2)."""
UNDERFLOW = {"bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Smallest normal numbers. What is below them may become zero, as processors and GPUs have it in their fast modes.
Source: Demmel, Underflow and the Reliability of Numerical Software, SIAM J. Sci. Stat. Comput. 5, 1984."""
AMPLIFIED = 16.0
"""Places of the inputs that an answer moves where something small is divided by something as small."""
JUMP = 2.0**-13
"""Of a size, beyond which a double that moves with the inputs' last places has jumped: rounding is no excuse for that.
Nothing is wider than double precision. Its moved answers are rounded as any answer is, and show by themselves what
rounding does, of partial sums too.
Source: Higham, Accuracy and Stability of Numerical Algorithms, chapter 26, Automatic Error Analysis."""
TYPICAL = 100.0
"""Times what nine of ten elements exceed, as a size of what is added up where nothing is known of it."""


class Known(NamedTuple):
    """Rounding of each element, as double precision shows it; 0 where it is unknown."""

    off: Array
    """How far the reference's answer is from the exact one."""
    moved: Array
    """How far the exact one moves with the inputs, by up to half a last place each."""


def summation(inputs: Sequence[Tensor], output: Tensor) -> float:
    """Return the relative error of a sum whose terms have one sign and are added one after the other.

    It is (n - 1) u with u half an epsilon (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), and reached
    where one term is so large that each of the others is lost in it, as an outlier is. Partial sums may be float32, or
    the output's type if that is finer. n: the longest extent of an input, or inputs for each output; of a model any
    number of its data, as a norm over samples and places adds up several extents.
    """
    longest = max((max(item.shape, default=1) for item in inputs), default=1)
    if any(item.distribution == "weights" for item in inputs):
        longest = max((item.count for item in inputs if item.distribution != "weights"), default=1)
    gathered = max((item.count for item in inputs), default=1) // max(output.count, 1)
    terms = min(max(longest, gathered), MOST_TERMS)
    return (terms - 1) * min(EPSILON.get(output.dtype, 0.0), EPSILON["float32"]) / 2


def slack(expected: Array, inputs: Sequence[Tensor], output: Tensor, known: Optional[Known]) -> Array:
    """Return for each element of a float output how far beyond the tolerance rounding may put it.

    Args:
        expected: The reference's answer, flat, in double precision.
        inputs: Of the call.
        output: Which it is.
        known: `None` where the reference could not answer in double precision.
    """
    size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    place, fine = EPSILON[output.dtype] * size, min(EPSILON[output.dtype], EPSILON["float32"])
    lost = UNDERFLOW.get(output.dtype, 0.0)
    given = max([EPSILON[item.dtype] for item in inputs if item.dtype in EPSILON], default=fine)
    if known is None or given == EPSILON["float64"]:
        scale = np.maximum(size, _typical(size))
        most = lost + PLACES * place + (2 * NOISE * fine + summation(inputs, output)) * scale
        if known is None:
            return most
        moved = np.where(known.moved <= JUMP * scale, known.moved, 0.0)
        return most + NOISE * np.maximum(moved, _largest_near(np.maximum(moved - given * size, 0.0), size))
    least = min(given, COARSEST)
    apart = np.maximum(np.maximum(known.off - place, 0.0), known.moved * (least / given))
    near = _largest_near(np.maximum(apart - least * size, 0.0), size)
    behind = summation(inputs, output) * np.maximum(size, REACH / least * near)
    if {item.distribution for item in inputs if item.dtype in EPSILON} == {"zeros", "weights"}:
        # All samples are alike: a norm over them divides what rounding leaves of their mean by next to nothing, and not
        # one digit of the answer is certain. Over how many axes the mean goes is not known.
        blind = near >= np.maximum(size, AMPLIFIED * least)
        behind = np.where(blind, (MOST_TERMS - 1) * fine / 2 * near / least, behind)
    return lost + PLACES * place + NOISE * np.maximum(apart, near) + behind


def beyond(got: Array, expected: Array, most: Array) -> Array:
    """Say of each element whether it is farther off than it may be; from an infinity any other number is."""
    with np.errstate(all="ignore"):
        near: Array = np.abs(got - expected) <= np.where(np.isfinite(expected), most, -1.0)
        return ~(near | (got == expected))


def _typical(size: Array) -> float:
    some = size[size > 0]
    return min(float(some.max()), TYPICAL * float(np.percentile(some, 10))) if some.size else 0.0


def _largest_near(values: Array, size: Array) -> Array:
    """Return the largest value of each element and of those that are next to it in size."""
    order = np.argsort(size, kind="stable")
    padded = np.pad(values[order], NEAR)
    largest = padded[: values.size].copy()
    for shift in range(1, 2 * NEAR + 1):
        np.maximum(largest, padded[shift : shift + values.size], out=largest)
    found = np.empty_like(largest)
    found[order] = largest
    return found
