"""Nsight Compute: the plan of a run, and its pages `raw`, `details`, `source` as CSV, or its own reader's JSON.

Source: outputs of ncu 2025.3.1 on an H200 (CUDA and Triton kernels). Without `--log-file` the CSV stands behind
`==PROF==` lines and the program's own output; numbers have thousands commas also in base units; rows of page
`details` end after their last column that has something to say; the raw page has no `breakdown:` columns.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpu_mcp_server.models.profile import KernelReading, ProfileLevel, Rule, SourceLine
from gpu_mcp_server.profilers.csv_tables import (
    as_list,
    as_mapping,
    dimensions,
    in_base_units,
    in_english,
    is_continental,
    number,
    records,
    rows,
)
from gpu_mcp_server.profilers.kernel_names import short_name

HEADER = '"ID",'
FIXED = {"ID", "Process ID", "Process Name", "Host Name", "Context", "Stream", "Device", "CC"}
STALL = re.compile(
    r"smsp__(?:average_)?warps?_(?:latency_)?issue_stalled_(\w+?)"
    r"(?:_per_(?:issue_active|warp_active|inst_issued))?\.(?:ratio|pct|avg|sum)"
)
"""Ways to count stalls. A report has one of them, so only ratios of a kernel's stalls are comparable."""
SAMPLED_STALL = re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)(?<!_not_issued)")
SAMPLED = re.compile(r"stall_(\w+)$")
SHORTENED = {
    "long_sb": "long_scoreboard",
    "short_sb": "short_scoreboard",
    "lg": "lg_throttle",
    "mio": "mio_throttle",
    "math": "math_pipe_throttle",
    "tex": "tex_throttle",
    "no_inst": "no_instruction",
    "imc": "imc_miss",
    "dispatch": "dispatch_stall",
    "no_instructions": "no_instruction",
}
"""Page `source` abbreviates the names that metrics have; among sampled ones is a plural."""
NOT_STALLS = ("selected", "not_selected")
BREAKDOWNS = tuple(
    f"breakdown:{unit}.avg.pct_of_peak_sustained_elapsed"
    for unit in ("sm__throughput", "gpu__compute_memory_throughput")
)
NO_NUMBERS = ("n/a", "nan", "-nan", "inf", "-inf")
COUNTED = ("dram__", "lts__", "l1tex__", "sm__inst", "smsp__inst", "sm__throughput")
"""Metrics of hardware counters; times and launch figures need no permission."""
OPEN_COUNTERS = "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reload the driver"
MAX_KERNELS = 200
MAX_LINES = 400

SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy")
"""For level standard. Stalls come from samples, in one pass; WarpStateStats and SourceCounters take many."""
SAMPLES = "group:smsp__pcsamp_warp_stall_reasons"
ROOFLINE_METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes.sum.per_second",
    "dram__bytes.sum.peak_sustained",
    "dram__cycles_elapsed.avg.per_second",
    "lts__cycles_elapsed.avg.per_second",
    "lts__lts2xbar_cycles_active.sum.per_second",
    "lts__lts2xbar_cycles_active.sum.peak_sustained",
    "lts__t_sector_hit_rate.pct",
    "l1tex__t_sector_hit_rate.pct",
    "sm__cycles_elapsed.avg.per_second",
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",
    "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained",
    *(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed"
        for op in ("ffma", "fadd", "fmul", "dfma", "dadd", "dmul")
    ),
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",
)
CAUSE_METRICS = (
    *(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st", "red", "atom")),
    *(f"l1tex__t_requests_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "sm__cycles_active.avg",
    "sm__cycles_active.max",
)
"""What tells spills, atomics, bank conflicts, divergence and idle SMs from each other."""
TENSOR_METRICS = tuple(
    f"sm__ops_path_tensor_op_{op}_sparsity_off.sum.{kind}"
    for op in ("hgmma_src_fp16", "hgmma_src_bf16_dst_fp32", "hmma_src_fp16_dst_fp32", "hmma_src_bf16_dst_fp32")
    for kind in ("per_cycle_elapsed", "peak_sustained")
)
"""Tensor rates of CC 9.0; others are in level `full`. `op_*_sparsity_off` has the dense peak, `src_fp16` the other."""

MESSAGES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"ERR_NVGPUCTRPERM"),
        "hardware counters are closed to ordinary users (ERR_NVGPUCTRPERM)",
        "A person with root opens them: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
        "/etc/modprobe.d/nvidia-profiling.conf, then reload the driver. Until then use level quick.",
    ),
    (
        re.compile(r"==ERROR== LaunchFailed"),
        "the program failed under ncu, and counters of that launch are lost",
        "ncu launches a kernel once for each pass: does it run twice on the same memory, and within a time limit?",
    ),
    (
        re.compile(r"Failed to initialize the profiler: LibraryNotLoaded|LibraryNotLoaded"),
        "ncu could not load the driver's profiling library",
        "Common in gVisor and small containers: they need the driver's libraries (NVIDIA_DRIVER_CAPABILITIES=all).",
    ),
    (
        re.compile(r"[Rr]esource is being used|another (?:instance|tool)|profiling.*already.*in use", re.IGNORECASE),
        "another profiler holds the counters of this GPU",
        "DCGM's or another's profiling must end first (dcgmi profile --pause).",
    ),
    (
        re.compile(r"No kernels were profiled"),
        "no kernel was profiled",
        "Is the name in `kernel` right, does the program launch that many, and does it use the GPU at all?",
    ),
    (
        re.compile(r"not supported on (?:this|your) device|[Uu]nsupported GPU", re.IGNORECASE),
        "ncu does not know this GPU",
        "",
    ),
)


