"""Toolset `pool`: GPUs held between jobs."""

from typing import Annotated

from pydantic import Field

from gpu_mcp_server.models.lease import GpuLease
from gpu_mcp_server.toolset import PoolDep, ProgressDep, Toolset
from gpu_mcp_toolsets.arguments import Host

TOOLSET = Toolset(
    id="pool",
    title="Pool",
    instructions=(
        "Single jobs queue for GPUs by themselves. reserve_gpu keeps GPUs between jobs, for a series of measurements "
        "on one device; release_gpu gives them back: do it as soon as you are done."
    ),
    default=False,
)


@TOOLSET.tool("Reserve GPUs", effect="runs")
async def reserve_gpu(
    pool: PoolDep,
    progress: ProgressDep,
    gpus: Annotated[int, Field(description="How many.", ge=1)] = 1,
    host: Host = None,
    arch: Annotated[str, Field(description="Like sm_90.")] = "",
    memory_gb: Annotated[int, Field(description="Each, at least.")] = 0,
    nvlink: Annotated[bool, Field(description="Joined by NVLink.")] = False,
    lease_id: Annotated[str | None, Field(description="Wait on for a queued one.")] = None,
    wait_s: Annotated[float, Field(description="Longest wait.", le=240)] = 240,
) -> GpuLease:
    """Hold GPUs for a series of jobs; this server's jobs on that host use them.

    It ends after 15 minutes without use, after one when somebody waits.
    """
    return await pool.reserve(
        gpus,
        host=host,
        arch=arch,
        memory_bytes=memory_gb << 30,
        nvlink=nvlink,
        lease_id=lease_id,
        wait_s=wait_s,
        progress=progress,
    )


@TOOLSET.tool("Release reserved GPUs", effect="changes")
async def release_gpu(pool: PoolDep, lease_id: Annotated[str, Field(description="From reserve_gpu.")]) -> GpuLease:
    """Give reserved GPUs back; a job that still runs on them keeps them until its end."""
    return await pool.release(lease_id)
