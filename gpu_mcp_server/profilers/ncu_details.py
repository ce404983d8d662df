"""Nsight Compute's long tables: page `details` as CSV or text, and what `--metrics` prints; a row a metric.

Source: outputs of ncu 2025.3.1, and tables of older ones as people publish them: with a column `Kernel Time`, without
IDs or sizes, or `--print-summary` with minimum, maximum and average. Labels become the names that the raw page has; one
that is not known stays under its label.
"""

import re
from collections.abc import Mapping

from gpu_mcp_server.models.profile import KernelReading, Rule
from gpu_mcp_server.profilers.csv_tables import in_base_units, in_english, is_continental, number, records
from gpu_mcp_server.profilers.ncu import MAX_KERNELS, reading
from gpu_mcp_server.profilers.ncu_rule_evidence import counts_in_rules

_OCCUPANCY = "launch__occupancy_limit_{}"
_ELAPSED = "{}.avg.pct_of_peak_sustained_elapsed"
LABELS: Mapping[str, str] = {
    "Duration": "gpu__time_duration.sum",
    "SM Frequency": "sm__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "Elapsed Cycles": "sm__cycles_elapsed.max",
    "SM Active Cycles": "sm__cycles_active.avg",
    "DRAM Throughput": _ELAPSED.format("gpu__dram_throughput"),
    "L2 Cache Throughput": _ELAPSED.format("lts__throughput"),
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "Compute (SM) Throughput": _ELAPSED.format("sm__throughput"),
    "SM [%]": _ELAPSED.format("sm__throughput"),
    "SOL SM": _ELAPSED.format("sm__throughput"),
    "SOL DRAM": _ELAPSED.format("gpu__dram_throughput"),
    "SOL L2 Cache": _ELAPSED.format("lts__throughput"),
    "SOL FB": _ELAPSED.format("gpu__dram_throughput"),
    "SOL L2": _ELAPSED.format("lts__throughput"),
    "SOL TEX": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "Memory Frequency": "dram__cycles_elapsed.avg.per_second",
    "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "Block Size": "launch__block_size",
    "Grid Size": "launch__grid_size",
    "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Local Memory Spilling Requests": "derived__local_spilling_requests",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Registers Per Thread": "launch__registers_per_thread",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "# SMs": "launch__sm_count",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Block Limit SM": _OCCUPANCY.format("blocks"),
    "Block Limit Registers": _OCCUPANCY.format("registers"),
    "Block Limit Shared Mem": _OCCUPANCY.format("shared_mem"),
    "Block Limit Warps": _OCCUPANCY.format("warps"),
    "Block Limit Barriers": _OCCUPANCY.format("barriers"),
}
"""Of page `details` to the raw page."""
SHARED = ("Static Shared Memory Per Block", "Dynamic Shared Memory Per Block")
RULE_WORDS: Mapping[str, str] = {
    "uncoalesced global access": "UncoalescedGlobalAccess",
    "access pattern for global": "MemoryCacheAccessPattern",
    "access pattern for local": "LocalMemoryAccess",
    "uncoalesced shared access": "UncoalescedSharedAccess",
    "bank conflict": "SharedMemoryConflicts",
    "register spill": "LocalMemorySpilling",
    "thread divergence": "ThreadDivergence",
    "calculated theoretical": "AchievedOccupancy",
    "workload imbalance": "WorkloadImbalance",
    "one or more sms have a much": "WorkloadImbalance",
    "one or more smsps have a much": "WorkloadImbalance",
    "slices have a much": "OtherImbalance",
    "a wave of thread blocks": "TailEffect",
    "grid for this launch is configured": "LaunchConfiguration",
    "theoretical warps": "TheoreticalOccupancy",
    "l2 compression": "MemoryL2Compression",
    "being stalled": "CPIStall",
    "only issues an instruction every": "IssueSlotUtilization",
    "pipelines are under-utilized": "HighPipeUtilization",
    "is the highest-utilized pipeline": "HighPipeUtilization",
    "more heavily utilized": "SOLBottleneck",
    "well-balanced": "SOLBottleneck",
}
"""The text page has no names of rules; words of their first sentence tell them."""
STALL_WORDS: Mapping[str, str] = {
    "on a l1tex": "long_scoreboard",
    "on an l1tex": "long_scoreboard",
    "on a mio": "short_scoreboard",
    "on an mio": "short_scoreboard",
    "local and global (lg)": "lg_throttle",
    "mio (memory input/output) instruction queue": "mio_throttle",
    "cta barrier": "barrier",
    "after exit": "drain",
    "fixed latency": "wait",
    "execution pipe": "math_pipe_throttle",
    "branch target": "branch_resolving",
    "instruction cache miss": "no_instruction",
    "immediate constant cache": "imc_miss",
}
"""What the rule on stalls says; its section's own numbers are not on page `details`."""
LONGEST_LINE, LONGEST_ROW = 16_000, 500
"""Longest line of a kernel's header, whose name may be long, and of a metric; ncu writes none longer."""
NO_NAME = "kernel without a name"
OTHER_STALLS = "others (not named)"
_STALL_SHARE = re.compile(r"(?:represents|approximately) (?:about )?([\d.]+)%")
_SIZES = r"\((?P<grid>\d+, *\d+, *\d+)\)x\((?P<block>\d+, *\d+, *\d+)\)"
_LAUNCH = r",(?: [^,]+,)? (?:Context \d+, Stream \d+|Device \d+, CC [\d.]+)(?:.*\bInvocations (?P<calls>\d{1,9}))?"
_WRAPPED = re.compile(rf"^\s*{_SIZES}{_LAUNCH}")
"""Sizes on a line of their own, below the kernel's name."""
_KERNEL = re.compile(
    rf"^\s*(?P<name>\S.*?)(?: {_SIZES})?{_LAUNCH}|^\s*(?P<bare>\S.*?) "
    + _SIZES.replace("grid", "bare_grid").replace("block", "bare_block")
    + r"\s*$"
)
_VALUE = r"(?: {{{spaces},}}|\s*(?=\(!\)))(?:\(!\) )?(?P<value>[\w.,+%/-]+)\s*(?:<.*)?$"
_NAME = r"^\s{2,}(?P<name>\S.*?)(?: {2,}(?P<unit>[^\s\d<(]\S*))?"
_METRIC = re.compile(_NAME + _VALUE.format(spaces=2))
_SUMMARY = re.compile(_NAME + r" {2,}[\w.,+%/-]+ +[\w.,+%/-]+" + _VALUE.format(spaces=1))
"""A row of --print-summary: minimum, maximum, average."""
_RULE = re.compile(r"^\s{2,}(?P<kind>OPT|WRN|INF|ERR) {2,}(?P<text>.*)$")
_QUOTED = re.compile(r"^(?://|#|\d{1,6}:) ?")
"""Before a line that somebody pasted into a comment or listed with numbers."""
_GAIN = re.compile(r"Est\. (?P<local>Local )?Speedup: (?P<gain>[\d.]+)%")


