"""A KernelBench problem, the file unchanged: `Model`, `get_inputs`, `get_init_inputs`."""

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Basis, Problem
from gpu_mcp_server.services.problems import kernelbench_problems
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.reference_source import parse_reference

TITLE = "a KernelBench problem (Model, get_inputs, get_init_inputs)"
MAIN_FILES: tuple[str, ...] = ()


def recognizes(source: ProblemSource) -> bool:
    """Say whether it defines what KernelBench's problems do."""
    return {"Model", "get_inputs"} <= kernelbench_problems.defines(source.text)


def suite_basis(source: ProblemSource) -> Basis:
    """Return which time ranks where a problem is one of a suite's: the time that the suite itself takes."""
    return "kernelbench" if recognizes(source) else "device"


def lacks(source: ProblemSource) -> str:
    """Return what is wrong with a file that looks like one of KernelBench's; empty for any other."""
    if not source.name.endswith(".py") and not any(name in source.text for name in ("get_inputs", "get_init_inputs")):
        return ""
    try:
        parse_reference(source.text)
    except BadRequest as error:
        return str(error.args[0]).replace("The reference is", "it is").removesuffix(".")
    missing = [name for name in kernelbench_problems.NEEDED if name not in kernelbench_problems.defines(source.text)]
    return f"it does not define {', '.join(missing)}" if missing else ""


async def problem(source: ProblemSource) -> Problem:
    """Return the problem; its tensors are found out when it is registered.

    Raises:
        BadRequest: If get_init_inputs is missing.
    """
    name = source.name.removesuffix(".py").strip("_") or "KernelBench problem"
    wish = source.wish
    given = kernelbench_problems.TOLERANCES[wish.tolerance]
    rtol, atol = (given if each is None else each for each in (wish.rtol, wish.atol))
    drafted = kernelbench_problems.unresolved_problem(
        name, source.text, rtol=rtol, atol=atol, distribution=wish.distribution
    )
    own = {"libraries", "distributions", "robust", "copy_state", "basis", "requires", "ties"}
    return drafted.model_copy(update=wish.model_dump(include=own))
