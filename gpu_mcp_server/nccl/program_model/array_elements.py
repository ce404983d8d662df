"""Elements of arrays of pointers: which one a subscript names, and what a list gives each."""

from collections.abc import Callable
from dataclasses import replace

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.memory_model import ArrayElement, uncast
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import field
from gpu_mcp_server.nccl.program_model.trace_events import Expression

Binding = Callable[[Expression], Expression | None]
"""Returns what the caller gave for a parameter."""


def element_of(program: ProgramModel, of: Expression, bound: Binding) -> ArrayElement | None:
    """Return which element a subscript names."""
    node = _index(of.node)
    if node is None:
        return None
    text = " ".join(of.source.text(node).split())
    number = program.fold(text)
    made = declaration_of(of.source, node) if node.type == "identifier" and number is None else None
    if made is None:
        return ArrayElement(text, number)
    given = bound(replace(of, node=node))
    if given is not None:
        return ArrayElement(text, program.fold(given.source.text(given.node)))
    return ArrayElement(text, None, (*made.key, id(of.frame)) if made.scope.type == "for_statement" else None)


def listed_values(of: Expression, element: ArrayElement | None) -> list[Expression]:
    """Return what the list that an array starts with gives an element, or all if it is not known which is meant."""
    base = field(of.node, "argument") if of.node.type == "subscript_expression" else None
    made = declaration_of(of.source, base) if base is not None and base.type == "identifier" else None
    start = initializer_of(made) if made is not None else None
    if made is None or start is None or start.type != "initializer_list":
        return []
    given = [replace(of, source=made.source, node=n) for n in start.named_children if n.type != "comment"]
    number = element.number if element is not None else None
    return given if number is None else given[number : number + 1]


def _index(subscript: Node) -> Node | None:
    listed = field(subscript, "indices")
    return uncast(listed.named_children[0]) if listed is not None and listed.named_children else None
