"""Phase of a program around a site: warm-up or timed, and the places where the host waits."""

import re
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    arguments,
    enclosing,
    field,
    name_of,
    statement_of,
    walk,
)
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, TraceEvent

_OWN_WARM_UP = re.compile(r"^for\s*\([^;=]*=\s*-\s*\(?\w|;[^;]*<=?[^;]*(?:\w*warm\w*\s*\+|\+\s*\w*warm\w*)[^;]*;", re.I)
"""`for (i = -warmup; ...)`, and `i < warmup + iterations`."""
_AFTER_WARM_UP = re.compile(r"(?:>=?|==|!)\s*\w*warm", re.I)
"""Tests that hold once the warm-up is over."""
_TIME = re.compile(r"\(*([A-Za-z_]\w*)(?:\.tv_\w+)?(?![\w(:]|\.\w+\(|->)")
"""A variable that keeps a time, or a member of its structure."""
HEADER = 400
"""Characters of a loop's header that are looked at."""


class Phases:
    """Timers and waits of a traced program."""

    def __init__(self, trace: Trace) -> None:
        """Find the timers; a recorded event is one only where elapsed time is asked for."""
        self._events = trace.events
        elapsed = any(c.name.startswith("cudaEventElapsedTime") for c in trace.program.calls)
        self._timers = [e for e in trace.events if e.kind == "timer" or (elapsed and _records(e))]

    def phase(self, event: TraceEvent, sites: list[TraceEvent]) -> str:
        """Return `warm-up`, `timed` or `plain`."""
        if _says_warm(event):
            return "warm-up"
        if self._is_timed(event):
            return "timed"
        name = event.call.name if event.call else ""
        later = [s for s in sites if s.number > event.number and s.call is not None and s.call.name == name]
        if event.loops and any(self._is_timed(s) and s.frame.entry == event.frame.entry for s in later):
            return "warm-up"
        return "plain"

    def is_timed(self, event: TraceEvent) -> bool:
        """Say whether an event stands between timers and is no warm-up."""
        return not _says_warm(event) and self._is_timed(event)

    def warms_itself(self, event: TraceEvent) -> bool:
        """Say whether the first iterations of a loop around an event are a warm-up that the clock leaves out."""
        own = [loop for loop in event.loops if _OWN_WARM_UP.search(loop.header[:HEADER])]
        return any("warm" in x.header.lower() or any(x in t.loops for t in self._timers) for x in own)

    def host_wait(self, event: TraceEvent) -> TraceEvent | None:
        """Return the first wait of the host after an event, within its entry function."""
        for other in self._events[event.number + 1 :]:
            if other.frame.entry != event.frame.entry:
                return None
            if other.kind == "sync" or (other.call is not None and other.call.name in ("cudaMemcpy", "hipMemcpy")):
                return other
        return None

    def _is_timed(self, event: TraceEvent) -> bool:
        """Say whether timers of one function stand before and after, with no third between that closes the first."""
        frames = list(_chain(event.frame))
        near = [t for t in self._timers if any(t.frame is f for f in frames)]
        for frame in frames:
            own = [t for t in near if t.frame is frame]
            before = [t for t in own if t.number < event.number]
            after = [t for t in own if t.number > event.number]
            if before and after and (_is_between(before, after) or _opens(_lone(own, before))):
                return True
        return False


def _is_between(before: list[TraceEvent], after: list[TraceEvent]) -> bool:
    """Say whether a time that is read later is subtracted from one that was read before, and not yet read again."""
    for later in after:
        name = _variable(later)
        for start in _starts(later):
            last = next((v for t in reversed(before) if (v := _variable(t)) in {start, name}), None)
            if last == start:
                return True
    return False


def _lone(own: list[TraceEvent], before: list[TraceEvent]) -> list[TraceEvent]:
    """Return the timers before an event that no subtraction of the function pairs with another."""
    starts = {start for t in own for start in _starts(t)} & {_variable(t) for t in own}
    return [t for t in before if _variable(t) not in starts and not _starts(t) & starts]


