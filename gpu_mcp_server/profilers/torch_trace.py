"""torch.profiler's Chrome trace; Proton writes such as well.

Source: torch 2.11; older ones write categories with a capital, and some tools a bare list of events. Times are
microseconds.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import as_list, as_mapping, dimensions, number
from gpu_mcp_server.profilers.gpu_events import GpuEvent
from gpu_mcp_server.profilers.kernel_names import short_name

KERNELS = ("kernel",)
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
MAX_EVENTS = 1_000_000


def parse_trace(text: str) -> list[KernelReading]:
    """Read a Chrome trace: kernels and copies by name, the longest in all first; never raises."""
    loaded = load_json(text)
    document = as_mapping(loaded)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for event in events_of(loaded):
        if str(event.get("cat")).lower() in (*KERNELS, *COPIES) and event.get("name"):
            found.setdefault(str(event["name"]), []).append(event)
    devices = [str(as_mapping(d).get("name") or "") for d in as_list(document.get("deviceProperties"))]
    kernels = [_kernel(name, events, devices[0] if devices else None) for name, events in found.items()]
    return sorted(kernels, key=lambda k: -(k.total_us or 0))


def parse_events(text: str) -> list[GpuEvent]:
    """Read kernels, copies and when the host launched them from a Chrome trace; never raises."""
    listed = events_of(load_json(text))
    launched: dict[Any, float] = {}
    for event in listed:
        ts = number(event.get("ts"))
        correlation = as_mapping(event.get("args")).get("correlation")
        if str(event.get("cat")).lower() in CALLS and ts is not None and isinstance(correlation, int):
            launched.setdefault(correlation, ts * 1000)
    found: list[GpuEvent] = []
    for event in listed:
        category, about = str(event.get("cat")).lower(), as_mapping(event.get("args"))
        ts, dur = number(event.get("ts")), number(event.get("dur"))
        if category not in (*KERNELS, *COPIES) or ts is None or dur is None or dur < 0 or not event.get("name"):
            continue
        correlation, moved = about.get("correlation"), number(about.get("bytes"))
        found.append(
            GpuEvent(
                name=short_name(str(event["name"])),
                start=ts * 1000,
                end=(ts + dur) * 1000,
                kind="kernel" if category in KERNELS else "copy",
                device=str(about.get("device", event.get("pid", ""))),
                stream=str(about.get("stream", event.get("tid", ""))),
                launched=launched.get(correlation) if isinstance(correlation, int) else None,
                metrics={"bytes": moved} if moved is not None else {},
            )
        )
    return sorted(found, key=lambda e: e.start)


def events_of(document: Any) -> list[Mapping[str, Any]]:
    """Return the events with a duration of a trace that was loaded."""
    listed = as_list(document) or as_list(as_mapping(document).get("traceEvents"))
    return [e for e in map(as_mapping, listed[:MAX_EVENTS]) if e.get("ph") == "X"]


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


def load_json(text: str) -> Any:
    """Return a document, `None` for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
