"""The commands by which rocprofv3 profiles a program: kernels' times first, then counters, a run for each group.

A group is what one run can count: eight counters of the shader block SQ, four of a channel of the L2 cache TCC, of
which FETCH_SIZE and WRITE_SIZE take several each. Times of runs that count are not used where a trace has them.
Never run on AMD hardware.

Sources: ROCm documentation, "Using rocprofv3" (7.x: `--kernel-trace`, `--pmc`, `--kernel-include-regex`,
`--output-format csv`, `-d`, `-o`, and `--` ahead of the program) and "MI200 / MI300 performance counters".
"""

from collections.abc import Sequence

from gpu_mcp_server.models.profile import ProfileLevel

GROUPS: dict[ProfileLevel, tuple[tuple[str, ...], ...]] = {
    "quick": (),
    "standard": (
        ("SQ_WAVES", "SQ_INSTS_VALU", "SQ_INSTS_SALU", "SQ_INSTS_VMEM_RD", "SQ_INSTS_VMEM_WR", "SQ_INSTS_LDS"),
        ("FETCH_SIZE",),
        ("WRITE_SIZE",),
    ),
    "full": (
        ("SQ_WAVES", "SQ_INSTS_VALU", "SQ_INSTS_SALU", "SQ_INSTS_VMEM_RD", "SQ_INSTS_VMEM_WR", "SQ_INSTS_LDS"),
        ("SQ_LDS_BANK_CONFLICT", "SQ_WAIT_INST_LDS", "SQ_WAVE_CYCLES", "SQ_BUSY_CYCLES"),
        ("FETCH_SIZE",),
        ("WRITE_SIZE",),
        ("TCC_HIT_sum", "TCC_MISS_sum"),
    ),
}
"""Counters by level; a group that a GPU does not know fails alone, and its counters are named as missing."""
FILES = ("*_kernel_trace.csv", "*_memory_copy_trace.csv", "*_counter_collection.csv")


def commands(path: str, level: ProfileLevel, kernel: str | None, folder: str, argv: Sequence[str]) -> list[list[str]]:
    """Return the runs of a level: the trace, then one for each group of counters.

    Args:
        path: rocprofv3.
        level: How much.
        kernel: Regular expression for the kernels that are counted; all by default.
        folder: Where each run gets a folder of its own.
        argv: The program.
    """
    only = ["--kernel-include-regex", kernel] if kernel else []
    runs = [["--kernel-trace", "--memory-copy-trace"], *(["--pmc", *group, *only] for group in GROUPS[level])]
    return [
        [path, *options, "--output-format", "csv", "-d", f"{folder}/run-{n}", "-o", "run", "--", *argv]
        for n, options in enumerate(runs)
    ]


def missing_counters(level: ProfileLevel, counted: Sequence[str]) -> list[str]:
    """Return what to say of counters that were asked for and did not come."""
    lacking = [name for group in GROUPS[level] for name in group if name not in counted]
    if not lacking:
        return []
    return [
        f"counters {', '.join(lacking)}: rocprofv3 gave none; `rocprofv3-avail list --pmc` says what this GPU has, "
        "and the output what failed"
    ]
