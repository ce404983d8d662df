"""The graph of a program's communication, put together from its trace."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import basename

from gpu_mcp_server.nccl.analysis.buffer_dataflow import BufferDataflow, Partner
from gpu_mcp_server.nccl.analysis.p2p_patterns import Pattern, patterns
from gpu_mcp_server.nccl.analysis.timing_context import Phases
from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.branches import LOOPS
from gpu_mcp_server.nccl.program_model.memory_model import Allocation, MemoryLocation, Ref, merge_locations, uncast
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import Parse, enclosing, parse
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent
from gpu_mcp_server.nccl.templates import INFRASTRUCTURE, KERNELS

OURS = frozenset({INFRASTRUCTURE, KERNELS})
"""Generated headers are not part of what the program says."""
HOST_ACCESSED = frozenset({"managed", "host"})
"""Kinds of memory that the host's own code may write and read, which is not followed."""
MAX_WAYS = 16
"""Ways of reaching one site that are followed; one that is called more often is understood by its first callers."""
_RANK = re.compile(r"\b\w*[Rr]ank\b|\bmype\b|\bmyid\b|\bme\b")


@dataclass(eq=False)
class Buffer:
    """A buffer of one site."""

    role: str
    expression: Expression
    refs: list[Ref]
    places: list[MemoryLocation]
    allocations: list[Allocation]
    partners: list[Partner] = field(default_factory=list[Partner])

    @property
    def name(self) -> str:
        """Return its name in its function."""
        return " or ".join(dict.fromkeys(p.element_text() for p in self.places)) or self.text

    @property
    def text(self) -> str:
        """The argument as written."""
        return " ".join(self.expression.source.text(self.expression.node).split())

    @property
    def offset(self) -> str | None:
        """Return the offset of the argument in its buffer."""
        return next((r.offset for r in self.refs if r.offset), None)


@dataclass(eq=False)
class CallSite:
    """A call in the text that communicates, with every way in which it is reached."""

    id: str
    call: FunctionCall
    events: list[TraceEvent]
    buffers: list[Buffer]
    phase: str
    """timed where any way to it is"""
    is_warmed: bool
    """Whether the program itself has calls here that no clock sees before those that one does."""
    wait: TraceEvent | None

    @property
    def event(self) -> TraceEvent:
        """The first way."""
        return self.events[0]

    def argument(self, role: str) -> str | None:
        """Return an argument's text."""
        given = dict(zip(api_names.ROLES[self.call.name], self.call.arguments, strict=False))
        return given.get(role)

    def buffer(self, role: str) -> Buffer | None:
        """Return the buffer that is sent or received."""
        return next((b for b in self.buffers if b.role == role), None)

    @property
    def in_place(self) -> bool:
        """Return whether it receives where it sends from; a rank's own part of what all receive counts."""
        send, receive = self.buffer("send"), self.buffer("recv")
        if send is None or receive is None:
            return False
        shared = [
            (s.offset, r.offset) for s in send.refs for r in receive.refs if s.place == r.place and _is_same(s, r)
        ]
        return any((s == r and (s is None or send.text == receive.text)) or _is_part_of(s, r) for s, r in shared)

    @property
    def may_share(self) -> bool:
        """Return whether it may receive where it sends from: parts of one allocation are not told apart."""
        send, receive = self.buffer("send"), self.buffer("recv")
        return send is not None and receive is not None and bool(set(send.places) & set(receive.places))


