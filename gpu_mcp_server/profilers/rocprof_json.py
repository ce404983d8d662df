"""rocprofv3's JSON (`--output-format json`): dispatches with their kernels' names, and copies.

Source: the JSON schema of ROCm/rocprofiler-sdk and its data files; no AMD GPU was at hand. Timestamps are nanoseconds.
"""

from typing import Any

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers.csv_tables import as_list, as_mapping, dimensions, number, whole
from gpu_mcp_server.profilers.gpu_events import GpuEvent, readings_of
from gpu_mcp_server.profilers.kernel_names import short_name
from gpu_mcp_server.profilers.rocprof import workgroups
from gpu_mcp_server.profilers.torch_trace import load_json

TOOL = "rocprofiler-sdk-tool"
_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name", "kernel_name")
_RESOURCES = {
    "private_segment_size": "Scratch_Size",
    "group_segment_size": "LDS_Block_Size",
    "arch_vgpr_count": "VGPR_Count",
    "accum_vgpr_count": "Accum_VGPR_Count",
    "sgpr_count": "SGPR_Count",
}


def parse(text: str) -> list[KernelReading]:
    """Return the kernels, the longest in all first; never raises."""
    return readings_of(e for e in parse_events(text) if e.kind == "kernel")


def parse_events(text: str) -> list[GpuEvent]:
    """Return dispatches and copies of all processes in the document; never raises."""
    if TOOL not in text:
        return []
    found: list[GpuEvent] = []
    for process in map(as_mapping, as_list(as_mapping(load_json(text)).get(TOOL))):
        symbols = {whole(s.get("kernel_id")): s for s in map(as_mapping, as_list(process.get("kernel_symbols")))}
        records = as_mapping(process.get("buffer_records"))
        for record in map(as_mapping, as_list(records.get("kernel_dispatch"))):
            info = as_mapping(record.get("dispatch_info"))
            symbol = symbols.get(whole(info.get("kernel_id")), {})
            name = next((str(symbol[n]) for n in _NAMES if symbol.get(n)), f"kernel {info.get('kernel_id')}")
            found += _event(short_name(name), record, info, symbol)
        for record in map(as_mapping, as_list(records.get("memory_copy"))):
            found += _event("memory copy", record, {}, {})
    return sorted(found, key=lambda e: e.start)


def _event(name: str, record: dict[str, Any], info: dict[str, Any], symbol: dict[str, Any]) -> list[GpuEvent]:
    start, end = number(record.get("start_timestamp")), number(record.get("end_timestamp"))
    if start is None or end is None or end < start:
        return []
    block = [as_mapping(info.get("workgroup_size")).get(a) for a in "xyz"]
    grid = [as_mapping(info.get("grid_size")).get(a) for a in "xyz"]
    named = {to: number(info.get(key, symbol.get(key))) for key, to in _RESOURCES.items()}
    return [
        GpuEvent(
            name=name,
            start=start,
            end=end,
            kind="kernel" if info else "copy",
            device=str(as_mapping(info.get("agent_id")).get("handle", "")),
            stream=str(as_mapping(info.get("queue_id")).get("handle", "")),
            grid=workgroups(grid, block) if info else None,
            block=dimensions(block) if info else None,
            metrics={k: v for k, v in named.items() if v is not None} if info else {},
        )
    ]