def options(level: ProfileLevel, kernel: str | None, skip: int, count: int, *, arch: str = "sm_90") -> list[str]:
    """Return ncu's options for a GPU; clocks stay as they are, as users have no right to lock them."""
    argv = ["--clock-control", "none", "--target-processes", "all"]
    if level == "full":
        argv += ["--set", "full", "--import-source", "yes"]
    else:
        for section in SECTIONS:
            argv += ["--section", section]
        tensor = TENSOR_METRICS if arch.startswith("sm_9") else ()
        more = (*ROOFLINE_METRICS, *CAUSE_METRICS, *tensor, SAMPLES)
        if arch.startswith("sm_12"):  # these GPUs count DRAM's bytes under another name
            more = tuple(re.sub(r"dram__bytes_(read|write)\b", r"dram__bytes_op_\1", name) for name in more)
        argv += ["--metrics", ",".join(more), "--import-source", "yes"]
    if kernel:
        argv += ["--kernel-name-base", "function", "-k", kernel]
    return [*argv, "--launch-skip", str(skip), "--launch-count", str(count)]


def troubles(text: str) -> list[str]:
    """Return what ncu says it could not do, each with its way out."""
    found = [f"{what}. {fix}".strip() for pattern, what, fix in MESSAGES if pattern.search(text)]
    if not found:
        found = [m[:300] for m in re.findall(r"==ERROR== (.{1,400})", text)[:3]]
    return found


def lost_counters(text: str) -> list[str]:
    """Return why ncu has no counters of kernels which it names: it was refused them, or a launch failed."""
    return [f"{what}. {fix}" for pattern, what, fix in MESSAGES[:2] if pattern.search(text)]


def unread_counters(readings: Sequence[KernelReading]) -> list[str]:
    """Return what to say of counters that have no number: their names, what remains, an administrator's line."""
    without = {n: v.strip().lower() for r in readings for n, v in r.texts.items() if v.strip().lower() in NO_NUMBERS}
    if not without:
        return []
    shown = ", ".join(list(without)[:3]) + (" ..." if len(without) > 3 else "")
    if any(n.startswith(COUNTED) for r in readings for n in r.metrics) and set(without.values()) == {"n/a"}:
        return [
            f"{len(without)} metrics are n/a ({shown}), others were counted: this GPU or ncu has none of these names, "
            "or they do not apply to the kernel (ncu --query-metrics lists names)"
        ]
    has = {
        "time": any(r.time_us is not None for r in readings),
        "launch": any(r.grid for r in readings),
        "occupancy limits": any("launch__occupancy_limit" in n for r in readings for n in r.metrics),
        "some counters": any(n.startswith(COUNTED) for r in readings for n in r.metrics),
    }
    rest = ", ".join(what for what, known in has.items() if known) or "nothing"
    return [
        f"{len(without)} counters are n/a or NaN ({shown}); what remains: {rest}. An administrator opens counters: "
        f"{OPEN_COUNTERS}; if they are open, this ncu does not know the GPU, or a name is wrong: a newer ncu, "
        "--query-metrics"
    ]


