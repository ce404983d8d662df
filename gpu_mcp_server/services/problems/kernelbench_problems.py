"""Module problems: KernelBench's files. What they take and return is not declared, so a host is asked once."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest, ProblemRefused
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.services.problems.problem_identity import name_by_content
from gpu_mcp_server.services.problems.problem_table import C_WORDS

NEEDED = ("Model", "get_inputs", "get_init_inputs")
FORM = (
    "A KernelBench problem does: class Model, get_inputs() with the list of its forward's arguments, get_init_inputs() "
    "with that of its constructor's."
)
BY_TYPE = -1.0
"""A tolerance that is not known before the outputs' types are."""
TOLERANCES = {"by type": BY_TYPE, "first release": 1e-2}
"""Of KernelBench's versions; the source is named at `ImportOverrides.tolerance`, the numbers by type in the judge's
owner/module_signature.py."""


def defines(text: str) -> set[str]:
    """Return which of the needed names a file defines; none if it is no Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = {s.name for s in body if isinstance(s, (ast.ClassDef, ast.FunctionDef))}
    return names.intersection(NEEDED)


def unresolved_problem(
    name: str, text: str, *, rtol: float | None = None, atol: float | None = None, distribution: str | None = None
) -> Problem:
    """Return a module problem before it is known what it takes; `resolved_problem` completes it.

    Raises:
        BadRequest: If the file lacks something that KernelBench's have.
    """
    if missing := [each for each in NEEDED if each not in defines(text)]:
        raise BadRequest(f"The file does not define {', '.join(missing)}.", hint=FORM)
    return Problem(
        problem_id="p-",
        content_hash="",
        name=name[:200],
        description=_docstring(text),
        kind="module",
        framework="torch",
        entry="Model",
        inputs=_drawn(distribution) if distribution else [],
        outputs=[],
        shapes=[{}],
        rtol=BY_TYPE if rtol is None else rtol,
        atol=BY_TYPE if atol is None else atol,
        reference=text,
        fixed_shapes=True,
    )


def _drawn(distribution: str) -> list[TensorSpec]:
    return [TensorSpec.model_validate({"name": "x", "dtype": "float32", "shape": [], "distribution": distribution})]


def task_of(problem: Problem, max_bytes: int | None = None) -> dict[str, Any]:
    """Return what the judge's task says about a module problem besides what every problem's does."""
    asked: dict[str, Any] = {
        "problem": "module", "state": problem.state, "constants": problem.constants, "copy_state": problem.copy_state,
        "layouts": {at: layout.model_dump() for at, layout in problem.layouts.items()},
        "adapter": problem.adapter, "cases": problem.cases, "case_constants": problem.case_constants,
        "scalars": problem.scalars, "max_bytes": max_bytes,
        "case_layouts": [{at: one.model_dump() for at, one in case.items()} for case in problem.case_layouts],
    }  # fmt: skip
    if not problem.outputs:
        asked |= {
            "describe": True,
            "input_distribution": problem.inputs[0].distribution if problem.inputs else None,
            "inputs": [],
            "rtol": None if problem.rtol == BY_TYPE else problem.rtol,
            "atol": None if problem.atol == BY_TYPE else problem.atol,
        }
    return asked


def resolved_problem(problem: Problem, found: Mapping[str, Any]) -> Problem:
    """Return a problem with what a host found out about it, named by its content.

    Raises:
        ProblemRefused: If it is nothing that a problem can be.
    """
    content = problem.model_dump()
    for name in ("inputs", "outputs"):
        specs = [dict(spec) for spec in cast("Sequence[Mapping[str, Any]]", found.get(name) or [])]
        for spec in specs:
            spec["name"] = f"{spec['name']}_" if spec["name"] in C_WORDS else spec["name"]
        content[name] = specs
    content |= {name: found.get(name) for name in ("state", "constants", "rtol", "atol")}
    content["layouts"] = found.get("layouts") or {}
    if problem.adapter:
        content |= {name: found[name] for name in ("shapes", "cases", "case_layouts", "case_constants", "scalars")}
        content["adapter"] = {**problem.adapter, **cast("Mapping[str, Any]", found["adapter"])}
        if content["adapter"].get("checker"):  # it is asked of inputs as they are declared
            content["distributions"] = "declared"
    try:
        whole = Problem.model_validate(content)
    except ValidationError as error:
        raise ProblemRefused(
            f"Refused: what the problem's code says it takes cannot be judged: {error.errors()[0]['msg']}.",
            hint="Inputs and outputs are dense tensors of floats or integers.",
        ) from error
    return name_by_content(whole)


def _docstring(text: str) -> str:
    model = next(s for s in ast.parse(text).body if isinstance(s, ast.ClassDef) and s.name == "Model")
    return " ".join((ast.get_docstring(model) or "").split())[:1000]
