"""Events of a trace, each in its frame, under its loops and conditions."""

from dataclasses import dataclass, field

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model import api_names
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.launches import KernelLaunch
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource

WRAPPER = "ncclx::"
WRAPPED = frozenset({*(n.removeprefix("nccl") for n in api_names.ROLES if n.startswith("nccl")), "Sweep"})
"""Generated functions, each of which stands for a collective."""


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression where it stands: its meaning depends on the frame."""

    source: ParsedSource
    node: Node
    frame: "CallFrame"


@dataclass(frozen=True, eq=False)
class CallFrame:
    """A function while it runs."""

    function: Function | None
    parent: "CallFrame | None" = None
    bindings: dict[str, Expression] = field(default_factory=dict[str, Expression])
    receiver: "Expression | Declaration | None" = None
    """What `this` is: of a method the expression before the dot, of a constructor the new variable."""
    entry: str = ""
    place: Node | None = None
    """Where in its parent's file it was called."""

    @property
    def depth(self) -> int:
        """Return the depth in calls."""
        return 0 if self.parent is None else self.parent.depth + 1

    def runs(self, function: Function) -> bool:
        """Say whether a function is being run already."""
        return self.function is function or (self.parent is not None and self.parent.runs(function))

    def path(self) -> str:
        """Return `main > worker > all2all`."""
        own = self.function.name if self.function is not None else "?"
        return own if self.parent is None else f"{self.parent.path()} > {own}"


@dataclass(frozen=True)
class Loop:
    """A loop around an event."""

    key: tuple[str, int, int]
    header: str


@dataclass(frozen=True)
class Condition:
    """A branch around an event."""

    key: tuple[str, int]
    taken: bool
    text: str
    expression: Expression | None = field(default=None, compare=False, repr=False)
    """What is tested, where it stands."""


@dataclass(eq=False)
class TraceEvent:
    """Something that matters."""

    kind: str
    frame: CallFrame
    loops: tuple[Loop, ...]
    conditions: tuple[Condition, ...]
    call: FunctionCall | None = None
    launch: KernelLaunch | None = None
    left: Expression | None = None
    right: Expression | None = None
    number: int = 0
    group: int | None = None
    """Of which ncclGroupStart it is part."""


def kind_of(name: str) -> str:
    """Return what a call of a library does, "" if it does not matter here."""
    kinds: tuple[tuple[str, object], ...] = (
        ("collective", api_names.ROLES),
        ("alloc", api_names.ALLOCATIONS),
        ("free", api_names.FREES),
        ("copy", api_names.COPIES),
        ("fill", api_names.FILLS),
        ("comm_init", api_names.COMM_INIT),
        ("comm_end", api_names.COMM_END),
        ("sync", api_names.HOST_SYNCS),
        ("order", api_names.STREAM_ORDER),
        ("capture", api_names.GRAPH_CAPTURE),
        ("timer", api_names.TIMERS),
    )
    if name.startswith(WRAPPER) and name.removeprefix(WRAPPER) in WRAPPED:
        return "wrapper"
    plain = {"ncclGroupStart": "group_start", "ncclGroupEnd": "group_end", "ncclCommWindowRegister": "window"}
    if name in plain:
        return plain[name]
    return next((kind for kind, names in kinds if name in names), "")  # type: ignore[operator]
