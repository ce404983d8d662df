"""Feasibility of the stages for the program alone, with the reasons against it.

Stage A: buffers in windows, a device communicator; the host's collectives stay.
Stage B: calls go to generated device kernels, with the host's collective as the counted fallback.
"""

import re

from gpu_mcp_server.nccl.analysis.alltoall_loop import sweep_of
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, Buffer, CallSite
from gpu_mcp_server.nccl.analysis.exchange_groups import exchange_obstacles
from gpu_mcp_server.nccl.analysis.p2p_patterns import Pattern
from gpu_mcp_server.nccl.program_model.api_names import COMM_SPLIT, FLOAT8, plain_collective
from gpu_mcp_server.nccl.program_model.memory_model import MemoryLocation
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.rank_agreement import allocation_disagreements, disagreements
from gpu_mcp_server.nccl.program_model.rank_dependence import event_dependence
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent

REPLACED = {
    "ncclAlltoAll": "AlltoAll",
    "ncclAllGather": "AllGather",
    "ncclReduceScatter": "ReduceScatter",
    "ncclAllReduce": "AllReduce",
    "ncclBroadcast": "Broadcast",
    "ncclBcast": "Bcast",
    "ncclReduce": "Reduce",
    "ncclGather": "Gather",
    "ncclScatter": "Scatter",
    "ncclAlltoAllv": "AlltoAllv",
}
"""Host calls with a generated counterpart."""
PEER_ACCESSED = {
    "ncclAlltoAll": ("recv",),
    "ncclAllGather": ("recv",),
    "ncclReduceScatter": ("send",),
    "ncclAllReduce": ("send", "recv"),
    "ncclBroadcast": ("recv",),
    "ncclBcast": ("recv",),
    "ncclReduce": ("send",),
    "ncclGather": ("send",),
    "ncclScatter": ("recv",),
}
"""Buffers whose offset within the window must be the same on all ranks, as the kernel uses its own rank's."""
SYMMETRIC = "NCCL_WIN_COLL_SYMMETRIC"
_HIP_HEADER = re.compile(r"^[^\S\n]*#\s*include\s*[<\"](?:[\w./-]*/)?(?:hip_runtime(?:_api)?|rccl)\.h", re.MULTILINE)
_CUDA_HEADER = re.compile(r"^[^\S\n]*#\s*include\s*[<\"](?:[\w./-]*/)?(?:cuda_runtime(?:_api)?|cuda)\.h", re.MULTILINE)
_NONBLOCKING = re.compile(rb"^(?!\s*//).*\bblocking\s*=\s*0\s*[;,}]", re.MULTILINE)
OPERATIONS = frozenset({"ncclSum", "ncclMax", "ncclMin"})
MEMORY = {
    "managed": "managed memory cannot be registered: allocate it with ncclMemAlloc and copy what the host touches",
    "pooled": "memory of a pool cannot be registered: allocate it with ncclMemAlloc, once and not in the loop",
    "pitched": "pitched memory cannot be registered as it is: allocate rows * pitch bytes with ncclMemAlloc",
    "host": "host memory cannot be registered: stage it through a buffer from ncclMemAlloc",
    "nvshmem": "memory of NVSHMEM belongs to another library",
}


def stage_a(analysis: Analysis, site: CallSite) -> list[str]:
    """Return why stage A cannot be done by the program for a site; empty if it can."""
    known = analysis.window_obstacles.get(site)
    if known is None:
        reasons = _communicators(analysis)
        for event in site.events:
            reasons += disagreements(analysis.trace, event)
        for buffer in site.buffers:
            reasons += _buffer(analysis, buffer)
        known = analysis.window_obstacles[site] = list(dict.fromkeys(reasons))
    return list(known)


def stage_b(analysis: Analysis, site: CallSite) -> list[str]:
    """Return why stage B cannot be done by the program for a site; empty if it can."""
    reasons = stage_a(analysis, site)
    name = plain_collective(site.call.name)
    pattern = analysis.pattern_of(site)
    if pattern is not None and sweep_of(pattern) is None:
        reasons += exchange_obstacles(analysis, pattern)
        others = [s for s in analysis.sites if s is not site and _meets(analysis.pattern_of(s), pattern)]
        lost = [s for s in others if stage_a(analysis, s) or s.call.via_macro or s.call.via_pointer]
        if lost:
            where = f"{lost[0].call.path}:{lost[0].call.line}"
            what = "of its group" if pattern.grouped else "which it may meet"
            reasons.append(f"{lost[0].call.name} at {where}, {what}, has to stay")
    elif pattern is None and name not in REPLACED:
        reasons.append(f"{name} has no generated device counterpart")
    if site.call.via_macro:
        reasons.append(f"the call is inside the macro {site.call.via_macro}: write it out at its uses")
    if site.call.via_pointer:
        reasons.append(f"the call goes through the function pointer {site.call.via_pointer}: call {name} directly")
    operation, kind = site.argument("op"), site.argument("type")
    if operation and operation.startswith("nccl") and operation not in OPERATIONS:
        reasons.append(f"{operation} is not generated (ncclSum, ncclMax, ncclMin are)")
    made = [c for c in analysis.program.calls if c.name.startswith("ncclRedOpCreate")]
    if operation and not operation.startswith("nccl") and made:
        where = f"{made[0].name} at {made[0].path}:{made[0].line}"
        reasons.append(f"{operation} may be an operation of the program's own ({where}), which no kernel applies")
    if kind in FLOAT8 and operation:
        reasons.append(f"reductions of {kind} are not generated")
    if analysis.events("capture"):
        reasons.append("the program captures CUDA graphs: windows must be registered before the capture")
    for role in PEER_ACCESSED.get(name, ()):
        buffer = site.buffer(role)
        if buffer is not None and analysis.names_rank(buffer.offset):
            reasons.append(f"{buffer.text}: the offset depends on the rank, but peers write or read there")
    return list(dict.fromkeys(reasons))


