"""Sizes of a problem's tensors, and the types that the judge can draw and compare."""

import math
from collections.abc import Mapping

from gpu_mcp_server.models.problem import DType, Problem

MAX_SHAPE_BYTES = 1 << 30
"""Inputs and outputs of one shape together."""
ITEM_BYTES: Mapping[DType, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "complex64": 8,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
FOREIGN = ("complex64", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Types that a problem's own code makes, and the judge draws and compares none of."""


def shape_bytes(problem: Problem, dims: Mapping[str, int]) -> int:
    """Return the bytes of all inputs and outputs at one shape."""
    return sum(
        ITEM_BYTES[tensor.dtype] * math.prod(d if isinstance(d, int) else dims[d] for d in tensor.shape)
        for tensor in [*problem.inputs, *problem.outputs]
    )


def largest(problem: Problem) -> Mapping[str, int]:
    """Return the shape whose tensors take most."""
    return max(problem.shapes, key=lambda dims: shape_bytes(problem, dims))
