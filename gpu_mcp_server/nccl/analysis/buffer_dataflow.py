"""Dataflow of buffers: writers and readers of each, in the order in which the program runs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.api_names import plain_collective
from gpu_mcp_server.nccl.program_model.kernel_effects import Effects, ParameterAccess
from gpu_mcp_server.nccl.program_model.library_calls import (
    DESCRIPTORS,
    PointerAccess,
    library_access,
    pointers_in,
    qualified_name,
)
from gpu_mcp_server.nccl.program_model.memory_model import MemoryLocation, merge_locations, uncast
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, walk
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import Condition, Expression, Loop, TraceEvent

PARTIAL = frozenset({"ncclRecv", "ncclPutSignal", "ncclReduce", "ncclGather", "ncclAlltoAllv"})
"""Calls that write what comes from one peer, parts of sizes of their own, or at the root only."""

PART_NODES = 3
"""Arguments of a send or a receive for its data: address, count and type."""


@dataclass(frozen=True)
class EventUse:
    """One event's access to one buffer."""

    event: TraceEvent
    place: MemoryLocation
    reads: bool
    writes: bool
    is_unknown: bool = False
    is_sure: bool = False
    """Whether its pointer means this buffer and no other, from its start."""
    held: frozenset[tuple[MemoryLocation, bool]] = frozenset()
    """The variables that were passed for it, each with whether all that happens by it is writing."""

    def join_use(self, other: "EventUse") -> "EventUse":
        """Return two uses of one event as one."""
        reads, writes, unknown = (
            self.reads or other.reads,
            self.writes or other.writes,
            self.is_unknown or other.is_unknown,
        )
        place = merge_locations([self.place, other.place])[0]
        sure = self.is_sure and other.is_sure
        return EventUse(self.event, place, reads, writes, unknown, sure, self.held | other.held)


@dataclass(frozen=True)
class BufferQuery:
    """Query for the writers or readers of the memory behind a pointer of an event."""

    event: TraceEvent
    places: dict[MemoryLocation, MemoryLocation]
    """By themselves: equal places may be different elements."""
    held: MemoryLocation | None
    """The variable that is passed."""
    is_backward: bool

    def place_of(self, use: EventUse) -> MemoryLocation | None:
        """Return the place that a use may share."""
        mine = self.places.get(use.place)
        apart = mine is not None and mine.element is not None and mine.element.is_apart(use.place.element)
        return None if apart else mine


@dataclass(frozen=True)
class Partner:
    """Producer or consumer of a buffer."""

    what: str
    line: int
    path: str
    is_carried: bool = False
    """In the loop's other iteration."""
    is_unknown: bool = False

    def text(self) -> str:
        """Say it."""
        more = " (other iteration)" if self.is_carried else ""
        return f"{self.what}:{self.line}{more}" + (" ?" if self.is_unknown else "")


