"""From what a profiler measured to what an agent needs: the limit, the roofs, stalls, lines, occupancy, advice."""

from collections.abc import Sequence

from gpu_mcp_server.models.profile import Advice, KernelReading, KernelVerdict, Roofline
from gpu_mcp_server.profilers.advice import Situation, occupancy_limiter, suggest
from gpu_mcp_server.profilers.csv_tables import shares
from gpu_mcp_server.profilers.hardware_units import BUSY_PERCENT, units_of
from gpu_mcp_server.profilers.perf_events import TOOL as PROCESSOR
from gpu_mcp_server.profilers.processor_verdict import processor_verdict
from gpu_mcp_server.profilers.roofline import Peaks, bandwidths, clock_hz, roofline
from gpu_mcp_server.time_format import format_time

LIMIT = 1600
"""Characters of a verdict, about 400 tokens."""
TEXT_OF_A_LINE = 70
WORTH = 2.0
"""Percent below which a suggestion is not worth saying."""


def kernel_verdict(
    reading: KernelReading, peaks: Peaks | None = None, share_percent: float | None = None
) -> KernelVerdict:
    """Return what one kernel is bound by, and the text of it."""
    if reading.texts.get("tool") == PROCESSOR:
        return processor_verdict(reading, share_percent)
    units = units_of(reading)
    bound, percent, family = _bound(units)
    roof = roofline(reading, peaks)
    stalls = shares(reading.stalls)
    suggested = suggest(Situation(reading, units, family, stalls))
    advice = [suggestion.text for suggestion in suggested]
    lines = [
        _head(reading, share_percent),
        _bound_line(units, bound, percent),
        *(f"TRY {n}: {a}" for n, a in enumerate(advice, 1)),
        _roof_line(roof),
        _memory_line(reading, peaks),
        _stall_line(stalls),
        _hot_lines(reading),
        _occupancy_line(reading),
    ]
    return KernelVerdict(
        name=reading.name,
        time_us=reading.time_us,
        calls=reading.calls,
        share_percent=share_percent,
        bound=bound,
        bound_percent=percent,
        units_percent={k: round(v, 1) for k, (v, _) in list(units.items())[:6]},
        stalls_percent={k: round(v, 1) for k, v in list(stalls.items())[:4]},
        roofline=roof,
        advice=advice,
        first=next((Advice(topic=s.topic, share=min(s.weight, 1.0), text=s.text) for s in suggested if s.weight), None),
        verdict="\n".join(line for line in lines if line),
    )


def verdicts(readings: Sequence[KernelReading], peaks: Peaks | None = None) -> list[KernelVerdict]:
    """Return the verdict of each kernel, the one that takes most time first."""
    whole = sum(r.total_us or 0.0 for r in readings)
    ordered = sorted(readings, key=lambda r: -(r.total_us or 0.0))
    return [
        kernel_verdict(
            r, peaks, 100 * r.total_us / whole if whole and r.total_us is not None and len(readings) > 1 else None
        )
        for r in ordered
    ]


