"""Any profiler's files, told by their content."""

from collections.abc import Callable, Mapping

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers import ncu, nsys, proton, rocprof, torch_trace

SQLITE = b"SQLite format 3\0"
KNOWN = "ncu's CSV, Proton, torch, nsys, rocprofv3, rocprof-compute"
"""Whose reports are known, as errors say it."""


def _trace(text: str) -> list[KernelReading]:
    return torch_trace.parse_trace(text) if text.lstrip()[:1] == "{" else []


def _nsys_stats(texts: Mapping[str, str]) -> list[KernelReading]:
    for text in texts.values():
        if found := nsys.parse_stats(text):
            return found
    return []


def _ncu_pages(texts: Mapping[str, str]) -> list[KernelReading]:
    ruled = [t for t in texts.values() if '"Rule Name"' in t]
    others = [t for t in texts.values() if '"Rule Name"' not in t]
    raw: dict[str, KernelReading] = {}
    rules: dict[str, list[Rule]] = {}
    for text in others:
        raw = raw or ncu.parse_raw(text)
    for text in ruled:
        rules = rules or ncu.parse_details(text)
    lines = [found for text in others if '"File Path"' in text for found in ncu.parse_source(text)]
    return ncu.merge_pages(raw, rules, lines)


JSON_READERS: tuple[tuple[str, Callable[[str], list[KernelReading]]], ...] = (
    ("ncu", ncu.parse_report),
    ("proton", proton.parse),
    ("torch", torch_trace.parse_averages),
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
    ("rocprof-compute", rocprof.parse_compute),
)
"""Each is asked of all texts by path."""


def read(files: Mapping[str, bytes]) -> tuple[str, list[KernelReading]]:
    """Read the files of one run; never raises.

    Args:
        files: Contents by path: ncu's JSON or CSV pages, Proton's tree, a Chrome trace, torch's averages, nsys's
            statistics or SQLite, rocprofv3's CSV or rocpd, tables of rocprof-compute.

    Returns:
        The profiler's name, empty when none is recognised, and its kernels.
    """
    databases = [d for d in files.values() if d.startswith(SQLITE)]
    texts = {path: d.decode("utf-8", "replace") for path, d in files.items() if not d.startswith(SQLITE)}
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
    return "", []
