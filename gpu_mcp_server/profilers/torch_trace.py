"""torch.profiler: `key_averages()` as rows, or a Chrome trace (Proton writes such as well).

Source: torch 2.11. Rows of operators repeat the time of the kernels that they started; only device rows count.
Times of both are microseconds.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import as_list, as_mapping, dimensions, number
from gpu_mcp_server.profilers.kernel_names import short_name

KERNELS = ("kernel",)
COPIES = ("gpu_memcpy", "gpu_memset")
MAX_EVENTS = 1_000_000


def parse_averages(text: str) -> list[KernelReading]:
    """Read a list of `{key, count, self_device_time_total}`, operators left out; never raises."""
    rows = [as_mapping(row) for row in as_list(_loaded(text))]
    found: list[KernelReading] = []
    for row in rows:
        us, calls = number(row.get("self_device_time_total")), number(row.get("count"))
        name = str(row.get("key") or "")
        if (
            us is None
            or us <= 0
            or not name
            or name.startswith("aten::")
            or (number(row.get("self_cpu_time_total")) or 0) > 0
        ):
            continue
        count = max(1, int(calls or 1))
        found.append(KernelReading(name=short_name(name), calls=count, time_us=us / count, total_us=us))
    return sorted(found, key=lambda k: -(k.total_us or 0))


def parse_trace(text: str) -> list[KernelReading]:
    """Read a Chrome trace: kernels and copies by name, the longest in all first; never raises."""
    document = as_mapping(_loaded(text))
    found: dict[str, list[Mapping[str, Any]]] = {}
    for event in map(as_mapping, as_list(document.get("traceEvents"))[:MAX_EVENTS]):
        if event.get("ph") == "X" and event.get("cat") in (*KERNELS, *COPIES) and event.get("name"):
            found.setdefault(str(event["name"]), []).append(event)
    devices = [str(as_mapping(d).get("name") or "") for d in as_list(document.get("deviceProperties"))]
    kernels = [_kernel(name, events, devices[0] if devices else None) for name, events in found.items()]
    return sorted(kernels, key=lambda k: -(k.total_us or 0))


def _kernel(name: str, events: list[Mapping[str, Any]], device: str | None) -> KernelReading:
    times = [d for e in events if (d := number(e.get("dur"))) is not None]
    about = as_mapping(events[0].get("args"))
    metrics = {
        key: value
        for key in ("registers per thread", "shared memory", "est. achieved occupancy %", "bytes")
        if (value := number(about.get(key))) is not None
    }
    return KernelReading(
        name=short_name(name),
        calls=len(events),
        time_us=sum(times) / len(times) if times else None,
        total_us=sum(times) if times else None,
        device=device or None,
        grid=dimensions(as_list(about.get("grid"))),
        block=dimensions(as_list(about.get("block"))),
        metrics=metrics,
    )


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
