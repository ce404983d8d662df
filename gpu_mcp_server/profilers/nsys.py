"""Nsight Systems: `nsys stats` as CSV or columns (sums of kernels, the trace of a GPU), SQLite of `nsys export`.

Not run here: no machine of ours had it. Shapes are those of its documentation and of tables that people publish: lines
about files come before the header of a report, units stand in the names of columns (`Total Time (us)`), sizes in MB or
bytes; in the SQLite, tables appear only when they have rows, and names are in `StringIds`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import TIMES_NS, dimensions, number, records, rows, whole
from gpu_mcp_server.profilers.gpu_events import EventKind, GpuEvent, readings_of
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sqlite_reader import query

_UNIT = re.compile(r"^(?P<what>.*?)\s*\((?P<unit>[^()]+)\)$")
_SIZES = {"byte": 1.0, "bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_KERNELS = """
    SELECT k.*, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.{column} ORDER BY k.start
"""
_COPIES = "SELECT * FROM {table} ORDER BY start"
_CALLS = "SELECT correlationId AS correlation, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""Source: CUpti_ActivityMemcpyKind."""


def _with_units(record: Mapping[str, str]) -> dict[str, float | str]:
    """Return columns without units in their names: times in nanoseconds, sizes in bytes, the rest as it is."""
    found: dict[str, float | str] = {}
    for name, text in record.items():
        match = _UNIT.match(name)
        unit = match["unit"].strip() if match else ""
        value = number(text)
        if match and value is not None and unit in TIMES_NS:
            found[match["what"]] = value * TIMES_NS[unit]
        elif match and value is not None and unit.lower() in _SIZES:
            found[match["what"]] = value * _SIZES[unit.lower()]
        else:
            found.setdefault(match["what"] if match and unit != "%" else name, text)
    return found


def _as_csv_records(text: str, *wanted: str) -> list[dict[str, str]]:
    """Return rows of the table whose columns begin with `wanted`, whichever units follow; also of aligned columns."""
    for row in rows(text):
        names = [n.strip() for n in row]
        if all(any(n == w or n.startswith(f"{w} (") for n in names) for w in wanted):
            return records(text, *(n for n in names if n))
    return _aligned(text, wanted)


def _aligned(text: str, wanted: Iterable[str]) -> list[dict[str, str]]:
    """Return rows of a table in columns, whose widths the line of dashes has."""
    lines = text.splitlines()
    for n, line in enumerate(lines[1:], 1):
        spans = [m.span() for m in re.finditer(r"-{2,}", line)] if line.strip(" -") == "" and "--" in line else []
        names = [lines[n - 1][a:b].strip() for a, b in spans]
        if not spans or not all(any(x == w or x.startswith(f"{w} (") for x in names) for w in wanted):
            continue
        spans[-1] = (spans[-1][0], 1 << 20)
        found: list[dict[str, str]] = []
        for row in lines[n + 1 :]:
            if not row.strip():
                break
            found.append({name: row[a:b].strip() for name, (a, b) in zip(names, spans, strict=True)})
        return found
    return []


def parse_stats(text: str) -> list[KernelReading]:
    """Read a sum of kernels (`cuda_gpu_kern_sum`, `gpukernsum`) or the trace of a GPU; never raises."""
    found: list[KernelReading] = []
    sums = _as_csv_records(text, "Total Time", "Instances", "Name")
    for record in sums or _as_csv_records(text, "Total Time", "Instances", "Operation"):
        row = _with_units(record)
        row.setdefault("Name", row.get("Operation", ""))
        ns, calls = row.get("Total Time"), whole(row.get("Instances"))
        if not isinstance(ns, float) or not calls or not row.get("Name"):
            continue
        metrics = {f"{k} (ns)": v for k in ("Med", "Min", "Max", "StdDev") if isinstance(v := row.get(k), float)}
        found.append(
            KernelReading(
                name=short_name(str(row["Name"])),
                calls=calls,
                time_us=ns / 1000 / calls,
                total_us=ns / 1000,
                metrics=metrics,
            )
        )
    if not found:
        return readings_of(parse_gpu_trace(text))
    return sorted(found, key=lambda k: -(k.total_us or 0))


