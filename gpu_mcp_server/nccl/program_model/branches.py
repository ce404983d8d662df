"""Branches and loops around a piece of code, those that a macro or an operator hides too."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.macros import Macro
from gpu_mcp_server.nccl.program_model.syntax import CALL, ParsedSource, enclosing, field, name_of

LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})
ENDS = frozenset({"break_statement", "return_statement", "continue_statement", "goto_statement", "throw_statement"})
MOST_CASES = 64
_LOOP_HEAD = re.compile(r"\b(?:for|while)\s*\(.*\)\s*\{?$", re.DOTALL)


@dataclass(frozen=True)
class Branch:
    """One outcome of a test that code stands under."""

    key: tuple[str, int]
    taken: bool
    text: str
    tested: Node | None


def branches_of(source: ParsedSource, node: Node) -> list[tuple[Node, list[Branch]]]:
    """Return the parts of a node that run under a test: of an if, of `?:`, of `&&` and `||`, of a case."""
    if node.type in {"if_statement", "conditional_expression"}:
        return _two_sides(source, node)
    if node.type == "binary_expression":
        return _right_side(source, node)
    if node.type == "case_statement":
        under = _case(source, node)
        return [(c, under) for c in node.named_children] if under else []
    return []


def loop_header(source: ParsedSource, node: Node, macros: Mapping[str, Macro]) -> str | None:
    """Return the head of the loop that a node is, or that a macro before it makes of it; None where it is none."""
    if node.type in LOOPS:
        body, condition = field(node, "body"), field(node, "condition")
        if node.type == "do_statement":
            return f"do while {source.text(condition)}" if condition is not None else "do"
        end = body.start_byte if body is not None else node.end_byte
        text = source.data[node.start_byte : end].decode("utf-8", "replace")
        return " ".join(re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", text, flags=re.S).split())
    head = hidden_head(node)
    if head is None:
        return None
    macro = macros.get(name_of(source, head))
    if macro is not None and not _LOOP_HEAD.search(macro.body):
        return None
    return " ".join(source.text(head).split())


def jumped_label(source: ParsedSource, node: Node) -> Node | None:
    """Return the label before a statement of a block to which a later `goto` jumps back, so that it runs again."""
    return _repeated(source).get(node.id) if source.jumps else None


@lru_cache(maxsize=4)
def _repeated(source: ParsedSource) -> dict[int, Node]:
    """Return the nearest label that repeats a statement, by the statement, of a whole file: each block is read once."""
    blocks: dict[int, Node] = {}
    ends: dict[int, int] = {}
    for name, labels in source.labels.items():
        jumps = [j.start_byte for j in source.jumps[name]]
        for label in labels:
            function = enclosing(label, "function_definition", "lambda_expression")
            last = bisect_left(jumps, function.end_byte) - 1 if function is not None else -1
            if last >= 0 and label.parent is not None and label.parent.type == "compound_statement":
                blocks[label.parent.id] = label.parent
                ends[label.id] = jumps[last]
    found: dict[int, Node] = {}
    for block in blocks.values():
        open_labels: list[Node] = []
        for child in block.named_children:
            if child.id in ends:
                open_labels.append(child)
            while open_labels and ends[open_labels[-1].id] < child.start_byte:
                open_labels.pop()
            if open_labels:
                found[child.id] = open_labels[-1]
    return found


def hidden_head(node: Node) -> Node | None:
    """Return the use of a macro right before a statement, as in `EACH(i, n) { ... }`, which may make it a loop."""
    before = node.prev_named_sibling if node.type.endswith("_statement") else None
    if before is None or before.type != "expression_statement" or not any(c.is_missing for c in before.children):
        return None
    called = before.named_children[0] if before.named_children else None
    return called if called is not None and called.type == CALL else None


def _two_sides(source: ParsedSource, node: Node) -> list[tuple[Node, list[Branch]]]:
    condition = field(node, "condition")
    text = source.text_without_space(condition).removeprefix("(").removesuffix(")") if condition is not None else ""
    found: list[tuple[Node, list[Branch]]] = []
    for name, taken in (("consequence", True), ("alternative", False)):
        inner = field(node, name)
        if inner is not None:
            said = text if taken else f"not ({text})"
            found.append((inner, [Branch((source.path, node.start_byte), taken, said, condition)]))
    return found


def _right_side(source: ParsedSource, node: Node) -> list[tuple[Node, list[Branch]]]:
    """Return the right operand of `&&` or `||`: it runs only where the left one says so."""
    left, operator, right = field(node, "left"), field(node, "operator"), field(node, "right")
    if left is None or operator is None or right is None or operator.type not in {"&&", "||"}:
        return []
    text, taken = source.text_without_space(left), operator.type == "&&"
    said = text if taken else f"not ({text})"
    return [(right, [Branch((source.path, operator.start_byte), taken, said, left)])]


def _case(source: ParsedSource, node: Node) -> list[Branch]:
    """Return the tests of a case, as a chain of ifs would have them; cases that fall through to it are part of it.

    A switch of more than `MOST_CASES` has none: a case has a test for each that stands before it.
    """
    block = node.parent
    switch = block.parent if block is not None else None
    condition = field(switch, "condition") if switch is not None and switch.type == "switch_statement" else None
    if block is None or condition is None or block.named_child_count > MOST_CASES:
        return []
    tested = source.text_without_space(condition).removeprefix("(").removesuffix(")")
    found: list[Branch] = []
    values: list[str] = []
    for case in (c for c in block.named_children if c.type == "case_statement"):
        value = field(case, "value")
        values.append(f"{tested}=={source.text_without_space(value)}" if value is not None else "")
        text = "||".join(values) if all(values) else ""
        key = (source.path, case.start_byte)
        if case == node:
            return [*found, Branch(key, taken=True, text=text, tested=condition)] if text else found
        if _ends(case):
            found += [Branch(key, taken=False, text=f"not ({text})", tested=condition)] if text else []
            values = []
    return found


def _ends(case: Node) -> bool:
    last = case.named_children[-1] if case.named_children else case
    while last.type == "compound_statement" and last.named_children:
        last = last.named_children[-1]
    return last.type in ENDS
