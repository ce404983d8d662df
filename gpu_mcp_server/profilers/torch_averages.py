"""torch.profiler's `key_averages()`, as rows of JSON or as the table that it prints.

Source: torch 2.11, and tables of older ones as people publish them. Ranges (`record_function`, `ProfilerStep*`) have
rows on the device as well, which enclose kernels: counted beside them, time counts twice. Old torch has no rows of
kernels at all, only operators.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import TIMES_NS, as_list, as_mapping, number
from gpu_mcp_server.profilers.kernel_names import short_name

DEVICE_US = (
    *(f"self_{device}_time_total" for device in ("device", "cuda", "xpu", "hip", "privateuse1")),
    *(f"{device}_time_total" for device in ("device", "cuda", "xpu")),
)
"""The whole time of a row is a kernel's own where no other is given: nothing lies below a kernel."""
RANGES = re.compile(
    r"ProfilerStep|##|Torch-Compiled Region|DistributedDataParallel\.|FullyShardedDataParallel\.|Optimizer\.|"
    r"enumerate\(DataLoader\)|autograd::|nccl:|c10d::|PyTorch|Iteration|ProfilerActivity"
)
KERNEL_SIGNS = re.compile(
    r"^(void |Mem(cpy|set)|_Z|nvjet|triton_|ampere_|sm\d\d|cutlass|cudnn|nccl(Dev)?Kernel|Cijk_|__amd_)|"
    r"[(<]|kern(el)?|::"
)
MOST_OF = 0.95
"""A row without a kernel's signs that lasts this part of all kernels may enclose them all."""
RANGE_OR_KERNEL = "a kernel or a range around kernels: averages do not say which"
_COLUMNS = re.compile(r" {2,}")
_TIME = re.compile(r"([\d.,]+)\s*(ns|us|ms|s)")


def parse_averages(text: str) -> list[KernelReading]:
    """Read kernels, the longest in all first; ranges and operators are left out; never raises."""
    rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _table_rows(text)
    return sorted(_kernels(rows), key=lambda k: -(k.total_us or 0))


def _json_rows(text: str) -> list[Mapping[str, Any]]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    listed = as_list(document) or as_list(as_mapping(document).get("key_averages"))
    return [as_mapping(row) for row in listed]


def _table_rows(text: str) -> list[Mapping[str, Any]]:
    header: list[str] = []
    found: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        cells = [c for c in _COLUMNS.split(line.strip("# \t")) if c]
        if cells[:1] == ["Name"] and "# of Calls" in cells:
            header = cells
        elif header and len(cells) == len(header) and not cells[0].startswith("---"):
            row = dict(zip(header, cells, strict=True))
            device = next((row[c] for c in header if re.fullmatch(r"Self (CUDA|XPU|HIP|Device)", c)), None)
            found.append(
                {
                    "key": row["Name"],
                    "count": row["# of Calls"],
                    "self_device_time_total": _us(device),
                    "self_cpu_time_total": _us(row.get("Self CPU")),
                }
            )
    return found


def _us(text: str | None) -> float | None:
    match = _TIME.fullmatch(text or "")
    value = number(match[1]) if match else None
    return value * TIMES_NS[match[2]] / 1000 if match and value is not None else None


def _device_us(row: Mapping[str, Any]) -> float:
    return next((v for n in DEVICE_US if (v := number(row.get(n))) is not None), 0.0)


def _kernels(rows: Sequence[Mapping[str, Any]]) -> list[KernelReading]:
    named = [(str(r.get("key") or r.get("name") or ""), r) for r in rows]
    on_host = {name for name, r in named if (number(r.get("self_cpu_time_total")) or 0) > 0}
    timed = [(name, r, us) for name, r in named if name and (us := _device_us(r)) > 0]
    device = [
        (name, r, us)
        for name, r, us in timed
        if name not in on_host and not name.startswith("aten::") and not r.get("is_user_annotation")
    ]
    device = [(name, r, us) for name, r, us in device if not RANGES.match(name)]
    sure = sum(us for name, _, us in device if KERNEL_SIGNS.search(name))
    kernels = [(name, r, us) for name, r, us in device if KERNEL_SIGNS.search(name) or not sure or us < MOST_OF * sure]
    if not kernels:
        operators = [(name, r, us) for name, r, us in timed if not RANGES.match(name)]
        return [_reading(*row, {"kind": "an operator: kernels have no rows in this table"}) for row in operators]
    return [
        _reading(*row, {} if KERNEL_SIGNS.search(row[0]) or not sure else {"kind": RANGE_OR_KERNEL}) for row in kernels
    ]


def _reading(name: str, row: Mapping[str, Any], us: float, texts: dict[str, str]) -> KernelReading:
    calls = max(1, int(number(row.get("count") or row.get("# of Calls")) or 1))
    return KernelReading(name=short_name(name), calls=calls, time_us=us / calls, total_us=us, texts=texts)
