"""Toolset `experience`: what to do with a history besides looking at it. Off unless it is asked for."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.models.attempt import AuditResult
from gpu_mcp_server.toolset import AuditorDep, ProgressDep, Toolset

TOOLSET = Toolset(
    id="experience",
    title="Records",
    instructions="audit_attempt judges a recorded attempt again and confirms or voids it: before you report a record.",
    default=False,
)


@TOOLSET.tool("Audit an attempt", effect="runs")
async def audit_attempt(
    auditor: AuditorDep,
    progress: ProgressDep,
    attempt_id: Annotated[str, Field(description="An evaluation with a verdict.")],
) -> AuditResult:
    """Judge an attempt again from its record and confirm or void it.

    It is voided if its verdict or speed is not had twice. Use it before you build on a record or report it.
    """
    return await auditor.audit(attempt_id, progress=progress)
