"""The units of a GPU that can limit a kernel: what ncu's sub-metrics are called in words, and what helps against each.

ncu's own headline is the maximum over such sub-metrics and hides which of them it was: for a naive matrix product it
says "compute and memory are well-balanced", while the load/store unit is at 75 %.

Source: the sub-metrics of `breakdown:sm__throughput` and `breakdown:gpu__compute_memory_throughput` of ncu 2025.3.1 on
CC 9.0; names of pipes from the Nsight Compute documentation, "Metrics Decoder".
"""

from collections.abc import Mapping

from gpu_mcp_server.models.profile import KernelReading

PERCENT = ".avg.pct_of_peak_sustained_elapsed"
ACTIVE = ".avg.pct_of_peak_sustained_active"
DRAM_WAYS = ("dram__bytes_{}.sum.pct_of_peak_sustained_elapsed", "dram__bytes_op_{}.sum.pct_of_peak_sustained_elapsed")
"""Percent of DRAM's peak by direction; CC 12.0 has the second name."""
BUSY_PERCENT = 60.0
"""A unit below this does not limit by its throughput. Source: ncu's rule SOLBottleneck."""

TITLES: Mapping[str, tuple[str, str]] = {
    # sub-metric: words, family
    "dram__cycles_active": ("DRAM", "dram"),
    "fbpa__dram_sectors": ("DRAM sectors", "dram"),
    "lts__d_sectors_fill_device": ("L2 fill from DRAM", "dram"),
    "lts__t_sectors": ("L2", "l2"),
    "lts__d_sectors": ("L2 data", "l2"),
    "lts__t_tag_requests": ("L2 tags", "l2"),
    "lts__lts2xbar_cycles_active": ("L2->SM", "l2"),
    "l1tex__m_xbar2l1tex_read_sectors": ("L2->L1 fill", "l2"),
    "lts__xbar2lts_cycles_active": ("SM->L2", "l2 store"),
    "l1tex__m_l1tex2xbar_req_cycles_active": ("L1->L2 requests", "l2 store"),
    "l1tex__data_pipe_lsu_wavefronts": ("L1/shared data pipe", "l1"),
    "l1tex__lsu_writeback_active": ("LSU writeback", "l1"),
    "l1tex__lsuin_requests": ("LSU input", "l1"),
    "l1tex__data_bank_reads": ("L1 bank reads", "l1"),
    "l1tex__data_bank_writes": ("L1 bank writes", "l1"),
    "l1tex__f_wavefronts": ("texture filter", "tex"),
    "l1tex__data_pipe_tex_wavefronts": ("texture data pipe", "tex"),
    "sm__inst_executed_pipe_lsu": ("LSU instructions", "l1"),
    "sm__inst_executed_pipe_adu": ("address unit (ADU)", "address"),
    "sm__inst_executed_pipe_cbu_pred_on_any": ("branches (CBU)", "control"),
    "sm__mio2rf_writeback_active": ("MIO writeback", "l1"),
    "sm__mio_inst_issued": ("MIO instructions", "l1"),
    "sm__mio_pq_read_cycles_active": ("MIO queue reads", "l1"),
    "sm__mio_pq_write_cycles_active": ("MIO queue writes", "l1"),
    "idc__request_cycles_active": ("constant cache", "constant"),
    "sm__pipe_fma_cycles_active": ("FMA pipe", "fma"),
    "sm__pipe_fmaheavy_cycles_active": ("FMA-heavy pipe", "fma"),
    "sm__inst_executed_pipe_fma_type_fp16": ("FP16 pipe", "fma"),
    "sm__inst_executed_pipe_fma": ("FMA pipe", "fma"),
    "sm__inst_executed_pipe_fmaheavy": ("FMA-heavy pipe", "fma"),
    "sm__inst_executed_pipe_fp16": ("FP16 pipe", "fma"),
    "sm__pipe_alu_cycles_active": ("ALU pipe", "alu"),
    "sm__inst_executed_pipe_alu": ("ALU pipe", "alu"),
    "sm__inst_executed_pipe_uniform": ("uniform pipe", "alu"),
    "sm__inst_executed_pipe_xu": ("XU pipe (special functions, conversions)", "xu"),
    "sm__pipe_fp64_cycles_active": ("FP64 pipe", "fp64"),
    "sm__inst_executed_pipe_fp64": ("FP64 instructions", "fp64"),
    "sm__pipe_shared_cycles_active": ("shared FP64/tensor pipe", "tensor"),
    "sm__pipe_tensor_cycles_active": ("tensor pipe", "tensor"),
    "sm__pipe_tensor_op_hmma_cycles_active": ("tensor pipe", "tensor"),
    "sm__pipe_tensor_op_imma_cycles_active": ("tensor pipe (int)", "tensor"),
    "sm__pipe_tensor_op_dmma_cycles_active": ("tensor pipe (fp64)", "tensor"),
    "sm__pipe_tensor_subpipe_hmma_cycles_active": ("tensor pipe", "tensor"),
    "sm__pipe_tensor_subpipe_imma_cycles_active": ("tensor pipe (int)", "tensor"),
    "sm__pipe_tensor_subpipe_dmma_cycles_active": ("tensor pipe (fp64)", "tensor"),
    "sm__inst_executed_pipe_tensor": ("tensor pipe", "tensor"),
    "sm__inst_executed_pipe_tensor_op_hmma": ("tensor pipe", "tensor"),
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active": ("tensor pipe", "tensor"),
    "sm__inst_issued": ("issue slots", "issue"),
    "sm__inst_executed": ("issue slots", "issue"),
    "sm__issue_active": ("issue slots", "issue"),
    "smsp__issue_active": ("issue slots", "issue"),
}
"""Asked for in this order when the breakdown itself is not there."""

