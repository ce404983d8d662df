"""Check that ranks agree: collectives and their arguments, windows and their sizes, launches that communicate."""

from posixpath import basename

from gpu_mcp_server.nccl.checks.communication import GENERATED
from gpu_mcp_server.nccl.checks.findings import Finding, Severity
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.memory_model import Allocation, MemoryLocation
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.rank_agreement import allocation_disagreements, disagreements
from gpu_mcp_server.nccl.program_model.rank_dependence import (
    RankDependence,
    condition_dependence,
    event_dependence,
    rank_dependence,
)
from gpu_mcp_server.nccl.program_model.syntax import enclosing, field
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent

REGISTER_ALL = "register_all"
"""Of the generated block: makes a window over everything that it allocated."""


def own_program(program: ProgramModel) -> ProgramModel:
    """Return a program without the generated block, whose own calls are no calls of the program."""
    own = {p: s for p, s in program.sources.items() if basename(p) not in GENERATED}
    return program if len(own) == len(program.sources) else ProgramModel(own, program.main, program.missing_includes)


def findings(trace: Trace, places: PointerResolver, kernels: dict[str, Function]) -> list[Finding]:
    """Return in what ranks differ that must not.

    Args:
        trace: The program without the generated block.
        places: Its pointers.
        kernels: Kernels that communicate.
    """
    found: list[Finding] = []
    for event in trace.events:
        call = event.call
        if call is None:
            continue
        found += [_at(event, "error", f"{call.full_name}: {text}") for text in disagreements(trace, event)]
        if event.kind == "launch" and event.launch is not None and event.launch.kernel in kernels:
            found += _launch(event)
        if event.kind == "window":
            found += _window(event)
    return sorted(set(found + _allocations(trace, places)))


def _launch(event: TraceEvent) -> list[Finding]:
    loop = _rank_loop(event)
    if loop is not None and event.launch is not None:
        text = f"{event.launch.kernel} is launched in a loop whose bound depends on the rank ({loop})"
        return [_at(event, "error", f"{text}: all ranks must launch it equally often")]
    under = event_dependence(event)
    if under is None or event.launch is None:
        return []
    text = f"{event.launch.kernel} is launched under `{under[0]}`, which depends on the rank ({under[1]})"
    return [_at(event, "error", f"{text}: the other ranks never reach its barriers")]


def _rank_loop(event: TraceEvent) -> RankDependence | None:
    """Return why the loops around a launch run more often on some ranks than on others."""
    node = event.call.place if event.call is not None else None
    loop = enclosing(node, "for_statement", "while_statement")
    while loop is not None and event.frame.function is not None:
        source = event.frame.function.source
        parts = [p for p in (field(loop, "initializer"), field(loop, "condition")) if p is not None]
        why = next((w for p in parts if (w := rank_dependence(Expression(source, p, event.frame))) is not None), None)
        if why is not None:
            return why
        loop = enclosing(loop.parent, "for_statement", "while_statement")
    return None


def _window(event: TraceEvent) -> list[Finding]:
    call = event.call
    if call is None or len(call.nodes) < 3:
        return []
    why = rank_dependence(Expression(call.source, call.nodes[2], event.frame))
    under = [(c.text, w) for c in event.conditions if (w := condition_dependence(c)) is not None]
    found = (
        [f"a window's size {call.arguments[2]} depends on the rank ({why}): it must be one on all ranks"] if why else []
    )
    found += [
        f"a window is made under `{t}`, which depends on the rank ({w}): all ranks must make it" for t, w in under
    ]
    return [_at(event, "error", text) for text in found]


def _allocations(trace: Trace, places: PointerResolver) -> list[Finding]:
    """Return memory that no window can be made over; an error where one is, else a note."""
    everything = any(c.name == REGISTER_ALL for c in trace.program.calls)
    registered: set[MemoryLocation] = set()
    for event in trace.events:
        if event.kind == "window" and event.call is not None and len(event.call.nodes) > 1:
            registered |= set(places.origins(Expression(event.call.source, event.call.nodes[1], event.frame)))
    communicated = _communicated(trace, places)
    found: list[Finding] = []
    for place, listed in places.allocations.items():
        for made in listed:
            is_window = place in registered or (everything and made.kind == "nccl")
            if is_window or place in communicated:
                found += _allocation(trace, made, "error" if is_window else "note")
    return found


def _communicated(trace: Trace, places: PointerResolver) -> set[MemoryLocation]:
    found: set[MemoryLocation] = set()
    for event in trace.events:
        if event.kind == "collective" and event.call is not None:
            for node in event.call.nodes[:2]:
                found |= set(places.origins(Expression(event.call.source, node, event.frame)))
    return found


def _allocation(trace: Trace, made: Allocation, severity: Severity) -> list[Finding]:
    return [_at(made.event, severity, text) for text in allocation_disagreements(trace, made)]


def _at(event: TraceEvent, severity: Severity, text: str) -> Finding:
    call = event.call
    assert call is not None
    return Finding(call.path, call.line, "agreement", severity, text)
