"""Actions of a visitor: end a job or a reservation of theirs."""

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.user import User
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.login import Forbidden


async def cancel_job(lab: Lab, visitor: User, job_id: str) -> None:
    """End a job, or take it out of the queue.

    Raises:
        Forbidden: If it is another's, or the visitor may only read.
        NotFound: If there is no such job that the visitor may see.
    """
    await _own(lab, visitor, job_id, "job")
    await lab.commands.cancel(job_id)


async def release(lab: Lab, visitor: User, lease_id: str) -> None:
    """End a reservation.

    Raises:
        Forbidden, NotFound: As for a job.
        BadRequest: If it is a job.
    """
    await _own(lab, visitor, lease_id, "reservation")
    if not lease_id.startswith("l-"):
        raise BadRequest(f"{lease_id} is no reservation.", hint="Jobs are cancelled, not released.")
    await lab.jobs.pool.release(lease_id)


async def _own(lab: Lab, visitor: User, handle: str, what: str) -> None:
    right = await lab.status.overview.right(handle)
    if right == "none":
        raise NotFound(what, handle, hint="It may have ended, or belong to another user.")
    if right != "own" or not visitor.may("run"):
        raise Forbidden(f"You may not end {handle}.", hint="Its owner can, and a token with the scope admin can.")
