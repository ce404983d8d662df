"""Who writes and who reads a buffer, in the order in which the program runs."""

from collections.abc import Iterable
from dataclasses import dataclass

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
from gpu_mcp_server.nccl.program_model.memory_model import MemoryLocation
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.trace import Expression, Loop, Trace, TraceEvent


@dataclass(frozen=True)
class EventUse:
    """One event's access to one buffer."""

    event: TraceEvent
    place: MemoryLocation
    reads: bool
    writes: bool
    is_unknown: bool = False


@dataclass(frozen=True)
class Partner:
    """Who produces or consumes a buffer."""

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
        for event in trace.events:
            merged: dict[MemoryLocation, EventUse] = {}
            for use in self._uses(event):
                other = merged.get(use.place, use)
                reads, writes = use.reads or other.reads, use.writes or other.writes
                merged[use.place] = EventUse(event, use.place, reads, writes, use.is_unknown or other.is_unknown)
            if merged:
                self.uses[event.number] = list(merged.values())

    def writers_before(self, event: TraceEvent, places: set[MemoryLocation]) -> list[Partner]:
        """Return who wrote what an event reads: back to the last that always writes and does not read."""
        return self._partners(event, places, writers=True)

    def readers_after(self, event: TraceEvent, places: set[MemoryLocation]) -> list[Partner]:
        """Return who reads what an event wrote: on to the next that always overwrites it."""
        return self._partners(event, places, writers=False)

    def _partners(self, event: TraceEvent, places: set[MemoryLocation], *, writers: bool) -> list[Partner]:
        events = self._trace.events
        step = -1 if writers else 1
        found: list[Partner] = []
        stopped_in = self._scan(event, places, range(event.number + step, -1 if writers else len(events), step), found)
        for loop in reversed(event.loops):
            if self._is_made_in(loop, places):
                break  # each iteration has a buffer of its own
            if stopped_in is not None and loop in stopped_in.loops:
                break
            inside = [e.number for e in events if loop in e.loops and (e.number - event.number) * step <= 0]
            others = [n for n in (reversed(inside) if writers else inside) if n != event.number]
            if self._scan(event, places, others, found, carried=True) is not None:
                break
        unique: dict[tuple[str, int, str], Partner] = {}
        for partner in found:
            unique.setdefault((partner.what, partner.line, partner.path), partner)
        return list(unique.values())

    def _is_made_in(self, loop: Loop, places: set[MemoryLocation]) -> bool:
        made = [a for p in places for a in self._places.allocations.get(p, [])]
        return any(loop in a.event.loops for a in made)

    def _makes(self, event: TraceEvent, places: set[MemoryLocation]) -> bool:
        return any(a.event is event for p in places for a in self._places.allocations.get(p, []))

    def _scan(
        self,
        event: TraceEvent,
        places: set[MemoryLocation],
        numbers: Iterable[int],
        found: list[Partner],
        carried: bool = False,
    ) -> TraceEvent | None:
        """Collect partners until one settles it; return that one."""
        for number in numbers:
            other = self._trace.events[number]
            if other.frame.entry != event.frame.entry or (other.kind == "alloc" and self._makes(other, places)):
                break
            for use in self.uses.get(number, []):
                if use.place not in places or _excluded(event, other) or _is_concurrent(event, other):
                    continue
                backwards = number < event.number if not carried else number > event.number
                if (use.writes if backwards else use.reads) and other.call is not event.call:
                    found.append(_partner(use, carried))
                settles = use.writes and not use.reads and set(other.conditions) <= set(event.conditions)
                if settles and not use.is_unknown and not _is_part(other):
                    return other
        return None

    def _uses(self, event: TraceEvent) -> Iterable[EventUse]:
        call = event.call
        if event.launch is not None:
            yield from self._launched(event)
        elif call is None:
            return
        elif event.kind == "collective":
            for role, node in zip(api_names.ROLES[call.name], call.nodes, strict=False):
                if role in {"send", "recv"}:
                    both = plain_collective(call.name) == "ncclBcast"
                    for place in self._places.origins(Expression(call.source, node, event.frame)):
                        yield EventUse(event, place, role == "send" or both, role == "recv")
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
            for place in self._places.origins(Expression(call.source, access.node, event.frame)):
                yield EventUse(event, place, access.reads, access.writes, access.is_unknown)

    def _plain(self, event: TraceEvent, which: int, *, reads: bool) -> Iterable[EventUse]:
        call = event.call
        if call is None or len(call.nodes) <= which:
            return
        for place in self._places.origins(Expression(call.source, call.nodes[which], event.frame)):
            yield EventUse(event, place, reads, not reads)

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
                for place in self._reached(given):
                    yield EventUse(event, place, access.reads, access.writes, access.is_unknown)

    def _reached(self, given: Expression) -> list[MemoryLocation]:
        """Return the buffers that an argument leads to: a structure leads to all that its members point to."""
        origins = self._places.origins(given)
        inside = [a for a in self._places.allocations for o in origins if a.key == o.key and a.path.startswith(o.path)]
        return list(dict.fromkeys([*origins, *inside]))


def _excluded(event: TraceEvent, other: TraceEvent) -> bool:
    """Say whether two events are on two sides of one branch."""
    sides = {c.key: c.taken for c in event.conditions}
    return any(c.key in sides and sides[c.key] != c.taken for c in other.conditions)


def _is_concurrent(event: TraceEvent, other: TraceEvent) -> bool:
    """Say whether two calls are of one group: neither waits for the other."""
    return event.group is not None and event.group == other.group and other.kind == "collective"


def _is_part(event: TraceEvent) -> bool:
    """Say whether a call writes a part of its buffer only: what is received from one peer."""
    return event.call is not None and event.call.name == "ncclRecv"


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
