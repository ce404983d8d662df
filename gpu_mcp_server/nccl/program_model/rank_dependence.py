"""Values of the host's code that differ between ranks: the result of MPI_Comm_rank, and all computed from it."""

import re
from dataclasses import dataclass, replace

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import Declaration, declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, enclosing, field, name_of, walk
from gpu_mcp_server.nccl.program_model.trace import CallFrame, Condition, Expression, TraceEvent

MAX_STEPS = 10
"""Values from values that are followed."""
RANK_CALLS = {"MPI_Comm_rank": 1, "ncclCommUserRank": 1}
"""Function: the argument that receives the rank."""
SHARED_CALLS = {"MPI_Bcast": 0, "MPI_Allreduce": 1, "MPI_Allgather": 3, "MPI_Allgatherv": 3}
"""Function: the argument that has one value on all ranks afterwards."""
WAYS_OUT = frozenset({"return_statement", "continue_statement", "break_statement"})
_RANK = re.compile(
    r"(?:my|world|local|global|mpi|nccl|proc|device|lsa)?_?(?:rank|rk|rank_?id|mype|myid)", re.IGNORECASE
)
_RANGE = re.compile(r"\w*rank\w*(?:<|>=|<=)(?:0|n\w*|\w*size|world\w*)", re.IGNORECASE)
_SUCCESS = re.compile(r"[Ss]uccess|SUCCESS|nullptr|NULL|\berr(?:or)?\b")
"""Tests of an answer: what is asked for may depend on the rank, that it succeeds does not."""


@dataclass(frozen=True)
class RankDependence:
    """Reason for which a value differs between ranks."""

    name: str
    line: int

    def __str__(self) -> str:
        """Say where it comes from."""
        return f"`{self.name}`, line {self.line}"


def rank_dependence(of: Expression, steps: int = MAX_STEPS) -> RankDependence | None:
    """Return why an expression differs between ranks, None where nothing says that it does."""
    for inner in walk(of.node):
        found = _named(replace(of, node=inner), steps)
        if found is not None:
            return found
    return None


def condition_dependence(condition: Condition) -> RankDependence | None:
    """Return why a branch is taken by some ranks only; a test that a rank is in range, or of success, is none."""
    text = condition.text.removeprefix("not (").rstrip(")")
    if condition.expression is None or _RANGE.fullmatch(text) or _SUCCESS.search(text):
        return None
    return rank_dependence(condition.expression)


def event_dependence(event: TraceEvent) -> tuple[str, RankDependence] | None:
    """Return the condition under which only some ranks come to an event: around it, or with a way out before it."""
    for condition in event.conditions:
        why = condition_dependence(condition)
        if why is not None:
            return condition.text, why
    frame: CallFrame | None = event.frame
    place = event.call.place if event.call is not None else None
    while frame is not None and place is not None and frame.function is not None:
        left = _way_out(frame.function.source, place, frame)
        if left is not None:
            return left
        frame, place = frame.parent, frame.place
    return None


def _way_out(source: ParsedSource, place: Node, frame: CallFrame) -> tuple[str, RankDependence] | None:
    """Return the test of the rank alone that leaves a block before a place, as `if (rank) return;` does."""
    node: Node | None = place
    while node is not None and node.type not in {"function_definition", "lambda_expression", "translation_unit"}:
        before = node.prev_named_sibling
        while before is not None:
            condition = field(before, "condition") if before.type == "if_statement" else None
            taken = field(before, "consequence") if before.type == "if_statement" else None
            if condition is not None and taken is not None and field(before, "alternative") is None and _leaves(taken):
                text = source.text_without_space(condition).removeprefix("(").removesuffix(")")
                why = rank_dependence(Expression(source, condition, frame))
                plain = not re.search(r"&&|\|\||argc", text) and not _SUCCESS.search(text)
                if why is not None and plain and not _RANGE.fullmatch(text):
                    return f"not ({text})", why
            before = before.prev_named_sibling
        node = node.parent
    return None


def _leaves(taken: Node) -> bool:
    last = taken.named_children[-1] if taken.type == "compound_statement" and taken.named_children else taken
    return last.type in WAYS_OUT


def _named(of: Expression, steps: int) -> RankDependence | None:
    node, source = of.node, of.source
    if node.type == "field_identifier":
        text = source.text(node)
        is_called = node.parent is not None and node.parent.parent is not None and node.parent.parent.type == CALL
        return RankDependence(text, source.line(node)) if _RANK.fullmatch(text) and not is_called else None
    if node.type != "identifier" or not steps:
        return None
    if node.parent is not None and node.parent.type == "field_expression":
        return None  # an object may hold the rank beside what is meant
    name = source.text(node)
    bound = of.frame.bindings.get(name)
    made = declaration_of(source, node)
    if bound is not None and (made is None or made.is_parameter):
        return rank_dependence(bound, steps - 1)
    if made is None or made.scope.type == "translation_unit":
        return RankDependence(name, source.line(node)) if _RANK.fullmatch(name) else None
    return _variable(of, made, steps)


def _variable(of: Expression, made: Declaration, steps: int) -> RankDependence | None:
    """Follow a variable: what it starts with, what it is assigned, and calls that give it a value."""
    if any(c.type == "array_declarator" for c in walk(made.declarator)):
        return None  # which element is meant is not known
    name, function = made.name, enclosing(made.declarator, "function_definition", "lambda_expression")
    effects = of.source.effects_in(function) if function is not None else []
    given = False
    for inner in effects:
        if inner.type == CALL:
            called, nodes = name_of(of.source, inner), arguments(inner)
            for table, is_rank in ((RANK_CALLS, True), (SHARED_CALLS, False)):
                where = table.get(called)
                if where is not None and where < len(nodes) and _is_address(of.source, nodes[where], name):
                    return RankDependence(name, of.source.line(inner)) if is_rank else None
    start = initializer_of(made)
    values = [start] if start is not None else []
    for inner in effects:
        left = field(inner, "left") if inner.type == "assignment_expression" else None
        right = field(inner, "right") if left is not None else None
        if (
            left is None
            or right is None
            or not (of.source.text(left) == name or _writes_through(of.source, left, name))
        ):
            continue
        values.append(right)
        branch = enclosing(inner, "if_statement", "function_definition", "lambda_expression")
        condition = field(branch, "condition") if branch is not None and branch.type == "if_statement" else None
        if condition is not None and branch is not None and branch.start_byte > made.declarator.start_byte:
            values.append(condition)
    for value in values:
        given = True
        if value.start_byte <= of.node.start_byte < value.end_byte:
            continue  # x = x + 1 says nothing new
        why = rank_dependence(Expression(of.source, value, of.frame), steps - 1)
        if why is not None:
            return replace(why, line=of.source.line(value)) if why.name != name else why
    is_rank = _RANK.fullmatch(name) is not None and (not given or made.is_parameter)
    return RankDependence(name, of.source.line(made.declarator)) if is_rank else None


def _writes_through(source: ParsedSource, left: Node, name: str) -> bool:
    """Say whether `*p = ...` writes a variable, whose address p starts with."""
    pointer = left.named_children[0] if left.type == "pointer_expression" and left.named_children else None
    made = declaration_of(source, pointer) if pointer is not None and pointer.type == "identifier" else None
    start = initializer_of(made) if made is not None else None
    return start is not None and source.text_without_space(start) == f"&{name}"


def _is_address(source: ParsedSource, node: Node, name: str) -> bool:
    return source.text_without_space(node).removeprefix("(void*)").removeprefix("(void *)").removeprefix("&") == name
