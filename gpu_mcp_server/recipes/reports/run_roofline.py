"""The roofline of a run: its first correct candidate and its best, by the judge's clock or by a profile."""

from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.plots.roofline_plot import DevicePeaks, RooflinePoint, roofline
from gpu_mcp_server.recipes.reports.html_page import items, picture, text
from gpu_mcp_server.recipes.run.run_candidates import Judged
from gpu_mcp_server.services.evaluation.time_floors import floors

WHEN = ("before", "after")


def roofs_of(problem: Problem, ends: Sequence[Judged]) -> str:
    """Return the picture as HTML, or in words why there is none; `ends` are the first correct one and the best."""
    profiled = _profiled(ends)
    if profiled:
        return profiled
    device = next((end.attempt.device for end in reversed(ends) if end.attempt and end.attempt.device), None)
    try:
        known = floors(problem, [device]).get(device) if device and problem.outputs else None
    except (BadRequest, KeyError):
        known = None
    if known is None:
        return f"<p>No roofline: no peak figures of {text(device or 'its device')} are known.</p>"
    source = f"peaks of {known['spec']}, times of the judge's clock, bytes of inputs and outputs"
    gb_s, peak = known["dram_bytes_per_s"] / 1e9, known["roof_flop_per_s"]
    points, said = _points(problem, ends, known["shapes"])
    if points and peak:
        drawn = roofline(DevicePeaks(gb_s, peak / 1e12, str(known["roof_type"]), source), points)
        return f"{picture(drawn)}{items(said)}"
    why = "No picture: the problem declares no flops." if said else "No roofline: nothing was timed."
    return f"<p>{why} Memory's roof is {gb_s:.4g} GB/s ({text(source)}).</p>{items(said)}"


def _points(
    problem: Problem, ends: Sequence[Judged], shapes: Sequence[dict[str, Any]]
) -> tuple[list[RooflinePoint], list[str]]:
    """Return each end at each timed shape, as points where flops are known and in words."""
    points: list[RooflinePoint] = []
    said: list[str] = []
    for when, end in zip(WHEN, ends, strict=False):
        for shape in end.shapes:
            if shape.candidate is None or shape.dims not in problem.shapes:
                continue
            needs = shapes[problem.shapes.index(shape.dims)]  # type: ignore[arg-type]  # kernels' dims are sizes
            seconds = shape.candidate.median_us / 1e6
            moved, flops = needs["touched_bytes"], needs["flops"]
            words = f"{when}, {_dims(shape.dims)}: {moved / seconds / 1e9:.4g} GB/s"
            if flops:
                words += f", {flops / seconds / 1e12:.4g} TFLOP/s"
                points.append(RooflinePoint(when, flops / moved, flops / seconds / 1e12, words))
            said.append(words + (f"; {shape.roof}" if shape.roof else ""))
    return points, said


def _profiled(ends: Sequence[Judged]) -> str:
    """Return the picture by profiles, where the best was profiled: what was counted is better than what is declared."""
    levels = [
        (when, found, level)
        for when, end in zip(WHEN, ends, strict=False)
        for found in end.rooflines[:1]
        for level in found.get("levels", [])
        if level.get("level") == "dram"
    ]
    if not levels or levels[-1][0] != "after":
        return ""
    _, best, memory = levels[-1]
    points = [
        RooflinePoint(when, level["intensity_flop_b"], found["tflop_s"], f"{when}: {found['kernel']}")
        for when, found, level in levels
    ]
    source = f"{best['peak_source']}; counted by the profiler"
    roofs = DevicePeaks(memory["peak_bandwidth_gb_s"], best["peak_tflop_s"], best["pipe"], source)
    said = [f"{p.says}: {p.tflop_s:.4g} TFLOP/s at {p.intensity_flop_b:.3g} FLOP per byte" for p in points]
    return f"{picture(roofline(roofs, points))}{items(said)}"


def _dims(dims: dict[str, Any]) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items()) or "the only shape"