class BufferDataflow:
    """The accesses of all events."""

    def __init__(self, program: ProgramModel, trace: Trace, places: PointerResolver) -> None:
        """Resolve the arguments of every launch, copy, fill and collective."""
        self._program, self._trace, self._places = program, trace, places
        self.effects = Effects(program)
        self.uses: dict[int, list[EventUse]] = {}
        self._changes: dict[MemoryLocation, list[int]] = {}
        """Where each variable is assigned."""
        self._group_loops = {e.group: e.loops for e in trace.events if e.kind == "group_start"}
        for event in trace.events:
            if event.kind == "assign" and event.left is not None:
                for place in places.lvalue(event.left):
                    self._changes.setdefault(place, []).append(event.number)
        for event in trace.events:
            merged: dict[MemoryLocation, EventUse] = {}
            for use in self._uses(event):
                merged[use.place] = merged[use.place].join_use(use) if use.place in merged else use
            if merged:
                self.uses[event.number] = list(merged.values())
        self._touching: dict[MemoryLocation, list[int]] = {}
        """The events that use or make each place: a query looks at no others."""
        for number, uses in self.uses.items():
            for use in uses:
                self._touching.setdefault(use.place, []).append(number)
        for place, made in places.allocations.items():
            self._touching.setdefault(place, []).extend(a.event.number for a in made)

    @cached_property
    def _always(self) -> dict[Loop, set[Condition]]:
        """Conditions under which all events of a loop stand."""
        found: dict[Loop, set[Condition]] = {}
        for event in self._trace.events:
            for loop in event.loops:
                under = found.get(loop)
                found[loop] = set(event.conditions) if under is None else under.intersection(event.conditions)
        return found

    def writers_before(self, event: TraceEvent, places: list[MemoryLocation], pointer: Expression) -> list[Partner]:
        """Return who wrote what an event reads by a pointer: back to the last that always writes and does not read."""
        return self._partners(BufferQuery(event, _by_itself(places), self._held(pointer), is_backward=True))

    def readers_after(self, event: TraceEvent, places: list[MemoryLocation], pointer: Expression) -> list[Partner]:
        """Return who reads what an event wrote by a pointer: on to the next that always overwrites it."""
        return self._partners(BufferQuery(event, _by_itself(places), self._held(pointer), is_backward=False))

    def _partners(self, query: BufferQuery) -> list[Partner]:
        events, event, step = self._trace.events, query.event, -1 if query.is_backward else 1
        found: list[Partner] = []
        touching = sorted({n for p in query.places for n in self._touching.get(p, ())})[::step]
        stopped_in = self._scan(query, [n for n in touching if (n - event.number) * step > 0], found)
        for loop in reversed(event.loops):
            if self._is_made_in(loop, set(query.places)):
                break  # each iteration has a buffer of its own
            if stopped_in is not None and loop in stopped_in.loops:
                break
            inside = [n for n in touching if loop in events[n].loops]
            again = loop in self._group_loops.get(event.group, ())
            if self._scan(query, inside, found, self._always[loop], again) is not None:
                break
        unique: dict[tuple[str, int, str], Partner] = {}
        for partner in found:
            unique.setdefault((partner.what, partner.line, partner.path), partner)
        return list(unique.values())

    def _is_made_in(self, loop: Loop, places: set[MemoryLocation]) -> bool:
        made = [a for p in places for a in self._places.allocations.get(p, [])]
        return any(loop in a.event.loops for a in made)

    def _makes(self, event: TraceEvent, places: Iterable[MemoryLocation]) -> bool:
        return any(a.event is event for p in places for a in self._places.allocations.get(p, []))

    def _scan(
        self,
        query: BufferQuery,
        numbers: Iterable[int],
        found: list[Partner],
        always: set[Condition] | None = None,
        group_again: bool = False,
    ) -> TraceEvent | None:
        """Collect partners until one settles it; return that one.

        In a loop's other iteration (`always` given: what all of the loop stands under) any branch may be taken, so only
        what stands under no more than the loop itself settles anything. `group_again`: the event's group is another one
        there, so its calls follow each other; parts of one buffer at offsets are taken to be different parts.
        """
        event, carried = query.event, always is not None
        under = set(event.conditions) if always is None else always
        hidden: list[set[Condition]] = []
        for number in numbers:
            other = self._trace.events[number]
            if other.frame.entry != event.frame.entry or (other.kind == "alloc" and self._makes(other, query.places)):
                break
            concurrent = other is not event and _is_concurrent(event, other)
            if (not carried and _excluded(event, other)) or (concurrent and not group_again):
                continue
            branches = set(other.conditions)
            if any(h <= branches for h in hidden):
                continue  # in its branch another has overwritten it all
            for use in self.uses.get(number, []):
                mine = query.place_of(use)
                if mine is None or (concurrent and (query.held is None or not use.held)):
                    continue
                if use.writes if query.is_backward else use.reads:
                    found.append(_partner(use, carried))
                whole = not _is_part(other) and self._overwrites(query, use, mine, carried)
                if whole or self._receives_just_that(event, other):
                    if branches <= under:
                        return other
                    hidden.append(branches)
        return None

    def _overwrites(self, query: BufferQuery, use: EventUse, mine: MemoryLocation, carried: bool) -> bool:
        """Say whether a use certainly replaces all that the query's pointer points to."""
        if use.is_unknown:
            return False
        if use.writes and not use.reads and not (mine.is_element or use.place.is_element):
            sure = use.is_sure and len(query.places) == 1
            return sure or (not carried and self._is_held(query, use))
        if use.writes and not use.reads and use.is_sure and mine.element is not None:
            return mine.element.is_same(use.place.element, within_iteration=not carried)
        return not carried and self._is_held(query, use)

    def _receives_just_that(self, event: TraceEvent, other: TraceEvent) -> bool:
        """Say whether a receive writes just what an event's call sends or receives: the same pointer, count and type.

        The names in them must mean the same at both: nothing between has assigned one, or was given its address.
        """
        mine, theirs = _part_of(event), _part_of(other)
        if mine is None or theirs is None or event.frame is not other.frame or not _receives(other):
            return False
        if [s.text_without_space(n) for s, n in mine] != [s.text_without_space(n) for s, n in theirs]:
            return False
        low, high = sorted((event.number, other.number))
        names = [(s, n) for s, given in mine for n in walk(given) if n.type in {"identifier", "field_expression"}]
        first, last = sorted(node.start_byte for _, node in (mine[0], theirs[0]))
        between = mine[0][0].data[first:last].decode("utf-8", "replace")
        if any(re.search(rf"&\s*{re.escape(s.text(n))}\b", between) for s, n in names):
            return False
        held = [p for s, n in names for p in self._places.lvalue(Expression(s, n, event.frame))]
        return not any(low < at < high for p in held for at in self._changes.get(p, ()))

    def _is_held(self, query: BufferQuery, use: EventUse) -> bool:
        """Say whether a use only writes by the query's own variable, which nothing has changed in between."""
        held = query.held
        if held is None or (held, True) not in use.held or (held, False) in use.held:
            return False
        low, high = sorted((query.event.number, use.event.number))
        return not any(low < at < high for at in self._changes.get(held, ()))

    def _held(self, pointer: Expression) -> MemoryLocation | None:
        """Return the variable that a pointer is, parameters seen through."""
        node = uncast(pointer.node)
        while node.type == "identifier" and pointer.source.text(node) in pointer.frame.bindings:
            pointer = pointer.frame.bindings[pointer.source.text(node)]
            node = uncast(pointer.node)
        if node.type != "identifier":
            return None
        found = self._places.lvalue(Expression(pointer.source, node, pointer.frame))
        return found[0] if len(found) == 1 else None

    def _uses(self, event: TraceEvent) -> Iterable[EventUse]:
        call = event.call
        if event.launch is not None:
            yield from self._launched(event)
        elif call is None:
            return
        elif event.kind == "collective":
            for role, node in zip(api_names.ROLES[call.name], call.nodes, strict=False):
                if role in api_names.BUFFER_ROLES:
                    both = plain_collective(call.name) == "ncclBcast"
                    given = Expression(call.source, node, event.frame)
                    yield from self._used(event, given, reads=role == "send" or both, writes=role != "send")
        elif event.kind == "copy" or call.name in api_names.COPIES:
            to, of = api_names.COPIES[call.name]
            yield from self._plain(event, to, reads=False)
            yield from self._plain(event, of, reads=True)
        elif event.kind == "fill":
            yield from self._plain(event, api_names.FILLS[call.name], reads=False)
        elif event.kind == "library":
            yield from self._library(event, call)

    def _library(self, event: TraceEvent, call: FunctionCall) -> Iterable[EventUse]:
        """Yield what a call of a library does; one that no table knows may do anything with every pointer it gets."""
        known = library_access(call.source, call.node) if call.name not in DESCRIPTORS else []
        if known is None:
            nodes = [p for n in call.nodes for p in pointers_in(call.source, n)]
            known = [PointerAccess(n, reads=True, writes=True, is_unknown=True) for n in nodes]
        for access in known:
            given = Expression(call.source, access.node, event.frame)
            does = {"reads": access.reads, "writes": access.writes, "is_unknown": access.is_unknown}
            yield from self._used(event, given, inside=access.is_unknown, **does)

    def _plain(self, event: TraceEvent, which: int, *, reads: bool) -> Iterable[EventUse]:
        call = event.call
        if call is None or len(call.nodes) <= which:
            return
        given = Expression(call.source, call.nodes[which], event.frame)
        yield from self._used(event, given, reads=reads, writes=not reads)

    def _launched(self, event: TraceEvent) -> Iterable[EventUse]:
        launch = event.launch
        if launch is None:
            return
        kernel = self._program.kernels.get(launch.kernel)
        effects = self.effects.effects_of(kernel) if kernel is not None else {}
        for number, node in enumerate(launch.nodes):
            given = Expression(launch.source, node, event.frame)
            if kernel is None:
                access = ParameterAccess(reads=True, writes=True, is_unknown=True)
            elif number < len(kernel.parameters):
                access = effects.get(kernel.parameters[number].name, ParameterAccess())
            else:
                continue
            if access.reads or access.writes:
                yield from self._used(
                    event, given, reads=access.reads, writes=access.writes, is_unknown=access.is_unknown, inside=True
                )

    def _used(
        self,
        event: TraceEvent,
        given: Expression,
        *,
        reads: bool,
        writes: bool,
        is_unknown: bool = False,
        inside: bool = False,
    ) -> Iterable[EventUse]:
        """Yield what an event does with each buffer that an argument may point to; `inside`: with its members too."""
        refs = self._places.value(given)
        origins = merge_locations(self._places.canonical(r.place) for r in refs)
        found = self._reached(origins) if inside else origins
        sure = len(found) == 1 and not any(r.offset for r in refs)
        held = self._held(given)
        passed = (
            frozenset({(held, writes and not reads)})
            if held is not None and not any(r.offset for r in refs)
            else frozenset[tuple[MemoryLocation, bool]]()
        )
        for place in found:
            yield EventUse(event, place, reads, writes, is_unknown, sure, passed)

    def _reached(self, origins: list[MemoryLocation]) -> list[MemoryLocation]:
        """Return the buffers that an argument leads to: a structure leads to all that its members point to."""
        inside = [a for a in self._places.allocations for o in origins if a.key == o.key and a.path.startswith(o.path)]
        inside += [m for o in origins for m in self._places.members_of(o)]
        return merge_locations([*origins, *(a for a in inside if a not in origins)])


