"""Trace a pointer to its allocation, through offsets, aliases and parameters of helper functions."""

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.api_names import ALLOCATIONS
from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import FunctionCall, ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, field, strip_casts

DEPTH = 5


@dataclass(frozen=True)
class AllocationCall:
    """A call that makes memory, and what receives it."""

    call: FunctionCall
    target: str
    """Expression without casts and white space."""
    kind: str
    size: Node | None


@dataclass(frozen=True)
class Origin:
    """A base expression at a place, with the offset that was added on the way."""

    text: str
    function: Function | None
    offset: str


def allocations_of(program: ProgramModel) -> list[AllocationCall]:
    """Return what the program allocates."""
    found: list[AllocationCall] = []
    for call in program.calls:
        known = ALLOCATIONS.get(call.name)
        if known is not None and 0 <= known[0] < len(call.nodes):
            target = call.source.text_without_space(strip_casts(call.nodes[known[0]]))
            size = call.nodes[known[1]] if known[1] < len(call.nodes) else None
            found.append(AllocationCall(call, target, known[2], size))
    return found


def origins(
    program: ProgramModel,
    source: ParsedSource,
    node: Node,
    function: Function | None,
    offset: str = "",
    depth: int = DEPTH,
) -> Iterator[Origin]:
    """Follow a pointer back, over parameters to each call of the function."""
    node = strip_casts(node)
    if node.type == "binary_expression" and node.children[1].type == "+":
        left, right = field(node, "left"), field(node, "right")
        if left is not None and right is not None:
            more = f"{offset}+({source.text(right)})" if offset else source.text(right)
            yield from origins(program, source, left, function, more, depth)
            return
    if node.type == "conditional_expression":
        for branch in (field(node, "consequence"), field(node, "alternative")):
            if branch is not None:
                yield from origins(program, source, branch, function, offset, depth)
        return
    made = declaration_of(source, node) if node.type == "identifier" else None
    if made is None or not depth:
        yield Origin(source.text_without_space(node), function, offset)
        return
    if made.is_parameter and function is not None:
        position = next((n for n, p in enumerate(function.parameters) if p.name == made.name), None)
        calls = [
            c for c in program.calls if c.name == function.name and position is not None and len(c.nodes) > position
        ]
        if calls and position is not None:
            for call in calls:
                yield from origins(program, call.source, call.nodes[position], call.function, offset, depth - 1)
            return
    value = initializer_of(made)
    if value is not None and strip_casts(value).type in {"identifier", "binary_expression", "subscript_expression"}:
        yield from origins(program, source, value, function, offset, depth - 1)
        return
    yield Origin(source.text_without_space(node), function, offset)
