"""Place for a warm-up that runs once and ahead of every clock: in the function of the call, or in a caller."""

import re
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis, CallSite
from gpu_mcp_server.nccl.program_model.branches import LOOPS
from gpu_mcp_server.nccl.program_model.memory_model import uncast
from gpu_mcp_server.nccl.program_model.scopes import declaration_at, declaration_of
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, enclosing, field, name_of, statement_of, walk
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Expression, TraceEvent
from gpu_mcp_server.nccl.stages.evolve_markers import region
from gpu_mcp_server.nccl.stages.setup_location import position_in

ONCE = frozenset(
    {"thread", "jthread", "async", "pthread_create", "emplace_back", "push_back", "call_once", "invoke", "apply"}
)
"""Library functions that call what they are given once each time."""


class NoWarmUpLocation(Exception):
    """There is no place where a warm-up runs once; the message says why."""


@dataclass(frozen=True)
class WarmUpLocation:
    """A statement before which the warm-up goes, and what it repeats."""

    source: ParsedSource
    before: Node
    text: str
    stream: str
    is_written_out: bool
    """Whether the text is a call with arguments of a caller, and not the statements themselves."""
    each: str | None = None
    """The loop around it that creates the communicator or the buffers: the warm-up runs once in each iteration."""


def find_location(analysis: Analysis, site: CallSite) -> WarmUpLocation:
    """Return where the first timed way to a site can be warmed once.

    Raises:
        NoWarmUpLocation: If each place would run more than once, or does not know the arguments.
    """
    event = next((e for e in site.events if analysis.is_timed(e)), site.event)
    made = _set_up(analysis, site, event)
    frame, node = _frame(analysis, event, made)
    source = analysis.program.sources.get(frame.function.source.path) if frame.function is not None else None
    if source is None or event.call is None:
        raise NoWarmUpLocation("it stands in no function of these files")
    if frame is event.frame:
        first, last = region(source, site.call)
        text = source.data[first.start_byte : last.end_byte].decode("utf-8", "surrogateescape")
        used, stream = _names(first, last), site.argument("stream") or "0"
    else:
        arguments = [_spelled(Expression(event.call.source, n, event.frame), frame) for n in event.call.nodes]
        first = last = statement_of(node)
        text, stream = f"{event.call.name}({', '.join(arguments)})", arguments[-1]
        used = set(re.findall(r"[A-Za-z_]\w*", " ".join(arguments)))
    before, each = _before_clock(analysis, frame, event, first, made)
    _check_repeats(frame, before, event, made)
    unknown = _unknown(source, used, before, first, last)
    if unknown is not None:
        raise NoWarmUpLocation(f"its argument {unknown} is not known before the clock starts and the loops begin")
    _check_order(frame, before, made)
    return WarmUpLocation(source, before, text, stream, frame is not event.frame, each)


def _set_up(analysis: Analysis, site: CallSite, event: TraceEvent) -> list[TraceEvent]:
    """Return what makes the communicator and the site's buffers, ahead of an event."""
    made = [a.event for b in site.buffers for p in b.places for a in analysis.places.allocations.get(p, [])]
    found = [*made, *analysis.events("comm_init")]
    return [e for e in found if e.number < event.number and e.frame.entry == event.frame.entry]


def _frame(analysis: Analysis, event: TraceEvent, made: list[TraceEvent]) -> tuple[CallFrame, Node]:
    """Return the innermost call that has all loops and clocks inside it, and runs once for what is set up."""
    clocks = {id(e.frame) for e in analysis.events("timer", "order")}
    setup_loops = {loop for e in made for loop in e.loops}
    loops = {loop.key[2] for loop in event.loops if loop not in setup_loops}
    chain: list[tuple[CallFrame, Node]] = []
    frame: CallFrame | None = event.frame
    node = event.call.place if event.call is not None else None
    while frame is not None and node is not None:
        chain.append((frame, node))
        frame, node = frame.parent, frame.place
    outermost = max((n for n, (f, _) in enumerate(chain) if id(f) in clocks | loops), default=0)
    for found, place in chain[outermost:]:
        if _runs_once(analysis, found, made):
            return found, place
    again = next((f.function.name for f, _ in chain if f.function is not None and _calls_itself(analysis, f)), None)
    if again is not None:
        raise NoWarmUpLocation(f"{again} calls itself")
    name = chain[-1][0].function.name if chain and chain[-1][0].function is not None else "?"
    raise NoWarmUpLocation(f"how often {name} runs is not known: its callers are not in these files")


def _runs_once(analysis: Analysis, frame: CallFrame, made: list[TraceEvent]) -> bool:
    """Say whether a function runs once, or once for each communicator that it makes; all callers must be here."""
    if any(e.kind == "comm_init" and position_in(e, frame) is not None for e in made):
        return True
    root = frame
    while root.parent is not None:
        root = root.parent
    if root.function is None or root.function.name != "main":
        return False
    if _calls_itself(analysis, frame):
        return False
    function, ways = frame.function, set[int]()
    for event in analysis.trace.events:
        at: CallFrame | None = event.frame
        while at is not None:
            if at.function is function:
                ways.add(id(at))
            at = at.parent
    return len(ways) == 1


def _calls_itself(analysis: Analysis, frame: CallFrame) -> bool:
    """Say whether a function is called again while it runs, by itself or by what it calls."""
    start = frame.function
    pending, seen = ([start.name] if start is not None else []), set[str]()
    calls: dict[str, set[str]] = {}
    for call in analysis.program.calls:
        if call.function is not None and call.name in analysis.program.by_name:
            calls.setdefault(call.function.name, set()).add(call.name)
    while pending:
        for name in calls.get(pending.pop(), ()):
            if start is not None and name == start.name:
                return True
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return False


