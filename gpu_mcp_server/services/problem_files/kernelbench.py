"""A KernelBench problem, the file unchanged: `Model`, `get_inputs`, `get_init_inputs`."""

from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services import module_problems
from gpu_mcp_server.services.problem_files.base import ProblemSource

TITLE = "a KernelBench problem (Model, get_inputs, get_init_inputs)"
MAIN_FILES: tuple[str, ...] = ()


def recognizes(source: ProblemSource) -> bool:
    """Say whether it defines what KernelBench's problems do."""
    return {"Model", "get_inputs"} <= module_problems.defines(source.text)


async def problem(source: ProblemSource) -> Problem:
    """Return the problem; its tensors are found out when it is registered.

    Raises:
        BadRequest: If get_init_inputs is missing.
    """
    name = source.name.removesuffix(".py").strip("_") or "KernelBench problem"
    wish = source.wish
    drafted = module_problems.draft(name, source.text, rtol=wish.rtol, atol=wish.atol, distribution=wish.distribution)
    return drafted.model_copy(update={"libraries": wish.libraries})
