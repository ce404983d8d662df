"""A problem of KernelBench-Hard, Mega and Mini: reference.py of KernelBench's form, shapes.py, problem.yaml."""

import ast
import math
from collections.abc import Mapping
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.suite_problems import read_yaml, suite_problem

TITLE = "problem.yaml (KernelBench-Hard: reference.py and shapes.py beside it)"
MAIN_FILES = ("problem.yaml",)


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is such a problem's file."""
    return source.name in MAIN_FILES or ("flops_formula:" in source.text and "bytes_formula:" in source.text)


async def problem(source: ProblemSource) -> Problem:
    """Return the problem; each of SHAPES is a case.

    Raises:
        BadRequest: If it is of several GPUs, or shapes.py has no SHAPES that can be read without running it.
        NotFound: If reference.py or shapes.py is not there.
    """
    said = read_yaml(source.text, source.name or "The problem")
    if int(said.get("world_size") or said.get("num_gpus") or 1) > 1:
        raise BadRequest("The problem is of several ranks.", hint="Those are out of scope; run_command runs them.")
    reference, sweep = await source.sibling_text("reference.py"), await source.sibling_text("shapes.py")
    tolerance = _tolerance(said)
    wish = source.wish
    if wish.libraries == "allowed" and said.get("forbidden"):
        wish = wish.model_copy(update={"libraries": "forbidden"})
    made = suite_problem(
        str(said.get("display_name") or said.get("name") or "KernelBench-Hard problem"),
        reference,
        kind="sweep",
        cases=_shapes(sweep),
        wish=wish,
        description=_about(said),
        rtol=tolerance,
        atol=tolerance,
    )
    return made.model_copy(update={"copy_state": True})


def _about(said: Mapping[str, Any]) -> str:
    forbidden = ", ".join(str(each) for each in cast("list[Any]", said.get("forbidden") or [])[:40])
    sota = said.get("sota")
    best = str(cast("Mapping[str, Any]", sota).get("name") or "") if isinstance(sota, dict) else ""
    parts = [f"{said.get('regime', 'unknown')}-bound, {said.get('precision', 'unknown precision')}."]
    parts += [f"The suite forbids {forbidden}."] if forbidden else []
    parts += [f"Its best known: {best}."] if best else []
    return " ".join(parts)


def _tolerance(said: Mapping[str, Any]) -> float | None:
    """Return the largest tolerance by type that the file has; absolute and relative."""
    given = said.get("tolerance")
    if not isinstance(given, dict):
        return None
    values = [v for v in cast("Mapping[str, Any]", given).values() if isinstance(v, (int, float))]
    return max((float(v) for v in values if math.isfinite(v) and v >= 0), default=None)


def _shapes(text: str) -> list[dict[str, Any]]:
    """Read SHAPES, in which names may stand for constants of the module; nothing is run."""
    try:
        body = ast.parse(text).body
        given = (s for s in body if isinstance(s, (ast.Assign, ast.AnnAssign)))
        named = (s.value for s in given if any(isinstance(t, ast.Name) and t.id == "SHAPES" for t in _targets(s)))
        value = next(each for each in named if each is not None)
        found = ast.literal_eval(_Constants(body).visit(value))
    except (SyntaxError, ValueError, StopIteration, RecursionError, MemoryError) as error:
        raise BadRequest(
            f"shapes.py has no SHAPES that can be read: {str(error) or 'it sets none'}.",
            hint="Write SHAPES = [{'M': 64}, ...].",
        ) from error
    if not isinstance(found, (list, tuple)) or not all(isinstance(e, dict) for e in cast("list[Any]", found)):
        raise BadRequest("SHAPES is no list of values by name.", hint="SHAPES = [{'M': 64}, ...].")
    return [{str(k): v for k, v in each.items()} for each in cast("list[dict[Any, Any]]", found)]


class _Constants(ast.NodeTransformer):
    """Puts constants of a module in the place of their names."""

    def __init__(self, body: list[ast.stmt]) -> None:
        given = [s for s in body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)]
        self._known = {t.id: s.value for s in given for t in s.targets if isinstance(t, ast.Name)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id, node)


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]