def _check_repeats(frame: CallFrame, before: Node, event: TraceEvent, made: list[TraceEvent]) -> None:
    """Refuse a place that a jump back, a macro or a library's function repeats."""
    source = frame.function.source if frame.function is not None else None
    setup = {loop for e in made for loop in e.loops}
    for loop in event.loops:
        if loop not in setup and loop.key[2] == id(frame) and loop.key[1] < before.start_byte:
            raise NoWarmUpLocation(f"`{loop.header}` repeats it")
    lone = enclosing(before, "lambda_expression", "function_definition")
    while source is not None and lone is not None and lone.type == "lambda_expression":
        if any((at := position_in(e, frame)) is not None and lone.start_byte <= at < lone.end_byte for e in made):
            return
        listed = lone.parent
        call = listed.parent if listed is not None and listed.type == "argument_list" else None
        if call is not None and call.type == CALL and name_of(source, call) not in ONCE:
            raise NoWarmUpLocation(f"how often {name_of(source, call)} runs the function that it gets is not known")
        lone = enclosing(lone.parent, "lambda_expression", "function_definition")


def _before_clock(
    analysis: Analysis, frame: CallFrame, event: TraceEvent, first: Node, made: list[TraceEvent]
) -> tuple[Node, str | None]:
    """Return the last statement ahead of every clock and of every loop that does not set up again."""
    timers = [e for e in analysis.events("timer", "order") if e.frame is frame and e.number < event.number]
    starts = [statement_of(e.call.place) for e in timers if e.call is not None]
    needed = [at for e in made if (at := position_in(e, frame)) is not None]
    node = statement_of(first)
    while True:
        beside = [s for s in starts if s.parent == node.parent and s.start_byte < node.start_byte]
        node = min(beside, key=lambda s: s.start_byte) if beside else node
        outer = enclosing(node.parent, *LOOPS, "function_definition", "lambda_expression")
        if outer is None or outer.type not in LOOPS:
            return node, None
        if any(outer.start_byte <= at < outer.end_byte for at in needed):
            header = next((x.header for x in event.loops if x.key[1:] == (outer.start_byte, id(frame))), "a loop")
            return node, header
        node = statement_of(outer)


def _names(first: Node, last: Node) -> set[str]:
    """Return the names in statements."""
    found: set[str] = set()
    statement: Node | None = first
    while statement is not None:
        found |= {n.text.decode("utf-8", "replace") for n in walk(statement) if n.type == "identifier" and n.text}
        if statement == last:
            break
        statement = statement.next_named_sibling
    return found


def _unknown(source: ParsedSource, used: set[str], before: Node, first: Node, last: Node) -> str | None:
    """Return a name that is declared, assigned or handed out by address behind a place, before it is used."""
    meant: dict[str, tuple[str, int]] = {}
    for name in sorted(used):
        made = declaration_at(source, name, first)
        if made is not None and not first.start_byte <= made.declarator.start_byte < last.end_byte:
            meant[name] = made.key
            if made.declarator.start_byte >= before.start_byte:
                return name
    function = enclosing(before, "function_definition", "lambda_expression")
    for node in walk(function) if function is not None else ():
        if before.start_byte <= node.start_byte < first.start_byte:
            target = _changed(node)
            name = source.text(target) if target is not None and target.type == "identifier" else ""
            made = declaration_at(source, name, node) if name in meant else None
            if made is not None and made.key == meant[name]:
                return name
    return None


def _changed(node: Node) -> Node | None:
    """Return what a node assigns, counts up, or hands out by address."""
    if node.type == "assignment_expression":
        target = field(node, "left")
    elif node.type == "update_expression" or (node.type == "pointer_expression" and node.children[0].type == "&"):
        target = field(node, "argument")
    else:
        return None
    return uncast(target) if target is not None else None


def _check_order(frame: CallFrame, before: Node, made: list[TraceEvent]) -> None:
    """Refuse a place before the memory or the communicator is there."""
    for needed in made:
        at = position_in(needed, frame)
        if at is not None and at >= before.start_byte:
            what = needed.call.name if needed.call is not None else "memory"
            raise NoWarmUpLocation(f"{what} stands behind the place where no loop has begun")


def _spelled(of: Expression, frame: CallFrame) -> str:
    """Return an expression of a helper as its caller would write it.

    Raises:
        NoWarmUpLocation: If it names what only the helper has.
    """
    node, source = of.node, of.source
    if of.frame is frame:
        return source.text(node)
    parts: list[tuple[Node, str]] = []
    for inner in walk(node):
        if inner.type in {"type_identifier", "template_type", "template_function", "this"}:
            raise NoWarmUpLocation(f"its argument {source.text(node)} has no name in the function that runs once")
        if inner.type != "identifier":
            continue
        bound = of.frame.bindings.get(source.text(inner))
        made = declaration_of(source, inner)
        if bound is not None and (made is None or made.is_parameter):
            spelled = _spelled(bound, frame)
            parts.append((inner, spelled if spelled.replace("_", "").isalnum() else f"({spelled})"))
        elif made is not None and made.scope.type not in {"translation_unit", "declaration_list"}:
            raise NoWarmUpLocation(f"its argument {source.text(node)} has no name in the function that runs once")
    text, start = source.data[node.start_byte : node.end_byte], node.start_byte
    for inner, spelled in reversed(parts):
        text = text[: inner.start_byte - start] + spelled.encode() + text[inner.end_byte - start :]
    return text.decode("utf-8", "replace")
