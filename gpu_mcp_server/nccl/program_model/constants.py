"""Integer constants of a program, and folding of expressions with them."""

import ast
import re
from collections.abc import Iterable, Mapping

from gpu_mcp_server.nccl.program_model.functions import declared_identifier
from gpu_mcp_server.nccl.program_model.macros import Macro
from gpu_mcp_server.nccl.program_model.syntax import ParsedSource, field

NESTING = 8
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlLzZ]+\b")
_CAST = re.compile(r"\((?:size_t|int|unsigned|unsigned int|long|uint32_t|uint64_t|int64_t)\)")


def constants_of(sources: Iterable[ParsedSource], macros: Mapping[str, Macro]) -> dict[str, str]:
    """Return macros without parameters and `const` or `constexpr` integers, as texts."""
    found = {m.name: m.body for m in macros.values() if m.parameters is None and m.body}
    for source in sources:
        for node in source.landmarks:
            if node.type != "init_declarator" or node.parent is None:
                continue
            qualifiers = {source.text(c) for c in node.parent.children if "qualifier" in c.type}
            name, value = declared_identifier(field(node, "declarator")), field(node, "value")
            if name is not None and value is not None and qualifiers & {"const", "constexpr"}:
                found.setdefault(source.text(name), source.text(value))
    return found


def fold_constant(text: str, constants: Mapping[str, str], depth: int = NESTING) -> int | None:
    """Return the value of an integer expression, None where it is not known.

    A grid `dim3(a, b)` is the product of its parts.
    """
    text = " ".join(_CAST.sub("", _SUFFIX.sub(r"\1", text)).split())
    grid = re.fullmatch(r"dim3\s*\((.*)\)", text)
    if grid:
        text = "*".join(f"({part})" for part in _split(grid.group(1)))
    try:
        tree = ast.parse(text.replace("/", "//"), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return _value(tree, constants, depth)


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [p for p in parts if p.strip()]


def _value(node: ast.expr, constants: Mapping[str, str], depth: int) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name) and node.id in constants and depth:
        return fold_constant(constants[node.id], constants, depth - 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, constants, depth)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, constants, depth), _value(node.right, constants, depth)
        return None if left is None or right is None else _combined(node.op, left, right)
    return None


def _combined(op: ast.operator, left: int, right: int) -> int | None:
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.FloorDiv) and right:
        return left // right
    if isinstance(op, ast.Mod) and right:
        return left % right
    if isinstance(op, ast.LShift) and 0 <= right < 64:
        return left << right
    return None
