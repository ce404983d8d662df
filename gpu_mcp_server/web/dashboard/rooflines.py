"""Place of an attempt under its device's roofs: by its profile, and otherwise by the judge's clock."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.evaluation.time_floors import floors

NAME = 200


def rows_of(evidence: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list in an attempt's evidence."""
    rows: Any = evidence.get(name) or []
    return [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, dict)]


def kernels_of_profile(attempt: Attempt) -> Sequence[Mapping[str, Any]]:
    """Return the kernels of a profile that counted operations and bytes."""
    return [row for row in rows_of(attempt.evidence or {}, "roofline") if row.get("levels")]


def kernels_of_timing(
    problem: Problem | None, attempt: Attempt, shapes: Sequence[ShapeVerdict]
) -> Sequence[Mapping[str, Any]]:
    """Return each timed shape as a kernel: the problem's flops, bytes of inputs and outputs, the judge's time.

    Nothing where the problem declares no flops, or the device's peaks are not known.
    """
    if problem is None or not problem.outputs or not attempt.device:
        return []
    try:
        known = floors(problem, [attempt.device]).get(attempt.device)
    except (BadRequest, KeyError):
        return []
    if known is None or not known["roof_flop_per_s"]:
        return []
    found = (_clocked(problem, known, shape) for shape in shapes)
    return [kernel for kernel in found if kernel is not None]


def _clocked(problem: Problem, known: Mapping[str, Any], shape: ShapeVerdict) -> Mapping[str, Any] | None:
    declared = [dims for dims in problem.shapes if dims == shape.dims]
    if shape.candidate is None or not declared:
        return None
    needs = known["shapes"][problem.shapes.index(declared[0])]
    if not needs["flops"] or not needs["touched_bytes"]:
        return None
    seconds, peak, most = shape.candidate.median_us / 1e6, known["roof_flop_per_s"], known["dram_bytes_per_s"]
    intensity, done = needs["flops"] / needs["touched_bytes"], needs["flops"] / seconds
    level = {
        "level": "dram",
        "intensity_flop_b": intensity,
        "peak_bandwidth_gb_s": most / 1e9,
        "of_roof_percent": 100 * done / min(peak, intensity * most),
    }
    return {
        "kernel": ", ".join(f"{name} {size}" for name, size in shape.dims.items()),
        "pipe": known["roof_type"],
        "tflop_s": done / 1e12,
        "peak_tflop_s": peak / 1e12,
        "peak_source": f"peaks of {known['spec']}, times of the judge's clock, bytes of inputs and outputs",
        "levels": [level],
    }


def roofline_data(kernels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return kernels under the roofs of the first, as the plot wants them."""
    first: Mapping[str, Any] = kernels[0] if kernels else {"levels": []}
    roofs: list[dict[str, Any]] = [
        {"level": level["level"], "gb_s": level["peak_bandwidth_gb_s"], "peak_tflop_s": first["peak_tflop_s"]}
        for level in first["levels"]
    ]
    return {"kernels": [{**k, "kernel": str(k.get("kernel", ""))[:NAME]} for k in kernels], "roofs": roofs}
