"""Memory as the analysis names it: places, pointers into them, allocations."""

from dataclasses import dataclass, field, replace

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import CALL, arguments, is_cast
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.trace import Expression, TraceEvent


@dataclass(frozen=True)
class MemoryLocation:
    """Where a pointer is kept."""

    key: tuple[str, int]
    path: str = ""
    """Members and elements below the variable: `.send`, `[]`."""
    name: str = field(default="", compare=False)
    type_text: str = field(default="", compare=False)
    kind: str = field(default="local", compare=False)
    """local, parameter, global, member, unknown"""

    def member(self, path: str) -> "MemoryLocation":
        """Return a member or element of it."""
        return replace(self, path=self.path + path)

    def __str__(self) -> str:
        """Say it as a person would write it."""
        return f"{self.name}{self.path}"


@dataclass(frozen=True)
class Ref:
    """A pointer into the memory that a place holds."""

    place: MemoryLocation
    offset: str | None = None


@dataclass(eq=False)
class Allocation:
    """Where a buffer's memory comes from."""

    place: MemoryLocation
    function: str
    kind: str
    bytes: str
    event: TraceEvent
    expression: Expression | None = None


def place_of(made: Declaration) -> MemoryLocation:
    """Return the place that a variable is."""
    kind = "parameter" if made.is_parameter else "local"
    return MemoryLocation(made.key, "", made.name, made.type_text, kind)


def plain_type(type_text: str) -> str:
    """Return a type's name without namespace, template arguments and keywords."""
    return type_text.replace("struct ", "").replace("class ", "").split("<")[0].split("::")[-1].strip()


def uncast(node: Node) -> Node:
    """Take casts and parentheses off."""
    while True:
        inner: Node | None = None
        if node.type == "parenthesized_expression":
            inner = next((c for c in node.named_children if c.type != "comment"), None)
        elif node.type == "cast_expression":
            inner = child(node, "value")
        elif node.type == CALL and is_cast(node):
            inner = (arguments(node) or [None])[0]
        if inner is None:
            return node
        node = inner


def is_number_like(node: Node) -> bool:
    """Say whether an operand of `+` is the offset, not the pointer."""
    node = uncast(node) if node.type == "parenthesized_expression" else node
    if node.type in {"number_literal", "sizeof_expression"}:
        return True
    if node.type == "cast_expression":
        kind = child(node, "type")
        return kind is not None and "*" not in (kind.text or b"").decode("utf-8", "replace")
    operator = child(node, "operator") if node.type == "binary_expression" else None
    return operator is not None and operator.type in {"*", "/", "%", "<<", ">>"}