def _variable(timer: TraceEvent) -> str:
    """Return the variable that keeps a time: assigned, or given by its address."""
    call = timer.call
    if call is None:
        return ""
    for node in (n for n in call.nodes if n.type in {"pointer_expression", "identifier"}):
        if node.type == "pointer_expression" or call.name.endswith("EventRecord"):
            return call.source.text_without_space(node).removeprefix("&")
    made = enclosing(call.node, "init_declarator", "assignment_expression", "expression_statement")
    target = (field(made, "declarator") or field(made, "left")) if made is not None else None
    return call.source.text_without_space(target) if target is not None else ""


def _starts(timer: TraceEvent) -> set[str]:
    """Return the variables that are subtracted from a timer's, or from what it returns."""
    call = timer.call
    function = enclosing(call.node, "function_definition", "lambda_expression") if call is not None else None
    if call is None or function is None:
        return set()
    spans = _subtractions(call.source, function)
    name = _variable(timer)
    return {b for a, b, at in spans if (a and a == name) or at[0] <= call.node.start_byte < at[1]} - {name, ""}


@lru_cache(maxsize=64)
def _subtractions(source: ParsedSource, function: Node) -> list[tuple[str, str, tuple[int, int]]]:
    """Return variables with those that are subtracted from them, and where the first stand."""
    found: list[tuple[str, str, tuple[int, int]]] = []
    for node in walk(function):
        pair: tuple[Node | None, Node | None] = (None, None)
        if node.type == "binary_expression" and node.children[1].type == "-":
            pair = field(node, "left"), field(node, "right")
        elif node.type == CALL and name_of(source, node).endswith("EventElapsedTime") and len(arguments(node)) == 3:
            pair = arguments(node)[2], arguments(node)[1]
        elif node.type == CALL and name_of(source, node) == "difftime" and len(arguments(node)) == 2:
            pair = arguments(node)[0], arguments(node)[1]
        left, right = pair
        if left is not None and right is not None:
            names = [_TIME.match(source.text_without_space(n)) for n in (left, right)]
            later, earlier = (m[1] if m is not None else "" for m in names)
            found.append((later, earlier, (left.start_byte, left.end_byte)))
    return found


def _opens(before: list[TraceEvent]) -> bool:
    """Say whether the last of the timers before opens an interval: timers come in pairs."""
    distinct: list[tuple[str, int]] = []
    for timer in before:
        key = (timer.call.path, timer.call.place.start_byte) if timer.call else ("", 0)
        if key not in distinct:
            distinct.append(key)
    return len(distinct) % 2 == 1


def _records(event: TraceEvent) -> bool:
    return event.call is not None and event.call.name.startswith("cudaEventRecord")


def _chain(frame: CallFrame | None) -> "list[CallFrame]":
    found: list[CallFrame] = []
    while frame is not None:
        found.append(frame)
        frame = frame.parent
    return found


def _says_warm(event: TraceEvent) -> bool:
    """Say whether a loop, a condition, a function or the comment before calls itself a warm-up."""
    texts = [loop.header for loop in event.loops if not _OWN_WARM_UP.search(loop.header[:HEADER])]
    texts += [c.text for c in event.conditions if c.taken and not _AFTER_WARM_UP.search(c.text)]
    texts += [f.function.name for f in _chain(event.frame) if f.function is not None]
    if event.call is not None:
        texts += _comments_before(statement_of(event.call.place))
    return any("warm" in t.lower() for t in texts)


def _comments_before(statement: Node) -> list[str]:
    """Return the comments right before a statement and before the loops around it."""
    found: list[str] = []
    while True:
        before = statement.prev_named_sibling
        if before is not None and before.type == "comment" and before.text is not None:
            found.append(before.text.decode("utf-8", "replace"))
        loop = statement.parent
        if loop is not None and loop.type == "compound_statement":
            loop = loop.parent
        if loop is None or loop.type != "for_statement":
            return found
        statement = loop
