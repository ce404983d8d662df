"""Places a kernel under its device's roofs.

Peaks come from the profiler if it measured them (sustained peak per cycle times the clock of the run), otherwise from
the device's sheet. Beside them stand the rates of a copy and of a loop of FMAs on the host.

Source: metrics as in Nsight Compute's sections SpeedOfLight_RooflineChart and
SpeedOfLight_HierarchicalTensorRooflineChart for CC 9.0; the model is Williams, Waterman, Patterson, CACM 52(4), 2009.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_mcp_server.models.profile import KernelReading, Roofline, RooflineLevel

FFMA = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
PEAK = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
TENSOR = "sm__ops_path_tensor_op_"
DRAM_BYTES = ("dram__bytes_{}.sum", "dram__bytes_op_{}.sum")
"""Metric names with a hole for the direction; CC 12.0 has the second."""
L2_BYTES = 32
"""Of one cycle of lts2xbar. Source: derived__lts__lts2xbar_bytes, its cycles times 32."""


@dataclass(frozen=True)
class Peaks:
    """A device's sheet, dense peaks, and what was measured beside it."""

    name: str
    dram_gb_s: float
    tflop_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """By type: float32, float64, bfloat16_tensor ..."""
    copy_gb_s: float | None = None
    """GB/s of a copy measured on this host, reads and writes together."""
    fma_tflop_s: float | None = None
    """TFLOP/s of a loop of float32 FMAs measured on this host."""


def clock_hz(metrics: Mapping[str, float]) -> float | None:
    """Return the multiprocessors' clock during the run."""
    return metrics.get("sm__cycles_elapsed.avg.per_second") or metrics.get("gpc__cycles_elapsed.avg.per_second")


def rates(metrics: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return by pipe: FLOP/s achieved and at peak, both at the clock of the run."""
    hz = clock_hz(metrics)
    if not hz:
        return {}
    found: dict[str, tuple[float, float]] = {}
    for pipe, (fma, *single) in {"fp32": ("ffma", "fadd", "fmul"), "fp64": ("dfma", "dadd", "dmul")}.items():
        done = 2 * metrics.get(FFMA.format(fma), 0.0) + sum(metrics.get(FFMA.format(op), 0.0) for op in single)
        peak = 2 * metrics.get(PEAK.format(fma), 0.0)
        if done > 0 and peak > 0:
            found[pipe] = (done * hz, peak * hz)
    for name, value in metrics.items():
        if name.startswith(TENSOR) and name.endswith(".sum.per_cycle_elapsed") and value > 0:
            peak = metrics.get(name.replace("per_cycle_elapsed", "peak_sustained"), 0.0)
            pipe = name[len(TENSOR) : -len(".sum.per_cycle_elapsed")].replace("_sparsity_off", "")
            if peak > 0:
                found[pipe] = (value * hz, peak * hz)
    return found


def bandwidths(reading: KernelReading, peaks: Peaks | None) -> dict[str, tuple[float, float]]:
    """Return by level of memory: bytes a second achieved and at peak."""
    m = reading.metrics
    found: dict[str, tuple[float, float]] = {}
    dram = m.get("dram__bytes.sum.per_second")
    ways = [v for way in ("read", "write") for n in DRAM_BYTES if (v := m.get(n.format(way))) is not None]
    if dram is None and reading.time_us and ways:
        dram = sum(ways) / reading.time_us * 1e6
    if dram is None and reading.total_us and m.get("bytes"):
        dram = m["bytes"] / reading.total_us * 1e6
    peak = m.get("dram__bytes.sum.peak_sustained", 0.0) * m.get("dram__cycles_elapsed.avg.per_second", 0.0)
    peak = peak or (peaks.dram_gb_s * 1e9 if peaks else 0.0)
    if dram is not None and peak:
        found["dram"] = (dram, peak)
    l2 = m.get("derived__lts__lts2xbar_bytes.sum.per_second")
    l2_peak = m.get("derived__lts__lts2xbar_bytes.sum.peak_sustained", 0.0)
    if l2 is None and "lts__lts2xbar_cycles_active.sum.per_second" in m:
        l2 = m["lts__lts2xbar_cycles_active.sum.per_second"] * L2_BYTES
        l2_peak = m.get("lts__lts2xbar_cycles_active.sum.peak_sustained", 0.0) * L2_BYTES
    l2_peak *= m.get("lts__cycles_elapsed.avg.per_second", 0.0)
    if l2 is not None and l2_peak:
        found["l2"] = (l2, l2_peak)
    return found


def roofline(reading: KernelReading, peaks: Peaks | None = None) -> Roofline | None:
    """Return the kernel under its roofs, `None` when its operations were not counted."""
    pipe, done, peak, source = _compute(reading, peaks)
    if done is None or peak is None or done <= 0:
        return None
    levels: list[RooflineLevel] = []
    for level, (achieved, most) in bandwidths(reading, peaks).items():
        if achieved <= 0:
            continue
        intensity = done / achieved
        roof = min(peak, intensity * most)
        levels.append(
            RooflineLevel(
                level=level,
                intensity_flop_b=intensity,
                bandwidth_gb_s=achieved / 1e9,
                peak_bandwidth_gb_s=most / 1e9,
                roof_tflop_s=roof / 1e12,
                of_roof_percent=100 * done / roof,
                measured_gb_s=peaks.copy_gb_s if peaks and level == "dram" else None,
            )
        )
    return Roofline(
        pipe=pipe,
        tflop_s=done / 1e12,
        peak_tflop_s=peak / 1e12,
        peak_source=source,
        measured_tflop_s=peaks.fma_tflop_s if peaks and pipe == "fp32" else None,
        levels=levels,
    )


def _compute(reading: KernelReading, peaks: Peaks | None) -> tuple[str, float | None, float | None, str]:
    measured = rates(reading.metrics)
    if measured:
        pipe, (done, peak) = max(measured.items(), key=lambda kv: kv[1][0])
        return pipe, done, peak, "the profiler's sustained peak at the clock of this run"
    for bits, name in (("64", "float64"), ("32", "float32"), ("16", "float16_tensor"), ("8", "float8_tensor")):
        flops = reading.metrics.get(f"flops{bits}")
        if flops and reading.total_us and peaks and name in peaks.tflop_s:
            return f"fp{bits}", flops / reading.total_us * 1e6, peaks.tflop_s[name] * 1e12, f"sheet of {peaks.name}"
    return "", None, None, ""
