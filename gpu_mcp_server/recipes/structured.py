"""Structured mode: specification, then candidates one after the other, each failure told to the next."""

from collections import Counter

from gpu_mcp_server.models.recipe import Specification, Stage, Verdict
from gpu_mcp_server.recipes.answers import candidate_of, handed_over
from gpu_mcp_server.recipes.compiling import COMPILES
from gpu_mcp_server.recipes.composing import Turn, code_prompt, specification_prompt
from gpu_mcp_server.recipes.ground import Ending, Ground

SILENT = 2
"""Calls in a row without a candidate after which the agent is given up."""


async def structured(ground: Ground) -> Ending:
    """Run the loop to its end."""
    specification = await _specification(ground)
    if isinstance(specification, Ending):
        return specification
    turns: list[Turn] = []
    failed: Counter[Stage] = Counter()
    looked_up = ""
    while True:
        if (over := ground.over()) is not None:
            return over
        turn = await _turn(ground, specification, turns, looked_up)
        repeated = any(_same_error(turn.verdict, earlier.verdict) for earlier in turns)
        turns.append(turn)
        stage = turn.verdict.stage
        failed[stage] += 1
        if (ending := _ended(ground, turns, failed)) is not None:
            return ending
        looked_up = ""
        if repeated:
            looked_up = await ground.look_up(f"lookup-{turn.number:03}", turn.verdict.reason)


async def _specification(ground: Ground) -> Specification | Ending:
    refused = ""
    for number in range(1, ground.plan.iterations.specification + 1):
        step = f"specification-{number:03}"
        prompt = specification_prompt(ground.plan, ground.problem, refused)
        answer = await ground.ask(step, "specification", prompt)
        found, refused = handed_over(answer, Specification)
        if answer.status != "ok":
            refused = f"{answer.status}: {answer.why}"
        elif found is not None:
            ground.hand_off(step, found)
            return found
    return Ending("specification", f"the agent gave no specification: {refused}"[:500])


async def _turn(ground: Ground, specification: Specification, turns: list[Turn], looked_up: str) -> Turn:
    number = len(turns) + 1
    best = (ground.best, ground.best_source) if ground.best else None
    prompt = code_prompt(ground.plan, ground.problem, specification, turns, best, looked_up)
    step = f"code-{number:03}"
    answer = await ground.ask(step, "code", prompt)
    candidate, why = candidate_of(answer)
    if answer.status != "ok" or candidate is None:
        reason = why if answer.status == "ok" else f"the agent's call ended as {answer.status}: {answer.why}"
        return Turn(number, None, Verdict(stage="code", outcome="no_candidate", reason=reason[:1500]))
    ground.hand_off(step, candidate)
    parent = next((t.verdict.attempt_id for t in reversed(turns) if t.verdict.attempt_id), None)
    return Turn(number, candidate, await ground.judge(f"judge-{number:03}", candidate, step, parent))


def _same_error(one: Verdict, other: Verdict) -> bool:
    return one.stage in ("compile", "correctness") and bool(one.signature) and one.signature == other.signature


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
