"""Counts of a kernel's accesses, warps and SMs in a profile, under whichever name; `None` is not counted.

Source: names of metrics of ncu 2025.3.1 (page `raw`), labels of its page `details`; `gld_efficiency` and its like are
nvprof's, which some tools still write.
"""

from collections.abc import Mapping

from gpu_mcp_server.models.profile import KernelReading

SECTOR_BYTES = 32
LARGEST_WHOLE_REQUEST = 16
"""Sectors of a request in which each of 32 lanes reads 16 bytes side by side: more are scattered for sure."""
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}"
_AMD_RESOURCES = {"SIMD VGPRs": "VGPRs", "SIMD SGPRs": "SGPRs", "CU LDS": "LDS", "CU Barriers": "barriers"}
"""Source: rocprof-compute's table of the workgroup manager, whose counts say for what a workgroup could not start."""
_NVPROF = {"ld": "gld_efficiency", "st": "gst_efficiency"}


def amd_value(m: Mapping[str, float], *names: str) -> float | None:
    """Return a value of rocprof-compute's tables, whose names are followed by their unit in brackets."""
    return next((v for n in names for key, v in m.items() if key == n or key.startswith(f"{n} [")), None)


def _first(m: Mapping[str, float], *names: str) -> float | None:
    return next((m[n] for n in names if n in m), None)


def _sum(m: Mapping[str, float], *names: str | tuple[str, ...]) -> float | None:
    """Return the sum of what was counted; of several names for one count the first."""
    found = [v for n in names if (v := _first(m, *((n,) if isinstance(n, str) else n))) is not None]
    return sum(found) if found else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def used_bytes(m: Mapping[str, float], op: str) -> float | None:
    """Return how many of the 32 bytes of a sector global accesses of `op` (`ld`, `st`) use; 0 means none were made."""
    used = m.get(_USED.format(op) + ".ratio")
    if used is None and (percent := _first(m, _USED.format(op) + ".pct", _NVPROF[op])) is not None:
        used = percent * SECTOR_BYTES / 100
    if used is not None:
        return used
    if op == "ld" and (percent := amd_value(m, "Coalescing", "Buffer Coalescing")) is not None:
        return percent * SECTOR_BYTES / 100
    if op == "ld" and "memory_l2_theoretical_sectors_global_ideal" in m:
        share = _ratio(m["memory_l2_theoretical_sectors_global_ideal"], m.get("memory_l2_theoretical_sectors_global"))
        if share is not None:
            return SECTOR_BYTES * share
    return None


def sectors_a_request(m: Mapping[str, float], op: str) -> float | None:
    """Return sectors that one request of a warp touches: 4 where lanes read 4 bytes each side by side."""
    base = f"pipe_lsu_mem_global_op_{op}"
    return _first(
        m, f"l1tex__average_t_sectors_per_request_{base}.ratio", f"l1tex__average_t_sector_per_request_{base}.ratio"
    ) or _ratio(m.get(f"l1tex__t_sectors_{base}.sum"), m.get(f"l1tex__t_requests_{base}.sum"))


def _accesses(m: Mapping[str, float], space: str, op: str) -> float | None:
    plural = {"ld": "loads", "st": "stores"}.get(op, op)
    return _first(
        m,
        f"smsp__inst_executed_op_{space}_{op}.sum",
        f"smsp__sass_inst_executed_op_{space}_{op}.sum",
        f"sass__inst_executed_{space}_{plural}",
        f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum",
        f"sm__sass_inst_executed_op_{space}_{op}.sum",
    )


def local_accesses(m: Mapping[str, float]) -> float | None:
    """Return loads and stores of local memory: what was spilled, and arrays that registers cannot hold."""
    found = [v for op in ("ld", "st") if (v := _accesses(m, "local", op)) is not None]
    if found:
        return sum(found)
    moved = [v for op in ("ld", "st") if (v := m.get(f"l1tex__t_bytes_pipe_lsu_mem_local_op_{op}.sum")) is not None]
    if moved:
        return sum(moved) / 128  # bytes of a warp's access of 4 bytes a lane
    return _first(m, "derived__local_spilling_requests", "smsp__inst_executed_op_local.sum", "local_load_requests")