HELP: Mapping[str, str] = {
    "dram": "move fewer bytes: fuse with neighbours, keep values in registers or shared memory, a smaller type",
    "l2": "read each value from L2 less often: larger tiles, blocks in an order that shares tiles, cluster multicast",
    "l2 store": "write whole 128-byte lines from a warp: stage through shared memory, neighbours in threadIdx.x",
    "l1": "fewer load/store instructions per FLOP: register tiles (4x4 outputs a thread), 128-bit loads, padded rows",
    "tex": "use plain loads instead of textures where no filtering is needed",
    "address": "fewer indexed constants and barriers; hoist address arithmetic out of the loop",
    "control": "fewer branches: unroll, predicate, make conditions uniform in a warp",
    "constant": "constants read with different addresses in a warp are serial: put them into shared memory",
    "fma": "use tensor cores where the precision allows it, otherwise cut arithmetic",
    "alu": "less integer arithmetic: strength-reduce indices, precompute, wider vectors",
    "xu": "fewer special functions and conversions: __expf, exp2 with scaled inputs, polynomial on the FMA pipe",
    "fp64": "use fp32 or compensated fp32 where the tolerance allows it, or fp64 tensor cores (mma)",
    "tensor": "it is near the tensor peak: larger tiles, fewer epilogue stalls, a smaller type",
    "issue": "it is near the issue limit: fewer instructions (vector loads, unrolling, fused operations)",
}
STALL_HELP: Mapping[str, str] = {
    "long_scoreboard": "hide loads from L2 and DRAM: prefetch with cp.async/TMA, more independent loads, more warps",
    "short_scoreboard": "fewer dependent shared-memory or special-function results in a row; check bank conflicts",
    "mio_throttle": "fewer shared-memory and special-function instructions in a row: 128-bit accesses, registers",
    "lg_throttle": "fewer, wider global accesses (float4 loads), and see that registers do not spill",
    "barrier": "warps wait for each other: fewer __syncthreads, smaller blocks, double buffering, split barriers",
    "math_pipe_throttle": "the arithmetic pipe is full: mix instruction types or cut operations",
    "wait": "fixed latencies: more independent instructions a thread (unroll, several accumulators)",
    "drain": "stores are waited for at the end: fewer or coalesced stores, more work a block",
    "branch_resolving": "fewer jumps: unroll, predicate",
    "no_instruction": "the code does not fit the instruction cache, or blocks are tiny: less unrolling, longer blocks",
    "imc_miss": "constants miss their cache: fewer different ones, or shared memory",
    "sleeping": "threads sleep in nanosleep: poll differently",
    "membar": "memory fences: weaker scope, fewer of them",
    "dispatch_stall": "the dispatcher is held back by register or pipe conflicts: reorder, fewer wide operands",
    "tex_throttle": "fewer texture or surface instructions in a row",
    "warpgroup_arrive": "waits for asynchronous matrix instructions: deeper pipeline, overlap with loads",
    "gmma": "waits for asynchronous matrix instructions: deeper pipeline, overlap with loads",
}
HEADLINES: Mapping[str, tuple[str, str]] = {
    **{f"{name}{PERCENT}": ("DRAM", "dram") for name in ("gpu__dram_throughput", "dram__throughput")},
    "dram__bytes.sum.pct_of_peak_sustained_elapsed": ("DRAM", "dram"),
    f"lts__throughput{PERCENT}": ("L2", "l2"),
    f"l1tex__throughput{PERCENT}": ("L1", "l1"),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("L1", "l1"),
    f"sm__throughput{PERCENT}": ("SM (which pipe was not counted)", "sm"),
}
"""What is left to say where a report has no sub-metrics: the maximum over a unit's parts, not which part."""
SAME_PIPE = 5.0
"""Percent by which the SM's headline must exceed a pipe that was counted, to stand for another one."""
FEW_HITS = 20.0
"""Percent of sectors found in a cache below which the cache only passes on what it is asked for."""
NO_THROUGHPUT = ("Active Threads", "Active CUs", "Occupancy", "IPC", "Conflict")
"""Lines of rocprof-compute that are percentages, but of no unit's throughput."""


