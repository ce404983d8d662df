"""Phase of a program around a site: warm-up or timed, and the places where the host waits."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.syntax import statement_of
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, TraceEvent

_OWN_WARM_UP = re.compile(r"^for\s*\([^;=]*=\s*-\s*\(?\w|;[^;]*<=?[^;]*(?:\w*warm\w*\s*\+|\+\s*\w*warm\w*)[^;]*;", re.I)
"""`for (i = -warmup; ...)`, and `i < warmup + iterations`."""
_AFTER_WARM_UP = re.compile(r"(?:>=?|==|!)\s*\w*warm", re.I)
"""Tests that hold once the warm-up is over."""
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
            if before and after and _opens(before):
                return True
        return False


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
