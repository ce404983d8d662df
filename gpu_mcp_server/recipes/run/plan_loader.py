"""Reads the TOML file of a run."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.run_plan import RunPlan

MAX_PLAN_BYTES = 1 << 20


def read_plan(path: Path, *, problem_given: bool = False) -> RunPlan:
    """Read a TOML file; its relative paths become absolute.

    Args:
        path: Of the file.
        problem_given: Whether a suite or a comparison gives the problems, so that the file may name none.

    Raises:
        NotFound: If it is not there.
        BadRequest: If it is not TOML or not a plan; says key and reason.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound("run file", str(path), hint=f"{error.strerror}.") from error
    try:
        values = tomllib.loads(data[:MAX_PLAN_BYTES].decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not TOML: {error}.", hint="Correct it.") from error
    return plan_of({"problem": "given"} | values if problem_given else values, path.absolute().parent)


def plan_of(values: dict[str, Any], folder: Path) -> RunPlan:
    """Return the plan that a table describes.

    Raises:
        BadRequest: If it is none.
    """
    try:
        plan = RunPlan.model_validate(values)
    except ValidationError as error:
        said = "; ".join(
            ": ".join(filter(None, [".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")]))
            for e in error.errors()[:5]
        )
        raise BadRequest(f"The run cannot be used: {said}.", hint="docs/reference/plan.md has every key.") from error

    def at(name: str) -> str:
        return str(folder / Path(name).expanduser())

    own = plan.names_known_problem()
    problem = plan.problem if own or not plan.problem else at(plan.problem)
    agent = plan.agent.model_copy(
        update={
            "files": {inside: at(outside) for inside, outside in plan.agent.files.items()},
            "roots": [at(root) for root in plan.agent.roots],
        }
    )
    population = plan.population.model_copy(update={"seed": plan.population.seed and at(plan.population.seed)})
    tuning = plan.tuning.model_copy(update={"source": plan.tuning.source and at(plan.tuning.source)})
    return plan.model_copy(
        update={
            "problem": problem,
            "agent": agent,
            "population": population,
            "tuning": tuning,
            "reference_code": [at(name) for name in plan.reference_code],
            "documents": [at(name) for name in plan.documents],
        }
    )