class Analysis:
    """A program and all that was found out about it."""

    def __init__(
        self, files: Mapping[str, str], main: str | None = None, branch: int = 0, parse: Parse = parse
    ) -> None:
        """Parse, trace, resolve; `branch` and `parse` as of `ProgramModel.read`."""
        own = {p: t for p, t in files.items() if basename(p) not in OURS}
        self._files, self._main, self._parse = own, main, parse
        self.program = ProgramModel.read(own, main, branch, parse)
        self.trace = Trace(self.program)
        self.places = PointerResolver(self.program, self.trace)
        self.flow = BufferDataflow(self.program, self.trace, self.places)
        self._phases = Phases(self.trace)
        self.sites = self._sites()
        self.window_obstacles: dict[CallSite, list[str]] = {}
        """Why stage A cannot be done for a site, as far as it was asked."""
        self.patterns: list[Pattern] = patterns(self.trace.events, self.places)

    @cached_property
    def other(self) -> "Analysis | None":
        """The program with the other branches of conditions that split statements; None where there are none."""
        if not any(s.split_spans for s in self.program.sources.values()):
            return None
        return Analysis(self._files, self._main, -1, self._parse)

    @cached_property
    def other_sites(self) -> list["CallSite"]:
        """Sites that only the other branches have."""
        known = {(s.call.path, s.call.line, s.call.name) for s in self.sites}
        found = self.other.sites if self.other is not None else []
        return [s for s in found if (s.call.path, s.call.line, s.call.name) not in known]

    def events(self, *kinds: str) -> list[TraceEvent]:
        """Return the events of some kinds, in the order in which they happen."""
        found = [e for kind in kinds for e in self.trace.by_kind.get(kind, ())]
        return found if len(kinds) == 1 else sorted(found, key=lambda e: e.number)

    @cached_property
    def inits(self) -> list[FunctionCall]:
        """The calls that make communicators, each place in the text once."""
        return _distinct([e.call for e in self.events("comm_init") if e.call is not None])

    @cached_property
    def ends(self) -> list[FunctionCall]:
        """The calls that end communicators."""
        return _distinct([e.call for e in self.events("comm_end") if e.call is not None])

    def pattern_of(self, site: CallSite) -> Pattern | None:
        """Return the exchange that a send or receive is part of."""
        return next((p for p in self.patterns if any(s.event in site.events for s in p.sent)), None)

    def group_start(self, event: TraceEvent) -> TraceEvent | None:
        """Return the ncclGroupStart of the outermost group around an event."""
        if event.group is None:
            return None
        starts = [e for e in self.trace.events[: event.number] if e.kind == "group_start"]
        depth = 0
        for start in reversed(self.trace.events[: event.number]):
            if start.kind == "group_end":
                depth += 1
            elif start.kind == "group_start":
                if depth == 0 and not any(self._is_open(s, event) for s in starts if s.number < start.number):
                    return start
                depth = max(0, depth - 1)
        return None

    def _is_open(self, start: TraceEvent, event: TraceEvent) -> bool:
        depth = 0
        for other in self.trace.events[start.number : event.number]:
            depth += (other.kind == "group_start") - (other.kind == "group_end")
            if depth == 0:
                return False
        return depth > 0

    @cached_property
    def drives_several_gpus(self) -> bool | None:
        """Return whether one process holds several communicators; None where no communicator is made."""
        inits = self.events("comm_init")
        if not inits:
            return None
        return any(e.call is not None and (e.call.name == "ncclCommInitAll" or _is_of_several(e)) for e in inits)

    def names_rank(self, text: str | None) -> bool:
        """Say whether an expression speaks of the own rank."""
        return bool(text and _RANK.search(text))

    def _sites(self) -> list[CallSite]:
        together: dict[tuple[str, int, int, str], list[TraceEvent]] = {}
        for event in self.events("collective"):
            if event.call is not None:
                key = (event.call.path, event.call.place.start_byte, event.call.node.start_byte, event.call.name)
                together.setdefault(key, []).append(event)
        events = [e for group in together.values() for e in group[:MAX_WAYS]]
        return [self._site(n, group, events) for n, group in enumerate(sorted(together.values(), key=_where), 1)]

    def _site(self, number: int, events: list[TraceEvent], firsts: list[TraceEvent]) -> CallSite:
        first = events[0]
        assert first.call is not None
        buffers: list[Buffer] = []
        for role, node in zip(api_names.ROLES[first.call.name], first.call.nodes, strict=False):
            role = api_names.BUFFER_ROLES.get(role)
            if role is not None:
                buffers.append(self._buffer(role, Expression(first.call.source, node, first.frame), events))
        ways = events[:MAX_WAYS]
        phases = [self._phases.phase(e, firsts) for e in ways]
        phase = "timed" if "timed" in phases else "plain" if "plain" in phases else phases[0]
        warmed = phase == "timed" and (phases[0] != "timed" or any(self._phases.warms_itself(e) for e in ways))
        return CallSite(f"c{number}", first.call, events, buffers, phase, warmed, self._phases.host_wait(first))

    def is_timed(self, event: TraceEvent) -> bool:
        """Say whether a way to a site stands between timers."""
        return self._phases.is_timed(event)

    def _unseen(self, event: TraceEvent, places: list[MemoryLocation]) -> list[Partner]:
        """Return what may write or read a buffer and is not followed: host code, callers, what a pointer may be."""
        call = event.call
        made = [a for p in places for a in self.places.allocations.get(p, [])]
        shared = next((a.event.call for a in made if a.kind in HOST_ACCESSED and a.event.call is not None), None)
        if shared is not None:
            return [Partner(f"host code ({shared.name})", shared.line, shared.path, is_unknown=True)]
        known = [p for p in places if p.kind not in {"parameter", "unknown"}]
        if known or call is None:
            return []
        return [
            Partner(
                "callers" if any(p.kind == "parameter" for p in places) else "unresolved",
                call.line,
                call.path,
                is_unknown=True,
            )
        ]

    def _buffer(self, role: str, given: Expression, events: list[TraceEvent]) -> Buffer:
        refs: list[Ref] = []
        places: list[MemoryLocation] = []
        partners: list[Partner] = []
        for event in events[:MAX_WAYS]:
            here = Expression(given.source, given.node, event.frame)
            refs += self.places.value(here)
            own = self.places.origins(here)
            places += own
            find = self.flow.writers_before if role == "send" else self.flow.readers_after
            partners += find(event, own, here)
        places = merge_locations(places)
        partners += self._unseen(events[0], places)
        made = [a for p in places for a in self.places.allocations.get(p, [])]
        allocations = list(
            {(a.event.call.path, a.event.call.place.start_byte): a for a in made if a.event.call}.values()
        )
        return Buffer(role, given, list(dict.fromkeys(refs)), places, allocations, list(dict.fromkeys(partners)))


