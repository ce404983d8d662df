"""Expressions over a problem's symbols: parsed by two grammars, never evaluated as Python.

Formulas are arithmetic: `2 * m * n * k`. Constraints are demands on shapes: `cols % 4 == 0`, `oh == (h - 3) // 2 + 1`.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.judge.inputs.constraints import list_names, satisfies
from gpu_mcp_server.models.problem import Problem

MAX_CHARACTERS = 400
MAX_VALUE = 1e30
_FORMULA_HINT = "Write numbers, the tensors' symbols, + - * / // and parentheses: 2 * m * n * k."
MAX_CONSTRAINTS = 16
MAX_NUMBER = 1 << 40
_WORD = re.compile(r"\b(?!and\b)[A-Za-z][A-Za-z0-9_]*")
_MARK = re.compile(r"\b_(?=[A-Za-z])")
"""The sign before a symbol, in what Python's parser reads."""
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
_CONSTRAINT_HINT = (
    "Write `symbol % integer == integer`, or compare any two sides by == != <= >= < or >. A side has whole numbers up "
    "to 2^40, symbols, + - * // % and parentheses: `oh == (h - 3) // 2 + 1`, `heads % kv_heads == 0`. "
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
    """Return a constraint as the judge reads it: a term, an operator and another term.

    Raises:
        BadRequest: If it is not in the grammar, or names a symbol that no tensor uses.
    """
    joined: list[str] = []
    try:
        # A symbol may be a word of Python, such as `in`: with a sign before it, it is none.
        tree = ast.parse(_WORD.sub(r"_\g<0>", text[: MAX_CHARACTERS + 1].strip()), mode="eval").body
        joined = _split_comparisons(tree)
        match tree:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if len(text) <= MAX_CHARACTERS:
                read = {"left": _term(left), "operator": _COMPARISONS[type(operator)], "right": _term(right)}
            case _:
                raise ValueError
    except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
        hint = f"Write each comparison alone: {', '.join(joined)}." if len(joined) > 1 else _CONSTRAINT_HINT
        raise BadRequest(f"The constraint {text[:80]!r} cannot be read.", hint=hint) from None
    names = [*list_names(read["left"]), *list_names(read["right"])]
    unknown = next((name for name in names if name not in symbols), None)
    if unknown is not None:
        raise BadRequest(
            f"The constraint {text[:80]!r} names {unknown!r}, which no tensor uses.",
            hint=f"The tensors use {', '.join(symbols) or 'no symbols'}.",
        )
    return read


def _split_comparisons(node: ast.expr) -> list[str]:
    """Return the comparisons that a chain or `and` joins, as text."""
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return [text for part in parts for text in _split_comparisons(part)]
        case ast.Compare(left=left, ops=operators, comparators=others):
            pairs = zip([left, *others], operators, others, strict=False)
            texts = [ast.unparse(ast.Compare(one, [how], [other])) for one, how, other in pairs]
            return [f"`{_MARK.sub('', text)}`" for text in texts]
        case _:
            return []


def _term(node: ast.expr) -> Any:
    """Return a side of a constraint as the judge reads it: a number, a symbol, or `[operator, term, term]`."""
    match node:
        case ast.BinOp(left=left, op=operator, right=right):
            return [_ARITHMETIC[type(operator)], _term(left), _term(right)]
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            if number > MAX_NUMBER:
                raise ValueError
            return number
        case ast.Name(id=name):
            return name.removeprefix("_")
        case _:
            raise ValueError


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
            if not satisfies(constraint, dict(dims)):
                raise BadRequest(
                    f"The declared shape {dims} breaks the constraint {text!r}.", hint="Correct one of them."
                )