def local_share(m: Mapping[str, float]) -> tuple[float, str] | None:
    """Return local accesses as a part, and of what: of all loads and stores, or else of instructions."""
    local = local_accesses(m)
    if local is None:
        return None
    others = [v for s in ("global", "shared") for op in ("ld", "st") if (v := _accesses(m, s, op)) is not None]
    if len(others) >= 2:
        return _ratio(local, local + sum(others)) or 0.0, "loads and stores"
    part = _ratio(local, _first(m, "smsp__inst_executed.sum", "sm__inst_executed.sum", "sass__inst_executed"))
    return (min(1.0, part), "instructions") if part is not None else None


def atomic_share(m: Mapping[str, float]) -> float | None:
    """Return atomics and reductions on global memory as a part of all accesses of it, the largest that was counted."""
    made = _sum(
        m,
        ("smsp__inst_executed_op_global_red.sum", "smsp__sass_inst_executed_op_global_red.sum"),
        ("smsp__inst_executed_op_global_atom.sum", "smsp__sass_inst_executed_op_global_atom.sum"),
        "smsp__inst_executed_op_generic_atom_dot_alu.sum",
        "smsp__inst_executed_op_generic_atom_dot_cas.sum",
    )
    if not made:
        again = _sum(m, *(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("red", "atom")))
        made = again if again is not None else made
    plain = [v for op in ("ld", "st") if (v := _accesses(m, "global", op)) is not None]
    sectors = _sum(
        m,
        ("lts__t_sectors_op_red.sum", "lts__t_sectors_srcunit_tex_op_red.sum"),
        ("lts__t_sectors_op_atom.sum", "lts__t_sectors_srcunit_tex_op_atom.sum"),
    )
    found = [
        _ratio(made, made + sum(plain)) if made is not None and plain else None,
        _ratio(sectors, _first(m, "lts__t_sectors.sum", "lts__t_sectors_srcunit_tex.sum")),
        _ratio(m.get("lts__d_atomic_input_cycles_active.avg.pct_of_peak_sustained_elapsed"), 100.0),
    ]
    known = [v for v in found if v is not None]
    return max(known) if known else None


def count_atomics(m: Mapping[str, float]) -> float | None:
    """Return how many atomics and reductions on global memory were counted, by instructions or else by sectors."""
    for kinds in (("_op_global_red.sum", "_op_global_atom.sum", "_atom_dot_alu.sum"), ("_op_red.sum", "_op_atom.sum")):
        found = [v for n, v in m.items() if n.endswith(kinds)]
        if found:
            return max(found)
    return None


def shared_atomic_share(m: Mapping[str, float]) -> float | None:
    """Return atomics on shared memory as a part of its accesses."""
    made = _first(m, "smsp__inst_executed_op_shared_atom.sum", "smsp__sass_inst_executed_op_shared_atom.sum")
    plain = [v for op in ("ld", "st") if (v := _accesses(m, "shared", op)) is not None]
    return _ratio(made, made + sum(plain)) if made is not None and plain else None


def conflict_share(m: Mapping[str, float]) -> float | None:
    """Return the part of shared memory's wavefronts that bank conflicts added."""
    base = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
    conflicts = _first(m, f"{base}.sum") or _sum(m, *(f"{base}_op_{op}.sum" for op in ("ld", "st", "atom")))
    base = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
    whole = _first(m, f"{base}.sum", "memory_l1_wavefronts_shared")
    whole = whole or _sum(m, *(f"{base}_op_{op}.sum" for op in ("ld", "st", "atom")))
    if conflicts is None and whole:
        conflicts = _first(m, "derived__memory_l1_wavefronts_shared_excessive")
        if conflicts is None and "memory_l1_wavefronts_shared_ideal" in m:
            conflicts = max(0.0, whole - m["memory_l1_wavefronts_shared_ideal"])
    if (share := _ratio(conflicts, whole)) is not None:
        return min(1.0, share)
    if (more := amd_value(m, "LDS Bank Conflicts/Access", "Bank Conflicts/Access")) is not None:
        return max(0.0, more) / (1 + max(0.0, more))
    requests = [v for op in ("ld", "st") if (v := _accesses(m, "shared", op)) is not None]
    if conflicts is not None and sum(requests) > 0:
        return conflicts / (conflicts + sum(requests))
    ways = m.get("derived__memory_l1_conflicts_shared_nway")
    return max(0.0, 1 - 1 / ways) if ways and ways >= 1 else None


