"""Expressions over a problem's symbols: parsed by two grammars, never evaluated as Python.

Formulas are arithmetic: `2 * m * n * k`. Constraints are demands on shapes: `cols % 4 == 0`, `rows >= 2`, `k <= n`.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem

MAX_CHARACTERS = 400
MAX_VALUE = 1e30
_FORMULA_HINT = "Write numbers, the tensors' symbols, + - * / // and parentheses: 2 * m * n * k."
MAX_CONSTRAINTS = 16
MAX_NUMBER = 1 << 40
_SYMBOL = "[A-Za-z][A-Za-z0-9_]{0,31}"
_GRAMMAR = re.compile(rf"\s*({_SYMBOL})\s*(?:%\s*([0-9]{{1,12}}))?\s*(==|!=|<=|>=|<|>)\s*({_SYMBOL}|[0-9]{{1,13}})\s*")
_CONSTRAINT_HINT = (
    "Write `symbol op integer`, `symbol % integer == integer` or `symbol op symbol`; op is == != <= >= < or >. "
    "What none of them says, such as powers of two: trials fixed_shapes, and each size declared as a shape."
)


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
        raise BadRequest(f"{what} has {len(text)} characters; the limit is {MAX_CHARACTERS}.", hint=_FORMULA_HINT)
    try:
        found = _of(ast.parse(text.strip(), mode="eval").body, dims)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise BadRequest(f"{what} {text[:80]!r} cannot be read: {error}.", hint=_FORMULA_HINT) from None
    if not 0 <= found <= MAX_VALUE:
        raise BadRequest(f"{what} {text[:80]!r} is {found:g} at {dict(dims)}.", hint=_FORMULA_HINT)
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


def parse_constraint(text: str, symbols: Sequence[str]) -> dict[str, Any]:
    """Return a constraint as the judge reads it: symbol, modulus or None, operator, right side.

    Raises:
        BadRequest: If it is not in the grammar, or names a symbol that no tensor uses.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise BadRequest(f"The constraint {text[:80]!r} cannot be read.", hint=_CONSTRAINT_HINT)
    symbol, modulus, operator, right = match.groups()
    for name in (symbol, right):
        if not name[0].isdigit() and name not in symbols:
            raise BadRequest(
                f"The constraint {text[:80]!r} names {name!r}, which no tensor uses.",
                hint=f"The tensors use {', '.join(symbols) or 'no symbols'}.",
            )
    if modulus is not None and (int(modulus) < 1 or operator not in ("==", "!=") or not right[0].isdigit()):
        raise BadRequest(f"The constraint {text[:80]!r} cannot be read.", hint=_CONSTRAINT_HINT)
    return {
        "symbol": symbol,
        "modulus": int(modulus) if modulus else None,
        "operator": operator,
        "right": min(int(right), MAX_NUMBER) if right[0].isdigit() else right,
    }


def holds(constraint: Mapping[str, Any], dims: Mapping[str, int]) -> bool:
    """Say whether a shape complies."""
    left, right = dims[constraint["symbol"]], constraint["right"]
    left = left % constraint["modulus"] if constraint["modulus"] else left
    right = dims[right] if isinstance(right, str) else right
    return {
        "==": left == right, "!=": left != right, "<=": left <= right, ">=": left >= right, "<": left < right,
        ">": left > right,
    }[constraint["operator"]]  # fmt: skip


def check_constraints(problem: Problem) -> None:
    """Refuse constraints that cannot be read, or that a declared shape breaks.

    Raises:
        BadRequest: Naming the constraint.
    """
    if len(problem.constraints) > MAX_CONSTRAINTS:
        raise BadRequest(
            f"There are {len(problem.constraints)} constraints.",
            hint=f"Give at most {MAX_CONSTRAINTS}, or fixed_shapes.",
        )
    for text in problem.constraints:
        constraint = parse_constraint(text, problem.symbols())
        for dims in problem.shapes:
            if not holds(constraint, dims):
                raise BadRequest(
                    f"The declared shape {dims} breaks the constraint {text!r}.", hint="Correct one of them."
                )
