"""Copies of arrays, and whether two are the same, in NumPy or torch."""

import importlib
from typing import Any


def own_copy(array: Any) -> Any:
    """Return a copy of an array of either framework that may be written to."""
    return array.clone() if hasattr(array, "clone") else array.copy()


def has_same_bytes(one: Any, other: Any) -> bool:
    """Say whether two arrays of either framework are the same to the bit, in shape and type too."""
    if not hasattr(one, "clone"):
        return bool(one.tobytes() == other.tobytes())
    torch: Any = importlib.import_module("torch")
    flat = (each.detach().contiguous().view(-1).view(torch.uint8) for each in (one, other))
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(*flat))
