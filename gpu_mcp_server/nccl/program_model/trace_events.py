"""What a trace holds: events, each in its frame, under its loops and conditions."""

from dataclasses import dataclass, field

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.launches import KernelLaunch
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource


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
