"""Headless runs: the list, and one as its roles worked."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.models.recipe import RunState
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.headless_runs import Runs, state_of
from gpu_mcp_server.recipes.reports.run_picture import run_picture
from gpu_mcp_server.recipes.reports.run_timeline import MAX_STEPS, TimelineStep, timeline_steps
from gpu_mcp_server.recipes.run.journal import entries
from gpu_mcp_server.services.lab import Lab

LISTED = 60


@dataclass(frozen=True)
class RunPage:
    """Content of a run's page."""

    state: RunState
    plan: RunPlan
    works: Sequence[TimelineStep]
    left_out: int
    picture: str
    failures: int
    hand_backs: int


async def run_list(lab: Lab) -> Sequence[RunState]:
    """Return the newest runs that the visitor may see; one that cannot be read is left out."""
    seen = await lab.status.overview.seen_runs()

    def read() -> Sequence[RunState]:
        runs = Runs(lab)
        ids = [run_id for run_id in runs.ids() if seen is None or run_id in seen]
        found = (_state(runs, run_id) for run_id in ids[:LISTED])
        return [state for state in found if state is not None]

    return await asyncio.to_thread(read)


async def run_page(lab: Lab, run_id: str) -> RunPage:
    """Return a run.

    Raises:
        NotFound: If there is no such run that the visitor may see.
    """
    seen = await lab.status.overview.seen_runs()
    if seen is not None and run_id not in seen:
        raise NotFound("run", run_id, hint="The list of runs has those you may see.")

    def read() -> tuple[RunPlan, list[dict[str, Any]]]:
        runs = Runs(lab)
        return runs.plan(run_id), entries(runs.folder(run_id))

    plan, journal = await asyncio.to_thread(read)
    found = timeline_steps(journal)
    shown = found[-MAX_STEPS:]
    return RunPage(
        state=state_of(run_id, plan, journal),
        plan=plan,
        works=shown,
        left_out=len(found) - len(shown),
        picture=run_picture(shown, plan.target.speedup),
        failures=sum(w.shade in ("bad", "cheat", "warn") for w in found),
        hand_backs=sum(bool(w.back_to) for w in found),
    )


def _state(runs: Runs, run_id: str) -> RunState | None:
    try:
        return runs.state(run_id)
    except (GpuMcpError, OSError, KeyError, ValueError, ValidationError):
        return None