def parse_raw(text: str) -> dict[str, KernelReading]:
    """Read page `raw` as CSV: a row a kernel, by ID. Never raises."""
    table = rows(text, HEADER)
    header: list[str] = next(table, list[str]())
    units: list[str] = next(table, list[str]())
    found: dict[str, KernelReading] = {}
    listed = list(table)
    continental = is_continental(value for row in listed for value in row)
    for row in listed:
        about: dict[str, str] = {}
        metrics: dict[str, float] = {}
        texts: dict[str, str] = {}
        for n, (name, value) in enumerate(zip(header, row, strict=False)):
            if name in FIXED or name in ("Kernel Name", "Block Size", "Grid Size"):
                about.setdefault(name, value)
            elif (read := number(in_english(value) if continental else value)) is not None:
                metrics[name] = in_base_units(read, units[n] if n < len(units) else "")
            elif value:
                texts[name] = value[:200]
        if about.get("Kernel Name") and len(found) < MAX_KERNELS:
            found[about.get("ID", str(len(found)))] = reading(about, metrics, texts)
    return found


def reading(about: dict[str, str], metrics: dict[str, float], texts: dict[str, str]) -> KernelReading:
    """Return one kernel's reading; stalls and time are taken from its metrics."""
    time_ns = time_ns_of(metrics)
    stalls = {m[1]: v for name, v in metrics.items() if (m := STALL.fullmatch(name)) and _is_stall(m[1])}
    if not stalls:
        stalls = {
            SHORTENED.get(m[1], m[1]): v
            for name, v in metrics.items()
            if (m := SAMPLED_STALL.fullmatch(name)) and m[1] not in NOT_STALLS
        }
    return KernelReading(
        name=short_name(about.get("Kernel Name", "")),
        time_us=time_ns / 1000 if time_ns is not None else None,
        total_us=time_ns / 1000 if time_ns is not None else None,
        device=texts.get("device__attribute_display_name"),
        grid=_size(about.get("Grid Size")) or _size_of(metrics, "launch__grid_size"),
        block=_size(about.get("Block Size")) or _size_of(metrics, "launch__block_size"),
        metrics=metrics,
        texts=texts,
        stalls=stalls,
    )


def _is_stall(reason: str) -> bool:
    return reason not in NOT_STALLS and not reason.endswith("_not_issued")


def time_ns_of(metrics: Mapping[str, float]) -> float | None:
    """Return a kernel's time, of whichever metric has it; cycles over clock if nothing else was taken."""
    for name in ("gpu__time_duration", "gpu__time_active"):
        for kind in (".sum", ".avg", ".max", ""):
            if name + kind in metrics:
                return metrics[name + kind]
    for unit in ("sm", "gpc"):
        clock = metrics.get(f"{unit}__cycles_elapsed.avg.per_second")
        cycles = metrics.get(f"{unit}__cycles_elapsed.max", metrics.get(f"{unit}__cycles_elapsed.avg"))
        if clock and cycles:
            return cycles / clock * 1e9
    return None


def parse_details(text: str) -> dict[str, list[Rule]]:
    """Read the rules from page `details` as CSV, by the kernel's ID. Never raises."""
    found: dict[str, list[Rule]] = {}
    start = text.find(HEADER)
    for record in records(text[start:] if start >= 0 else "", "ID", "Rule Name", "Rule Type"):
        if not record.get("Rule Name"):
            continue
        gain = number(record.get("Estimated Speedup"))
        rule = Rule(
            name=record["Rule Name"][:80],
            section=(record.get("Section Name") or "")[:80],
            kind=(record.get("Rule Type") or "")[:8],
            text=(record.get("Rule Description") or "")[:600],
            scope=(record.get("Estimated Speedup Type") or "")[:12] or None,
            speedup_percent=gain,
        )
        found.setdefault(record["ID"], []).append(rule)
    return found