def parse_gpu_trace(text: str) -> list[GpuEvent]:
    """Read report `cuda_gpu_trace` (`gputrace`), in any unit; never raises."""
    found: list[GpuEvent] = []
    for record in _as_csv_records(text, "Start", "Duration", "Name"):
        row = _with_units(record)
        start, ns, name = row.get("Start"), row.get("Duration"), str(row.get("Name") or "")
        if not isinstance(start, float) or not isinstance(ns, float) or not name or ns < 0:
            continue
        memory = [v for k in ("StcSMem", "DymSMem") if isinstance(v := row.get(k), float)]
        named = {"registers per thread": number(row.get("Reg/Trd")), "bytes": _number_of(row.get("Bytes"))}
        named["shared memory"] = sum(memory) if memory else None
        found.append(
            GpuEvent(
                name=name if name.startswith("[") else short_name(name),
                start=start,
                end=start + ns,
                kind="copy" if name.startswith("[CUDA mem") else "kernel",
                device=str(row.get("Device") or ""),
                stream=str(row.get("Strm") or ""),
                grid=dimensions([row.get(f"Grd{a}") for a in "XYZ"]),
                block=dimensions([row.get(f"Blk{a}") for a in "XYZ"]),
                metrics={k: v for k, v in named.items() if v is not None},
            )
        )
    return sorted(found, key=lambda e: e.start)


def _number_of(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else number(value)


def parse_sqlite(data: bytes) -> list[KernelReading]:
    """Read kernels from an exported database; never raises."""
    return readings_of(e for e in parse_events(data) if e.kind == "kernel")


def parse_events(data: bytes) -> list[GpuEvent]:
    """Read kernels, copies and when the host launched them from an exported database; never raises."""
    launched = {row["correlation"]: number(row.get("start")) for row in query(data, _CALLS)}
    found: list[GpuEvent] = []
    for row in query(data, _KERNELS.format(column="demangledName")) or query(data, _KERNELS.format(column="shortName")):
        memory = [v for k in ("staticSharedMemory", "dynamicSharedMemory") if (v := number(row.get(k))) is not None]
        named = {
            "registers per thread": number(row.get("registersPerThread")),
            "shared memory": sum(memory) if memory else None,
        }
        metrics = {k: v for k, v in named.items() if v is not None}
        found += _event(short_name(str(row.get("name"))), row, "kernel", launched, metrics)
    for table, title in (("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy"), ("CUPTI_ACTIVITY_KIND_MEMSET", "memset")):
        for row in query(data, _COPIES.format(table=table)):
            way = _DIRECTIONS.get(whole(row.get("copyKind")) or 0, "") if title == "memcpy" else ""
            moved = number(row.get("bytes"))
            name = f"[CUDA {title}{' ' + way if way else ''}]"
            found += _event(name, row, "copy", launched, {"bytes": moved} if moved is not None else {})
    return sorted(found, key=lambda e: e.start)


def _event(
    name: str,
    row: Mapping[str, Any],
    kind: EventKind,
    launched: Mapping[Any, float | None],
    metrics: dict[str, float],
) -> list[GpuEvent]:
    start, end = number(row.get("start")), number(row.get("end"))
    if start is None or end is None or end < start:
        return []
    return [
        GpuEvent(
            name=name,
            start=start,
            end=end,
            kind=kind,
            device=str(row.get("deviceId", "")),
            stream=str(row.get("streamId", "")),
            launched=launched.get(row.get("correlationId")),
            grid=dimensions([row.get(f"grid{a}") for a in "XYZ"]) if kind == "kernel" else None,
            block=dimensions([row.get(f"block{a}") for a in "XYZ"]) if kind == "kernel" else None,
            metrics=metrics,
        )
    ]
