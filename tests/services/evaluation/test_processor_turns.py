"""Turns of the processor: who times nothing shares it, and who times waits until it is free."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import LOCKS
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.hostd.laboratory import wrapped
from tests.laboratory import laboratory
from tests.services.evaluation.test_confirmation_runs import PROBLEM, RIGHT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Lab]:
    """A laboratory with locks of its own: no other test's job stands in its line."""
    python = wrapped(tmp_path / "state", {LOCKS: str(tmp_path / "locks")})
    async with laboratory(hosts={"local": {"kind": "local", "python": str(python)}}) as lab:
        yield lab


async def test_an_untimed_evaluation_shares_the_processor_and_a_timed_one_waits_for_it(alone: Lab):
    runner, evaluator = alone.jobs.runner, alone.evaluation.evaluator
    sharer = JobSpec(
        id=new_job_id(),
        purpose="check",
        processes=(ProcessSpec(argv=("sleep", "600")),),
        gpus=GpuRequest(mode="shared", wait_s=100.0),
        limits=Limits(wall_s=600.0),
    )
    await runner.submit(sharer, host="local", blobs={})
    while (await runner.poll(sharer.id, "local")).record.state != "running":
        await asyncio.sleep(0.02)
    problem = (await alone.evaluation.registry.import_file(ProblemSource("p.toml", PROBLEM))).problem_id
    source = CandidateSource(RIGHT, "c", "k.c")
    for tier in ("smoke", "correctness"):
        assert (await evaluator.evaluate(problem, source, timing=TimingOptions(tier=tier))).verdict == "correct"
    timed = asyncio.create_task(evaluator.evaluate(problem, source))
    while True:
        judging = [row.job_id for row in await alone.jobs.table.unfinished_jobs() if row.purpose == "judge"]
        states = [(await runner.poll(job, "local")).record for job in judging]
        if any(record.state == "queued" and record.note for record in states):
            break
        assert not timed.done()
        await asyncio.sleep(0.02)
    await runner.cancel(sharer.id, "local")
    assert (await timed).verdict == "correct"
