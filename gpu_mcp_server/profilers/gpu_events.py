"""Timed events on a GPU: those of a trace, and kernels as their sums."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpu_mcp_server.models.profile import KernelReading

EventKind = Literal["kernel", "copy"]


@dataclass(frozen=True)
class GpuEvent:
    """One kernel or copy; times are nanoseconds of the trace's own clock."""

    name: str
    start: float
    end: float
    kind: EventKind = "kernel"
    device: str = ""
    stream: str = ""
    process: int | None = None
    """Process of a trace that has several."""
    launched: float | None = None
    """When the host began the call that launched it."""
    grid: str | None = None
    block: str | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])


def readings_of(events: Iterable[GpuEvent], devices: Sequence[str] = ()) -> list[KernelReading]:
    """Return kernels and copies by name, the longest in all first."""
    groups: dict[str, list[GpuEvent]] = {}
    for event in events:
        groups.setdefault(event.name, []).append(event)
    found: list[KernelReading] = []
    for name, group in groups.items():
        total_us = sum(e.end - e.start for e in group) / 1000
        found.append(
            KernelReading(
                name=name,
                calls=len(group),
                time_us=total_us / len(group),
                total_us=total_us,
                device=devices[0] if devices else None,
                grid=group[0].grid,
                block=group[0].block,
                metrics=group[0].metrics,
            )
        )
    return sorted(found, key=lambda k: -(k.total_us or 0))
