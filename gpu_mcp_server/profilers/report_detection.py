"""Any profiler's files, told by their content."""

from collections.abc import Mapping

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers import ncu, nsys, proton, rocprof, torch_trace

SQLITE = b"SQLite format 3\0"


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
        for name, parse in (("ncu", ncu.parse_report), ("proton", proton.parse), ("torch", torch_trace.parse_averages)):
            if text.lstrip()[:1] in ("{", "[") and (found := parse(text)):
                return name, found
        if text.lstrip()[:1] == "{" and (found := torch_trace.parse_trace(text)):
            return "trace", found
    if found := _ncu_pages(texts):
        return "ncu", found
    for data in databases:
        for name, parse in (("nsys", nsys.parse_sqlite), ("rocprofv3", rocprof.parse_rocpd)):
            if found := parse(data):
                return name, found
    for text in texts.values():
        if found := nsys.parse_stats(text):
            return "nsys", found
    if found := rocprof.parse_csv(texts):
        return "rocprofv3", found
    found = rocprof.parse_compute(texts)
    return ("rocprof-compute", found) if found else ("", [])


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
    return ncu.merged(raw, rules, lines)
