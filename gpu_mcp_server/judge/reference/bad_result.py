"""Recognises an answer of the reference that no candidate can be compared with."""

from typing import Sequence

from ..numerics.tensors import Tensor


class BadResult(Exception):
    """The reference returned something else than the problem declares."""


def check_shape(item: Tensor, shape: Sequence[int]) -> None:
    """Refuse another shape than the declared one."""
    if tuple(shape) != item.shape:
        raise BadResult("output %s has shape %s, declared as %s" % (item.name, list(shape), list(item.shape)))
