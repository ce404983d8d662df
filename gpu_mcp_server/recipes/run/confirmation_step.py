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
    """Return how a verdict's confirmation run ended, and the verdict as the record has it then."""
    attempt_id = str(verdict.attempt_id)
    state, said = await settle_confirmation(lab, attempt_id, tell, once=is_doubted(verdict.trust))
    now = await recorded_verdict(lab, await lab.store.experience.get(attempt_id), plan)
    return {"done": "confirmed", "void": VOIDED}.get(state, f"not confirmed: {said}"), now


async def settle_confirmation(lab: Lab, attempt_id: str, tell: Progress, *, once: bool = False) -> tuple[str, str]:
    """Wait until an attempt's confirmation run has decided; return how that stands, and what it says.

    A run that is on its way is waited for; one that ended before is not made again.

    Args:
        lab: The laboratory.
        attempt_id: The attempt.
        tell: Hears about it.
        once: Make one run at most: of a time in doubt one decides.
    """
    table, tries = lab.evaluation.confirmations, 0
    while (stands := await table.get(attempt_id)) is None or stands.state in ("owed", "running", "replaced"):
        if stands is not None and stands.state == "running":
            await asyncio.sleep(LOOK_S)
        elif once and tries:
            break
        else:
            tries += 1
            await lab.evaluation.auditor.audit(attempt_id, progress=tell, why="target")
    return (stands.state, stands.said) if stands is not None else ("owed", "")