class _Kernel:
    """One launch, as its rows come."""

    def __init__(self, about: dict[str, str], *, continental: bool = False) -> None:
        self.about, self.rules, self._continental = about, list[Rule](), continental
        self.metrics, self.texts = dict[str, float](), dict[str, str]()
        self.calls = 1

    def add(self, label: str, unit: str, value: str) -> None:
        read = number(in_english(value) if self._continental else value)
        if label in ("Memory Throughput", "Memory [%]", "SOL Memory") and unit == "%":
            name = _ELAPSED.format("gpu__compute_memory_throughput")
        elif label == "Memory Throughput":
            name = "dram__bytes.sum.per_second"
        else:
            name = LABELS.get(label, label)
        if read is None:
            if value and label:
                self.texts.setdefault(name, value[:200])
            return
        read = in_base_units(read, unit)
        if label in SHARED:
            whole = "launch__shared_mem_per_block"
            self.metrics[whole] = self.metrics.get(whole, 0.0) + read
        self.metrics.setdefault(name, read)

    def done(self) -> KernelReading:
        found = reading(self.about, self.metrics, self.texts)
        total = found.time_us * self.calls if found.time_us is not None else None
        stalls = found.stalls or _stalls_of(self.rules)
        metrics = {**counts_in_rules(self.rules), **found.metrics}
        more = {"rules": self.rules, "calls": self.calls, "total_us": total, "stalls": stalls, "metrics": metrics}
        return found.model_copy(update=more)


def _stalls_of(rules: list[Rule]) -> dict[str, float]:
    """Return percent of stalled time by reason, as far as the rule on stalls names them."""
    found: dict[str, float] = {}
    for rule in rules:
        share = _STALL_SHARE.search(rule.text) if rule.name == "CPIStall" else None
        lower = rule.text.lower()
        reason = next((name for words, name in STALL_WORDS.items() if words in lower), None)
        if share and reason and (percent := number(share[1])) is not None and 0 < percent <= 100:
            found[reason] = percent
    rest = 100 - sum(found.values())
    return {**found, OTHER_STALLS: rest} if found and rest > 0 else found


