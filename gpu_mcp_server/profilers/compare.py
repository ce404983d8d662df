"""Two profiles side by side: what became faster, and what limits now."""

from collections.abc import Sequence

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.bottleneck import LIMIT, kernel_verdict
from gpu_mcp_server.profilers.roofline import Peaks
from gpu_mcp_server.time_format import format_time

SAME = 0.02
"""Part by which two times may differ and count as equal: one profiled call each is no benchmark."""
ROWS = (
    ("time us", "gpu__time_duration.sum", 1e-3),
    ("SM clock MHz", "sm__cycles_elapsed.avg.per_second", 1e-6),
    ("DRAM read MB", "dram__bytes_read.sum", 1e-6),
    ("DRAM written MB", "dram__bytes_write.sum", 1e-6),
    ("L1 hits %", "l1tex__t_sector_hit_rate.pct", 1.0),
    ("L2 hits %", "lts__t_sector_hit_rate.pct", 1.0),
    ("instructions M", "smsp__inst_executed.sum", 1e-6),
    ("warps active %", "sm__warps_active.avg.pct_of_peak_sustained_active", 1.0),
    ("registers", "launch__registers_per_thread", 1.0),
    ("shared KiB", "launch__shared_mem_per_block", 1 / 1024),
    ("waves", "launch__waves_per_multiprocessor", 1.0),
)


def pairs(one: Sequence[KernelReading], other: Sequence[KernelReading]) -> list[tuple[KernelReading, KernelReading]]:
    """Pair kernels of the same name; when no name is in both, the longest of each."""
    by_name = {k.name: k for k in reversed(other)}
    seen: set[str] = set()
    found: list[tuple[KernelReading, KernelReading]] = []
    for kernel in one:
        if kernel.name in by_name and kernel.name not in seen:
            found.append((kernel, by_name[kernel.name]))
            seen.add(kernel.name)
    if not found and one and other:
        found.append((_longest(one), _longest(other)))
    return sorted(found, key=lambda p: -(p[0].total_us or 0.0))


def _launches(one: Sequence[KernelReading], other: Sequence[KernelReading]) -> list[str]:
    """Return which launches appeared, vanished, became more or fewer, slower or faster; nothing for single kernels."""
    if len(one) + len(other) < 3:
        return []
    before, now = _by_name(one), _by_name(other)
    lines: list[str] = []
    for title, these, those in (("appeared", now, before), ("vanished", before, now)):
        only = sorted((n for n in these if n not in those), key=lambda n: -these[n][1])
        if only:
            rest = f" and {len(only) - 5} more" if len(only) > 5 else ""
            lines.append(f"{title}: {', '.join(_times(n, these[n]) for n in only[:5])}{rest}")
    changed = [(now[n][1] - before[n][1], n) for n in before if n in now and _differ(before[n][1], now[n][1])]
    for title, wanted in (("slower in all", sorted(changed, reverse=True)), ("faster in all", sorted(changed))):
        sign = 1 if title.startswith("slower") else -1
        shown = [
            f"{n} {before[n][1]:.4g} -> {now[n][1]:.4g} us in {before[n][0]} -> {now[n][0]} calls"
            for d, n in wanted
            if d * sign > 0
        ][:5]
        lines += [f"{title}: {', '.join(shown)}"] if shown else []
    whole = f"all kernels: {_whole(before):.4g} -> {_whole(now):.4g} us"
    return [whole, *lines] if lines and _whole(before) and _whole(now) else lines


def _by_name(kernels: Sequence[KernelReading]) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for k in kernels:
        calls, us = found.get(k.name, (0, 0.0))
        found[k.name] = calls + k.calls, us + (k.total_us or 0.0)
    return found


def _whole(kernels: dict[str, tuple[int, float]]) -> float:
    return sum(us for _, us in kernels.values())


def _times(name: str, about: tuple[int, float]) -> str:
    return f"{name} {about[1]:.4g} us in {about[0]} calls"


def _longest(kernels: Sequence[KernelReading]) -> KernelReading:
    return max(kernels, key=lambda k: k.total_us or 0.0)


def compare_profiles(
    one: Sequence[KernelReading], other: Sequence[KernelReading], peaks: Peaks | None = None, limit: int = LIMIT
) -> str:
    """Return the two profiles side by side, first the kernel that takes most time in the first of them."""
    found = pairs(one, other)
    if not found:
        return "one of the two profiles has no kernel"
    text = "\n".join(_launches(one, other))
    for n, (a, b) in enumerate(found):
        block = "\n".join(_block(a, b, peaks))
        if text and n and len(text) + len(block) + 1 > limit:
            return text[: limit - 30] + f"\n({len(found) - n} more kernels)"
        text += ("\n" if text else "") + block
    return text[:limit]


def _block(a: KernelReading, b: KernelReading, peaks: Peaks | None) -> list[str]:
    lines = [f"{a.name}" + (f" -> {b.name}" if b.name != a.name else "") + f": {_change(a, b)}"]
    before, now = kernel_verdict(a, peaks), kernel_verdict(b, peaks)
    if before.bound or now.bound:
        lines.append(f"BOUND: {_bound(before.bound, before.bound_percent)} -> {_bound(now.bound, now.bound_percent)}")
    for title, name, scale in ROWS:
        old, new = a.metrics.get(name), b.metrics.get(name)
        if old is not None and new is not None and _differ(old, new):
            lines.append(f"{title}: {old * scale:.4g} -> {new * scale:.4g}")
    units = [
        f"{t} {before.units_percent.get(t, 0):.0f} -> {now.units_percent.get(t, 0):.0f} %"
        for t in dict.fromkeys((*list(before.units_percent)[:3], *list(now.units_percent)[:3]))
    ]
    lines += [f"UNITS: {', '.join(units)}"] if units else []
    stalls = [
        f"{t} {before.stalls_percent.get(t, 0):.0f} -> {now.stalls_percent.get(t, 0):.0f} %"
        for t in dict.fromkeys((*list(before.stalls_percent)[:3], *list(now.stalls_percent)[:3]))
    ]
    lines += [f"STALLS: {', '.join(stalls)}"] if stalls else []
    return lines


def _bound(title: str | None, percent: float | None) -> str:
    return f"{title} {percent:.0f} %" if title and percent is not None else "not measured"


def _change(a: KernelReading, b: KernelReading) -> str:
    if not a.time_us or not b.time_us:
        return "times not known"
    ratio, word = a.time_us / b.time_us, "as fast"
    if abs(ratio - 1) > SAME:
        word = f"{ratio:.3g}x faster" if ratio > 1 else f"{b.time_us / a.time_us:.3g}x slower"
    return f"{format_time(a.time_us / 1e6)} -> {format_time(b.time_us / 1e6)}, {word}"


def _differ(old: float, new: float) -> bool:
    return abs(old - new) > SAME * max(abs(old), abs(new))