def _meets(other: Pattern | None, pattern: Pattern) -> bool:
    """Say whether two exchanges are one, or both stand in no group, so that the halves of a pair may be in each."""
    return other is pattern or (other is not None and not other.grouped and not pattern.grouped)


def is_hip_program(analysis: Analysis) -> bool:
    """Say whether a program is for HIP and RCCL alone; one that includes or calls CUDA too may be built for either."""
    texts = [s.data.decode("utf-8", "replace") for s in analysis.program.sources.values()]
    if any(c.name.startswith("cuda") for c in analysis.program.calls):
        return False
    return any(_HIP_HEADER.search(t) for t in texts) and not any(_CUDA_HEADER.search(t) for t in texts)


def _communicators(analysis: Analysis) -> list[str]:
    if is_hip_program(analysis):
        return ["a program of HIP: the generated windows and kernels are CUDA, write RCCL's by hand"]
    splits = [c for c in analysis.inits if c.name in COMM_SPLIT]
    if splits:
        return [f"{splits[0].name} at {splits[0].path}:{splits[0].line}: which window belongs to which communicator?"]
    if not analysis.inits:
        return ["the communicator is not created in these files: give the file that calls ncclCommInit*"]
    if any(_NONBLOCKING.search(s.data) for s in analysis.program.sources.values()):
        return ["its communicator does not block (blocking = 0): windows need one that does, or waits after each step"]
    if len(analysis.inits) > 1:
        where = ", ".join(f"{c.path}:{c.line}" for c in analysis.inits[:3])
        return [f"{len(analysis.inits)} communicators are created ({where}): say which buffers belong to which"]
    return []


def _buffer(analysis: Analysis, buffer: Buffer) -> list[str]:
    if buffer.expression.node.type in {"null", "number_literal"}:
        return []
    if not buffer.places:
        return [f"{buffer.text}: what it points to cannot be told"]
    lost = [p for p in buffer.places if p not in analysis.places.allocations]
    if lost:
        what = "a parameter that no caller here gives" if lost[0].kind == "parameter" else "its allocation is not here"
        return [f"{lost[0]}: {what}"]
    reasons: list[str] = []
    windows = own_windows(analysis)
    for made in buffer.allocations:
        call = made.event.call
        where = f"{call.path}:{call.line}" if call is not None else "?"
        if made.kind in MEMORY:
            reasons.append(f"{made.place} ({made.function}, {where}): {MEMORY[made.kind]}")
        if call is not None and call.via_macro:
            reasons.append(f"{made.place}: allocated inside the macro {call.via_macro} ({where})")
        reasons += allocation_disagreements(analysis.trace, made)
        if made.place in windows:
            reasons += [
                f"{made.place} has a window of the program's own {why}"
                for why in _unusual(analysis, windows[made.place])
            ]
            if made.kind == "device":
                reasons.append(f"{made.place} has a window of the program's own over {made.function}: use ncclMemAlloc")
    return reasons


def own_windows(analysis: Analysis) -> dict[MemoryLocation, list[TraceEvent]]:
    """Return the calls that register windows of the program's own, by what they lie over."""
    found: dict[MemoryLocation, list[TraceEvent]] = {}
    for event in analysis.events("window"):
        for place in _registered(analysis, event):
            found.setdefault(place, []).append(event)
    return found


def _unusual(analysis: Analysis, registered: list[TraceEvent]) -> list[str]:
    """Return why the generated code cannot use a window."""
    calls = [e.call for e in registered if e.call is not None]
    found: list[str] = []
    if any(len(c.arguments) != 5 or not is_plain_window(c) for c in calls):
        found.append(f"with other flags than {SYMMETRIC} or NCCL_WIN_DEFAULT")
    if any(c.via_macro for c in calls):
        found.append("that a macro registers")
    if any(event_dependence(e) is not None for e in registered):
        found.append("that only some ranks register")
    if any(e.group is not None and window_group_end(analysis, e) is None for e in registered):
        found.append("that a group registers whose end is not seen as a plain call, so its handle comes later")
    return found


def is_plain_window(call: FunctionCall) -> bool:
    """Say whether a registration's flags are one that the generated code takes; it registers symmetric ones."""
    return "".join(call.arguments[4:]).strip() in {SYMMETRIC, "NCCL_WIN_DEFAULT", "0"}


def window_group_end(analysis: Analysis, event: TraceEvent) -> FunctionCall | None:
    """Return the ncclGroupEnd after which a window that a group registers has its handle."""
    ends = [e.call for e in analysis.events("group_end") if e.group == event.group and e.call is not None]
    return ends[0] if len(ends) == 1 and not ends[0].via_macro else None


def _registered(analysis: Analysis, event: TraceEvent) -> list[MemoryLocation]:
    if event.call is None or len(event.call.nodes) < 2:
        return []
    return analysis.places.origins(Expression(event.call.source, event.call.nodes[1], event.frame))
