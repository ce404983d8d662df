"""The tables of `rocprof-compute analyze` (Omniperf before): as CSV, and in boxes as it prints them.

Source: data files and documentation of ROCm/rocprofiler-compute; no AMD GPU was at hand.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import first_of, number, records, whole
from gpu_mcp_server.profilers.kernel_names import short_name

PERCENT = ("Pct of Peak", "PoP", "Pct")
_MAY_BE_UNIT = re.compile(r"FLOPs|IOPs|Util|BW|Bandwidth|Occupancy|Active CUs|Read|Write|Conflict|IPC", re.IGNORECASE)

_BAR = "\u2502"
_SECTION = re.compile(r"^(?P<number>\d{1,2})\. \S")
_CACHES = {"16": "vL1D", "17": "L2"}
"""Sections whose lines are called the same: `Cache Hit` of either."""


def _tables(texts: Mapping[str, str]) -> Iterator[str]:
    for text in texts.values():
        if _BAR in text:
            yield from boxes(text)
        else:
            yield text


def boxes(text: str) -> Iterator[str]:
    """Return each table in a box as CSV; cells that go on in the next line are joined."""
    section, rows = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        cells = [c.strip() for c in line.strip().strip(_BAR).split(_BAR)] if line.strip().startswith(_BAR) else None
        if cells is not None and rows and not cells[0] and len(cells) == len(rows[-1]) and len(rows) > 1:
            rows[-1] = [f"{above} {more}".strip() for above, more in zip(rows[-1], cells, strict=True)]
        elif cells is not None:
            rows.append(cells)
        elif match := _SECTION.match(line):
            section = match["number"]
        elif rows and not line.strip():
            yield _as_csv(rows, section)
            rows = []


def _as_csv(rows: list[list[str]], section: str) -> str:
    header = ["Kernel_Name" if c == "KernelName" else "Avg" if c == "Value" else c for c in rows[0]]
    named = header.index("Metric") if "Metric" in header else None
    if named is not None and section in _CACHES:
        for row in rows[1:]:
            if named < len(row) and row[named].startswith("Cache "):
                row[named] = f"{_CACHES[section]} {row[named]}"
    out = io.StringIO()
    csv.writer(out).writerows([header, *rows[1:]])
    return out.getvalue()


def parse_compute(texts: Mapping[str, str]) -> list[KernelReading]:
    """Read the tables of `rocprof-compute analyze`: top kernels, speed of light, roofline; never raises."""
    tables = list(_tables(texts))
    tops = [r for t in tables for r in records(t, "Kernel_Name", "Count", "Sum(ns)")]
    units: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for text in tables:
        for row in records(text, "Metric", "Avg"):
            name, value = row.get("Metric", "").strip(), number(row.get("Avg"))
            if value is not None and name:
                metrics.setdefault(f"{name} [{row['Unit']}]" if row.get("Unit") else name, value)
            percent = number(first_of(row, *PERCENT))
            if percent is None and (row.get("Unit") or "").startswith("Pct"):
                percent = value
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
            texts={"tool": "rocprof-compute"},
            units_percent=dict(sorted(units.items(), key=lambda kv: -kv[1])),
        )
    ]
