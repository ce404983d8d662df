"""Toolset `core`: hosts, files, compiling, running, jobs."""

from asyncio import to_thread
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import (
    ArtifactsDep,
    CompilerDep,
    GpusDep,
    ProgressDep,
    RunnerDep,
    SourcesDep,
    WorkspacesDep,
)
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.build import BuildOptions, CompileResult
from gpu_mcp_server.models.host import LabStatus
from gpu_mcp_server.models.job import GpuNeeds, JobResult, RankOptions
from gpu_mcp_server.models.workspace import FileContent, WorkspaceListing
from gpu_mcp_server.services.workspaces.text_pages import file_content
from gpu_mcp_toolsets.common_arguments import (
    CompiledLanguage,
    FirstLine,
    Flags,
    Host,
    MaxLines,
    Note,
    Parent,
    Source,
    SourcePath,
    SourceWorkspace,
    Wait,
)

TOOLSET = Toolset(
    id="core",
    title="Laboratory",
    instructions=(
        "gpu_status first: hosts, GPUs, compilers. compile_kernel: errors, registers, spills. write_files makes a "
        "workspace (list_files, read_file), run_command runs any program in it, sandboxed. Calls that outlast wait_s "
        "return a job_id: job_status, cancel_job. Long outputs: read_artifact. Files on your disk: pass path."
    ),
)

Ranks = Annotated[RankOptions | None, WithJsonSchema(brief_schema(RankOptions))]
Needs = Annotated[GpuNeeds | None, WithJsonSchema(brief_schema(GpuNeeds))]
JobId = Annotated[str, Field(description="job_id of an earlier answer.")]
WorkspaceId = Annotated[str, Field(description="Workspace, as write_files returned it.")]


@TOOLSET.tool("GPU status", effect="reads")
async def gpu_status(
    gpus: GpusDep, host: Annotated[str | None, Field(description="Show this host alone.")] = None
) -> LabStatus:
    """Show every host: GPUs, compilers, sandbox level, running jobs.

    Call it first: what each host can judge.
    """
    return await gpus.status(host)


@TOOLSET.tool("Write files", effect="runs")
async def write_files(
    sources: SourcesDep,
    files: Annotated[
        dict[str, str] | None,
        Field(
            description="Text of each file, by relative path.",
            examples=[{"src/main.c": "int main(void) {}"}],
        ),
    ] = None,
    workspace_id: Annotated[str | None, Field(description="Workspace to add to; absent: a new one.")] = None,
    local_path: Annotated[str | None, Field(description="File or folder of this machine to copy in.")] = None,
) -> WorkspaceListing:
    """Put files into a workspace for run_command and compile_kernel."""
    return await sources.write(files, workspace_id, local_path)


@TOOLSET.tool("Read a file", effect="reads")
async def read_file(
    workspaces: WorkspacesDep,
    workspace_id: WorkspaceId,
    path: Annotated[str, Field(description="File, as list_files shows it.")],
    first_line: FirstLine = 1,
    max_lines: MaxLines = 200,
) -> FileContent:
    """Show lines of a workspace's file."""
    return await workspaces.read(workspace_id, path, first_line, max_lines)


@TOOLSET.tool("List files", effect="reads")
async def list_files(
    workspaces: WorkspacesDep,
    workspace_id: WorkspaceId,
    prefix: Annotated[str, Field(description="Show paths that start so.")] = "",
) -> WorkspaceListing:
    """List a workspace's files with their sizes."""
    return await workspaces.listing(workspace_id, prefix)


