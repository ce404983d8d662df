"""Arithmetic over a problem's symbols: `2 * m * n * k`. Parsed, never evaluated as Python."""

import ast
from collections.abc import Mapping, Sequence

from gpu_mcp_server.errors import BadRequest

MAX_CHARACTERS = 400
MOST = 1e30
_HINT = "Write numbers, the tensors' symbols, + - * / // and parentheses: 2 * m * n * k."


def check_formula(text: str, what: str, shapes: Sequence[Mapping[str, int]]) -> None:
    """Refuse a formula that has no value at one of the shapes.

    Raises:
        BadRequest: Naming what is wrong with it.
    """
    for dims in shapes:
        value(text, what, dims)


def value(text: str, what: str, dims: Mapping[str, int]) -> float:
    """Return a formula's value at one shape.

    Raises:
        BadRequest: If it is none, names an unknown symbol, divides by zero, is negative or above 1e30.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadRequest(f"{what} has {len(text)} characters; the limit is {MAX_CHARACTERS}.", hint=_HINT)
    try:
        found = _of(ast.parse(text.strip(), mode="eval").body, dims)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise BadRequest(f"{what} {text[:80]!r} cannot be read: {error}.", hint=_HINT) from None
    if not 0 <= found <= MOST:
        raise BadRequest(f"{what} {text[:80]!r} is {found:g} at {dict(dims)}.", hint=_HINT)
    return found


def _of(node: ast.expr, dims: Mapping[str, int]) -> float:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _of(left, dims) + _of(right, dims)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _of(left, dims) - _of(right, dims)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _of(left, dims) * _of(right, dims)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _of(left, dims) / _of(right, dims)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _of(left, dims) // _of(right, dims)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name) if name in dims:
            return float(dims[name])
        case ast.Name(id=name):
            raise ValueError(f"no tensor uses {name}")
        case _:
            raise ValueError(f"{ast.unparse(node)[:40]} is no part of such a formula")
