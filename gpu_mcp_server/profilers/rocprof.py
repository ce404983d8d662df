"""AMD's rocprofv3: CSV of both generations, rocpd's SQLite.

No AMD GPU was at hand: shapes are those of the data files and the documentation of ROCm/rocprofiler-sdk, read by the
names of columns and never by their position. Timestamps that a spreadsheet has rounded give no time.
"""

import math
import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import dimensions, number, records, whole
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sqlite_reader import query

TOOL = "rocprofv3"
RESOURCES = (
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "LDS_Block_Size",
    "Scratch_Size",
    "Workgroup_Size",
    "Grid_Size",
)
ALIASES = {
    # Source: columns of rocprofv3 of ROCm 6.2 and of `rocpd convert`, of rocprof's results and of rocprof-compute
    "private_segment_size": "Scratch_Size",
    "scratch_per_workitem": "Scratch_Size",
    "scr": "Scratch_Size",
    "group_segment_size": "LDS_Block_Size",
    "lds_per_workgroup": "LDS_Block_Size",
    "lds": "LDS_Block_Size",
    "arch_vgpr": "VGPR_Count",
    "arch_vgpr_count": "VGPR_Count",
    "vgpr": "VGPR_Count",
    "accum_vgpr": "Accum_VGPR_Count",
    "sgpr": "SGPR_Count",
    "grd": "Grid_Size",
    "wgr": "Workgroup_Size",
    "kernelname": "Kernel_Name",
    "beginns": "Start_Timestamp",
    "endns": "End_Timestamp",
    "dispatch_id": "Dispatch_Id",
    **{name.lower(): name for name in RESOURCES},
    **{f"{what}_size_{a}".lower(): f"{what}_Size_{a}" for what in ("Workgroup", "Grid") for a in "XYZ"},
}
"""Names of columns in lower case to those of today's kernel trace."""
NO_KERNEL = re.compile(r"(hip|hsa|__hip|roctx)|[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$")
"""Rows of statistics that are calls, copies or domains."""
# ROCm's own views hide that its tables carry an id in their names; their columns differ from release to release.
_DISPATCHES = "SELECT * FROM kernels"
_COUNTERS = (
    "SELECT name, pmc_name, avg(pmc_value) AS value FROM kernel_pmc_events GROUP BY name, pmc_name",
    "SELECT kernel_name AS name, counter_name AS pmc_name, avg(value) AS value FROM counters_collection "
    "GROUP BY kernel_name, counter_name",
)


def parse_csv(texts: Mapping[str, str]) -> list[KernelReading]:
    """Read the files of a run by their content: kernel_trace, counter_collection, kernel_stats; never raises."""
    times: dict[str, list[float]] = {}
    counted: dict[str, dict[str, float]] = {}
    counters: dict[str, dict[str, list[float]]] = {}
    about: dict[str, Mapping[str, str]] = {}
    stats: dict[str, Mapping[str, str]] = {}
    for text in texts.values():
        traced = records(text, "Kernel_Name", "Start_Timestamp", "End_Timestamp")
        for row in map(with_known_names, traced or records(text, "KernelName", "BeginNs", "EndNs")):
            name = short_name(row["Kernel_Name"])
            if number(name or "0") is not None or number(row["Start_Timestamp"]) is None:  # words below the table
                continue
            about.setdefault(name, row)
            if (ns := duration_ns(row)) is None:
                continue
            if "Counter_Name" in row:  # a row a counter; so does the newer generation
                counted.setdefault(name, {})[row.get("Dispatch_Id", "")] = ns
            else:
                times.setdefault(name, []).append(ns)
        for row in map(with_known_names, records(text, "Kernel_Name", "Counter_Name", "Counter_Value")):
            name = short_name(row["Kernel_Name"])
            if name and (value := number(row.get("Counter_Value"))) is not None:
                about[name] = {**row, **about.get(name, {})}
                counters.setdefault(name, {}).setdefault(row["Counter_Name"], []).append(value)
        for row in records(text, "Name", "Calls", "TotalDurationNs"):
            if row["Name"] and number(row["TotalDurationNs"]) is not None:
                stats.setdefault(short_name(row["Name"]), row)
    for name, by_dispatch in counted.items():
        times.setdefault(name, list(by_dispatch.values()))
    names = list(dict.fromkeys((*times, *counters, *about)))
    names += [n for n in stats if n not in names and not NO_KERNEL.match(n)]
    found = [_kernel(n, times.get(n, []), counters.get(n, {}), about.get(n, {}), stats.get(n, {})) for n in names]
    return sorted(found, key=lambda k: -(k.total_us or 0))


