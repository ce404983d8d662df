"""Counts that stand only in the words of ncu's rules, under the names that its raw page has for them.

Page `details` has headlines and rules; how many bytes of a sector are used, which pipe is full, and how many wavefronts
are conflicts it says in sentences alone.

Source: rules of ncu 2023.2 to 2025.3, as its text and CSV have them.
"""

import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.models.profile import Rule
from gpu_mcp_server.profilers.csv_tables import number
from gpu_mcp_server.profilers.hardware_units import PERCENT

PIPES: Mapping[str, str] = {
    "fp64": "sm__pipe_fp64_cycles_active",
    "tensor": "sm__pipe_tensor_cycles_active",
    "fma": "sm__pipe_fma_cycles_active",
    "alu": "sm__pipe_alu_cycles_active",
    "fp16": "sm__inst_executed_pipe_fma_type_fp16",
    "xu": "sm__inst_executed_pipe_xu",
    "lsu": "sm__inst_executed_pipe_lsu",
    "adu": "sm__inst_executed_pipe_adu",
    "cbu": "sm__inst_executed_pipe_cbu_pred_on_any",
    "uniform": "sm__inst_executed_pipe_uniform",
}
"""First word of a pipeline's name in the rule to the sub-metric of its busy cycles."""
_USED = re.compile(
    r"global (?P<op>load|store)s (?:from|to) (?P<level>L1TEX|L2) .{0,120}?only (?P<bytes>[\d.]+) of the 32 bytes"
)
_CONFLICTS = re.compile(
    r"(?P<conflicts>\d[\d,]*) bank conflicts, which represent [\d.]+% of the overall (?P<whole>\d[\d,]*) wavefronts "
    r"for shared (?P<op>load|store)s"
)
_EXCESSIVE = re.compile(
    r"total of (?P<excess>\d[\d,]*) excessive (?P<what>wavefronts|sectors) \([\d.]+% of the total (?P<whole>\d[\d,]*) "
)
_PIPE = re.compile(r"(?P<pipe>\w+)(?: \([\w /]{1,20}\))? is the highest-utilized pipeline \((?P<percent>[\d.]+)%\)")
_OPS = {"load": "ld", "store": "st"}


def counts_in_rules(rules: Sequence[Rule]) -> dict[str, float]:
    """Return what the rules' sentences count, by metric; what two of them say, the first one says."""
    found: dict[str, float] = {}
    for rule in rules:
        text = " ".join(rule.text.split())
        for name, value in (*_bytes_used(text), *_conflicts(text), *_excess(text), *_pipe(text)):
            found.setdefault(name, value)
    return found


def _bytes_used(text: str) -> list[tuple[str, float]]:
    match = _USED.search(text)
    used = number(match["bytes"]) if match else None
    if match is None or used is None:
        return []
    return [(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{_OPS[match['op']]}.ratio", used)]


def _conflicts(text: str) -> list[tuple[str, float]]:
    match = _CONFLICTS.search(text)
    conflicts, whole = (number(match["conflicts"]), number(match["whole"])) if match else (None, None)
    if match is None or conflicts is None or not whole:
        return []
    op = _OPS[match["op"]]
    return [
        (f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum", conflicts),
        (f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum", whole),
    ]


def _excess(text: str) -> list[tuple[str, float]]:
    match = _EXCESSIVE.search(text)
    excess, whole = (number(match["excess"]), number(match["whole"])) if match else (None, None)
    if match is None or excess is None or not whole:
        return []
    base = "memory_l1_wavefronts_shared" if match["what"] == "wavefronts" else "memory_l2_theoretical_sectors_global"
    return [(base, whole), (f"{base}_ideal", max(0.0, whole - excess))]


def _pipe(text: str) -> list[tuple[str, float]]:
    match = _PIPE.search(text)
    name = PIPES.get(match["pipe"].lower()) if match else None
    percent = number(match["percent"]) if match else None
    return [(f"{name}{PERCENT}", percent)] if name and percent is not None else []
