"""Reads events of AMD GPUs: rocprofv3's traces of kernels and copies as CSV, and its database.

Source: files of ROCm/rocprofiler-sdk's documentation; columns of the view `memory_copies` as rocpd's documentation and
programs that query it name them. CSV has no bytes of a copy; the database has.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from gpu_mcp_server.profilers.csv_tables import number, records
from gpu_mcp_server.profilers.gpu_events import GpuEvent
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.rocprof import duration_ns, kernels_of_database, with_known_names
from gpu_mcp_server.profilers.sqlite_reader import query

_WAYS = {
    "HOST_TO_DEVICE": ("[memory copy HtoD]", "dst"),
    "DEVICE_TO_HOST": ("[memory copy DtoH]", "src"),
    "DEVICE_TO_DEVICE": ("[memory copy DtoD]", "dst"),
}
"""End of a direction's name to what we call it, and which of its two agents is the GPU."""
_COPIES = "SELECT * FROM memory_copies ORDER BY start"
_TRACE = re.compile(r"_?(kernel|memory_copy)_trace\.csv$")


def run_of(path: str) -> str:
    """Return what traces of one process have in common: rocprofv3 writes kernels and copies into two files."""
    name = PurePosixPath(path).name
    return path[: len(path) - len(name)] + _TRACE.sub("", name)


def parse_csv_events(text: str) -> list[GpuEvent]:
    """Read kernels or copies of one trace of rocprofv3 as events; never raises."""
    found: list[GpuEvent] = []
    for row in map(with_known_names, records(text, "Kernel_Name", "Start_Timestamp", "End_Timestamp")):
        if "Counter_Name" not in row and (ns := duration_ns(row)) is not None:
            start = float(row["Start_Timestamp"])
            name, device = short_name(row["Kernel_Name"]), row.get("Agent_Id", "")
            found.append(GpuEvent(name, start, start + ns, device=device, stream=row.get("Queue_Id", "")))
    for row in records(text, "Direction", "Start_Timestamp", "End_Timestamp"):
        if (ns := duration_ns(row)) is not None:
            name, side = _way(row["Direction"])
            start = float(row["Start_Timestamp"])
            device = row.get("Destination_Agent_Id" if side == "dst" else "Source_Agent_Id", "")
            found.append(GpuEvent(name, start, start + ns, "copy", device=device, stream=row.get("Stream_Id", "")))
    return sorted(found, key=lambda e: e.start)


def parse_database_events(data: bytes) -> list[GpuEvent]:
    """Read kernels and copies of rocprofv3's database; never raises."""
    kernels = ((short_name(str(r.get("name") or "")), "agent_abs_index", r) for r in kernels_of_database(data))
    copies = ((*_way(str(r.get("name") or "")), r) for r in query(data, _COPIES))
    found = [e for name, agent, row in kernels for e in _event(name, row, agent)]
    for name, side, row in copies:
        found += _event(name, row, f"{side}_agent_abs_index", "copy")
    return sorted(found, key=lambda e: e.start)


def _way(direction: str) -> tuple[str, str]:
    return next((named for end, named in _WAYS.items() if direction.endswith(end)), ("[memory copy]", "dst"))


def _event(name: str, row: Mapping[str, Any], agent: str, kind: Any = "kernel") -> Iterable[GpuEvent]:
    start, end, size = (number(row.get(n)) for n in ("start", "end", "size"))
    if start is None or end is None or end < start:
        return
    device = next((str(row[n]) for n in (agent, "agent_id") if row.get(n) is not None), "")
    stream = next((str(row[n]) for n in ("stream_id", "stream", "queue_id", "queue") if row.get(n) is not None), "")
    metrics = {"bytes": size} if size is not None and kind == "copy" else {}
    yield GpuEvent(name, start, end, kind, device=device, stream=stream, metrics=metrics)