def _is_same(one: Ref, other: Ref) -> bool:
    """Say whether two pointers into one place mean one element of it, as written."""
    return (one.place.element is None) == (other.place.element is None) and (
        one.place.element is None or other.place.element is None or one.place.element.text == other.place.element.text
    )


def _is_part_of(send: str | None, receive: str | None) -> bool:
    """Say whether one of two offsets is the rank's own part of a buffer that starts at the other."""
    return (send is None) != (receive is None) and _RANK.search(send or receive or "") is not None


def _where(events: list[TraceEvent]) -> tuple[str, int, int]:
    call = events[0].call
    assert call is not None
    return call.path, call.place.start_byte, call.node.start_byte


def _distinct(calls: list[FunctionCall]) -> list[FunctionCall]:
    return list({(c.path, c.place.start_byte, c.node.start_byte): c for c in calls}.values())


def _is_of_several(event: TraceEvent) -> bool:
    """Say whether a communicator that is made in a group is one of several: not where one plain variable holds it."""
    call = event.call
    if event.group is None or call is None or event.frame.parent is not None:
        return event.group is not None
    target = api_names.COMM_INIT[call.name]
    node = uncast(call.nodes[target]) if target < len(call.nodes) else None
    inner = child(node, "argument") if node is not None and node.type == "pointer_expression" else None
    declared = declaration_of(call.source, inner) if inner is not None and inner.type == "identifier" else None
    return declared is None or initializer_of(declared) is not None or enclosing(declared.node, *LOOPS) is not None
