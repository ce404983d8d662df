"""Any profiler's files, told by their content."""

import zlib
from collections.abc import Callable, Mapping

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers import (
    ncu,
    ncu_details,
    nsys,
    nsys_sums,
    nvprof,
    proton,
    rocprof,
    rocprof_compute,
    rocprof_events,
    rocprof_json,
    torch_averages,
    torch_trace,
)
from gpu_mcp_server.profilers.gpu_events import GpuEvent
from gpu_mcp_server.profilers.sqlite_reader import query

SQLITE = b"SQLite format 3\0"
GZIP = b"\x1f\x8b"
MAX_BYTES = 256 << 20
KNOWN = "ncu's CSV or text, Proton, torch, nsys, rocprofv3, rocprof-compute, nvprof"
"""Whose reports are known, as errors say it."""


def _trace(text: str) -> list[KernelReading]:
    return torch_trace.parse_trace(text)


def _nsys_stats(texts: Mapping[str, str]) -> list[KernelReading]:
    for parse in (nsys.parse_stats, nsys_sums.parse_executions):
        for text in texts.values():
            if found := parse(text):
                return found
    return []


def _ncu_pages(texts: Mapping[str, str]) -> list[KernelReading]:
    ruled = [t for t in texts.values() if '"Rule Name"' in t]
    others = [t for t in texts.values() if '"Rule Name"' not in t]
    raw: dict[str, KernelReading] = {}
    rules: dict[str, list[Rule]] = {}
    for text in others:
        raw = raw or ({} if "Metric Name" in text else ncu.parse_raw(text))
    for text in ruled:
        rules = rules or ncu.parse_details(text)
    lines = [found for text in others if '"File Path"' in text for found in ncu.parse_source(text)]
    if raw:
        return ncu.merge_pages(raw, rules, lines)
    long = [k for text in texts.values() for k in ncu_details.parse_long_table(text) or ncu_details.parse_text(text)]
    return ncu.add_lines(long, lines)


def _nvprof(texts: Mapping[str, str]) -> list[KernelReading]:
    for text in texts.values():
        if found := nvprof.parse_nvprof(text):
            return found
    return []


JSON_READERS: tuple[tuple[str, Callable[[str], list[KernelReading]]], ...] = (
    ("ncu", ncu.parse_report),
    ("rocprofv3", rocprof_json.parse),
    ("proton", proton.parse),
    ("torch", torch_averages.parse_averages),
    ("trace", _trace),
)
"""Each is asked of one file, in this order."""
DATABASE_READERS: tuple[tuple[str, Callable[[bytes], list[KernelReading]]], ...] = (
    ("nsys", nsys.parse_sqlite),
    ("rocprofv3", rocprof.parse_rocpd),
)
TABLE_READERS: tuple[tuple[str, Callable[[Mapping[str, str]], list[KernelReading]]], ...] = (
    ("nsys", _nsys_stats),
    ("rocprofv3", rocprof.parse_csv),
    ("rocprof-compute", rocprof_compute.parse_compute),
    ("nvprof", _nvprof),
)
"""Each is asked of all texts by path."""


CONVERSIONS: Mapping[str, str] = {
    ".ncu-rep": "ncu --import {path} --page raw --csv > raw.csv; the same with --page details",
    ".nsys-rep": "nsys export --type sqlite {path}",
    ".qdrep": "nsys export --type sqlite {path}",
    ".pftrace": "rocprofv3 with --output-format csv, or rocpd convert",
    ".nvvp": "nvprof -i {path} --print-gpu-summary, and what it prints",
}
"""Command that converts a binary report into a readable one, by the end of its name."""


def read(files: Mapping[str, bytes]) -> tuple[str, list[KernelReading]]:
    """Read the files of one run; never raises.

    Args:
        files: Contents by path, gzipped or not: ncu's JSON, its CSV pages or what it prints, Proton's tree, a Chrome
            trace, torch's averages, nsys's statistics or SQLite, rocprofv3's CSV, JSON or rocpd, rocprof-compute's
            tables.

    Returns:
        The profiler's name, empty when none is recognised, and its kernels.
    """
    files = {path: unpack(data) for path, data in files.items()}
    databases = [d for d in files.values() if d.startswith(SQLITE)]
    texts = {path: text_of_bytes(d) for path, d in files.items() if not d.startswith(SQLITE)}
    for text in texts.values():
        if text.lstrip()[:1] in ("{", "["):
            for name, parse in JSON_READERS:
                if found := parse(text):
                    return name, found
    if found := _ncu_pages(texts):
        return "ncu", found
    for data in databases:
        for name, parse in DATABASE_READERS:
            if found := parse(data):
                return name, found
    for name, parse in TABLE_READERS:
        if found := parse(texts):
            return name, found
    for text in texts.values():
        if found := torch_averages.parse_averages(text):
            return "torch", found
    return "", []


def unpack(data: bytes) -> bytes:
    """Return what a gzipped file holds, at most `MAX_BYTES` of it; other files as they are."""
    if not data.startswith(GZIP):
        return data
    try:
        return zlib.decompressobj(wbits=31).decompress(data, MAX_BYTES)
    except zlib.error:
        return data


def text_of_bytes(data: bytes) -> str:
    """Return a file's text, of nsys's JSON the table; shells of Windows write UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return nsys.as_csv(data.decode("utf-16", "replace"))
    return nsys.as_csv(data.decode("utf-8-sig", "replace"))


def read_events(files: Mapping[str, bytes]) -> dict[str, list[GpuEvent]]:
    """Return the events of each run whose files are traces, by path; never raises."""
    found: dict[str, list[GpuEvent]] = {}
    for path, packed in files.items():
        data = unpack(packed)
        if data.startswith(SQLITE):
            events = nsys.parse_events(data) or rocprof_events.parse_database_events(data)
        else:
            text = text_of_bytes(data)
            json_like = text.lstrip()[:1] in ("{", "[")
            if json_like:
                events = rocprof_json.parse_events(text) or torch_trace.parse_events(text)
            else:
                events = nsys.parse_gpu_trace(text) or rocprof_events.parse_csv_events(text)
        if events:
            found.setdefault(rocprof_events.run_of(path), []).extend(events)
    return {run: sorted(events, key=lambda e: e.start) for run, events in found.items()}


def read_sums(files: Mapping[str, bytes]) -> list[str]:
    """Return what tables of sums say beyond kernels; never raises."""
    unpacked = {path: unpack(data) for path, data in files.items()}
    return nsys_sums.describe_sums({p: text_of_bytes(d) for p, d in unpacked.items() if not d.startswith(SQLITE)})


def describe_unread(files: Mapping[str, bytes]) -> list[str]:
    """Return a line for each file that no reader knows by itself, with the columns that it has."""
    lines: list[str] = []
    for path, packed in files.items():
        data = unpack(packed)
        known = b'"File Path"' in data or b'"Rule Name"' in data or read({path: data})[0]
        if known or read_events({path: data}):
            continue
        convert = next((how for end, how in CONVERSIONS.items() if path.endswith(end)), None)
        if convert:
            lines.append(f"{path} is a binary report: convert it by {convert.format(path=path)}")
            continue
        if data.startswith(SQLITE):
            tables = [str(r["name"]) for r in query(data, "SELECT name FROM sqlite_master LIMIT 6")]
            lines.append(f"{path} was not understood: a database with {', '.join(tables) or 'no table'}")
            continue
        first = next((line.strip() for line in text_of_bytes(data[:4000]).splitlines() if line.strip()), "")
        lines.append(f"{path} was not understood: it begins with {first[:120]!r}")
    return lines
