"""The communication of an NCCL program: sites, buffers, exchanges, and the stages that are feasible."""

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel

SUMMARY_CHARACTERS = 1500
"""About 400 tokens at the usual four characters a token or a little less."""
SHOWN_SITES = 8


class BufferUse(Model):
    """A buffer of a collective."""

    role: str
    """send, recv, or both when in place"""
    name: str
    """The variable that holds it, as its function names it."""
    expression: str
    offset: str | None = None
    memory: str
    """device, nccl, managed, pooled, pitched, host, nvshmem, or unknown"""
    allocated: list[str] = []
    """FUNCTION at FILE:LINE (bytes)."""
    producers: list[str] = []
    """Writer before it: kernel or call:line; `?` when the body of a function is not here."""
    consumers: list[str] = []


class Feasibility(Model):
    """Feasibility of a stage for the program alone, and the reasons against it."""

    possible: bool
    reasons: list[str] = []


class CollectiveSite(Model):
    """One call that communicates."""

    id: str
    call: str
    path: str
    line: int
    function: str
    arguments: dict[str, str]
    """As written, by role."""
    loops: list[str] = []
    """The outermost first, callers' loops too, of each way to it."""
    conditions: list[str] = []
    compiled_if: list[str] = []
    """Conditions of the preprocessor."""
    phase: str
    """warm-up, timed, or plain"""
    group: int | None = None
    via: str | None = None
    """The macro or function pointer that hides the call."""
    in_place: bool = False
    buffers: list[BufferUse] = []
    host_waits_at: str | None = None
    """The first place after it where the host waits for the device; recording an event is not waiting."""
    exchange: str | None = None
    stage_a: Feasibility = Feasibility(possible=False)
    stage_b: Feasibility = Feasibility(possible=False)

    def line_text(self) -> str:
        """Say it on one line."""
        where = f"{self.id} {self.call} {self.path}:{self.line} ({self.phase}{', in place' if self.in_place else ''})"
        flow = "; ".join(
            f"{b.role} {b.name}"
            + (f" <- {_first(b.producers)}" if b.producers else "")
            + (f" -> {_first(b.consumers)}" if b.consumers else "")
            for b in self.buffers
        )
        able = " ".join(f"{n}{'+' if f.possible else '-'}" for n, f in (("A", self.stage_a), ("B", self.stage_b)))
        return f"{where} [{able}] {flow}"


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _cut(text: str, length: int) -> str:
    """Return a text as it is, or its beginning with a sign that more is in graph.json."""
    return text if len(text) <= length else f"{text[: length - 2]} …"


class P2pExchange(Model):
    """Sends and receives that belong together."""

    id: str
    pattern: str
    """all-to-all, all-to-all-v, ring, halo, ping-pong, pairwise, gather, scatter, or point-to-point"""
    sites: list[str]
    grouped: bool
    why: str


class KernelUse(Model):
    """A kernel: what its body does with its pointers, and where it is launched."""

    name: str
    path: str
    line: int
    reads: list[str] = []
    writes: list[str] = []
    unknown: list[str] = []
    """Handed to functions that are not here."""
    peer_access: bool = False
    launches: list[str] = []
    """FILE:LINE api<<<grid, block>>>"""


class CollectiveGraph(ResultModel):
    """A program's communication as a graph."""

    status: str
    """ok, or nothing to transform"""
    headline: str
    files: list[str] = []
    processes: str = "unknown"
    """one GPU a process, one process for several GPUs, or unknown"""
    stages: str = ""
    """How many stages to take, and why."""
    sites: list[CollectiveSite] = Field(default=[])
    exchanges: list[P2pExchange] = []
    kernels: list[KernelUse] = []
    communicators: list[str] = []
    device_api: list[str] = []
    """Device API that is there already."""
    missing_includes: list[str] = []
    notes: list[str] = []
    see: list[str] = []
    """Entries of the installed NCCL that the advice rests on."""
    workspace_id: str | None = None
    """Where graph.json, graph.mmd and graph.svg lie."""

    def summary(self) -> str:
        """Say what communicates and what can be done, in at most about 400 tokens."""
        lines = [self.headline, f"{self.processes}; {self.stages}"] if self.sites else [self.headline]
        shown = [_cut(s.line_text(), 170) for s in self.sites[:SHOWN_SITES]]
        reasons = dict.fromkeys(r for s in self.sites for f in (s.stage_a, s.stage_b) for r in f.reasons)
        tail = [f"{e.id} {e.pattern} ({', '.join(e.sites)})" for e in self.exchanges[:4]]
        tail += [f"needs the agent: {r}" for r in list(reasons)[:4]]
        tail += self.notes[:3]
        if self.workspace_id:
            tail.append(f"workspace {self.workspace_id}: graph.json, graph.mmd, graph.svg")
        if self.see:
            tail.append(f"see {', '.join(self.see)}")
        room = SUMMARY_CHARACTERS - sum(len(t[:200]) + 1 for t in [*lines, *tail]) - 30
        kept = 0
        while kept < len(shown) and room >= len(shown[kept]) + 1:
            room -= len(shown[kept]) + 1
            kept += 1
        left = len(self.sites) - kept
        more = [f"({left} more sites)"] if left else []
        return "\n".join(_cut(t, 200) for t in [*lines, *shown[:kept], *more, *tail])