def _by_itself(places: list[MemoryLocation]) -> dict[MemoryLocation, MemoryLocation]:
    """Return each place by itself, the first of equal ones."""
    return {p: p for p in reversed(places)}


def _excluded(event: TraceEvent, other: TraceEvent) -> bool:
    """Say whether two events are on two sides of one branch."""
    sides = {c.key: c.taken for c in event.conditions}
    return any(c.key in sides and sides[c.key] != c.taken for c in other.conditions)


def _is_concurrent(event: TraceEvent, other: TraceEvent) -> bool:
    """Say whether two calls are of one group: neither waits for the other."""
    return event.group is not None and event.group == other.group and other.kind == "collective"


def _is_part(event: TraceEvent) -> bool:
    """Say whether a call writes a part of its buffer only, or on one rank only."""
    return event.call is not None and plain_collective(event.call.name) in PARTIAL


def _receives(event: TraceEvent) -> bool:
    return event.call is not None and plain_collective(event.call.name) == "ncclRecv"


def _part_of(event: TraceEvent) -> list[tuple[ParsedSource, Node]] | None:
    """Return pointer, count and type of a send or a receive."""
    call = event.call
    if call is None or plain_collective(call.name) not in {"ncclSend", "ncclRecv"} or len(call.nodes) < PART_NODES:
        return None
    return [(call.source, node) for node in call.nodes[:PART_NODES]]


def _partner(use: EventUse, carried: bool) -> Partner:
    event = use.event
    if event.launch is not None:
        return Partner(event.launch.kernel, event.launch.line, _path(event), carried, use.is_unknown)
    call = event.call
    name = qualified_name(call.source, call.node) if call is not None and event.kind == "library" else ""
    return Partner(
        name or (call.name if call else "?"), call.line if call else 0, _path(event), carried, use.is_unknown
    )


def _path(event: TraceEvent) -> str:
    return event.call.path if event.call is not None else ""