def text_of(
    found: Sequence[KernelVerdict], missing: Sequence[str] = (), limit: int = LIMIT, *, timeline: Sequence[str] = ()
) -> str:
    """Return the verdict of a profile: the first kernel in full, the others on a line each, within `limit`."""
    if not found:
        return "\n".join(f"NOT MEASURED: {m}" for m in missing)[:limit]
    tail = [*_fitting(timeline, limit // 2), *(f"NOT MEASURED: {m}"[:300] for m in missing[:3])]
    others = [_other_line(v) for v in found[1:]]
    room = limit - sum(len(t) + 1 for t in tail)
    lines = _fitting(found[0].verdict.splitlines(), room)
    room -= sum(len(line) + 1 for line in lines)
    shown: list[str] = []
    for n, line in enumerate(others):
        more = f"({len(others) - n} more kernels: query_profile)"
        if room < len(line) + 1 + (len(more) + 1 if n + 1 < len(others) else 0):
            shown += [more] if room > len(more) else []
            break
        shown.append(line)
        room -= len(line) + 1
    return "\n".join([*lines, *shown, *tail])[:limit]


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if room <= 40:
            break
        kept.append(line if len(line) < room else line[: room - 4] + "...")
        room -= len(kept[-1]) + 1
    return kept


def _other_line(v: KernelVerdict) -> str:
    share = f" ({v.share_percent:.0f} %)" if v.share_percent is not None else ""
    time = f"{format_time(v.time_us / 1e6)} x {v.calls}" if v.time_us is not None else f"{v.calls} calls"
    limit = f"; bound by {v.bound} {v.bound_percent:.0f} %" if v.bound and v.bound_percent is not None else ""
    return f"also {v.name}: {time}{share}{limit}"


def _bound(units: dict[str, tuple[float, str]]) -> tuple[str | None, float | None, str]:
    if not units:
        return None, None, ""
    title, (percent, family) = next(iter(units.items()))
    return (title, percent, family) if percent >= BUSY_PERCENT else ("latency", percent, "latency")


def _head(r: KernelReading, share: float | None) -> str:
    hz = clock_hz(r.metrics)
    parts = [format_time(r.time_us / 1e6) if r.time_us is not None else "time unknown"]
    parts[0] += f" x {r.calls}" if r.calls > 1 else ""
    parts[0] += f" ({share:.0f} % of all kernels)" if share is not None else ""
    if hz:
        parts.append(f"SM at {hz / 1e6:.0f} MHz, not locked")
    waves = r.metrics.get("launch__waves_per_multiprocessor")
    if r.grid and r.block:
        parts.append(f"grid {r.grid} x block {r.block}" + (f", {waves:.1f} waves" if waves is not None else ""))
    return f"{r.name}: " + "; ".join(parts)


def _bound_line(units: dict[str, tuple[float, str]], bound: str | None, percent: float | None) -> str:
    if bound is None or percent is None:
        return ""
    shown = ", ".join(f"{title} {value:.0f} %" for title, (value, _) in list(units.items())[:4])
    if bound == "latency":
        return f"BOUND: latency: no unit is above {BUSY_PERCENT:.0f} % of its peak ({shown})"
    return f"BOUND: {bound} ({shown})"


def _roof_line(roof: Roofline | None) -> str:
    if roof is None:
        return ""
    levels = ", ".join(
        f"{lv.level} {lv.intensity_flop_b:.3g} FLOP/B, {lv.of_roof_percent:.0f} % of its roof"
        f" (ridge {roof.peak_tflop_s * 1e3 / lv.peak_bandwidth_gb_s:.3g})"
        for lv in roof.levels
    )
    reached = 100 * roof.tflop_s / roof.peak_tflop_s
    text = f"ROOFLINE: {roof.tflop_s:.3g} of {roof.peak_tflop_s:.3g} TFLOP/s {roof.pipe} ({reached:.0f} %)"
    if roof.measured_tflop_s:
        text += f", an FMA loop reaches {roof.measured_tflop_s:.3g} here"
    return text + (f"; {levels}" if levels else "")


def _memory_line(r: KernelReading, peaks: Peaks | None) -> str:
    parts = [
        f"{level} {done / 1e12:.2f} of {most / 1e12:.2f} TB/s ({100 * done / most:.0f} %)"
        for level, (done, most) in bandwidths(r, peaks).items()
    ]
    if parts and peaks and peaks.copy_gb_s:
        parts.append(f"a copy reaches {peaks.copy_gb_s / 1e3:.2f} TB/s here")
    hits = [
        f"{title} {r.metrics[name]:.0f} %"
        for title, name in (("L1", "l1tex__t_sector_hit_rate.pct"), ("L2", "lts__t_sector_hit_rate.pct"))
        if name in r.metrics
    ]
    parts += [f"hits {', '.join(hits)}"] if hits else []
    used = r.metrics.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio")
    if used:
        parts.append(f"{used:.0f} of 32 B used of each loaded sector")
    return f"MEMORY: {'; '.join(parts)}" if parts else ""


def _stall_line(stalls: dict[str, float]) -> str:
    top = [f"{name} {value:.0f} %" for name, value in list(stalls.items())[:3] if value >= WORTH]
    return f"STALLS: {', '.join(top)}" if top else ""


def _hot_lines(r: KernelReading) -> str:
    whole = sum(line.samples for line in r.lines)
    shown: list[str] = []
    for line in sorted(r.lines, key=lambda x: -x.samples)[:3]:
        share = 100 * line.samples / whole if whole else 0.0
        if share < 10:
            break
        why = max(line.stalls, key=lambda k: line.stalls[k], default="")
        text = f" `{line.text[:TEXT_OF_A_LINE]}`" if line.text else ""
        place = f"{line.file.rpartition('/')[2]}:{line.line}"
        shown.append(f"{place} {share:.0f} %" + (f" ({why})" if why else "") + text)
    return f"HOT LINES: {'; '.join(shown)}" if shown else ""


def _occupancy_line(r: KernelReading) -> str:
    m, parts = r.metrics, list[str]()
    reached = m.get("sm__warps_active.avg.pct_of_peak_sustained_active")
    possible = m.get("sm__maximum_warps_per_active_cycle_pct")
    if reached is not None:
        parts.append(f"{reached:.0f} %" + (f" of {possible:.0f} % possible" if possible is not None else ""))
    if limiter := occupancy_limiter(m):
        parts.append(f"limit {limiter[0]} ({limiter[1]:.0f} blocks an SM)")
    for title, names in (("registers", ("launch__registers_per_thread", "registers per thread", "VGPR_Count")),):
        value = next((m[n] for n in names if n in m), None)
        parts += [f"{value:.0f} {title}"] if value is not None else []
    shared = next((m[n] for n in ("launch__shared_mem_per_block", "shared memory", "LDS_Block_Size") if n in m), None)
    parts += [f"{shared / 1024:.3g} KiB shared"] if shared else []
    spills = m.get("smsp__inst_executed_op_local_st.sum") or m.get("Scratch_Size")
    parts += ["spills to local memory"] if spills else []
    return f"OCCUPANCY: {', '.join(parts)}" if parts else ""
