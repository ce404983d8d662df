"""Runs that are attended from elsewhere: requests that cross each other."""

import asyncio

from gpu_mcp_server.models.run_plan import AgentCommand, RunPlan
from gpu_mcp_server.recipes.attended_runs import AttendedRuns
from gpu_mcp_server.recipes.run_exchange import Heard, SentRun
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory


async def test_requests_that_cross_each_other_begin_a_run_once():
    """A client sends a request again after a lost line, say; a second beginning would fail at the first one's journal."""
    plan = RunPlan(name="made", mode="project", request="a program", agent=AgentCommand(command=["agent"]))
    async with laboratory() as lab:

        async def own() -> Lab:
            return lab

        runs = AttendedRuns(own)
        await runs.begin("r-made", SentRun(plan=plan))
        heard = Heard(visitor="a" * 32)
        found = await asyncio.gather(*(runs.attend("r-made", heard) for _ in range(4)))
        while not all(news.questions for news in found):
            assert [news.error for news in found] == [""] * 4
            later = heard.model_copy(update={"said": found[0].said})
            found = await asyncio.gather(*(runs.attend("r-made", later) for _ in range(4)))
        await runs.close()

    assert len({news.questions[0].job_id for news in found}) == 1
