"""Sends and receives that go to the device, whatever peers and sizes each rank has.

A group becomes one exchange, which pairs parts as NCCL does, by order between two ranks, and asks the sender where its
part lies. All ranks must come to it, so at least one part of a group must be every rank's. A call in no group becomes
one of a pair of kernels, in which no third rank takes part; both halves must then go to the device.
"""

from collections.abc import Iterable

from gpu_mcp_server.nccl.analysis.alltoall_loop import sweep_of
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.p2p_patterns import Pattern
from gpu_mcp_server.nccl.program_model.api_names import FLOAT8, POINT_TO_POINT, ROLES, plain_collective
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.rank_dependence import event_dependence
from gpu_mcp_server.nccl.program_model.trace_events import TraceEvent

ALONE = "on the device a put needs the receiver's offset and a flag, which the agent has to write"


def exchange_obstacles(analysis: Analysis, pattern: Pattern) -> list[str]:
    """Return why the sends and receives of a pattern cannot become one exchange; empty if they can."""
    if not pattern.grouped:
        said = f"{pattern.name} by ncclSend/ncclRecv outside a group"
        return list(dict.fromkeys(f"{said}: {why}" for why in _lone_obstacles(analysis)))
    groups = {e.group for s in pattern.sent for e in _ways(analysis, s.event)}
    calls = {_place(c) for g in groups for c in _bounds(analysis, g)}
    groups |= {e.group for e in analysis.events("group_start") if e.call is not None and _place(e.call) in calls}
    found: list[str] = []
    for group in groups:
        found += [f"{pattern.name} by ncclSend/ncclRecv: {why}" for why in _group_obstacles(analysis, group)]
    return list(dict.fromkeys(found))


def _lone_obstacles(analysis: Analysis) -> list[str]:
    """Return why calls in no group stay: all of them go or none, as the halves of a pair may stand anywhere."""
    found: list[str] = []
    if any(p.grouped and sweep_of(p) is None for p in analysis.patterns):
        found.append(f"others stand in groups, and which of them meet cannot be told; {ALONE}")
    alone = [s for p in analysis.patterns if not p.grouped for s in p.sent]
    if len({s.role for s in alone}) == 1:
        found.append(f"only {alone[0].event.call.name if alone[0].event.call else ''} is here, no other half; {ALONE}")
    for sent in alone:
        call = sent.event.call
        if call is None or any(e.group is not None for e in _ways(analysis, sent.event)):
            found.append(f"one of its calls is made inside a group too; {ALONE}")
        elif len(call.nodes) != len(ROLES[call.name]):
            found.append("a call has other arguments than ncclSend and ncclRecv take")
        else:
            found += [f"exchanges of {kind} are not generated" for kind in sorted(set(call.arguments) & FLOAT8)]
    return found


def group_bounds(analysis: Analysis, pattern: Pattern) -> list[FunctionCall]:
    """Return the calls that start and end the groups of a pattern."""
    groups = {e.group for s in pattern.sent for e in _ways(analysis, s.event)} - {None}
    return [c for g in groups for c in _bounds(analysis, g)]


def _group_obstacles(analysis: Analysis, group: int | None) -> list[str]:
    if group is None:
        return [f"one of its calls is made outside a group too; {ALONE}"]
    inside = [e for e in analysis.trace.events if e.group == group and e.kind in {"collective", "wrapper"}]
    calls = [e.call for e in inside if e.call is not None]
    others = {c.name for c in calls if plain_collective(c.name) not in POINT_TO_POINT}
    bounds = _bounds(analysis, group)
    found = [f"its group also holds {', '.join(sorted(others))}"] if others else []
    if len(bounds) != 2 or any(c.via_macro for c in bounds):
        found.append("where its group starts and ends is not seen as two plain calls")
    if any(len(c.nodes) != len(ROLES[c.name]) for c in calls):
        found.append("a call has other arguments than ncclSend and ncclRecv take")
    elif not found and len({c.source.text_without_space(c.nodes[5]) for c in calls}) > 1:
        found.append("its parts are on several streams")
    kinds = {a for c in calls for a in c.arguments if a in FLOAT8}
    found += [f"exchanges of {kind} are not generated" for kind in sorted(kinds)]
    if inside and all(event_dependence(e) is not None for e in inside):
        found.append("no part of its group is every rank's, and all ranks must come to an exchange")
    return found


def _ways(analysis: Analysis, event: TraceEvent) -> Iterable[TraceEvent]:
    """Return all events of the call in the text that an event is one of."""
    call = event.call
    if call is None:
        return ()
    same = (e for e in analysis.events("collective") if e.call is not None)
    return [e for e in same if e.call is not None and _place(e.call) == _place(call)]


def _bounds(analysis: Analysis, group: int | None) -> list[FunctionCall]:
    events = [e for e in analysis.events("group_start", "group_end") if e.group == group]
    return [e.call for e in events if e.call is not None]


def _place(call: FunctionCall) -> tuple[str, int, int]:
    return call.path, call.place.start_byte, call.node.start_byte
