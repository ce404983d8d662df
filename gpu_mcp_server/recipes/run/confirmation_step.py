"""Confirm a provisional time before it counts in a run."""

import asyncio

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.run.prompt_verdict import VOIDED, is_doubted
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.lab import Lab

LOOK_S = 0.5
"""Between two looks at a run of somebody else's."""


def is_provisional(verdict: Verdict, plan: RunPlan) -> bool:
    """Say whether a verdict's time is to be confirmed before it counts."""
    return verdict.trust == "provisional" and _counts(verdict, plan)


def is_worth_another_look(verdict: Verdict, plan: RunPlan) -> bool:
    """Say whether a verdict's time is in doubt: the doubt may be of that moment alone, so it is measured once more."""
    return is_doubted(verdict.trust) and verdict.attempt_id is not None and _counts(verdict, plan)


def _counts(verdict: Verdict, plan: RunPlan) -> bool:
    return verdict.outcome == "correct" and not verdict.coarse and not plan.accept_provisional


async def confirmed_verdict(lab: Lab, verdict: Verdict, plan: RunPlan, tell: Progress) -> tuple[str, Verdict]:
    """Wait until a confirmation run has decided; return how it ended, and the verdict as the record has it then.

    A run that is on its way is waited for; one that ended before is not made again. Of a time in doubt one run decides.
    """
    attempt_id, once = str(verdict.attempt_id), is_doubted(verdict.trust)
    table, tries = lab.evaluation.confirmations, 0
    while (stands := await table.get(attempt_id)) is None or stands.state in ("owed", "running", "replaced"):
        if stands is not None and stands.state == "running":
            await asyncio.sleep(LOOK_S)
        elif once and tries:
            break
        else:
            tries += 1
            await lab.evaluation.auditor.audit(attempt_id, progress=tell, why="target")
    now = await recorded_verdict(lab, await lab.store.experience.get(attempt_id), plan)
    state, said = (stands.state, stands.said) if stands is not None else ("owed", "")
    return {"done": "confirmed", "void": VOIDED}.get(state, f"not confirmed: {said}"), now
