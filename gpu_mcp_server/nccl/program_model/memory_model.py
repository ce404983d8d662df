"""Memory as the analysis names it: places, pointers into them, allocations."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import Declaration
from gpu_mcp_server.nccl.program_model.syntax import CALL, arguments, is_cast
from gpu_mcp_server.nccl.program_model.syntax import field as child
from gpu_mcp_server.nccl.program_model.trace_events import Expression, TraceEvent

TRANSPARENT = frozenset(
    {"data", "get", "begin", "raw_pointer_cast", "device_pointer_cast", "move", "forward", "exchange"}
    | {"make_cudaPitchedPtr", "span"}
)
"""Library functions that hand a pointer through."""


@dataclass(frozen=True)
class ArrayElement:
    """Element of an array of pointers that a place denotes."""

    text: str
    number: int | None = None
    """Its index, if the program's constants say it."""
    variable: tuple[object, ...] | None = None
    """The loop variable that is its index, in its frame."""

    def is_apart(self, other: "ArrayElement | None") -> bool:
        """Say whether two elements are certainly two."""
        return other is not None and None not in (self.number, other.number) and self.number != other.number

    def is_same(self, other: "ArrayElement | None", *, within_iteration: bool) -> bool:
        """Say whether two elements are certainly one."""
        if other is None:
            return False
        if self.number is not None:
            return self.number == other.number
        return within_iteration and self.variable is not None and self.variable == other.variable


@dataclass(frozen=True)
class MemoryLocation:
    """Place where a pointer is kept."""

    key: tuple[str, int]
    path: str = ""
    """Members and elements below the variable: `.send`, `[]`."""
    name: str = field(default="", compare=False)
    type_text: str = field(default="", compare=False)
    kind: str = field(default="local", compare=False)
    """local, parameter, global, member, unknown"""
    element: ArrayElement | None = field(default=None, compare=False)
    """Of an array, which: all elements are one place, as most are allocated in one loop."""

    def member(self, path: str, element: ArrayElement | None = None) -> "MemoryLocation":
        """Return a member or element of it; of an array within an array no element is told from another."""
        known = None if "[]" in self.path and path == "[]" else element or self.element
        return replace(self, path=self.path + path, element=known)

    def __str__(self) -> str:
        """Say it as a person would write it."""
        return f"{self.name}{self.path}"

    def element_text(self) -> str:
        """Say it with its element."""
        return str(self) if self.element is None else str(self).replace("[]", f"[{self.element.text}]", 1)

    @property
    def is_element(self) -> bool:
        """Return whether it is one of several pointers that are one place."""
        return "[]" in self.path


CYCLE = MemoryLocation(("cycle", 0))
"""What is assigned in a circle, as pointers that are swapped are: it says nothing of its own."""


def merge_locations(places: Iterable[MemoryLocation]) -> list[MemoryLocation]:
    """Return each place once; one that was named by several elements is any of them."""
    found: dict[MemoryLocation, MemoryLocation] = {}
    for place in places:
        known = found.setdefault(place, place)
        if known.element != place.element:
            found[place] = replace(known, element=None)
    return list(found.values())


@dataclass(frozen=True)
class Ref:
    """A pointer into the memory that a place holds."""

    place: MemoryLocation
    offset: str | None = None


@dataclass(eq=False)
class Allocation:
    """Origin of a buffer's memory."""

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


def is_view(of: Expression) -> bool:
    """Say whether an expression makes a view of memory in braces, such as `std::span<float>{p, n}`."""
    kind = child(of.node, "type") if of.node.type == "compound_literal_expression" else None
    return kind is not None and "span" in of.source.text(kind)
