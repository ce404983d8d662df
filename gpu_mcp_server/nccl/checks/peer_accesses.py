"""Expressions of a kernel that point into other ranks' memory, and the functions into which they are followed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import Function, declared_identifier
from gpu_mcp_server.nccl.program_model.syntax import (
    CALL,
    ParsedSource,
    enclosing,
    field,
    is_cast,
    name_of,
    receiver_of,
    walk,
)

POINTERS = frozenset(
    {
        "ncclGetLsaPointer",
        "ncclGetPeerPointer",
        "ncclGetLsaMultimemPointer",
        "ncclGetMultimemPointer",
        "lsaPtr",
        "peerPtr",
        "multimemPtr",
        "lsaMultimemPtr",
    }
)
"""They compute an address; nothing is read or written yet. Source: nccl_device.h of NCCL 2.28.9 to 2.32.3."""
BLOCKS = ("ncclLsaCopy", "ncclLsaReduce", "ncclMultimem", "ncclLsaMultimem")
"""Beginnings of names that read or write peers' memory themselves. Source: nccl_device/reduce_copy.h, NCCL 2.29.7."""
GIN_CALLS = frozenset({"put", "putValue", "get", "signal"})
PUTS = frozenset({"put", "putValue"})
_SIGNAL = re.compile(r"\bncclGin_\w*Signal(?:Inc|Add)")
_TRANSPARENT = frozenset({"parenthesized_expression", "cast_expression", "comma_expression", "conditional_expression"})


@dataclass(frozen=True)
class PointerUse:
    """Use of a pointer at one place."""

    kind: str
    """access, bind (to `name`), pass (to parameter `position` of `call`), none."""
    name: str = ""
    call: Node | None = None
    position: int = 0


def use_of(source: ParsedSource, node: Node, arrays: frozenset[str]) -> PointerUse:
    """Say what becomes of a pointer: walk from it to the expression that decides.

    Args:
        source: Its file.
        node: The call or identifier that is a pointer to a peer's memory.
        arrays: Names whose elements are such pointers: one subscript of them is not an access.
    """
    skip = 1 if node.type == "identifier" and source.text(node) in arrays else 0
    child, parent = node, node.parent
    while parent is not None:
        kind = parent.type
        if kind == "subscript_expression" and field(parent, "argument") == child:
            if not skip:
                return PointerUse("access")
            skip -= 1
        elif kind == "pointer_expression":
            return PointerUse("access" if parent.children[0].type == "*" else "none")
        elif kind == "argument_list" and parent.parent is not None:
            call = parent.parent
            if call.type == CALL and not is_cast(call):
                position = next((n for n, a in enumerate(_listed(parent)) if a == child), 0)
                return PointerUse("pass", call=call, position=position)
            child, parent = call, call.parent
            continue
        elif kind in {"init_declarator", "assignment_expression"}:
            left = field(parent, "declarator" if kind == "init_declarator" else "left")
            if left is None or left == child:
                return PointerUse("none")
            return PointerUse("bind", name=_root(source, left))
        elif kind == "field_expression" and field(parent, "argument") == child:
            operator = next((c.type for c in parent.children if c.type in {"->", "."}), ".")
            return PointerUse("access" if operator == "->" else "none")
        elif (kind == "binary_expression" and parent.children[1].type not in {"+", "-"}) or (
            kind not in _TRANSPARENT and kind not in {"binary_expression", "initializer_list", "subscript_expression"}
        ):
            return PointerUse("none")
        child, parent = parent, parent.parent
    return PointerUse("none")


def writes(source: ParsedSource, node: Node) -> bool:
    """Say whether an access only writes: a put of GIN, or the left side of a plain assignment.

    A barrier that releases and does not acquire is enough before such: NVIDIA's own fused examples have it so.
    """
    if node.type == CALL and name_of(source, node) in {"put", "putValue", "signal"}:
        return True
    child, parent = node, node.parent
    while parent is not None and parent.type not in {"assignment_expression", "expression_statement", "argument_list"}:
        child, parent = parent, parent.parent
    return (
        parent is not None
        and parent.type == "assignment_expression"
        and field(parent, "left") == child
        and any(c.type == "=" for c in parent.children)
    )


def pointer_functions(functions: Iterable[Function]) -> frozenset[str]:
    """Return the calls that yield a pointer to a peer's memory: NCCL's, and functions that return such a call."""
    known = set(POINTERS)
    listed = list(functions)
    for _ in range(3):
        for function in listed:
            if not known.isdisjoint(function.source.read_once(_returned_calls, function.body)):
                known.add(function.name)
    return frozenset(known)


def _returned_calls(source: ParsedSource, body: Node) -> frozenset[str]:
    returns = (node for node in walk(body) if node.type == "return_statement")
    return frozenset(name_of(source, inner) for node in returns for inner in walk(node) if inner.type == CALL)


def is_collective_call(source: ParsedSource, call: Node) -> bool:
    """Say whether a call of NCCL's moves data of peers itself."""
    return name_of(source, call).startswith(BLOCKS)


def is_gin(source: ParsedSource, call: Node, gins: frozenset[str]) -> bool:
    """Say whether a call is a one-sided operation of GIN."""
    return name_of(source, call) in GIN_CALLS and (receiver_of(source, call) or "") in gins


def is_signalled(source: ParsedSource, call: Node) -> bool:
    """Say whether a call puts by GIN and raises a signal at its peer with it."""
    return call.type == CALL and name_of(source, call) in PUTS and _SIGNAL.search(source.text(call)) is not None


def is_array_of_pointers(source: ParsedSource, body: Node, name: str) -> bool:
    """Say whether a local name is declared as an array of pointers."""
    return source.read_once(_arrays, body).get(name, False)


def _arrays(source: ParsedSource, body: Node) -> dict[str, bool]:
    """Return the arrays that a function declares, and whether they are of pointers; the first of each name."""
    found: dict[str, bool] = {}
    for node in walk(body):
        inner = declared_identifier(node) if node.type == "array_declarator" else None
        if inner is not None:
            made = enclosing(node, "declaration")
            text = source.text(made) if made is not None else ""
            found.setdefault(source.text(inner), "*" in text.partition("[")[0])
    return found


def _listed(arguments: Node) -> list[Node]:
    return [c for c in arguments.named_children if c.type != "comment"]


def _root(source: ParsedSource, left: Node) -> str:
    node: Node | None = (
        declared_identifier(left) if left.type.endswith("declarator") or left.type == "identifier" else left
    )
    while node is not None and node.type != "identifier":
        node = field(node, "argument") or field(node, "declarator") or next(iter(node.named_children), None)
    return source.text(node) if node is not None else ""
