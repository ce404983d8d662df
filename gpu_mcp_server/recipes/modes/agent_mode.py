"""Agent mode: an agent with our tools and a bounded number of turns, called once, or again with what was judged."""

from dataclasses import dataclass, field

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.recipes.agents.agent_proxy import OnCall
from gpu_mcp_server.recipes.agents.prompt_builder import Findings, about, findings_text, given_files, hints
from gpu_mcp_server.recipes.agents.recipe_loader import recipe
from gpu_mcp_server.recipes.agents.tool_call_meter import ToolCall
from gpu_mcp_server.recipes.run.failure_response import FailureResponse
from gpu_mcp_server.recipes.run.run_context import Ending, Ground

CONFINED = (
    "You are called by a program, and nobody answers questions. Your hands are the tools of the MCP server gpu: they "
    "compile, judge, profile, look up. You have no shell, no network and no files but your own; give sources as text. "
    "Only the best correct verdict of evaluate_kernel on the problem below counts, not what you say of it."
)
SHOWN = 8
REASON_CHARACTERS = 200


@dataclass
class Course:
    """Verdicts and findings of a run so far."""

    verdicts: list[Verdict] = field(default_factory=list[Verdict])

    response: FailureResponse = field(default_factory=FailureResponse)
    found: Findings = field(default_factory=Findings)
    told: int = 0
    """Verdicts that the response has had."""

    async def find_out(self, ground: Ground, number: int) -> None:
        """Answer the failures since the last session, ahead of a further one."""
        if number > 1:
            fresh, self.told = self.verdicts[self.told :], len(self.verdicts)
            self.found = await self.response.respond(ground, f"{number:03}", fresh, about(ground.problem, ground.plan))

    @property
    def target(self) -> Verdict | None:
        """The first that reached what the run is for."""
        return next((verdict for verdict in self.verdicts if verdict.stage == "target"), None)


async def sessions(ground: Ground) -> Ending:
    """Call the agent until a verdict reaches the target or its sessions are used up."""
    course = Course(await ground.noted())
    limit = ground.plan.iterations.session
    for number in range(1, limit + 1):
        step = f"session-{number:03}"
        if ground.journal.done(step) is None:
            if course.target is not None:
                break
            if (over := ground.over()) is not None:
                return over
            await course.find_out(ground, number)
        answer = await ground.ask(step, "session", session_prompt(ground, course, number), _heard(ground, course))
        await course.response.score(ground, f"{number:03}", course.verdicts[course.told :])
        if answer.status != "ok" and not course.verdicts and number == limit:
            return Ending("agent", f"its call ended as {answer.status}: {answer.why}"[:500])
    if course.target is not None:
        return Ending("target", f"{course.target.attempt_id} reached it")
    if not course.verdicts:
        return Ending("agent", "it had nothing judged on the run's problem")
    return Ending("iterations", f"{len(course.verdicts)} candidates in {limit} sessions did not reach the target")


def _heard(ground: Ground, course: Course) -> OnCall:
    async def hear(call: ToolCall) -> None:
        for attempt_id in call.attempt_ids:
            verdict = await ground.judged(attempt_id)
            if verdict is not None:
                course.verdicts.append(verdict)
        failed = ", refused" if call.is_error else ""
        await ground.tell(f"call-{call.number:03}: {call.name}{failed}, {call.characters:,} characters")

    return hear


def session_prompt(ground: Ground, course: Course, number: int) -> str:
    """Return what the agent is told: the procedure, the problem, what was judged, the bounds."""
    plan = ground.plan
    parts = [CONFINED, recipe(plan.procedure).body.strip(), about(ground.problem, plan)]
    parts.append(
        f"Given:\n\n- problem_id: {ground.problem.problem_id}" + (f"\n- host: {plan.host}" if plan.host else "")
    )
    parts += [given_files(plan), ground.memory] if number == 1 else []
    parts += [*findings_text(course.found, plan), *hints(plan, "compile", "correctness", "performance", "research")]
    if course.verdicts:
        rows = [_row(verdict) for verdict in course.verdicts[-SHOWN:]]
        left = len(course.verdicts) - len(rows)
        head = f"Judged so far in this run{f' ({left} earlier left out)' if left else ''}; read_artifact has sources:"
        parts.append("\n".join([head, *rows]))
    if ground.best is not None:
        parts.append(f"Start from the best, {ground.best.attempt_id}:\n\n```{plan.language}\n{ground.best_source}\n```")
    parts.append(f"You may call tools {plan.agent.turns} times. Then end, and say which attempt_id is the best.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(verdict: Verdict) -> str:
    speed = f", {verdict.speed_text()}" if verdict.speedup or verdict.median_us else ""
    return f"- {verdict.attempt_id}: {verdict.outcome}{speed}; {verdict.reason[:REASON_CHARACTERS]}".rstrip("; ")