def parse_long_table(text: str) -> list[KernelReading]:
    """Read a CSV with a row a metric, with or without IDs, sizes, sections; never raises."""
    found: dict[str, _Kernel] = {}
    listed = _rows(text)
    continental = is_continental(r.get("Metric Value") or r.get("Average") or "" for r in listed)
    for record in listed:
        name = record.get("Kernel Name") or NO_NAME
        key = record.get("ID") or f"{name} {record.get('Block Size')} {record.get('Grid Size')}"
        if key not in found and len(found) >= MAX_KERNELS:
            continue
        kernel = found.setdefault(key, _Kernel({**record, "Kernel Name": name}, continental=continental))
        value = record.get("Metric Value") or record.get("Average") or ""
        if calls := number(record.get("Invocations")):
            kernel.calls = max(1, int(calls))
        if record.get("Metric Name"):
            kernel.add(record["Metric Name"], record.get("Metric Unit", ""), value)
        if record.get("Rule Name"):
            kernel.rules.append(_named_rule(record))
    return [k.done() for k in found.values() if k.metrics or k.texts]


def _rows(text: str) -> list[dict[str, str]]:
    return records(text, "Metric Name", "Metric Value") or records(text, "Metric Name", "Average")


def _named_rule(record: Mapping[str, str]) -> Rule:
    return Rule(
        name=record["Rule Name"][:80],
        section=(record.get("Section Name") or "")[:80],
        kind=(record.get("Rule Type") or "")[:8],
        text=(record.get("Rule Description") or "")[:1500],
        scope=(record.get("Estimated Speedup Type") or "")[:12] or None,
        speedup_percent=number(record.get("Estimated Speedup")),
    )


def parse_text(text: str) -> list[KernelReading]:
    """Read what ncu prints without `--csv`: kernels, tables of sections, rules; never raises."""
    lines = [_QUOTED.sub("", quoted[:LONGEST_LINE]) for quoted in text.splitlines()]
    page = _Page(is_continental(m["value"] for line in lines if (m := _match_row(_METRIC, line))))
    for line in [*lines, ""]:
        if len(page.found) > MAX_KERNELS:
            break
        page.read(line)
    return [k.done() for k in page.found[:MAX_KERNELS] if k.metrics or k.texts]


def _match_row(form: re.Pattern[str], line: str) -> re.Match[str] | None:
    return form.match(line) if len(line) <= LONGEST_ROW else None


class _Page:
    """ncu's text, as its lines come."""

    def __init__(self, continental: bool) -> None:
        self.found = list[_Kernel]()
        self._continental, self._metric = continental, _METRIC
        self._section, self._before = "", ""
        self._rule = list[str]()

    def read(self, line: str) -> None:
        """Take one line."""
        if self._rule and line.startswith("          ") and line.strip():
            self._rule.append(line.strip())
            return
        if self._rule and self.found:
            self.found[-1].rules.append(_text_rule(self._rule, self._section))
            self._rule = []
        if match := _WRAPPED.match(line):
            self._begin(self._before, match["grid"], match["block"], match["calls"])
        elif match := _KERNEL.match(line):
            grid, block = match["grid"] or match["bare_grid"], match["block"] or match["bare_block"]
            self._begin(match["name"] or match["bare"], grid, block, match["calls"])
        elif line.strip().startswith("Section: "):
            self._section = line.strip()[9:89]
            if not self.found:
                self._begin(NO_NAME, None, None, None)
        elif match := _RULE.match(line):
            self._rule = [match["kind"], match["text"].strip()]
        elif line.strip().startswith("Metric Name"):
            self._metric = _SUMMARY if line.split()[-1] == "Average" else _METRIC
        elif self.found and (match := _match_row(self._metric, line)) and not match["name"].startswith("---"):
            self.found[-1].add(match["name"], match["unit"] or "", match["value"])
        self._before = line.strip() or self._before

    def _begin(self, name: str, grid: str | None, block: str | None, calls: str | None) -> None:
        about = {"Kernel Name": name or NO_NAME, "Grid Size": grid or "", "Block Size": block or ""}
        kernel = _Kernel(about, continental=self._continental)
        kernel.calls = max(1, int(calls or 1))
        self.found.append(kernel)


def _text_rule(parts: list[str], section: str) -> Rule:
    kind, *words = parts
    text = " ".join(words)
    gain = _GAIN.search(text)
    text = text[gain.end() :].strip() if gain else text
    lower = text.partition(". ")[0].lower()
    name = next((rule for word, rule in RULE_WORDS.items() if word in lower), section or "rule")
    return Rule(
        name=name[:80],
        section=section,
        kind=kind,
        text=text[:1500],
        scope=("local" if gain["local"] else "global") if gain else None,
        speedup_percent=number(gain["gain"]) if gain else None,
    )
