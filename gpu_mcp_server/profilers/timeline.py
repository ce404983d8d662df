"""Summarize a trace beyond its table of kernels: idle gaps, overlap, launch latency, NCCL, ranks that arrive late.

Times are those of one trace's clock; clocks of several ranks are never compared, only durations.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from gpu_mcp_server.profilers.gpu_events import GpuEvent
from gpu_mcp_server.profilers.guide_links import link_guide

Span = tuple[float, float]
GAP_NS = 1000.0
"""Shorter pauses lie between any two kernels of a stream."""
SHORT_LAUNCH_NS = 20_000.0
"""A kernel that begins later behind its call waited in a queue, and its latency is no cost of the launch."""
LATE_PART = 0.8
"""A rank whose NCCL kernels last less than this part of the median waits least: the others wait for it."""
NCCL = "nccl"
GRAPH = "[CUDA graph"


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans without overlap, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def overlap_ns(one: Sequence[Span], other: Sequence[Span]) -> float:
    """Return how long both of two lists of merged spans last at once."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total


def _length(spans: Sequence[Span]) -> float:
    return sum(end - start for start, end in spans)


def describe_timeline(events: Sequence[GpuEvent]) -> list[str]:
    """Return lines about each device of a trace, the busiest first; none when there are no two events."""
    devices: dict[str, list[GpuEvent]] = {}
    for event in events:
        devices.setdefault(event.device, []).append(event)
    ordered = sorted(devices.items(), key=lambda kv: -sum(e.end - e.start for e in kv[1]))
    lines: list[str] = []
    for device, own in ordered[:2]:
        title = f"TIMELINE of device {device}" if len(devices) > 1 and device else "TIMELINE"
        lines += _describe(own, title)
    if len(ordered) > 2:
        lines.append(f"({len(ordered) - 2} more devices)")
    return lines


def _describe(events: Sequence[GpuEvent], title: str) -> list[str]:
    if len(events) < 2:
        return []
    busy = merge_spans((e.start, e.end) for e in events)
    whole = busy[-1][1] - busy[0][0]
    if whole <= 0:
        return []
    gaps = sorted(((b[0] - a[1], a[1], b[0]) for a, b in pairwise(busy) if b[0] - a[1] >= GAP_NS), reverse=True)
    idle = whole - _length(busy)
    text = f"{title}: {whole / 1000:.4g} us from first to last, idle {100 * idle / whole:.0f} %"
    if gaps:
        longest, start, end = gaps[0]
        text += f", {len(gaps)} gaps; longest {longest / 1000:.4g} us, {_between(events, start, end)}"
    lines = [text]
    graphs = sum(e.name.startswith(GRAPH) for e in events)
    if graphs:
        lines.append(f"GRAPHS: {graphs} launches without their kernels: nsys profile --cuda-graph-trace=node has them")
    lines += _copies(events)
    latency = _launch_latency(events)
    lines += [latency] if latency else []
    lines += _nccl(events)
    if gaps and idle >= 0.3 * whole and median(g for g, _, _ in gaps) < 100_000:
        advice = "many short gaps: launches do not keep up; a CUDA graph, larger batches, or no synchronization between"
        lines.append(link_guide(advice, "launch"))
    return lines


def _between(events: Sequence[GpuEvent], start: float, end: float) -> str:
    before = next((e.name for e in events if e.end == start), "?")
    after = next((e.name for e in events if e.start == end), "?")
    return f"between {before[:50]} and {after[:50]}"


def _copies(events: Sequence[GpuEvent]) -> list[str]:
    copies = merge_spans((e.start, e.end) for e in events if e.kind == "copy")
    kernels = merge_spans((e.start, e.end) for e in events if e.kind == "kernel")
    if not copies or not kernels:
        return []
    part = 100 * overlap_ns(copies, kernels) / _length(copies) if _length(copies) > 0 else 0.0
    moved = [e.metrics["bytes"] for e in events if e.kind == "copy" and "bytes" in e.metrics]
    size = f", {sum(moved) / 1e6:.4g} MB" if moved else ""
    text = f"COPIES: {_length(copies) / 1000:.4g} us{size}, {part:.0f} % of it beside kernels"
    return [link_guide(text, "overlap") if part < 20 and _length(copies) >= 0.1 * _length(kernels) else text]


def _launch_latency(events: Sequence[GpuEvent]) -> str:
    waits = [e.start - e.launched for e in events if e.kind == "kernel" and e.launched is not None]
    waits = [w for w in waits if w >= 0]
    if not waits:
        return ""
    direct = [w for w in waits if w <= SHORT_LAUNCH_NS]
    queued = 100 * (len(waits) - len(direct)) / len(waits)
    shown = f"{median(direct) / 1000:.3g} us from call to kernel (median)" if direct else "none began at once"
    return f"LAUNCHES: {shown}, {queued:.0f} % waited in a queue longer than {SHORT_LAUNCH_NS / 1000:.0f} us"


def _nccl(events: Sequence[GpuEvent]) -> list[str]:
    nccl = merge_spans((e.start, e.end) for e in events if NCCL in e.name.lower())
    others = merge_spans((e.start, e.end) for e in events if e.kind == "kernel" and NCCL not in e.name.lower())
    if not nccl:
        return []
    busy = _length(merge_spans([*nccl, *others]))
    hidden = 100 * overlap_ns(nccl, others) / _length(nccl) if _length(nccl) > 0 else 0.0
    text = f"NCCL: {100 * _length(nccl) / busy:.0f} % of busy time, {hidden:.0f} % of it beside other kernels"
    return [link_guide(text, "nccl")]


def split_processes(events: Sequence[GpuEvent]) -> dict[str, list[GpuEvent]]:
    """Return the events of one trace by process, or by device where one process drives several."""
    by_process: dict[str, list[GpuEvent]] = {}
    by_device: dict[str, list[GpuEvent]] = {}
    for event in events:
        by_process.setdefault(f"process {event.process}", []).append(event)
        by_device.setdefault(f"device {event.device}", []).append(event)
    if len(by_process) > 1:
        return by_process
    in_nccl = [device for device, own in by_device.items() if any(NCCL in e.name.lower() for e in own)]
    return by_device if len(in_nccl) > 1 else {"": list(events)}


def describe_ranks(ranks: Mapping[str, Sequence[GpuEvent]]) -> list[str]:
    """Return how long each rank was in NCCL, and which the others wait for: the one that is in it shortest."""
    times: dict[str, float] = {}
    counts: dict[str, int] = {}
    for rank, events in ranks.items():
        own = [e for e in events if NCCL in e.name.lower()]
        if own:
            times[rank], counts[rank] = sum(e.end - e.start for e in own), len(own)
    if len(times) < 2:
        return []
    shown = ", ".join(f"{r} {t / 1000:.4g} us in {counts[r]} calls" for r, t in list(times.items())[:8])
    lines = [f"RANKS in NCCL: {shown}"]
    if len(set(counts.values())) > 1:
        return [*lines, "ranks made different numbers of NCCL calls: times are not compared"]
    least = min(times, key=lambda r: times[r])
    if times[least] < LATE_PART * median(times.values()):
        lines.append(
            f"{least} arrives last: it waits least in NCCL, so the others wait for it; look at its other kernels"
        )
    return lines
