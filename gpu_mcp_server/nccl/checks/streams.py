"""The host's flow around communicating kernels: neighbours on other streams, and which window is which."""

import re

from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.checks.offsets import transfers_of
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.kernel_effects import Effects
from gpu_mcp_server.nccl.program_model.memory_model import MemoryLocation
from gpu_mcp_server.nccl.program_model.pointer_resolution import PointerResolver
from gpu_mcp_server.nccl.program_model.trace import Trace
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent

DEFAULT = frozenset({"", "0", "nullptr", "NULL", "cudaStreamLegacy", "cudaStreamPerThread"})


class HostFlow:
    """Launches of a program with the buffers that they touch."""

    def __init__(self, trace: Trace, places: PointerResolver, kernels: dict[str, Function]) -> None:
        """Resolve what each launch reads and writes."""
        self._trace, self._places, self._kernels = trace, places, kernels
        self._effects = Effects(trace.program)

    def findings(self) -> list[Finding]:
        """Return consumers and producers that do not wait, and windows that are exchanged."""
        found: list[Finding] = []
        for event in self._trace.events:
            if event.launch is None or event.launch.kernel not in self._kernels:
                continue
            sent, received = self._windows(event)
            found += self._unordered(event, received, 1)
            found += self._unordered(event, sent, -1)
            found += self._exchanged(event, sent, received)
        return sorted(set(found))

    def _windows(self, event: TraceEvent) -> tuple[set[MemoryLocation], set[MemoryLocation]]:
        """Return the buffers whose windows a kernel sends from, and those that it writes on peers."""
        launch = event.launch
        kernel = self._kernels[launch.kernel] if launch is not None else None
        sent: set[MemoryLocation] = set()
        received: set[MemoryLocation] = set()
        if launch is None or kernel is None:
            return sent, received
        names = {p.name: n for p, n in zip(kernel.parameters, launch.nodes, strict=False)}
        for transfer in transfers_of(kernel):
            for name, kept in ((transfer.from_window, sent), (transfer.to_window, received)):
                parameter, dot, member = name.partition(".")
                if parameter in names:
                    given = Expression(launch.source, names[parameter], event.frame)
                    kept |= set(self._places.origins(given, dot + member))
        return sent, received

    def _accessed(self, event: TraceEvent) -> tuple[set[MemoryLocation], set[MemoryLocation]]:
        """Return what a plain kernel reads and writes."""
        launch = event.launch
        kernel = self._trace.program.kernels.get(launch.kernel) if launch is not None else None
        reads: set[MemoryLocation] = set()
        writes: set[MemoryLocation] = set()
        if launch is None or kernel is None or kernel.name in self._kernels:
            return reads, writes
        effects = self._effects.effects_of(kernel)
        for parameter, node in zip(kernel.parameters, launch.nodes, strict=False):
            access = effects.get(parameter.name)
            if access is None or access.is_unknown:
                continue
            places = set(self._places.origins(Expression(launch.source, node, event.frame)))
            reads |= places if access.reads else set()
            writes |= places if access.writes else set()
        return reads, writes

    def _unordered(self, event: TraceEvent, places: set[MemoryLocation], step: int) -> list[Finding]:
        """Look for the neighbour that touches a window's memory on another stream, with nothing between that waits."""
        found: list[Finding] = []
        number = event.number + step
        while 0 <= number < len(self._trace.events):
            other = self._trace.events[number]
            number += step
            if other.kind in {"sync", "order", "capture"} or other.frame.entry != event.frame.entry:
                break
            reads, writes = self._accessed(other)
            touched = (reads if step > 0 else writes) & places
            if not touched or _same_stream(event, other) or other.loops != event.loops:
                continue
            who = other.launch.kernel if other.launch is not None else "?"
            how = "reads what the exchange wrote" if step > 0 else "writes what the exchange sends"
            text = f"{who} {how} ({next(iter(touched))}) on another stream, and nothing between makes one wait"
            found.append(_at(other, text))
        return found

    def _exchanged(self, event: TraceEvent, sent: set[MemoryLocation], received: set[MemoryLocation]) -> list[Finding]:
        """Find exchanged windows: a kernel receives into the one written before, and sends from the one read after."""
        if len(sent) != 1 or len(received) != 1:
            return []
        written, read = self._around(event)
        name = event.launch.kernel if event.launch is not None else "?"
        if sent == received:
            other = self._unused(sent)
            said = f"{name} sends from and into the window over {next(iter(sent))}, and nothing uses that over {other}"
            return [_at(event, said)] if other else []
        if received <= written - read and sent <= read - written:
            said = f"{name} writes peers' {next(iter(received))}, which is produced before, and sends from "
            said += f"{next(iter(sent))}, which is read behind it: the windows are exchanged"
            return [_at(event, said)]
        return []

    def _around(self, event: TraceEvent) -> tuple[set[MemoryLocation], set[MemoryLocation]]:
        """Return what plain kernels of the same loop write before a launch, and what they read behind it."""
        written: set[MemoryLocation] = set()
        read: set[MemoryLocation] = set()
        for other in self._trace.events:
            if other.launch is None or other.frame.entry != event.frame.entry:
                continue
            reads, writes = self._accessed(other)
            if other.number < event.number:
                written |= writes
            else:
                read |= reads
        return written, read

    def _unused(self, sent: set[MemoryLocation]) -> str:
        """Return a registered buffer whose window no launch gets."""
        given: set[MemoryLocation] = set()
        registered: set[MemoryLocation] = set()
        for event in self._trace.events:
            call = event.call
            if event.launch is not None and event.launch.kernel in self._kernels:
                for node in event.launch.nodes:
                    given |= set(self._places.origins(Expression(event.launch.source, node, event.frame)))
            elif event.kind == "window" and call is not None and len(call.nodes) > 1:
                registered |= set(self._places.origins(Expression(call.source, call.nodes[1], event.frame)))
        return next((str(p) for p in sorted(registered - given - sent, key=str)), "")


def _same_stream(event: TraceEvent, other: TraceEvent) -> bool:
    """Say whether two launches are on one stream, or one is on the default stream, which waits for the others."""
    streams = [re.sub(r"\s", "", (e.launch.stream if e.launch is not None else None) or "") for e in (event, other)]
    return streams[0] == streams[1] or bool(DEFAULT & set(streams))


def _at(event: TraceEvent, text: str) -> Finding:
    call = event.call
    assert call is not None
    return Finding(call.path, call.line, "streams", "error", text)
