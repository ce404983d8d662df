"""Before the first candidate: the analyst's specification and, if the run wants them, build plan and test plan."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.models.recipe import BuildPlan, Specification, TestPlan
from gpu_mcp_server.models.run_plan import Preparer
from gpu_mcp_server.recipes.agents.agent_output import handed_over
from gpu_mcp_server.recipes.agents.prompt_builder import role_prompt
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.evaluation.program_candidates import Programs
from gpu_mcp_server.toolchains.flags import linked_libraries

M = TypeVar("M", bound=Model)
Check = Callable[[M], Awaitable[str]]
"""Says why a hand-off cannot be used; empty if it can."""


@dataclass(frozen=True)
class Prepared:
    """Specification and tests that were handed over before the first candidate."""

    specification: Specification
    tests: TestPlan | None = None


async def prepared(ground: Ground) -> Prepared | Ending:
    """Ask the roles of the plan in turn; a build plan becomes part of how every candidate is built."""
    specification = await _handed(ground, "analyst", "specification", Specification, None, _fine)
    if isinstance(specification, Ending):
        return specification
    tests: TestPlan | None = None
    if "builder" in ground.plan.roles:
        build = await _handed(ground, "builder", "build-plan", BuildPlan, specification, _buildable(ground))
        if isinstance(build, Ending):
            return build
        changes = {"flags": [*ground.plan.flags, *build.flags], "entry": build.entry}
        ground.plan = ground.plan.model_copy(update=changes)
    if "tester" in ground.plan.roles:
        found = await _handed(ground, "tester", "test-plan", TestPlan, specification, _fine)
        if isinstance(found, Ending):
            return found
        tests = found
    return Prepared(specification, tests)


async def _handed(
    ground: Ground, role: Preparer, name: str, kind: type[M], specification: Specification | None, check: Check[M]
) -> M | Ending:
    """Ask a role until it hands over what can be used, as often as the plan allows; what it was is kept."""
    refused = ""
    for number in range(1, ground.plan.iterations.specification + 1):
        step = f"{name}-{number:03}"
        prompt = role_prompt(ground.plan, ground.problem, role, kind, specification, refused)
        answer = await ground.ask(step, "specification" if role == "analyst" else "plan", prompt)
        found, refused = handed_over(answer, kind)
        if answer.status != "ok":
            refused = f"{answer.status}: {answer.why}"
        elif found is not None:
            refused = await check(found)
            if not refused:
                ground.hand_off(step, found)
                return found
    return Ending("specification", f"the agent gave no {name.replace('-', ' ')}: {refused}"[:500])


async def _fine(found: Model) -> str:
    return ""


def _buildable(ground: Ground) -> Check[BuildPlan]:
    """Return the check of a build plan: flags that the compiler's gate lets through, a launcher that can be one."""

    async def check(build: BuildPlan) -> str:
        plan, program, language = ground.plan, ground.problem.program, ground.plan.language
        flags = [*plan.flags, *build.flags]
        if ground.problem.libraries == "forbidden" and (linked := linked_libraries(flags)):
            return f"the problem forbids libraries, and {', '.join(linked)} links one"
        if not (build.entry.isidentifier() and build.entry.isascii()):
            return f"entry {build.entry!r} is no C identifier"
        try:
            if program is not None:
                Programs.check_flags(program, flags)
            elif LANGUAGES[language].launcher == "python":
                return "a Python candidate takes no flags" if flags else ""
            else:
                host = ground.lab.hosts.choose(plan.host)
                await ground.lab.builds.compiler.validate(
                    CandidateSource("", language, NAMES[language]), host=host, flags=flags
                )
        except (BadRequest, ToolMissing) as error:
            return str(error)
        return ""

    return check
