"""Sources of the values of a function's variables: assignments, and calls that give the rank or a shared value."""

from dataclasses import dataclass
from dataclasses import field as data_field
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, field, name_of

RANK_CALLS = {"MPI_Comm_rank": 1, "ncclCommUserRank": 1}
"""Function: the argument that receives the rank."""
SHARED_CALLS = {"MPI_Bcast": 0, "MPI_Allreduce": 1, "MPI_Allgather": 3, "MPI_Allgatherv": 3}
"""Function: the argument that has one value on all ranks afterwards."""


@dataclass(frozen=True)
class Changes:
    """Sources of the values of a function's variables, by the variable's name, in the text's order."""

    answers: dict[str, list[tuple[Node, bool]]] = data_field(default_factory=dict[str, list[tuple[Node, bool]]])
    """Calls that write the rank (True), or what all ranks then share (False), to its address."""
    assignments: dict[str, list[Node]] = data_field(default_factory=dict[str, list[Node]])


@lru_cache(maxsize=64)
def changes_in(source: ParsedSource, function: Node) -> Changes:
    """Collect what changes variables: once a function, as each of its variables is asked for."""
    found = Changes()
    for node in source.effects_in(function):
        if node.type == CALL:
            nodes, called = arguments(node), name_of(source, node)
            for table, is_rank in ((RANK_CALLS, True), (SHARED_CALLS, False)):
                where = table.get(called)
                if where is not None and where < len(nodes):
                    found.answers.setdefault(addressed_variable(source, nodes[where]), []).append((node, is_rank))
            continue
        left = field(node, "left")
        if left is not None:
            found.assignments.setdefault(_written(source, left), []).append(node)
    return found


def _written(source: ParsedSource, left: Node) -> str:
    """Return the variable that an assignment writes: of `*p = ...` the one whose address p starts with."""
    pointer = left.named_children[0] if left.type == "pointer_expression" and left.named_children else None
    made = declaration_of(source, pointer) if pointer is not None and pointer.type == "identifier" else None
    start = initializer_of(made) if made is not None else None
    text = source.text_without_space(start) if start is not None else ""
    return text[1:] if text.startswith("&") else source.text(left)


def addressed_variable(source: ParsedSource, node: Node) -> str:
    """Return the variable whose address an argument is."""
    return source.text_without_space(node).removeprefix("(void*)").removeprefix("&")
