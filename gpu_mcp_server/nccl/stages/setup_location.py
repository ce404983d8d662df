"""Places for device communicators and windows in the program: after the allocations, before the first use."""

import re
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.program_model.api_names import COMM_INIT, ROLES
from gpu_mcp_server.nccl.program_model.branches import hidden_head, jumped_label
from gpu_mcp_server.nccl.program_model.memory_model import uncast
from gpu_mcp_server.nccl.program_model.syntax import BLOCKS, ParsedSource, field, statement_of
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Expression, TraceEvent


@dataclass(frozen=True)
class SetupLocation:
    """A statement before which set-up goes, and the communicator there."""

    source: ParsedSource
    statement: Node
    comm: str
    loop: str | None
    """The header of the loop over communicators, where one process has several."""


class NoSetupLocation(Exception):
    """There is no place for the set-up; the message says why."""


def anchors(analysis: Analysis, sites: list[CallSite]) -> list[SetupLocation]:
    """Return where to set up, each place once; a place whose buffers an earlier one has registered is left out.

    Raises:
        NoSetupLocation: If a communicator cannot be named where it would be needed.
    """
    found: list[SetupLocation] = []
    settled: dict[tuple[str, int], tuple[CallFrame, int]] = {}
    for site in sorted(sites, key=lambda s: s.event.number):
        frame, node = _frame_of(analysis, site)
        made = [e for e in _constraints(analysis, site) if position_in(e, frame) is not None]
        if any(f is frame and all((position_in(e, frame) or 0) < at for e in made) for f, at in settled.values()):
            continue
        function = frame.function
        if function is None:
            raise NoSetupLocation(f"{site.id}: stands in no function")
        needed = [position_in(e, frame) or 0 for e in made]
        statement = _before_clock(
            analysis, frame, _outward(function.source, statement_of(node), needed), max(needed, default=0)
        )
        key = (function.source.path, statement.start_byte)
        if key not in settled:
            settled[key] = (frame, statement.start_byte)
            comm, loop = _communicator(analysis, site, frame)
            found.append(SetupLocation(function.source, statement, comm, loop))
    return found


def _frame_of(analysis: Analysis, site: CallSite) -> tuple[CallFrame, Node]:
    """Return the frame in which to set up, and where in it the collective (or its group) is reached.

    That is where the communicator is made if the collective runs below, so that helpers called in a loop do not set
    up again and again; otherwise the collective's own.
    """
    event = analysis.group_start(site.event) or site.event
    inits = [e.frame for e in analysis.events("comm_init") if e.frame.entry == event.frame.entry]
    frame: CallFrame | None = event.frame
    node = event.call.place if event.call is not None else None
    own = (event.frame, node)
    while frame is not None and node is not None:
        if any(f is frame for f in inits):
            return frame, node
        frame, node = frame.parent, frame.place
    if own[1] is None:
        raise NoSetupLocation(f"{site.id}: stands in no function")
    return own[0], own[1]


def _constraints(analysis: Analysis, site: CallSite) -> list[TraceEvent]:
    """Return what must have happened before: allocations of the site's buffers, making the communicator."""
    made = [a.event for b in site.buffers for p in b.places for a in analysis.places.allocations.get(p, [])]
    entry = site.event.frame.entry
    started = [e for e in (*made, *analysis.events("comm_init")) if e.frame.entry == entry]
    return [e for e in started if e.number < site.event.number]


def position_in(event: TraceEvent, frame: CallFrame) -> int | None:
    """Return where in a frame's function an event happens, directly or in what it calls."""
    node = event.call.place if event.call is not None else None
    at: CallFrame | None = event.frame
    while at is not None and at is not frame:
        node, at = at.place, at.parent
    return node.start_byte if at is not None and node is not None else None


def _outward(source: ParsedSource, statement: Node, positions: list[int]) -> Node:
    """Climb out of loops and branches that hold nothing which must come before."""
    best = statement
    while True:
        head = _repeating_head(source, statement)
        if head is not None and head != statement and all(p < head.start_byte for p in positions):
            best = statement = head
            continue
        outer = statement.parent
        while outer is not None and outer.type in BLOCKS and outer.parent is not None:
            if outer.parent.type in {"function_definition", "lambda_expression"}:
                return best
            if hidden_head(outer) is not None:
                break
            outer = outer.parent
        if outer is None or outer.type in {"function_definition", "lambda_expression", "translation_unit"}:
            return best
        outer = outer if outer.type in BLOCKS else statement_of(outer)
        if any(outer.start_byte <= p < outer.end_byte for p in positions):
            return best
        if outer == statement:
            return best
        best = statement = outer


def _repeating_head(source: ParsedSource, statement: Node) -> Node | None:
    """Return what makes a loop of a statement without being its parent: a macro before it, a label jumped back to."""
    macro = hidden_head(statement)
    return statement_of(macro) if macro is not None else jumped_label(source, statement)


def _before_clock(analysis: Analysis, frame: CallFrame, statement: Node, after: int) -> Node:
    """Move up before a clock or a capture that starts beside the statement: set-up is part of neither."""
    marks = analysis.events("timer", "order", "capture")
    clocks = [e.call.place for e in marks if e.frame is frame and e.call is not None]
    beside = [s for s in map(statement_of, clocks) if s.parent == statement.parent]
    earlier = [s for s in beside if after < s.start_byte < statement.start_byte]
    return min(earlier, key=lambda s: s.start_byte, default=statement)


def _communicator(analysis: Analysis, site: CallSite, frame: CallFrame) -> tuple[str, str | None]:
    event = site.event
    call = event.call
    assert call is not None
    node = next((n for r, n in zip(ROLES[call.name], call.nodes, strict=False) if r == "comm"), None)
    if node is None:
        raise NoSetupLocation(
            f"{site.id}: {call.name} at line {call.line} has {len(call.nodes)} arguments, so no communicator"
        )
    if analysis.drives_several_gpus:
        return _looped(site, call.source.text(node))
    here = Expression(call.source, node, event.frame)
    while here.frame is not frame:
        name = here.source.text(uncast(here.node))
        bound = here.frame.bindings.get(name)
        if bound is None:
            return _made(analysis, frame, site), None
        here = bound
    return here.source.text(here.node), None


def _looped(site: CallSite, comm: str) -> tuple[str, str | None]:
    for loop in reversed(site.event.loops):
        match = re.match(r"for\s*\(\s*(?:[\w:]+\s+)+(\w+)\s*=", loop.header)
        if match and re.search(rf"\b{match.group(1)}\b", comm):
            return comm, loop.header
    if not site.event.loops:
        raise NoSetupLocation(f"{site.id}: one process has several communicators, but no loop over them is seen here")
    raise NoSetupLocation(f"{site.id}: which loop goes over the communicators ({comm}) cannot be told")


def _made(analysis: Analysis, frame: CallFrame, site: CallSite) -> str:
    """Name the communicator as the function does that makes it."""
    for event in analysis.events("comm_init"):
        call = event.call
        if event.frame is not frame or call is None or call.via_macro:
            continue
        node = uncast(call.nodes[COMM_INIT[call.name]])
        if node.type == "pointer_expression" and node.children[0].type == "&":
            inner = field(node, "argument")
            return call.source.text(inner) if inner is not None else ""
        return f"*{call.source.text(node)}"
    raise NoSetupLocation(f"{site.id}: the communicator has no name where it would be set up")
