"""Jobs as they stand."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.job import JobResult
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.status.dashboard_queries import JobState, Right
from gpu_mcp_server.services.status.listings import ListRequest
from gpu_mcp_server.web.dashboard.text_format import Listing, log_listing


@dataclass(frozen=True)
class JobLine:
    """One job in a list."""

    job: JobState
    state: str
    """queued, running, unknown, or how it ended."""
    seconds: float | None
    """How long it ran, has been running, or has been waiting."""
    right: Right
    command: str = ""
    """As a shell would take it; empty where the job is no command."""
    problem_id: str | None = None
    problem: str | None = None
    """Name of the problem that the job judges or profiles."""

    @property
    def is_over(self) -> bool:
        """Return whether there is nothing left to cancel."""
        return self.job.record is not None and self.job.record.state == "finished"


@dataclass(frozen=True)
class JobPage:
    """Content of a job's page."""

    line: JobLine
    result: JobResult | None
    why_not: str
    """Why its host says nothing."""
    stdout: Listing
    stderr: Listing


async def job_list(lab: Lab, request: ListRequest) -> tuple[Sequence[JobLine], int]:
    """Return the jobs that the visitor asks for and may see, and how many match."""
    found, matching = await lab.status.lists.jobs(request)
    lines = [
        replace(
            await _line(lab, each.state), command=shlex.join(each.command), problem_id=each.problem_id,
            problem=each.problem,
        )
        for each in found
    ]  # fmt: skip
    return lines, matching


async def job_page(lab: Lab, job_id: str) -> JobPage:
    """Return a job with its output.

    Raises:
        NotFound: If there is no such job that the visitor may see.
    """
    standing = await lab.status.overview.job(job_id)
    result, why = None, ""
    if standing.row.purpose != "reserve":
        try:
            result = await lab.commands.status(job_id)
        except GpuMcpError as error:
            why = str(error)
    return JobPage(
        line=replace(await _line(lab, standing), command=shlex.join(await lab.status.lists.command(job_id))),
        result=result,
        why_not=why,
        stdout=log_listing(result.stdout if result else ""),
        stderr=log_listing(result.stderr if result else ""),
    )


async def _line(lab: Lab, standing: JobState) -> JobLine:
    record = standing.record
    if record is None:
        state, seconds = "unknown", None
    elif record.state == "finished":
        state, seconds = record.status or "finished", record.wall_s
    else:
        since = record.started_at if record.state == "running" else record.submitted_at
        state, seconds = record.state, time.time() - since if since else None
    return JobLine(standing, state, seconds, await lab.status.overview.right(standing.row.job_id))
