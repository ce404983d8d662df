"""Confirm a provisional time before it counts in a run."""

import asyncio

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.run.prompt_verdict import VOIDED
from gpu_mcp_server.recipes.run.run_candidates import recorded_verdict
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.lab import Lab

LOOK_S = 0.5
"""Between two looks at a run of somebody else's."""


def is_provisional(verdict: Verdict, plan: RunPlan) -> bool:
    """Say whether a verdict's time is to be confirmed before it counts."""
    provisional = verdict.outcome == "correct" and verdict.trust == "provisional" and not verdict.coarse
    return provisional and not plan.accept_provisional


async def confirmed_verdict(lab: Lab, verdict: Verdict, plan: RunPlan, tell: Progress) -> tuple[str, Verdict]:
    """Wait until a confirmation run has decided; return how it ended, and the verdict as the record has it then.

    A run that is on its way is waited for; one that ended before is not made again.
    """
    attempt_id = str(verdict.attempt_id)
    table = lab.evaluation.confirmations
    while (stands := await table.get(attempt_id)) is None or stands.state in ("owed", "running", "replaced"):
        if stands is not None and stands.state == "running":
            await asyncio.sleep(LOOK_S)
        else:
            await lab.evaluation.auditor.audit(attempt_id, progress=tell, why="target")
    now = await recorded_verdict(lab, await lab.store.experience.get(attempt_id), plan)
    return {"done": "confirmed", "void": VOIDED}.get(stands.state, f"not confirmed: {stands.said}"), now
