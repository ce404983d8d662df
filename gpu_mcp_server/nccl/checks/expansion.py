"""Expressions with the initializers of local variables put in, so that `off` reads as what it was made of."""

import re

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.scopes import declaration_of, initializer_of
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, enclosing, field, strip_casts, walk

DEPTH = 5
WORDS = re.compile(r"[A-Za-z_]\w*")
_CAST = re.compile(r"\((?:const)?(?:size_t|int|unsigned|long|float|double|u?int\d+_t|char|void)\*?\)")


def expand_variables(source: ParsedSource, node: Node, keep: frozenset[str] = frozenset(), depth: int = DEPTH) -> str:
    """Return an expression's text without white space and casts of numbers, local variables replaced by their values.

    Args:
        source: Its file.
        node: The expression.
        keep: Names that stay.
        depth: Variables within variables that are replaced.
    """
    parts: list[str] = []
    at = node.start_byte
    for inner in walk(node):
        if inner.type != "identifier" or inner.start_byte < at:
            continue
        value = _value(source, inner) if depth and source.text(inner) not in keep else None
        if value is None:
            continue
        parts.append(source.data[at : inner.start_byte].decode("utf-8", "replace"))
        parts.append(f"({expand_variables(source, value, keep, depth - 1)})")
        at = inner.end_byte
    parts.append(source.data[at : node.end_byte].decode("utf-8", "replace"))
    return _CAST.sub("", "".join("".join(parts).split()))


def _value(source: ParsedSource, name: Node) -> Node | None:
    """Return what a local variable starts with; nothing for parameters, loop variables and what may change."""
    parent = name.parent
    if parent is not None and parent.type == "call_expression" and field(parent, "function") == name:
        return None
    made = declaration_of(source, name)
    start = initializer_of(made) if made is not None else None
    if made is None or start is None or made.is_parameter or made.scope.type in {"for_statement", "translation_unit"}:
        return None
    if start.start_byte <= name.start_byte < start.end_byte or start.type in {"argument_list", "initializer_list"}:
        return None
    body = enclosing(made.declarator, "function_definition", "lambda_expression")
    text = source.text(name)
    for inner in walk(body) if body is not None else ():
        changed = field(inner, "left") if inner.type == "assignment_expression" else None
        if inner.type == "update_expression":
            changed = field(inner, "argument")
        if inner.type == "pointer_expression" and inner.children[0].type == "&":
            changed = field(inner, "argument")  # whoever gets the address may write there
        if changed is not None and source.text(changed) == text:
            return None
    return start


def words_of(text: str) -> set[str]:
    """Return the names in a text."""
    return set(WORDS.findall(text))


def factors_of(text: str) -> list[str] | None:
    """Return the factors of a product; None where it is no product of simple terms."""
    text = text.replace("sizeof", "sizeof@")
    found: list[str] = []
    pending = [text]
    while pending:
        part = pending.pop()
        pieces = split_at(part, "*")
        if len(pieces) > 1:
            pending += pieces
            continue
        inner = part.strip()
        if inner.startswith("(") and inner.endswith(")") and _closes(inner):
            pending.append(inner[1:-1])
        elif re.fullmatch(r"[\w.>\-@()]+|\d+<<\d+", inner) and not re.search(r"[+/%]", inner):
            found.append(inner.replace("sizeof@", "sizeof"))
        else:
            return None
    return sorted(found)


def summands_of(text: str) -> list[str]:
    """Return the summands of a sum, brackets around sums seen through."""
    while text.startswith("(") and text.endswith(")") and _closes(text):
        text = text[1:-1]
    parts = split_at(text, "+")
    return [text] if len(parts) == 1 else [s for p in parts for s in summands_of(p)]


def _closes(text: str) -> bool:
    depth = 0
    for number, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return number == len(text) - 1
    return False


def split_at(text: str, at: str) -> list[str]:
    """Split a text at an operator outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == at and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def bare(source: ParsedSource, node: Node) -> str:
    """Return an expression's text without casts around it."""
    return source.text_without_space(strip_casts(node))