@TOOLSET.tool("Compile a kernel", effect="runs")
async def compile_kernel(
    service: CompilerDep,
    sources: SourcesDep,
    source: Source = None,
    path: SourcePath = None,
    workspace_id: SourceWorkspace = None,
    language: CompiledLanguage = None,
    arch: Annotated[str | None, Field(description="Such as sm_90a, gfx942.")] = None,
    flags: Flags = (),
    compiler: Annotated[str | None, Field(description="Compiler of gpu_status, such as clang.")] = None,
    block: Annotated[int | None, Field(description="Threads of a block, for occupancy.")] = None,
    triton: Annotated[
        dict[str, Any] | None,
        Field(
            description="Of Triton, launchers: signature, constants, kernel.",
            examples=[{"signature": {"x": "*fp32:16", "n": "i32"}, "constants": {"BLOCK": 128}}],
        ),
    ] = None,
    host: Host = None,
    parent: Parent = None,
    note: Note = None,
) -> CompileResult:
    """Compile C, C++, CUDA, HIP, Python: errors, registers, spills.

    Needs no GPU.
    """
    given = await sources.compilable(source, path, workspace_id, language, flags)
    wish = BuildOptions(arch=arch, flags=flags, compiler=compiler, library=False, block=block).for_triton(triton or {})
    return await service.compile(given, wish, host=host, parent_id=parent, note=note)


@TOOLSET.tool("Run a command", effect="runs")
async def run_command(
    runner: RunnerDep,
    progress: ProgressDep,
    command: Annotated[
        list[str],
        Field(
            description="Program and arguments, without a shell.",
            examples=[["sh", "-c", "make && ./main"]],
            min_length=1,
        ),
    ],
    workspace_id: Annotated[str | None, Field(description="Workspace that is the current folder.")] = None,
    host: Host = None,
    env: Annotated[
        dict[str, str] | None, Field(description="Environment variables to set.", examples=[{"OMP_NUM_THREADS": "4"}])
    ] = None,
    gpus: Annotated[int, Field(description="How many GPUs it gets.", ge=0, le=64)] = 0,
    needs: Annotated[
        Needs,
        Field(description="Requirements on GPUs, priority.", examples=[{"arch": "sm_90"}]),
    ] = None,
    timeout_s: Annotated[
        float | None, Field(description="Seconds until killed; default: 60, with detach 24 h.", gt=0, le=86_400)
    ] = None,
    stdin: Annotated[str, Field(description="Text for its stdin.")] = "",
    outputs: Annotated[tuple[str, ...], Field(description="Files to keep as artifacts; ['*']: all changed.")] = (),
    detach: Annotated[bool, Field(description="Return a job_id at once.")] = False,
    fetch: Annotated[bool, Field(description="Run with network and without GPU, to download.")] = False,
    ranks: Annotated[
        Ranks, Field(description="Start several processes of it.", examples=[{"count": 4, "launcher": "torchrun"}])
    ] = None,
    wait_s: Wait = 240,
) -> JobResult:
    """Run any program in the sandbox: no network, no files but the workspace and /usr.

    A non-zero exit is an answer; failed tests are listed.
    """
    return await runner.run(
        command,
        workspace_id=workspace_id,
        host=host,
        env=env,
        gpus=gpus,
        needs=needs,
        timeout_s=timeout_s,
        stdin=stdin,
        outputs=outputs,
        detach=detach,
        fetch=fetch,
        ranks=ranks,
        wait_s=wait_s,
        progress=progress,
    )


@TOOLSET.tool("Job status", effect="reads")
async def job_status(
    runner: RunnerDep,
    job_id: JobId,
    wait_s: Annotated[float, Field(description="Seconds to wait for its end.", ge=0, le=240)] = 0,
    stdout_offset: Annotated[int, Field(description="First byte of stdout.", ge=0)] = 0,
) -> JobResult:
    """Show a job's state, exit and output so far; also jobs of an earlier server."""
    return await runner.status(job_id, wait_s=wait_s, stdout_offset=stdout_offset)


@TOOLSET.tool("Cancel a job", effect="changes")
async def cancel_job(runner: RunnerDep, job_id: JobId) -> JobResult:
    """End a job and all its processes, and free its GPUs."""
    return await runner.cancel(job_id)


@TOOLSET.tool("Read an artifact", effect="reads")
async def read_artifact(
    artifacts: ArtifactsDep,
    artifact_id: Annotated[str, Field(description="artifact_id of an earlier answer.")],
    first_line: FirstLine = 1,
    max_lines: MaxLines = 200,
) -> FileContent:
    """Show lines of an artifact: a whole log, all timing samples, a job's output file."""
    content, info = await artifacts.read(artifact_id), await artifacts.info(artifact_id)
    return await to_thread(file_content, content, info.name, first_line, max_lines, artifact_id=artifact_id)
