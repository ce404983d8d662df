"""Least times of a call on a device, for the judge to compare its clock with."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.hosts.device_specs import spec_of
from gpu_mcp_server.services.problems.shape_expressions import value
from gpu_mcp_server.services.problems.tensor_sizes import ITEM_BYTES


def floors(problem: Problem, gpus: Sequence[str]) -> dict[str, Any]:
    """Return, for each of the GPUs that is described, its peaks and what every declared shape needs.

    Every output must be written, so its bytes count. Not every input need be read (an index may choose, a mask may
    hide), so inputs count only for the roof that is shown, unless the problem's `bytes` says what must be moved.
    `flops` are held against the device's fastest type, which no choice of type can beat, for the floor, and against
    the declared type for the roof.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(gpus):
        spec = spec_of(name)
        if spec is None:
            continue
        declared = spec.peak_of(problem.outputs[0].dtype, strict=problem.precision == "strict")
        found[name] = {
            "spec": spec.name,
            "dram_bytes_per_s": spec.dram_gb_s * 1e9,
            "cache_bytes": int(spec.cache_mib * (1 << 20)),
            "flop_per_s": spec.fastest() * 1e12,
            "roof_type": declared[0] if declared else None,
            "roof_flop_per_s": declared[1] * 1e12 if declared else None,
            "shapes": [_needs(problem, dims) for dims in problem.shapes],
        }
    return found


def _needs(problem: Problem, dims: Mapping[str, int]) -> dict[str, Any]:
    written = _bytes(problem.outputs, dims)
    touched = written + _bytes(problem.inputs, dims)
    if problem.bytes is not None:
        written = touched = int(value(problem.bytes, "bytes", dims))
    flops = value(problem.flops, "flops", dims) if problem.flops is not None else None
    return {"least_bytes": written, "touched_bytes": touched, "flops": flops}


def _bytes(tensors: Sequence[TensorSpec], dims: Mapping[str, int]) -> int:
    return sum(ITEM_BYTES[t.dtype] * math.prod(d if isinstance(d, int) else dims[d] for d in t.shape) for t in tensors)
