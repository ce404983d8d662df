"""Reads sums of `nsys stats` beyond kernels: copies, CUDA calls of the host, the cost of launches.

Sums have no order: idle time and overlap are in a trace alone (`cuda_gpu_trace`, `nsys export`).

Source: reports cuda_gpu_mem_time_sum, cuda_api_sum and cuda_kern_exec_sum as people publish them.
"""

from collections.abc import Mapping

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import whole
from gpu_mcp_server.profilers.guide_links import link_guide
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.nsys import number_of, table_rows, tables
from gpu_mcp_server.time_format import format_time

LAUNCHES = ("LaunchKernel", "GraphLaunch")
WAITS = ("Synchronize", "cudaMemcpy_", "cudaMemcpy")
"""Calls that last until the GPU is done."""


def parse_executions(text: str) -> list[KernelReading]:
    """Read cuda_kern_exec_sum: each kernel's own time is in it, beside that of its call and in the queue."""
    found: list[KernelReading] = []
    for row in table_rows(text, "Count", "KAvg", "Kernel Name"):
        ns, calls, name = number_of(row.get("KAvg")), whole(row.get("Count")), str(row.get("Kernel Name") or "")
        if ns is not None and calls and name:
            found.append(
                KernelReading(name=short_name(name), calls=calls, time_us=ns / 1000, total_us=ns * calls / 1000)
            )
    return sorted(found, key=lambda k: -(k.total_us or 0))


def describe_sums(texts: Mapping[str, str]) -> list[str]:
    """Return a line on copies, on the host's calls, and on launches, as far as there are tables of them."""
    whole_text = "\n\n".join(texts.values())
    return [line for line in (_copies(whole_text), _host(whole_text), _launches(whole_text)) if line]


def _totals(text: str, count: str, name: str, has: str = "") -> dict[str, tuple[int, float]]:
    """Return calls and nanoseconds by name, of the first table with a name that begins with `has`."""
    for rows in tables(text, "Total Time", count, name):
        found: dict[str, tuple[int, float]] = {}
        for row in rows:
            ns, calls, title = number_of(row.get("Total Time")), whole(row.get(count)), str(row.get(name) or "")
            if ns is not None and calls and title:
                found.setdefault(title, (calls, ns))
        if any(title.startswith(has) for title in found):
            return found
    return {}


def _copies(text: str) -> str:
    sums = _totals(text, "Count", "Operation")
    if not sums:
        return ""
    shown = ", ".join(f"{name} {format_time(ns / 1e9)} in {calls}" for name, (calls, ns) in list(sums.items())[:4])
    return f"COPIES: {shown}; only a trace (cuda_gpu_trace) shows kernels beside them"


def _host(text: str) -> str:
    sums = _totals(text, "Num Calls", "Name", "cu")
    total = sum(ns for _, ns in sums.values())
    if not total:
        return ""
    top = sorted(sums.items(), key=lambda kv: -kv[1][1])[:3]
    shown = ", ".join(f"{name} {100 * ns / total:.0f} % in {calls}" for name, (calls, ns) in top)
    said = f"HOST: {format_time(total / 1e9)} in CUDA calls: {shown}"
    waits = sum(ns for name, (_, ns) in sums.items() if any(name.startswith(w) or w in name for w in WAITS))
    return f"{said}; {100 * waits / total:.0f} % are calls that wait for the GPU"


def _launches(text: str) -> str:
    rows = table_rows(text, "Count", "KAvg", "Kernel Name")
    calls = [(whole(r.get("Count")) or 0, *(number_of(r.get(n)) for n in ("AAvg", "QAvg", "KAvg"))) for r in rows]
    known = [(n, a, q or 0.0, k) for n, a, q, k in calls if n and a is not None and k is not None]
    if known:
        n = sum(c[0] for c in known)
        call, queue, kernel = (sum(c[0] * c[i] for c in known) / n for i in (1, 2, 3))
        said = (
            f"LAUNCHES: {n} on average: call {format_time(call / 1e9)}, queue {format_time(queue / 1e9)}, "
            f"kernel {format_time(kernel / 1e9)}"
        )
        return link_guide(f"{said}; calls last longer than kernels", "launch") if call > kernel else said
    called = _totals(text, "Num Calls", "Name", "cu")
    sums = {k: v for k, v in called.items() if any(w in k for w in LAUNCHES)}
    kernels = _totals(text, "Instances", "Name")
    n, ns = (sum(v[i] for v in sums.values()) for i in (0, 1))
    ran, kernel_ns = (sum(v[i] for v in kernels.values()) for i in (0, 1))
    if not n or not ran:
        return ""
    said = f"LAUNCHES: {n} calls of {format_time(ns / n / 1e9)}, {ran} kernels of {format_time(kernel_ns / ran / 1e9)}"
    return link_guide(f"{said}: the host takes longer than the GPU", "launch") if ns > kernel_ns else said
