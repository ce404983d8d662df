"""AMD's rocprofv3 (CSV of both generations, rocpd's SQLite) and the tables of rocprof-compute.

No AMD GPU was at hand: shapes are those of the data files and the documentation of ROCm/rocprofiler-sdk and
ROCm/rocprofiler-compute, read by the names of columns and never by their position. Timestamps that a spreadsheet has
rounded give no time.
"""

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import dimensions, first_of, number, records, whole
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.sqlite_reader import query

RESOURCES = (
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "LDS_Block_Size",
    "Scratch_Size",
    "Workgroup_Size",
    "Grid_Size",
)
PERCENT = ("Pct of Peak", "PoP", "Pct")
_MAY_BE_UNIT = re.compile(
    r"FLOPs|IOPs|Utilization|BW|Bandwidth|Occupancy|Active CUs|Read|Write|Conflict|IPC", re.IGNORECASE
)

# ROCm's own views hide that its tables carry an id in their names.
_DISPATCHES = (
    "SELECT name, duration, grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, lds_size, scratch_size, "
    "sgpr_count, arch_vgpr_count, accum_vgpr_count FROM kernels"
)
_COUNTERS = "SELECT name, pmc_name, avg(pmc_value) AS value FROM kernel_pmc_events GROUP BY name, pmc_name"


def parse_csv(texts: Mapping[str, str]) -> list[KernelReading]:
    """Read the files of a run by their content: kernel_trace, counter_collection, kernel_stats; never raises."""
    times: dict[str, list[float]] = {}
    counted: dict[str, dict[str, float]] = {}
    counters: dict[str, dict[str, list[float]]] = {}
    about: dict[str, Mapping[str, str]] = {}
    stats: dict[str, Mapping[str, str]] = {}
    for text in texts.values():
        for row in records(text, "Kernel_Name", "Start_Timestamp", "End_Timestamp"):
            name = short_name(row["Kernel_Name"])
            about.setdefault(name, row)
            if (ns := _duration(row)) is None:
                continue
            if "Counter_Name" in row:  # a row a counter; so does the newer generation
                counted.setdefault(name, {})[row.get("Dispatch_Id", "")] = ns
            else:
                times.setdefault(name, []).append(ns)
        for row in records(text, "Kernel_Name", "Counter_Name", "Counter_Value"):
            name = short_name(row["Kernel_Name"])
            about[name] = {**row, **about.get(name, {})}
            if (value := number(row.get("Counter_Value"))) is not None:
                counters.setdefault(name, {}).setdefault(row["Counter_Name"], []).append(value)
        for row in records(text, "Name", "Calls", "TotalDurationNs"):
            stats.setdefault(short_name(row["Name"]), row)
    for name, by_dispatch in counted.items():
        times.setdefault(name, list(by_dispatch.values()))
    names = list(dict.fromkeys((*times, *counters)))
    names += [n for n in stats if n not in names and not n.startswith(("hip", "hsa", "__hip"))]
    found = [_kernel(n, times.get(n, []), counters.get(n, {}), about.get(n, {}), stats.get(n, {})) for n in names]
    return sorted(found, key=lambda k: -(k.total_us or 0))


def _duration(row: Mapping[str, str]) -> float | None:
    """Return nanoseconds; `None` for timestamps that a spreadsheet wrote as 8.1E+14."""
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
        grid=dimensions(grid) or dimensions([about.get("Grid_Size")]),
        block=dimensions(block) or dimensions([about.get("Workgroup_Size")]),
        metrics=metrics,
    )


def parse_rocpd(data: bytes) -> list[KernelReading]:
    """Read rocprofv3's database (ROCm 7) through its views `kernels` and `kernel_pmc_events`; never raises."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in query(data, _DISPATCHES):
        groups.setdefault(short_name(str(row.get("name") or "")), []).append(row)
    counters: dict[str, dict[str, float]] = {}
    for row in query(data, _COUNTERS):
        if (value := number(row.get("value"))) is not None:
            counters.setdefault(short_name(str(row.get("name") or "")), {})[str(row.get("pmc_name"))] = value
    found: list[KernelReading] = []
    for name, rows in groups.items():
        times = [ns for r in rows if (ns := number(r.get("duration"))) is not None]
        named = {
            "VGPR_Count": rows[0].get("arch_vgpr_count"),
            "Accum_VGPR_Count": rows[0].get("accum_vgpr_count"),
            "SGPR_Count": rows[0].get("sgpr_count"),
            "LDS_Block_Size": rows[0].get("lds_size"),
            "Scratch_Size": rows[0].get("scratch_size"),
        }
        metrics = {k: v for k, x in named.items() if (v := number(x)) is not None} | counters.get(name, {})
        found.append(
            KernelReading(
                name=name,
                calls=len(rows),
                time_us=sum(times) / len(times) / 1000 if times else None,
                total_us=sum(times) / 1000 if times else None,
                grid=dimensions([rows[0].get(f"grid_{a}") for a in "xyz"]),
                block=dimensions([rows[0].get(f"workgroup_{a}") for a in "xyz"]),
                metrics=metrics,
            )
        )
    return sorted(found, key=lambda k: -(k.total_us or 0))


def parse_compute(texts: Mapping[str, str]) -> list[KernelReading]:
    """Read the tables of `rocprof-compute analyze`: top kernels, speed of light, roofline; never raises."""
    tops = [r for t in texts.values() for r in records(t, "Kernel_Name", "Count", "Sum(ns)")]
    units: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for text in texts.values():
        for row in records(text, "Metric", "Avg"):
            name, value = row.get("Metric", "").strip(), number(row.get("Avg"))
            if value is not None and name:
                metrics.setdefault(f"{name} [{row['Unit']}]" if row.get("Unit") else name, value)
            percent = number(first_of(row, *PERCENT))
            if percent is not None and 0 <= percent <= 1000 and _MAY_BE_UNIT.search(name):
                units.setdefault(name, percent)
    if not tops and not metrics:
        return []
    top = max(tops, key=lambda r: number(r.get("Sum(ns)")) or 0.0) if tops else {}
    ns, calls = number(top.get("Sum(ns)")), whole(top.get("Count")) or 1
    return [
        KernelReading(
            name=short_name(top.get("Kernel_Name") or "all kernels"),
            calls=max(1, calls),
            time_us=ns / 1000 / max(1, calls) if ns else None,
            total_us=ns / 1000 if ns else None,
            metrics=metrics,
            units_percent=dict(sorted(units.items(), key=lambda kv: -kv[1])),
        )
    ]