def with_known_names(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row under the names of today's kernel trace."""
    return {ALIASES.get(name.lower(), name): value for name, value in row.items()}


def workgroups(items: list[Any], group: list[Any]) -> str | None:
    """Return a grid in workgroups, as CUDA counts it; AMD's tools count it in work-items."""
    sizes = [number(i) for i in items], [number(g) for g in group]
    whole_items, whole_group = ([s for s in found if s is not None and s >= 1] for found in sizes)
    if len(whole_items) != len(items) or len(whole_group) != len(items):
        return None
    return dimensions([math.ceil(i / g) for i, g in zip(whole_items, whole_group, strict=True)])


def duration_ns(row: Mapping[str, str]) -> float | None:
    """Return nanoseconds between a row's timestamps; `None` for timestamps that a spreadsheet wrote as 8.1E+14."""
    start, end = row.get("Start_Timestamp", ""), row.get("End_Timestamp", "")
    if not start.strip().isdecimal() or not end.strip().isdecimal():
        return None
    ns = int(end[:25]) - int(start[:25])
    return float(ns) if 0 <= ns < 1 << 62 else None


def _kernel(
    name: str,
    times: list[float],
    counters: Mapping[str, list[float]],
    about: Mapping[str, str],
    stats: Mapping[str, str],
) -> KernelReading:
    total = sum(times) if times else number(stats.get("TotalDurationNs"))
    calls = len(times) or whole(stats.get("Calls")) or max((len(v) for v in counters.values()), default=1)
    metrics = {key: value for key in RESOURCES if (value := number(about.get(key))) is not None}
    metrics |= {key: fmean(values) for key, values in counters.items() if values}
    grid = [about.get(f"Grid_Size_{a}") for a in "XYZ"]
    block = [about.get(f"Workgroup_Size_{a}") for a in "XYZ"]
    return KernelReading(
        name=name,
        calls=max(1, calls),
        time_us=total / 1000 / max(1, calls) if total is not None else None,
        total_us=total / 1000 if total is not None else None,
        grid=workgroups(grid, block) or workgroups([about.get("Grid_Size")], [about.get("Workgroup_Size")]),
        block=dimensions(block) or dimensions([about.get("Workgroup_Size")]),
        metrics=metrics,
        texts={"tool": TOOL},
    )


def parse_rocpd(data: bytes) -> list[KernelReading]:
    """Read rocprofv3's database (ROCm 7) through its views of kernels and counters; never raises."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in kernels_of_database(data):
        groups.setdefault(short_name(str(row.get("name") or row.get("kernel_name") or "")), []).append(row)
    counters: dict[str, dict[str, float]] = {}
    for row in query(data, _COUNTERS[0]) or query(data, _COUNTERS[1]):
        if (value := number(row.get("value"))) is not None:
            counters.setdefault(short_name(str(row.get("name") or "")), {})[str(row.get("pmc_name"))] = value
    found: list[KernelReading] = []
    for name, rows in groups.items():
        times = [ns for r in rows if (ns := _row_ns(r)) is not None]
        first = rows[0]
        named = {
            "VGPR_Count": _of(first, "arch_vgpr_count", "vgpr_count"),
            "Accum_VGPR_Count": first.get("accum_vgpr_count"),
            "SGPR_Count": first.get("sgpr_count"),
            "LDS_Block_Size": _of(first, "lds_size", "lds_block_size", "group_segment_size"),
            "Scratch_Size": _of(first, "scratch_size", "private_segment_size"),
        }
        metrics = {k: v for k, x in named.items() if (v := number(x)) is not None} | counters.get(name, {})
        block = [_of(first, f"workgroup_{a}", f"workgroup_size_{a}") for a in "xyz"]
        found.append(
            KernelReading(
                name=name,
                calls=len(rows),
                time_us=sum(times) / len(times) / 1000 if times else None,
                total_us=sum(times) / 1000 if times else None,
                grid=workgroups([_of(first, f"grid_{a}", f"grid_size_{a}") for a in "xyz"], block),
                block=dimensions(block),
                metrics=metrics,
                texts={"tool": TOOL},
            )
        )
    return sorted(found, key=lambda k: -(k.total_us or 0))


def kernels_of_database(data: bytes) -> list[dict[str, Any]]:
    """Return a row for each dispatch of rocprofv3's database, with name, start and end."""
    return query(data, _DISPATCHES) or _dispatches_without_views(data)


def _dispatches_without_views(data: bytes) -> list[dict[str, Any]]:
    """Read dispatches of a database whose views are gone: tables carry an id in their names."""
    names = [str(r["name"]) for r in query(data, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in names:
        if not table.startswith("rocpd_kernel_dispatch") or not table.replace("_", "").isalnum():
            continue
        symbols = table.replace("rocpd_kernel_dispatch", "rocpd_info_kernel_symbol")
        if symbols in names:
            joined = f'SELECT d.*, s.* FROM "{table}" d JOIN "{symbols}" s ON s.id = d.kernel_id'  # noqa: S608 - checked
            return [{**r, "name": _of(r, "display_name", "kernel_name")} for r in query(data, joined)]
    return []


def _of(row: Mapping[str, Any], *names: str) -> Any:
    return next((row[n] for n in names if row.get(n) is not None), None)


def _row_ns(row: Mapping[str, Any]) -> float | None:
    if (ns := number(row.get("duration"))) is not None:
        return ns
    start, end = number(row.get("start")), number(row.get("end"))
    return end - start if start is not None and end is not None and end >= start else None
