"""A loop of sends and receives over all peers that is one all-to-all, exactly enough to be replaced by a call."""

import re
from dataclasses import dataclass

from tree_sitter import Node

from gpu_mcp_server.nccl.analysis.p2p_patterns import P2pOperation, Pattern, loop_variable
from gpu_mcp_server.nccl.program_model.memory_model import uncast
from gpu_mcp_server.nccl.program_model.program import FunctionCall
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, arguments, field, name_of, statement_of, walk


@dataclass(frozen=True)
class AllToAllLoop:
    """Loop of sends and receives, with the parts that the call replacing it needs."""

    source: ParsedSource
    start: Node
    """The statement with ncclGroupStart."""
    end: Node
    """The statement with ncclGroupEnd."""
    send: str
    recv: str
    count: str
    type: str
    peers: str
    comm: str
    stream: str


def sweep_of(pattern: Pattern) -> AllToAllLoop | None:
    """Return the all-to-all that a pattern is, if group, loop, offsets and counts leave no doubt."""
    if pattern.name != "all-to-all" or not pattern.grouped or len(pattern.sent) != 2:
        return None
    send = next(s for s in pattern.sent if s.role == "send")
    receive = next(s for s in pattern.sent if s.role == "recv")
    one, other = send.event.call, receive.event.call
    loop, variable = _loop(one), loop_variable(send.event)
    if one is None or other is None or loop is None or variable is None or one.via_macro or other.via_macro:
        return None
    if len(one.nodes) != 6 or len(other.nodes) != 6:
        return None
    second = _loop(other)
    if second is None or second.start_byte != loop.start_byte or not _only_calls(loop):
        return None
    source, peers = one.source, _bound(one.source, loop, variable)
    start, end = loop.prev_named_sibling, loop.next_named_sibling
    while start is not None and start.type == "comment":
        start = start.prev_named_sibling
    while end is not None and end.type == "comment":
        end = end.next_named_sibling
    if start is None or end is None or peers is None:
        return None
    if not (_calls(source, start, "ncclGroupStart") and _calls(source, end, "ncclGroupEnd")):
        return None
    from_, to = _base(one, send, variable), _base(other, receive, variable)
    same = [
        source.text_without_space(a) == source.text_without_space(b)
        for a, b in zip(one.nodes[1:], other.nodes[1:], strict=True)
    ]
    if from_ is None or to is None or not all(same):
        return None
    rest = [source.text(n) for n in one.nodes]
    return AllToAllLoop(source, start, end, from_, to, rest[1], rest[2], peers, rest[4], rest[5])


def _loop(call: FunctionCall | None) -> Node | None:
    node = call.place if call is not None else None
    while node is not None and node.type != "for_statement":
        node = node.parent
    return node


def _only_calls(loop: Node) -> bool:
    body = field(loop, "body")
    inside = [c for c in body.named_children if c.type != "comment"] if body is not None else []
    return len(inside) == 2 and not any(n.type in {"if_statement", "conditional_expression"} for n in walk(loop))


def _bound(source: ParsedSource, loop: Node, variable: str) -> str | None:
    """Return n of `for (int p = 0; p < n; p++)`."""
    start, condition, update = field(loop, "initializer"), field(loop, "condition"), field(loop, "update")
    if start is None or condition is None or update is None:
        return None
    operator, left, right = field(condition, "operator"), field(condition, "left"), field(condition, "right")
    if not re.search(rf"\b{variable}\s*=\s*0\b\s*;?$", source.text(start)) or operator is None or operator.type != "<":
        return None
    if left is None or right is None or source.text(left) != variable:
        return None
    return source.text(right) if source.text_without_space(update) in {f"{variable}++", f"++{variable}"} else None


def _base(call: FunctionCall, sent: P2pOperation, variable: str) -> str | None:
    """Return `buffer` of `buffer + p * count`."""
    source, node = call.source, uncast(call.nodes[0])
    if source.text(uncast(call.nodes[3])) != variable and sent.own_peer != variable:
        return None
    base: Node | None = None
    offset: Node | None = None
    if node.type == "binary_expression":
        operator = field(node, "operator")
        if operator is not None and operator.type == "+":
            base, offset = field(node, "left"), field(node, "right")
    elif node.type == "pointer_expression" and node.children[0].type == "&":
        element = field(node, "argument")
        if element is not None and element.type == "subscript_expression":
            base, listed = field(element, "argument"), field(element, "indices")
            offset = listed.named_children[0] if listed is not None and listed.named_children else None
    if base is None or offset is None or not _is_part(source, offset, variable, call.nodes[1]):
        return None
    return source.text(base)


def _is_part(source: ParsedSource, offset: Node, variable: str, count: Node) -> bool:
    """Say whether an offset is the loop's variable times the count."""
    offset = uncast(offset)
    operator = field(offset, "operator") if offset.type == "binary_expression" else None
    left, right = field(offset, "left"), field(offset, "right")
    if operator is None or operator.type != "*" or left is None or right is None:
        return False
    factors = {source.text_without_space(uncast(left)), source.text_without_space(uncast(right))}
    return factors == {variable, source.text_without_space(uncast(count))}


def _calls(source: ParsedSource, statement: Node, name: str) -> bool:
    calls = [n for n in walk(statement) if n.type == CALL and name_of(source, n) == name]
    return len(calls) == 1 and statement_of(calls[0]) == statement and not arguments(calls[0])
