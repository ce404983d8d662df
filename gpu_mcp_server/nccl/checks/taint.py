"""Dependences of a value in a kernel: on the thread, the rank, memory, or nothing that differs."""

import re
from collections.abc import Mapping
from typing import Literal

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import declared_identifier
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, field, name_of, walk

Dependence = Literal["thread", "rank", "memory"]
Names = Mapping[str, frozenset[Dependence]]

NOTHING: frozenset[Dependence] = frozenset()
ROUNDS = 6
"""Assignments through so many other variables are followed."""
THREAD_WORDS = re.compile(r"\b(?:threadIdx|laneid|lane_id|thread_rank|%laneid)\b")
THREAD_CALLS = frozenset({"thread_rank", "__activemask", "clock", "clock64", "cg_thread_rank"})
RANK_FIELDS = frozenset({"rank", "lsaRank", "worldRank", "railRank"})
VOTES = frozenset({"__syncthreads_or", "__syncthreads_and", "__syncthreads_count"})
"""Their result is the same for all threads of a block."""
_WARP = re.compile(r"threadIdx\.x\s*(?:/\s*(?:32|warpSize|WARP_SIZE)|>>\s*5)")


def dependences(source: ParsedSource, node: Node, names: Names) -> frozenset[Dependence]:
    """Return what an expression depends on."""
    found, variables = source.read_once(_parts_of, node)
    return found.union(*(names.get(name, NOTHING) for name in variables))


def _parts_of(source: ParsedSource, node: Node) -> tuple[frozenset[Dependence], frozenset[str]]:
    """Return what an expression depends on whatever its variables do, and those variables."""
    found: set[Dependence] = set()
    variables: set[str] = set()
    if node.type == CALL and name_of(source, node) in VOTES:
        return NOTHING, frozenset()
    for inner in walk(node):
        if inner.type == "identifier":
            text = source.text(inner)
            if text in {"threadIdx", "laneid"}:
                found.add("thread")
            else:
                variables.add(text)
        elif inner.type == "field_identifier" and source.text(inner) in RANK_FIELDS:
            found.add("rank")
        elif inner.type == CALL and name_of(source, inner) in THREAD_CALLS:
            found.add("thread")
        elif inner.type == "subscript_expression" or (
            inner.type == "pointer_expression" and inner.children[0].type == "*"
        ):
            found.add("memory")
    return frozenset(found), frozenset(variables)


def names_of(source: ParsedSource, body: Node, given: Names) -> Names:
    """Return what each variable of a function depends on, `given` for its parameters."""
    known: dict[str, frozenset[Dependence]] = dict(given)
    pairs = source.read_once(_assignments, body)
    for _ in range(ROUNDS):
        before = dict(known)
        for name, value in pairs:
            known[name] = known.get(name, NOTHING) | dependences(source, value, known)
        if known == before:
            break
    return known


def assigned_names(source: ParsedSource, body: Node) -> frozenset[str]:
    """Return the names that are assigned after their declaration, so that two equal conditions may differ."""
    found: set[str] = set()
    for node in walk(body):
        target = None
        if node.type == "assignment_expression":
            target = field(node, "left")
        elif node.type == "update_expression":
            target = field(node, "argument")
        if target is not None:
            found |= {source.text(n) for n in walk(target) if n.type == "identifier"}
    return frozenset(found)


def by_warp(text: str) -> bool:
    """Say whether a condition is the same for all lanes of a warp."""
    return not THREAD_WORDS.search(_WARP.sub("", text))


def _assignments(source: ParsedSource, body: Node) -> list[tuple[str, Node]]:
    found: list[tuple[str, Node]] = []
    for node in walk(body):
        if node.type == "init_declarator":
            name, value = declared_identifier(field(node, "declarator")), field(node, "value")
        elif node.type == "assignment_expression":
            left, value = field(node, "left"), field(node, "right")
            name = left if left is not None and left.type == "identifier" else None
        else:
            continue
        if name is not None and value is not None:
            found.append((source.text(name), value))
    return found