def parse_source(text: str) -> list[tuple[str, list[SourceLine]]]:
    """Read page `source` (`--print-source cuda,sass`) as CSV: function and its lines with samples. Never raises."""
    found: list[tuple[str, list[SourceLine]]] = []
    path, columns = "", {}
    for row in rows(text, '"File Path"'):
        if len(row) == 2 and row[0] == "File Path":
            path = row[1][:300]
        elif len(row) == 2 and row[0] == "Function Name":
            found.append((short_name(row[1]), []))
        elif row and row[0] == "Line No":
            columns: dict[str, int] = {}
            for n, name in enumerate(row):
                columns.setdefault(name, n)
        elif found and columns and row and row[0].isdecimal() and len(row[0]) < 9:
            line = _source_line(path, row, columns)
            if line is not None and len(found[-1][1]) < MAX_LINES:
                found[-1][1].append(line)
    return [(name, sorted(lines, key=lambda x: -x.samples)) for name, lines in found if lines]


def _source_line(path: str, row: Sequence[str], columns: dict[str, int]) -> SourceLine | None:
    def at(name: str) -> str:
        n = columns.get(name, len(row))
        return row[n] if n < len(row) else ""

    samples = number(at("Warp Stall Sampling (All Samples)")) or number(at("# Samples"))
    if not samples:
        return None
    stalls = {m[1]: v for name in columns if (m := SAMPLED.match(name)) and (v := number(at(name)))}
    return SourceLine(
        file=path, line=int(row[0]), samples=samples, text=at("Source").strip()[:160], stalls=_without(stalls)
    )


def _without(stalls: dict[str, float]) -> dict[str, float]:
    return {SHORTENED.get(k, k): v for k, v in stalls.items() if k not in NOT_STALLS}


def merge_pages(
    kernels: dict[str, KernelReading], rules: dict[str, list[Rule]], lines: Iterable[tuple[str, list[SourceLine]]]
) -> list[KernelReading]:
    """Put the three pages together; source lines go to the kernels of their name, in order."""
    return add_lines([k.model_copy(update={"rules": rules.get(key, [])}) for key, k in kernels.items()], lines)


def add_lines(kernels: Sequence[KernelReading], lines: Iterable[tuple[str, list[SourceLine]]]) -> list[KernelReading]:
    """Return kernels with the source lines of their name, in order."""
    left = list(lines)
    found: list[KernelReading] = []
    for kernel in kernels:
        own = next((n for n, (name, _) in enumerate(left) if name == kernel.name), None)
        found.append(kernel if own is None else kernel.model_copy(update={"lines": left.pop(own)[1]}))
    return found


def parse_report(text: str) -> list[KernelReading]:
    """Read what our program on the host wrote with ncu's own Python reader (`drivers/ncu_reader.py`). Never raises."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: list[KernelReading] = []
    for kernel in map(as_mapping, as_list(as_mapping(document).get("kernels"))[:MAX_KERNELS]):
        if not kernel.get("Kernel Name"):
            continue
        raw = as_mapping(kernel.get("metrics"))
        metrics = {str(k): v for k, x in raw.items() if (v := number(x)) is not None}
        texts = {str(k): x[:2000] for k, x in raw.items() if isinstance(x, str)}
        texts |= {str(k): "nan" for k, x in raw.items() if isinstance(x, float) and not math.isfinite(x)}
        about = {k: str(kernel.get(k) or "") for k in ("Kernel Name", "Grid Size", "Block Size")}
        named = {k.partition(":")[2]: [n.strip() for n in v.split(",")] for k, v in texts.items() if k in BREAKDOWNS}
        try:
            one = reading(about, metrics, texts).model_copy(
                update={
                    "breakdowns": named,
                    "rules": [Rule.model_validate(r) for r in as_list(kernel.get("rules"))[:60]],
                    "lines": [SourceLine.model_validate(x) for x in as_list(kernel.get("lines"))[:MAX_LINES]],
                }
            )
        except ValidationError:
            continue
        found.append(one)
    return found


def _size_of(metrics: Mapping[str, float], name: str) -> str | None:
    return f"{metrics[name]:.0f}" if metrics.get(name) else None


def _size(text: str | None) -> str | None:
    sizes = (text or "").strip("() ").split(",")
    return dimensions(sizes) if text and "0" not in map(str.strip, sizes) else None  # of a launch that failed
