"""The points of a sweep: what constraints leave of the product of all values, and a source with a point's values."""

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import LANGUAGES, CandidateLanguage
from gpu_mcp_server.models.run_plan import ParameterValue, Point

MOST_LISTED = 100_000
"""Points of a space that are listed one by one, to count those that the constraints leave."""
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: operator.mod,
}  # fmt: skip
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_HINT = "Write numbers, names of [tune], + - * / // %, comparisons, and, or, not."


@dataclass(frozen=True)
class TuningSpace:
    """All points of a sweep."""

    values: Mapping[str, list[ParameterValue]]
    constraints: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Points without constraints."""
        return math.prod(len(values) for values in self.values.values())

    def points(self) -> Iterator[Point]:
        """Return the points that comply, the last parameter changing fastest.

        Raises:
            BadRequest: If a constraint cannot be read.
        """
        for values in itertools.product(*self.values.values()):
            point: Point = dict(zip(self.values, values, strict=True))
            if self.admits(point):
                yield point

    def admits(self, point: Point) -> bool:
        """Say whether a point complies with all constraints.

        Raises:
            BadRequest: If a constraint cannot be read.
        """
        return all(_holds(text, point) for text in self.constraints)


def _holds(constraint: str, point: Point) -> bool:
    try:
        return bool(_value(ast.parse(constraint.strip(), mode="eval").body, point))
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise BadRequest(f"The constraint {constraint[:80]!r} cannot be read: {error}.", hint=_HINT) from None


def _value(node: ast.expr, point: Point) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, point) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, point) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, point)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, point)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return ARITHMETIC[type(op)](_value(left, point), _value(right, point))
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in COMPARISONS for op in ops):
            found = [_value(part, point) for part in (left, *rights)]
            return all(COMPARISONS[type(op)](a, b) for op, (a, b) in zip(ops, itertools.pairwise(found), strict=True))
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in point:
            return point[name]
        case ast.Name(id=name):
            raise ValueError(f"[tune] has no {name}; it has {', '.join(point)}")
        case _:
            raise ValueError(f"{ast.unparse(node)[:40]} is no part of a constraint")


def with_parameters(source: str, language: CandidateLanguage, point: Point) -> str:
    """Return a source with a point's values: of macros in C's languages, of constants of the module in Python.

    Raises:
        BadRequest: If a name is not defined exactly once, or not by a plain value.
    """
    replace = _with_constant if LANGUAGES[language].launcher == "python" else _with_macro
    for name, value in point.items():
        source = replace(source, name, value)
    return source


def _with_macro(source: str, name: str, value: ParameterValue) -> str:
    pattern = re.compile(rf"^([ \t]*#[ \t]*define[ \t]+{name}[ \t]+)([^\n]*?)([ \t]*(?://[^\n]*|/\*[^\n]*)?)$", re.M)
    times = len(pattern.findall(source))
    if times != 1:
        raise _not_once(name, times, f"#define {name} {_c_text(value)}")
    return pattern.sub(lambda found: f"{found[1]}{_c_text(value)}{found[3]}", source)


def _c_text(value: ParameterValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _with_constant(source: str, name: str, value: ParameterValue) -> str:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise BadRequest(f"The source is no Python: {error}.", hint="Correct it; [tune] sets its constants.") from None
    found = [given for given in (given_value(node, name) for node in body) if given is not None]
    if len(found) != 1:
        raise _not_once(name, len(found), f"{name} = {value!r} at the module's top")
    node = found[0]
    try:
        ast.literal_eval(node)
    except ValueError:
        raise BadRequest(f"{name} is no plain value: {ast.unparse(node)[:60]}.", hint="Write a literal.") from None
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = source.encode().split(b"\n")  # columns of ast are bytes
    first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
    changed = first[: node.col_offset] + repr(value).encode() + last[node.end_col_offset :]
    return b"\n".join([*lines[: node.lineno - 1], changed, *lines[node.end_lineno :]]).decode()


def given_value(node: ast.stmt, name: str) -> ast.expr | None:
    """Return what a statement gives one name; None of any other statement."""
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
            return value
        case _:
            return None


def _not_once(name: str, times: int, wanted: str) -> BadRequest:
    return BadRequest(f"The source defines {name} {times} times.", hint=f"[tune] needs one line: {wanted}.")