def units_of(reading: KernelReading) -> dict[str, tuple[float, str]]:
    """Return each unit's percent of its peak and its family, the busiest first."""
    found: dict[str, tuple[float, str]] = {}
    named = [n for names in reading.breakdowns.values() for n in names]
    for metric in named or [f"{n}{PERCENT}" for n in TITLES]:
        value = _elapsed_percent(reading.metrics, metric)
        base = metric.split(".", 1)[0]
        if value is None or "internal_activity" in base or "throughput" in base:
            continue
        title, family = TITLES.get(base, (base, _family(base)))
        if value > found.get(title, (-1.0, ""))[0]:
            found[title] = (value, family)
    streams = False
    if not named:
        streams = _is_streaming(reading.metrics) and not any(
            family in ("dram", "l1", "l2") for _, family in found.values()
        )
        found |= _headlines(reading.metrics, found)
    for title, value in reading.units_percent.items():
        if not any(word in title for word in NO_THROUGHPUT):
            found.setdefault(title, (value, _amd_family(title)))
    return dict(sorted(found.items(), key=lambda kv: (not streams or kv[1][1] != "dram", -kv[1][0])))


def _elapsed_percent(m: Mapping[str, float], metric: str) -> float | None:
    """Return a sub-metric of elapsed cycles, or else what that of active cycles comes to."""
    if metric in m or not metric.endswith(PERCENT):
        return m.get(metric)
    value = m.get(metric[: -len(PERCENT)] + ACTIVE)
    return value * _active_part(m) if value is not None else None


def _active_part(m: Mapping[str, float]) -> float:
    """Return which part of the elapsed cycles an average SM is active, 1 where it was not counted."""
    active, elapsed = m.get("sm__cycles_active.avg"), m.get("sm__cycles_elapsed.max")
    return min(1.0, active / elapsed) if active and elapsed else 1.0


def _headlines(m: Mapping[str, float], found: Mapping[str, tuple[float, str]]) -> dict[str, tuple[float, str]]:
    """Return headlines of those units of which no part was counted."""
    counted = {family for _, family in found.values()}
    pipe = max((v for v, family in found.values() if family not in ("dram", "l2", "l2 store", "l1")), default=0.0)
    more: dict[str, tuple[float, str]] = {}
    for metric, (title, family) in HEADLINES.items():
        if metric not in m or family in counted or (family == "sm" and m[metric] < pipe + SAME_PIPE):
            continue
        value = m[metric] * (_active_part(m) if metric.endswith("_active") else 1.0)  # idle SMs do not count there
        more.setdefault(title, (value, family))
    ways = [v for way in ("read", "write") for n in DRAM_WAYS if (v := m.get(n.format(way))) is not None]
    if ways and "dram" not in counted:
        more.setdefault("DRAM", (sum(ways), "dram"))
    return more


def _is_streaming(m: Mapping[str, float]) -> bool:
    """Say whether nearly all that L1 and L2 carry is DRAM's traffic on its way: their headlines repeat it then."""
    dram = max((m.get(name, 0.0) for name, (_, family) in HEADLINES.items() if family == "dram"), default=0.0)
    hits = m.get("l1tex__t_sector_hit_rate.pct"), m.get("lts__t_sector_hit_rate.pct")
    return dram >= BUSY_PERCENT and all(hit is not None and hit < FEW_HITS for hit in hits)


def _family(base: str) -> str:
    known = {"dram": "dram", "fbpa": "dram", "lts": "l2", "l1tex": "l1", "idc": "constant"}
    return known.get(base.split("__", 1)[0], "issue")


def _amd_family(title: str) -> str:
    for word, family in (("Fabric", "dram"), ("HBM", "dram"), ("L2", "l2"), ("LDS", "l1"), ("vL1D", "l1")):
        if word in title:
            return family
    for word, family in (("MFMA", "tensor"), ("VALU", "fma"), ("SALU", "alu"), ("VMEM", "l1"), ("Branch", "control")):
        if word in title:
            return family
    return "issue"
