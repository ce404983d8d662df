"""The reference once more in double precision: how exact an answer in the declared type can be."""

import mmap
import os
from typing import Any, Dict, List, Sequence

import numpy as np
from fill import SHORT
from tensors import Array, Tensor

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
EPSILON.update({"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2})


def widened(item: Tensor, given: Any, nudge: bool) -> Any:
    """Return an input in double precision, each element moved by up to half its last place if asked."""
    if item.dtype not in EPSILON:
        return given
    part = EPSILON[item.dtype] if nudge else 0.0
    if hasattr(given, "double"):
        wide = given.double()
        return wide * (1 + part * wide.new_empty(wide.shape).uniform_(-0.5, 0.5)) if nudge else wide
    wide = np.asarray(given).astype(np.float64)
    return wide * (1 + part * np.random.default_rng().uniform(-0.5, 0.5, wide.shape)) if nudge else wide


def doubles(result: Any) -> Array:
    """Return a result of either framework as flat doubles."""
    if hasattr(result, "detach"):
        result = result.detach().double().cpu().numpy()
    return np.ascontiguousarray(result, dtype=np.float64).ravel()


def write(descriptor: int, results: Sequence[Any]) -> None:
    """Write results one behind the other into a memory file, and close it."""
    with mmap.mmap(descriptor, os.fstat(descriptor).st_size) as memory:
        memory[:] = np.concatenate([doubles(result) for result in results]).tobytes()
    os.close(descriptor)


def available(task: Dict[str, Any], outputs: Sequence[Tensor]) -> bool:
    """Say whether double precision is more than what is declared, and the reference can be given it."""
    kinds = [spec["dtype"] for spec in task["inputs"]]
    bits = task["framework"] == "numpy" and any(kind in SHORT for kind in kinds)
    return not bits and any(k in EPSILON and k != "float64" for k in kinds) and outputs[0].dtype in EPSILON


def split(values: Array, outputs: Sequence[Tensor]) -> List[Array]:
    """Return each output's elements."""
    ends = np.cumsum([item.count for item in outputs])
    return np.split(values, ends[:-1])
