"""Toolset `pool`: GPUs held between jobs, and jobs that a batch system runs by itself."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import LongDep, PoolDep, ProgressDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.batch_job import BatchRequest, BatchSubmission
from gpu_mcp_server.models.lease import GpuLease
from gpu_mcp_toolsets.common_arguments import Host

TOOLSET = Toolset(
    id="pool",
    title="Pool",
    instructions=(
        "Single jobs queue for GPUs by themselves. reserve_gpu keeps GPUs between jobs, for a series of measurements "
        "on one device; release_gpu gives them back: do it as soon as you are done. "
        "submit_batch is for hours: what it starts needs no server."
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
        memory_bytes=memory_gb * 10**9,
        nvlink=nvlink,
        lease_id=lease_id,
        wait_s=wait_s,
        progress=progress,
    )


@TOOLSET.tool("Release reserved GPUs", effect="changes")
async def release_gpu(pool: PoolDep, lease_id: Annotated[str, Field(description="From reserve_gpu.")]) -> GpuLease:
    """Give reserved GPUs back; a job that still runs on them keeps them until its end."""
    return await pool.release(lease_id)


@TOOLSET.tool("Submit a long job to Slurm or PBS", effect="runs")
async def submit_batch(
    long: LongDep,
    command: Annotated[list[str], Field(description="Program, arguments; no shell: ['sh','-c','...'].", min_length=1)],
    host: Host = None,
    workspace_id: Annotated[str | None, Field(description="Its files are the current folder.")] = None,
    env: Annotated[dict[str, str] | None, Field(description="Variables to set.")] = None,
    gpus: Annotated[int | None, Field(description="Of each node; unset: as the host is set up.", ge=0)] = None,
    nodes: Annotated[int | None, Field(description="The same.", ge=1, le=1024)] = None,
    tasks_per_node: Annotated[int, Field(description="Ranks of each node.", ge=1, le=64)] = 1,
    array: Annotated[str, Field(description="Like 0-7: one job for each.")] = "",
    launcher: Annotated[Literal["srun", "mpirun"], Field(description="Starts the ranks.")] = "srun",
    time_s: Annotated[float, Field(description="Then it is killed.", gt=0)] = 3600,
    outputs: Annotated[tuple[str, ...], Field(description="Files to keep; ['*']: all that changed.")] = (),
) -> BatchSubmission:
    """Queue a program as a batch job of its own (sbatch, qsub), in the same sandbox.

    It outlives this server; finds ARRAY_TASK, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. Next: job_status.
    """
    asked = BatchRequest(
        argv=tuple(command),
        workspace_id=workspace_id,
        env=env or {},
        gpus=gpus,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        array=array,
        launcher=launcher,
        time_s=time_s,
        outputs=outputs,
    )
    return await long.submit(asked, host)
