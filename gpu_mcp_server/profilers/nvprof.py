"""nvprof, which ended with CC 7.5 and whose tables people still have: sums of kernels, and metrics by kernel, as text.

Source: outputs that people published. Times and rates have their units behind them without a space; a metric's row has
its least, largest and mean value, and names beside it words that may be anything.
"""

import re

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import TIMES_NS, number
from gpu_mcp_server.profilers.kernel_names import short_name

LONGEST_LINE = 4_000
_TIME = r"([\d.]+)(ns|us|ms|s)"
_SUM = re.compile(
    rf"^\s*(?P<type>GPU activities:|API calls:)?\s*[\d.]+%\s+{_TIME}\s+(?P<calls>\d+)\s+{_TIME}\s+{_TIME}\s+{_TIME}\s+"
    r"(?P<name>\S.*)$"
)
_KERNEL = re.compile(r"^\s+Kernel: (?P<name>\S.*)$")
_METRIC = re.compile(
    r"^\s+(?P<calls>\d+)\s+(?P<metric>[a-z]\w+)\s+\S.*?\s\S+\s+\S+\s+(?P<mean>[\d.]+)(?P<unit>%|[KMGT]?B/s)?$"
)
NAMES = {
    # nvprof's, to ncu's; others stay as they are, and `access_counters` knows some of them
    "achieved_occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", 100.0),
    "shared_load_transactions_per_request": ("derived__memory_l1_conflicts_shared_nway", 1.0),
}
STALLS = {
    "stall_memory_dependency": "long_scoreboard",
    "stall_memory_throttle": "lg_throttle",
    "stall_exec_dependency": "wait",
    "stall_sync": "barrier",
    "stall_inst_fetch": "no_instruction",
    "stall_constant_memory_dependency": "imc_miss",
    "stall_pipe_busy": "math_pipe_throttle",
    "stall_texture": "tex_throttle",
}
_RATES = {"B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}


def parse_nvprof(text: str) -> list[KernelReading]:
    """Read what nvprof prints, the kernel that takes longest first; never raises."""
    if "NVPROF" not in text and "GPU activities:" not in text:
        return []
    found: dict[str, KernelReading] = {}
    part, kernel = "", ""
    for line in (each[:LONGEST_LINE] for each in text.splitlines()):
        if "Profiling result" in line or "Metric result" in line:
            part = ""
        elif "API calls" in line:
            part = "API calls:"
        if match := _SUM.match(line):
            part = match["type"] or part
            if part != "API calls:":
                _add_sum(found, match)
        elif match := _KERNEL.match(line):
            kernel = short_name(match["name"])
        elif kernel and (match := _METRIC.match(line)):
            _add_metric(found, kernel, match)
    return sorted(found.values(), key=lambda k: -(k.total_us or 0))


def _add_sum(found: dict[str, KernelReading], match: re.Match[str]) -> None:
    name, calls = short_name(match["name"]), int(match["calls"][:9])
    time = number(match[2])
    if match["name"].startswith("["):
        name = match["name"]
    if time is not None and calls:
        total_us = time * TIMES_NS[match[3]] / 1000
        about = {"calls": calls, "time_us": total_us / calls, "total_us": total_us}
        found[name] = found.get(name, KernelReading(name=name)).model_copy(update=about)


def _add_metric(found: dict[str, KernelReading], kernel: str, match: re.Match[str]) -> None:
    mean = number(match["mean"])
    if mean is None:
        return
    name, factor = NAMES.get(match["metric"], (match["metric"], 1.0))
    value = mean * factor * _RATES.get(match["unit"] or "", 1.0)
    one = found.get(kernel, KernelReading(name=kernel, calls=max(1, int(match["calls"][:9]))))
    if (reason := STALLS.get(name)) is not None:
        found[kernel] = one.model_copy(update={"stalls": {**one.stalls, reason: value}})
    else:
        found[kernel] = one.model_copy(update={"metrics": {**one.metrics, name: value}})
