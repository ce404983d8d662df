"""Toolset `pool`: GPUs held between jobs, and jobs that a batch system runs by itself."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import LongDep, PoolDep, ProgressDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.job import BatchRequest, BatchSubmission
from gpu_mcp_server.models.lease import GpuLease
from gpu_mcp_toolsets.common_arguments import Host

TOOLSET = Toolset(
    id="pool",
    title="Pool",
    instructions=(
        "Jobs queue for GPUs; reserve_gpu keeps some between jobs, release_gpu when done. submit_batch: jobs of hours."
    ),
    default=False,
)


@TOOLSET.tool("Reserve GPUs", effect="runs")
async def reserve_gpu(
    pool: PoolDep,
    progress: ProgressDep,
    gpus: Annotated[int, Field(description="How many GPUs to hold.", ge=1)] = 1,
    host: Host = None,
    vendor: Annotated[Literal["", "nvidia", "amd"], Field(description="Vendor of the GPUs; empty: either.")] = "",
    arch: Annotated[str, Field(description="Architecture of each: sm_90.")] = "",
    memory_gb: Annotated[int, Field(description="Memory of each GPU, at least.")] = 0,
    nvlink: Annotated[bool, Field(description="GPUs must be joined by NVLink.")] = False,
    lease_id: Annotated[str | None, Field(description="Queued reservation to wait for again.")] = None,
    wait_s: Annotated[float, Field(description="Most seconds to wait.", le=240)] = 240,
) -> GpuLease:
    """Hold GPUs for a series of jobs; this server's jobs on that host use them.

    It ends after 15 minutes without use, after one minute if a job waits.
    """
    return await pool.reserve(
        gpus,
        vendor=vendor,
        host=host,
        arch=arch,
        memory_bytes=memory_gb * 10**9,
        nvlink=nvlink,
        lease_id=lease_id,
        wait_s=wait_s,
        progress=progress,
    )


@TOOLSET.tool("Release reserved GPUs", effect="changes")
async def release_gpu(
    pool: PoolDep, lease_id: Annotated[str, Field(description="Reservation, as reserve_gpu returned it.")]
) -> GpuLease:
    """Give reserved GPUs back; a job that still runs on them keeps them until its end."""
    return await pool.release(lease_id)


@TOOLSET.tool("Submit a long job to Slurm or PBS", effect="runs")
async def submit_batch(
    long: LongDep,
    command: Annotated[
        list[str],
        Field(
            description="Program and arguments, without a shell.",
            examples=[["sh", "-c", "./train --steps 9"]],
            min_length=1,
        ),
    ],
    host: Host = None,
    workspace_id: Annotated[str | None, Field(description="Workspace whose files are the current folder.")] = None,
    env: Annotated[
        dict[str, str] | None, Field(description="Environment variables to set.", examples=[{"OMP_NUM_THREADS": "4"}])
    ] = None,
    gpus: Annotated[int | None, Field(description="GPUs of each node; absent: as the host is set up.", ge=0)] = None,
    nodes: Annotated[
        int | None, Field(description="How many nodes; absent: as the host is set up.", ge=1, le=1024)
    ] = None,
    tasks_per_node: Annotated[int, Field(description="Ranks on each node.", ge=1, le=64)] = 1,
    array: Annotated[str, Field(description="Numbers such as 0-7: a job each.")] = "",
    launcher: Annotated[Literal["srun", "mpirun"], Field(description="What starts the ranks.")] = "srun",
    time_s: Annotated[float, Field(description="Seconds until it is killed.", gt=0)] = 3600,
    outputs: Annotated[tuple[str, ...], Field(description="Files to keep as artifacts; ['*']: all that changed.")] = (),
) -> BatchSubmission:
    """Queue a program as a batch job of its own (sbatch, qsub), in the same sandbox.

    It outlives this server. Its environment has ARRAY_TASK, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.
    Next: job_status.
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
