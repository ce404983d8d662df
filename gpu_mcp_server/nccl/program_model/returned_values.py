"""Expressions that a call of the program's own functions returns, in a frame of that call."""

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.functions import Function
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.program_model.scopes import Declaration, declaration_of
from gpu_mcp_server.nccl.program_model.syntax import arguments, field, name_of, walk
from gpu_mcp_server.nccl.program_model.trace_events import CallFrame, Expression


def returned_values(program: ProgramModel, of: Expression) -> list[Expression]:
    """Return the expressions that the function which a call means may return."""
    given = arguments(of.node)
    candidates = [f for f in program.by_name.get(name_of(of.source, of.node), []) if not f.is_kernel]
    exact = [f for f in candidates if len(f.parameters) == len(given)] or candidates
    own = _class_of_receiver(of)
    exact = [f for f in exact if own and f.owner == own] or exact
    found: list[Expression] = []
    for function in exact[:1]:
        if of.frame.runs(function):
            continue
        frame = CallFrame(function, of.frame, _bindings(function, of, given), _receiver(function, of))
        returned = [n for n in walk(function.body) if n.type == "return_statement" and n.named_children]
        found += [Expression(function.source, n.named_children[0], frame) for n in returned]
    return found


def is_own_method(program: ProgramModel, of: Expression) -> bool:
    """Say whether a call is of a method that the program defines for the class of its variable."""
    own = _class_of_receiver(of)
    return own != "" and any(f.owner == own for f in program.by_name.get(name_of(of.source, of.node), []))


def _class_of_receiver(of: Expression) -> str:
    """Return the class of `b` in `b.data()`, as its declaration says; nothing where it does not."""
    callee = field(of.node, "function")
    owner = field(callee, "argument") if callee is not None and callee.type == "field_expression" else None
    made = declaration_of(of.source, owner) if owner is not None and owner.type == "identifier" else None
    return made.type_text.split("<")[0].split("::")[-1] if made is not None else ""


def _bindings(function: Function, of: Expression, given: list[Node]) -> dict[str, Expression]:
    return {
        p.name: Expression(of.source, n, of.frame) for p, n in zip(function.parameters, given, strict=False) if p.name
    }


def _receiver(function: Function, of: Expression) -> "Expression | Declaration | None":
    callee = field(of.node, "function")
    if not function.owner or callee is None or callee.type != "field_expression":
        return of.frame.receiver
    owner = field(callee, "argument")
    return Expression(of.source, owner, of.frame) if owner is not None else None
