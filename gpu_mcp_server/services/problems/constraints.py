"""What a problem demands of its shapes: `cols % 4 == 0`, `rows >= 2`, `k <= n`. A grammar of its own, no evaluation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem

MAX_CONSTRAINTS = 16
MAX_NUMBER = 1 << 40
_GRAMMAR = re.compile(
    r"\s*([a-z][a-z0-9_]{0,31})\s*(?:%\s*([0-9]{1,12}))?\s*(==|!=|<=|>=|<|>)\s*([a-z][a-z0-9_]{0,31}|[0-9]{1,13})\s*"
)
_HINT = "Write `symbol op integer`, `symbol % integer == integer` or `symbol op symbol`; op is == != <= >= < or >."


def parsed(text: str, symbols: Sequence[str]) -> dict[str, Any]:
    """Return a constraint as the judge reads it: symbol, modulus or None, operator, right side.

    Raises:
        BadRequest: If it is not in the grammar, or names a symbol that no tensor uses.
    """
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise BadRequest(f"The constraint {text[:80]!r} cannot be read.", hint=_HINT)
    symbol, modulus, operator, right = match.groups()
    for name in (symbol, right):
        if not name[0].isdigit() and name not in symbols:
            raise BadRequest(
                f"The constraint {text[:80]!r} names {name!r}, which no tensor uses.",
                hint=f"The tensors use {', '.join(symbols) or 'no symbols'}.",
            )
    if modulus is not None and (int(modulus) < 1 or operator not in ("==", "!=") or not right[0].isdigit()):
        raise BadRequest(f"The constraint {text[:80]!r} cannot be read.", hint=_HINT)
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
        constraint = parsed(text, problem.symbols())
        for dims in problem.shapes:
            if not holds(constraint, dims):
                raise BadRequest(
                    f"The declared shape {dims} breaks the constraint {text!r}.", hint="Correct one of them."
                )
