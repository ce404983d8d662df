"""Nsight Systems: `nsys stats` as CSV or columns (sums of kernels, the trace of a GPU), SQLite of `nsys export`.

Not run here: no machine of ours had it. Shapes are those of its documentation and of tables that people publish: lines
about files come before the header of a report, units stand in the names of columns (`Total Time (us)`), sizes in MB or
bytes; in the SQLite, tables appear only when they have rows, and names are in `StringIds`.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import (
    MOST_COLUMNS,
    TIMES_NS,
    as_list,
    as_mapping,
    dimensions,
    number,
    records,
    rows,
    whole,
)
from gpu_mcp_server.profilers.gpu_events import EventKind, GpuEvent, readings_of
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sqlite_reader import query

_UNIT = re.compile(r"^(?P<what>.*?)\s*\((?P<unit>[^()]+)\)$")
_BETWEEN = re.compile(r"\n\s*\n|\n(?=Processing \[|\[\d+/\d+\] |\*\* )")
_SIZES = {"byte": 1.0, "bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_KERNELS = """
    SELECT k.*, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.{column} ORDER BY k.start
"""
_COPIES = "SELECT * FROM {table} ORDER BY start"
_CALLS = "SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPHS = "SELECT * FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE ORDER BY start"
PROCESS = 1 << 24
"""Divides a globalTid into its process and its thread. Source: the schema of `nsys export`."""
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


def table_rows(text: str, *wanted: str) -> list[dict[str, float | str]]:
    """Return rows of the first table with all these columns, whichever units follow in their names."""
    for found in tables(text, *wanted):
        return found
    return []


def tables(text: str, *wanted: str) -> Iterator[list[dict[str, float | str]]]:
    """Return the rows of each such table, as CSV or in aligned columns.

    Several reports may stand in one file, with a blank line between them or what nsys says.
    """
    for block in _BETWEEN.split(text):
        names = next((names for row in rows(block) if _has(names := [n.strip() for n in row], wanted)), None)
        found = records(block, *(n for n in names if n)) if names else _aligned(block, wanted)
        if found:
            yield [_with_units(r) for r in found]


def as_csv(text: str) -> str:
    """Return a report that nsys wrote with `--format json` as CSV; any other text as it is."""
    if not text.lstrip().startswith("[{") or not any(
        f'"{name} (' in text for name in ("Total Time", "Duration", "KAvg")
    ):
        return text
    try:
        listed = [as_mapping(row) for row in as_list(json.loads(text))]
    except (ValueError, RecursionError):
        return text
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(name for row in listed for name in row)))
    writer.writeheader()
    writer.writerows(listed)
    return out.getvalue()


def _has(names: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(wanted) <= len(names) <= MOST_COLUMNS and all(
        any(n == w or n.startswith(f"{w} (") for n in names) for w in wanted
    )


def _aligned(text: str, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return rows of a table in columns, whose widths the line of dashes has."""
    lines = text.splitlines()
    for n, line in enumerate(lines[1:], 1):
        spans = [m.span() for m in re.finditer(r"-{2,}", line)] if line.strip(" -") == "" and "--" in line else []
        names = [lines[n - 1][a:b].strip() for a, b in spans[:MOST_COLUMNS]]
        if not spans or not _has(names, wanted) or len(spans) > MOST_COLUMNS:
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
    sums = table_rows(text, "Total Time", "Instances", "Name")
    for row in sums or table_rows(text, "Total Time", "Instances", "Operation"):
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
    for row in table_rows(text, "Start", "Duration", "Name"):
        start, ns, name = row.get("Start"), row.get("Duration"), str(row.get("Name") or "")
        if not isinstance(start, float) or not isinstance(ns, float) or not name or ns < 0:
            continue
        memory = [v for k in ("StcSMem", "DymSMem") if isinstance(v := row.get(k), float)]
        named = {"registers per thread": number(row.get("Reg/Trd")), "bytes": number_of(row.get("Bytes"))}
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


def number_of(value: float | str | None) -> float | None:
    """Return a column's number, with or without a unit in its name."""
    return value if isinstance(value, float) else number(value)


def parse_sqlite(data: bytes) -> list[KernelReading]:
    """Read kernels from an exported database; never raises."""
    return readings_of(e for e in parse_events(data) if e.kind == "kernel")


def parse_events(data: bytes) -> list[GpuEvent]:
    """Read kernels, copies and when the host launched them from an exported database; never raises."""
    launched = {
        (_process(row, "globalTid"), row.get("correlationId")): number(row.get("start")) for row in query(data, _CALLS)
    }
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
    for row in query(data, _GRAPHS):  # one row a launch of a graph: its kernels have none then
        found += _event(f"[CUDA graph {row.get('graphId', '')}]", row, "kernel", launched, {})
    return sorted(found, key=lambda e: e.start)


def _process(row: Mapping[str, Any], column: str) -> int | None:
    """Return the part of a global number that names the process; several ranks may stand in one file."""
    value = row.get(column)
    return value // PROCESS if isinstance(value, int) else None


def _event(
    name: str,
    row: Mapping[str, Any],
    kind: EventKind,
    launched: Mapping[tuple[int | None, Any], float | None],
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
            process=_process(row, "globalPid"),
            stream=str(row.get("streamId", "")),
            launched=launched.get((_process(row, "globalPid"), row.get("correlationId"))),
            grid=dimensions([row.get(f"grid{a}") for a in "XYZ"]) if kind == "kernel" else None,
            block=dimensions([row.get(f"block{a}") for a in "XYZ"]) if kind == "kernel" else None,
            metrics=metrics,
        )
    ]
