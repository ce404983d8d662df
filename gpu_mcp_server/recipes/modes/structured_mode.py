"""Structured mode: specification, then candidates one after the other, each failure told to the next."""

from collections import Counter
from dataclasses import replace

from gpu_mcp_server.models.recipe import CandidateProfile, Stage, Verdict
from gpu_mcp_server.recipes.agents.agent_output import candidate_of
from gpu_mcp_server.recipes.agents.prompt_builder import Findings, Turn, about, code_prompt
from gpu_mcp_server.recipes.modes.preparation_steps import Prepared, prepared
from gpu_mcp_server.recipes.run.candidate_profile import profile_candidate, profile_text, score_advice
from gpu_mcp_server.recipes.run.compile_tier import COMPILES
from gpu_mcp_server.recipes.run.failure_response import FailureResponse
from gpu_mcp_server.recipes.run.run_context import Ending, Ground

SILENT = 2
"""Calls in a row without a candidate after which the agent is given up."""


async def structured(ground: Ground) -> Ending:
    """Run the loop to its end."""
    handed = await prepared(ground)
    if isinstance(handed, Ending):
        return handed
    turns: list[Turn] = []
    failed: Counter[Stage] = Counter()
    response = FailureResponse()
    found = Findings(memory=ground.memory)
    profile: CandidateProfile | None = None
    while True:
        if (over := ground.over()) is not None:
            return over
        turn = await _turn(ground, handed, turns, found)
        if turns:
            await score_advice(ground, profile, turns[-1].verdict, turn.verdict)
        label = f"{turn.number:03}"
        await response.score(ground, label, [turn.verdict])
        turns.append(turn)
        stage = turn.verdict.stage
        failed[stage] += 1
        if (ending := _ended(ground, turns, failed)) is not None:
            return ending
        found = await response.respond(ground, label, [turn.verdict], about(ground.problem, ground.plan))
        profile = await profile_candidate(ground, f"profile-{label}", turn.verdict)
        found = replace(found, profile=profile_text(profile), memory=ground.memory)


async def _turn(ground: Ground, handed: Prepared, turns: list[Turn], found: Findings) -> Turn:
    number = len(turns) + 1
    best = (ground.best, ground.best_source) if ground.best else None
    prompt = code_prompt(ground.plan, ground.problem, handed.specification, turns, best, found, handed.tests)
    step = f"code-{number:03}"
    answer = await ground.ask(step, "code", prompt)
    candidate, why = candidate_of(answer)
    if answer.status != "ok" or candidate is None:
        reason = why if answer.status == "ok" else f"the agent's call ended as {answer.status}: {answer.why}"
        return Turn(number, None, Verdict(stage="code", outcome="no_candidate", reason=reason[:1500]))
    ground.hand_off(step, candidate)
    parent = next((t.verdict.attempt_id for t in reversed(turns) if t.verdict.attempt_id), None)
    return Turn(number, candidate, await ground.judge(f"judge-{number:03}", candidate, step, parent))


def _ended(ground: Ground, turns: list[Turn], failed: Counter[Stage]) -> Ending | None:
    verdict = turns[-1].verdict
    if verdict.stage == "target":
        if verdict.outcome == COMPILES:
            return Ending("compiled", f"{verdict.attempt_id}: {verdict.reason}")
        return Ending("target", f"{verdict.attempt_id} reached it")
    if len(turns) >= SILENT and all(turn.verdict.stage == "code" for turn in turns[-SILENT:]):
        return Ending("agent", f"{SILENT} calls in a row gave no candidate; the last: {verdict.reason}"[:500])
    limits = ground.plan.iterations
    limit = {"compile": limits.compile, "correctness": limits.correctness, "performance": limits.performance}
    stage = verdict.stage
    if failed[stage] >= limit.get(stage, limits.compile):
        return Ending("iterations", f"{failed[stage]} candidates ended at stage {stage}, as many as iterations allows")
    return None