def shared_accesses(m: Mapping[str, float]) -> float | None:
    """Return wavefronts or loads and stores of shared memory."""
    found = [v for op in ("ld", "st") if (v := _accesses(m, "shared", op)) is not None]
    return sum(found) if found else m.get("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")


def threads_an_instruction(m: Mapping[str, float]) -> tuple[float, int] | None:
    """Return how many lanes of a warp, or of AMD's wave, an instruction has on average, and how many there are."""
    if (lanes := amd_value(m, "VALU Active Threads")) is not None:
        return lanes, 64
    base = "smsp__thread_inst_executed_per_inst_executed"
    named = _first(m, f"{base}.ratio", "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio")
    if named is None and (percent := _first(m, f"{base}.pct", "warp_execution_efficiency")) is not None:
        named = 32 * percent / 100
    named = named or _ratio(m.get("smsp__thread_inst_executed.sum"), m.get("smsp__inst_executed.sum"))
    return (named, 32) if named is not None else None


def idle_share(m: Mapping[str, float]) -> float | None:
    """Return which part of the kernel's time an average SM has no work, against the SM that works longest."""
    average = m.get("sm__cycles_active.avg")
    if average is None and "sm__cycles_active.min" in m and "sm__cycles_active.max" in m:
        average = (
            m["sm__cycles_active.min"] + m["sm__cycles_active.max"]
        ) / 2  # between the two, where it lies is unknown
    longest = _first(m, "sm__cycles_active.max", "sm__cycles_elapsed.max", "sm__cycles_elapsed.avg")
    if average is None or not longest:
        return None
    return max(0.0, 1 - average / longest)


def amd_limiter(reading: KernelReading) -> tuple[str, float] | None:
    """Return what AMD's workgroups wait for, and percent of the waves that are there; `None` where many are."""
    waits = {what: amd_value(reading.metrics, f"Insufficient {name}") or 0.0 for name, what in _AMD_RESOURCES.items()}
    percent = next((v for n, v in reading.units_percent.items() if n in ("Wave Occupancy", "Wavefront Occupancy")), 0.0)
    most = max(waits, key=lambda k: waits[k])
    return (most, percent) if waits[most] > 0 and percent <= 50 else None


def grid_blocks(reading: KernelReading) -> int | None:
    """Return how many blocks the grid has."""
    try:
        sizes = [int(s) for s in (reading.grid or "").split("x")]
    except ValueError:
        return None
    blocks = 1
    for size in sizes:
        blocks *= size
    return blocks


def block_threads(reading: KernelReading) -> int | None:
    """Return how many threads a block has."""
    return grid_blocks(reading.model_copy(update={"grid": reading.block})) if reading.block else None


def waves_of(reading: KernelReading) -> float | None:
    """Return waves of blocks on the device; not counted or printed as 0.00: blocks over SMs if those are fewer."""
    waves = reading.metrics.get("launch__waves_per_multiprocessor")
    if waves:
        return waves
    units = amd_value(reading.metrics, "Active CUs")
    if units is not None and (percent := reading.units_percent.get("Active CUs")) is not None and percent < 100:
        return percent / 100 if units > 0 else None
    sms = _first(reading.metrics, "launch__sm_count", "device__attribute_multiprocessor_count")
    blocks = grid_blocks(reading)
    return blocks / sms if sms and blocks and blocks < sms else None
