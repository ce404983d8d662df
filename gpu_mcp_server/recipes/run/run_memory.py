"""Memory of a run before its first step: the best confirmed attempt, recurring failures, lessons of kin."""

import json
import time
from typing import Any, get_args

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import Tier
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.services.evaluation.judge_job import GENERATION
from gpu_mcp_server.services.hosts.host_connections import device_name

STEP = "memory-001"
KINDRED = 3
"""Lessons of other problems in the first prompt."""
RECURRING = 3
"""Failures of this problem in the first prompt."""
CANDIDATES = 20
"""Fastest attempts that are compared with the run's device and flags."""


async def recall(ground: Ground) -> Ending | None:
    """Remember once; an ending where an earlier best reaches the target already.

    Only runs over a judged kernel problem without `fresh` start from what earlier runs found.
    """
    plan = ground.plan
    if plan.fresh or ground.registered is None or plan.tier == "compile":
        return None

    done = ground.journal.done(STEP)
    if done is None:
        ground.journal.finish(STEP, **await _remembered(ground))
        done = ground.journal.done(STEP)
        assert done is not None
    ground.memory = str(done["text"])
    if "verdict" not in done:
        return None
    verdict = Verdict.model_validate(done["verdict"])
    await ground.consider_attempt(verdict)
    if verdict.stage != "target":
        return None
    return Ending("cached", f"{verdict.attempt_id} of an earlier run reaches the target; fresh = true ignores it")


async def _remembered(ground: Ground) -> dict[str, Any]:
    """Return the entry of the journal; it counts as a step where anything is remembered."""
    began = time.monotonic()
    best = await _earlier_best(ground)
    text = await _lessons(ground, best)
    if best is None and not text:
        return {"text": ""}
    verdict = await recorded_verdict(ground.lab, best, ground.plan) if best is not None else None
    outcome = " and ".join(["best of earlier runs"] * (verdict is not None) + ["lessons"] * bool(text))
    told = {"verdict": verdict.model_dump(mode="json"), "speedup": verdict.speedup} if verdict is not None else {}
    await ground.tell(f"{STEP}: {outcome}")
    seconds = round(time.monotonic() - began, 3)
    return {"kind": "memory", "outcome": outcome, "seconds": seconds, "text": text, **told}


async def _earlier_best(ground: Ground) -> Attempt | None:
    """Return the best attempt of earlier runs that this run could have made: same host, device, language, flags."""
    lab, plan = ground.lab, ground.plan
    tiers: tuple[Tier, ...] = get_args(Tier)
    host = lab.hosts.choose(plan.host)
    probe = await lab.jobs.runner.probe(host)
    found = await lab.memory.confirmed_best(
        ground.problem.problem_id,
        host=host,
        language=plan.language,
        entry=plan.entry,
        generation=GENERATION,
        accept_provisional=plan.accept_provisional,
    )
    for attempt_id in found[:CANDIDATES]:
        attempt = await lab.store.experience.get(attempt_id)
        here = device_name(probe, attempt.target or "cpu")
        enough = attempt.tier in tiers and tiers.index(attempt.tier) >= tiers.index(plan.tier)  # type: ignore[arg-type]  # tier compile remembers nothing
        own = (attempt.batch_id or "").startswith(f"{ground.run_id}.")
        if enough and attempt.device == here and attempt.flags == json.dumps(plan.flags) and not own:
            return attempt
    return None


async def _lessons(ground: Ground, best: Attempt | None) -> str:
    """Return recurring failures of the problem and lessons of kindred problems as text; empty without any.

    Kin has the problem's operation class and type, and the bottleneck of its best, where that was profiled.
    """
    memory, problem = ground.lab.memory, ground.problem
    dtype = problem.outputs[0].dtype if problem.outputs else None
    recurring = await memory.recurring_failures(problem.problem_id, RECURRING)
    bound = await memory.bound_of(best.attempt_id) if best is not None else None
    kindred = await memory.kindred_lessons(problem.problem_id, dtype, bound, KINDRED)
    parts: list[str] = []
    if recurring:
        parts.append("Failures that recur at this problem:\n" + "\n".join(f"- {one.line_text()}" for one in recurring))
    if kindred:
        parts.append("Lessons of kindred problems:\n" + "\n".join(f"- {one.line_text()}" for one in kindred))
    return "\n\n".join(parts)
