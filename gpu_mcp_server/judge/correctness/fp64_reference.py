"""The reference once more in double precision: how exact an answer in the declared type can be."""

import importlib
import math
import mmap
import os
from typing import Any, Dict, List, Sequence

import numpy as np

from ..numerics.small_floats import SHORT
from ..numerics.tensors import Array, Tensor, brings_check
from .named_equals import WHOLES

MOST_TERMS = 1 << 14
"""Summands beyond which no sum is expected to be taken in order, and nobody is forgiven what that would lose."""
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
EPSILON.update({"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2})
NARROWER = EPSILON.keys() - {"float64"}
"""Than double precision."""


TINY = 2.0**-200
"""Far below half the smallest number of every type."""
WITHIN = 0.24
"""Part of a last place. Below a power of two the next number is half of one away: half of that still rounds to it."""


SPREAD = 2.0**15
"""What moved whole numbers are multiplied by: a reference that makes integers of them keeps the moves."""
LARGEST_WHOLE = 2.0**37
"""Beyond which a double has too few bits for that."""


def at_rest(items: Sequence[Tensor], given: Sequence[Any]) -> bool:
    """Say whether inputs of floats are zeros beside weights: what is computed of these is rounded all the same."""
    floats = [(i, x) for i, x in zip(items, given) if i.dtype in EPSILON]
    beside = [x for item, x in floats if item.distribution != "weights"]
    return 0 < len(beside) < len(floats) and not any(bool((x != 0).any()) for x in beside)


def widened(item: Tensor, given: Any, nudge: bool, *, rest: bool = False) -> Any:
    """Return an input in double precision, each element moved by up to half its last place if asked.

    At `rest` its zeros are moved by as much as a one would be.
    """
    if item.dtype not in EPSILON:
        return given
    wide = _in_double(given)
    if not nudge:
        return wide
    chance = _chances(wide, int.from_bytes(os.urandom(8), "little"))
    # A double has no half a last place, so it moves by a whole one.
    chance = chance if item.dtype == "float64" else chance / 2
    # A relative move leaves zeros where they are, so at rest the move is absolute.
    return wide + EPSILON[item.dtype] * chance if rest else wide * (1 + EPSILON[item.dtype] * chance)


def moved_by(inputs: Sequence[Tensor]) -> float:
    """Return how far, relatively, an input of a computed answer may be moved for rounding of float32 in n terms."""
    longest = max((max(item.shape, default=1) for item in inputs), default=1)
    return float(min(longest, MOST_TERMS) ** 0.5 * EPSILON["float32"] / 2)


def moved(item: Tensor, given: Any, message: Dict[str, Any], number: int) -> Any:
    """Return an input of a discrete answer in double precision, as `message` says.

    `exact`: as it is. `squares`: x |x|, which keeps the order of all inputs and nothing else. `moved`: each element by
    up to `amount` times itself or half a last place, whichever is more; with an amount of 0 by less than a quarter of a
    last place, so that it would still be stored as the same number; with `opposite` the other way. `rising`, `falling`:
    by so little too, the more the further behind or in front an element is, so that among equals the last or the first
    is the largest. A zero is moved only with `zeros`, as that may give it a sign. `places`: which number of float32 it
    is, all of them positive; that keeps the order and not the sign. `signs`: the sign alone, times one number or
    another from 1 to 3.

    Whole numbers stay as they are, or with `wholes` move likewise, by less than a quarter. Their places begin at 1.

    Raises:
        ValueError: If a whole number is too large for that.
    """
    whole = bool(message.get("wholes")) and item.dtype in WHOLES
    if item.dtype not in EPSILON and not whole:
        return given
    wide = _in_double(given)
    if message["how"] == "exact":
        return wide
    if whole and abs(wide).max() > LARGEST_WHOLE:
        raise ValueError("some whole numbers are beyond 2^37")
    if message["how"] == "squares":
        return wide * abs(wide) * (SPREAD if whole else 1.0)
    if message["how"] == "places":
        return wide - wide.min() + 1 if whole else _places(wide)
    if message["how"] == "signs":
        size = 2 + _chances(wide, int(message["seed"]) + number)
        return size * (wide > 0) - size * (wide < 0)
    by_chance = message["how"] == "moved"
    chance = _chances(wide, int(message["seed"]) + number) if by_chance else _rising(wide)
    if message["how"] == "falling" or message.get("opposite"):
        chance = -chance
    amount = float(message["amount"])
    # A last place is at most an epsilon of the number, so half of one is no more than such an amount.
    if not whole and amount >= EPSILON[item.dtype] / 2:
        return wide + chance * amount * abs(wide)
    chance = chance if message.get("zeros") else chance * (wide != 0)
    if whole:
        return SPREAD * (wide + chance * WITHIN)
    xp = _framework_of(wide)
    exponents = xp.frexp(xp.clip(abs(wide), TINY, None))[1]  # of the next powers of two, a tiny one for zeros
    place = EPSILON[item.dtype] / 2 * 2.0 ** xp.asarray(exponents, dtype=xp.float64)
    return wide + chance * (xp.maximum(abs(wide) * amount, place / 2) if amount else place * WITHIN)


def _in_double(given: Any) -> Any:
    """Return an array of either framework in double precision."""
    return given.double() if hasattr(given, "double") else np.asarray(given).astype(np.float64)


def _framework_of(array: Any) -> Any:
    """Return NumPy or torch, by whose array it is: torch is imported late, as a NumPy problem runs without it."""
    return np if isinstance(array, np.ndarray) else importlib.import_module("torch")


def _chances(wide: Any, seed: int) -> Any:
    """Return random numbers from -1 to 1."""
    xp = _framework_of(wide)
    if xp is np:
        rng: Any = np.random.default_rng(seed)
        return rng.uniform(-1, 1, wide.shape)
    generator = xp.Generator(device=wide.device).manual_seed(seed % (1 << 63))
    return wide.new_empty(wide.shape).uniform_(-1, 1, generator=generator)


def _places(wide: Any) -> Any:
    """Return which number of float32 each element is, all of them positive."""
    xp = _framework_of(wide)
    return xp.sign(wide) * xp.asarray(abs(wide), dtype=xp.float32).view(xp.int32) + 2.0**32


def _rising(wide: Any) -> Any:
    """Return numbers from -1 to 1 in the order of an array's elements."""
    xp = _framework_of(wide)
    where = {} if xp is np else {"device": wide.device}
    return xp.linspace(-1, 1, math.prod(wide.shape), dtype=wide.dtype, **where).reshape(wide.shape)


def whole(result: Any, instead: Any = None) -> Array:
    """Return a discrete result of either framework as flat 64-bit integers, of floats of eight bits their bytes.

    Of floats `instead` is returned, if it is given.

    Raises:
        ValueError: If it is none.
    """
    if hasattr(result, "detach"):
        result = result.detach().cpu()
        if result.is_floating_point() and result.element_size() == 1:
            result = result.view(importlib.import_module("torch").uint8)
        result = result.numpy()
    found = np.asarray(result)
    if found.dtype.kind == "f" and instead is not None:
        return whole(instead)
    # A discrete output that turns into floats in double precision cannot be compared element by element.
    if found.dtype.kind not in "biu":
        raise ValueError("in double precision the answer is %s" % found.dtype)
    return np.ascontiguousarray(found.astype(np.int64)).ravel()


def doubles(result: Any) -> Array:
    """Return a result of either framework as flat doubles."""
    if hasattr(result, "detach"):
        result = result.detach().double().cpu().numpy()
    return np.ascontiguousarray(np.ravel(result), dtype=np.float64)


def doubles_at(result: Any, at: Array) -> Array:
    """Return elements at flat positions of a result of either framework as doubles."""
    if hasattr(result, "detach"):
        torch: Any = importlib.import_module("torch")
        where = torch.from_numpy(at).to(result.device)
        result, at = _at(torch, result.detach().reshape(-1), where).double().cpu().numpy(), np.arange(at.size)
    return np.ascontiguousarray(np.ravel(np.asarray(result))[at], dtype=np.float64)


def absolute_differences(first: Any, second: Any, at: Array) -> Array:
    """Return |first - second| at flat positions as doubles; 0 where it is not finite."""
    with np.errstate(all="ignore"):
        far = np.abs(doubles_at(first, at) - doubles_at(second, at))
    return np.where(np.isfinite(far), far, 0.0)


def _at(torch: Any, flat: Any, where: Any) -> Any:
    """Return elements; those of eight bits as bytes in between, as not every torch can pick floats of eight bits."""
    return flat[where] if flat.element_size() > 1 else flat.view(torch.uint8)[where].view(flat.dtype)


class ResultFile:
    """A memory file in which the owner asks, and is answered; a context, at whose end it is closed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __enter__(self) -> "ResultFile":
        """Return it."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Close it."""
        os.close(self.descriptor)

    def positions(self, sizes: Dict[str, int]) -> Dict[int, Array]:
        """Return the positions that it begins with, by the outputs' numbers."""
        with mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size) as memory:
            every = np.frombuffer(memory[: 8 * sum(sizes.values())], dtype=np.int64).copy()
        parts = np.split(every, np.cumsum([*sizes.values()])[:-1])
        return {int(number): part for number, part in zip(sizes, parts)}

    def write(self, results: Sequence[Array]) -> None:
        """Write flat results one behind the other."""
        with mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size) as memory:
            # One assignment of the whole file fails on a wrong size instead of leaving a part unwritten.
            memory[:] = np.concatenate(results).tobytes()


def movable(task: Dict[str, Any], outputs: Sequence[Tensor]) -> bool:
    """Return whether the reference can answer inputs moved in double precision, and these answers tell of rounding.

    Where a problem brings a check of its own, several answers are right and none is nearer to double precision.
    """
    if brings_check(task):
        return False
    kinds = [spec["dtype"] for spec in task["inputs"]]
    # NumPy references see short floats as integer bits, which widening would not turn into their values.
    bits = task["framework"] == "numpy" and any(kind in SHORT for kind in kinds)
    return not bits and any(k in EPSILON for k in kinds) and any(item.dtype in EPSILON for item in outputs)


def available(task: Dict[str, Any], outputs: Sequence[Tensor]) -> bool:
    """Return whether the reference can run in double precision, and that is more than the declared precision."""
    return movable(task, outputs) and any(spec["dtype"] in NARROWER for spec in task["inputs"])


def split(values: Array, outputs: Sequence[Tensor]) -> List[Array]:
    """Return each output's elements."""
    ends = np.cumsum([item.count for item in outputs])
    return np.split(values, ends[:-1])
