"""Toolset `nccl`: from host-driven collectives to device-initiated ones, verified by somebody else than the program."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import CollectivesDep, NcclVerifierDep, ProgressDep, SourcesDep
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.models.nccl_check import NcclRunOptions, NcclVerification
from gpu_mcp_server.models.transform import Api, Stage, TransformResult
from gpu_mcp_toolsets.common_arguments import Source, library_version

TOOLSET = Toolset(
    id="nccl",
    title="NCCL",
    instructions=(
        "analyze_nccl: what each collective needs to move to the device. transform_nccl writes files; the rest is "
        "yours, within EVOLVE-BLOCK markers. verify_nccl: believe no PASS that a program prints."
    ),
)
Main = Annotated[str | None, Field(description="Main file of workspace_id, else file or folder here.")]
Workspace = Annotated[str | None, Field(description="Workspace with the program's files.")]

Run = Annotated[NcclRunOptions, WithJsonSchema(brief_schema(NcclRunOptions))]


@TOOLSET.tool("Analyze an NCCL program", effect="runs")
async def analyze_nccl(
    collectives: CollectivesDep,
    sources: SourcesDep,
    source: Source = None,
    path: Main = None,
    workspace_id: Workspace = None,
) -> CollectiveGraph:
    """Find each collective, its buffers, writers, readers, loops.

    Says what stages A (windows) and B (device kernels) need of you, and why.
    """
    return await collectives.analyze(*await sources.program(source, path, workspace_id))


@TOOLSET.tool("Move collectives to the device", effect="runs")
async def transform_nccl(
    collectives: CollectivesDep,
    sources: SourcesDep,
    path: Main = None,
    workspace_id: Workspace = None,
    stages: Annotated[tuple[Stage, ...], Field(description="Stages to go through; absent: all.")] = (),
    api: Annotated[Api, Field(description="gin: works without NVLink too.")] = "auto",
    nccl_version: Annotated[str | None, Field(description="NCCL to write for: 2.28.9, rccl-2.30.4.")] = None,
) -> TransformResult:
    """Write new files and a diff: windows, generated kernels, markers, warm-up.

    Says what is left to you. Next: verify_nccl.
    """
    files, main = await sources.program(None, path, workspace_id)
    library, version = library_version(nccl_version)
    return await collectives.transform(files, main, stages=stages, api=api, nccl_version=version, library=library)


@TOOLSET.tool("Verify NCCL device code", effect="runs")
async def verify_nccl(
    verifier: NcclVerifierDep,
    progress: ProgressDep,
    workspace_id: Annotated[str, Field(description="Workspace, as write_files returned it.")],
    path: Annotated[str, Field(description="Main file of the workspace.")],
    original: Annotated[str | None, Field(description="Main file with host collectives.")] = None,
    before: Annotated[str | None, Field(description="workspace_id before the stage, for frozen text.")] = None,
    run: Annotated[
        Run,
        Field(description="How to start it, and how far to check.", examples=[{"ranks": 4, "until": "build"}]),
    ] = NcclRunOptions(),  # noqa: B008 - frozen
) -> NcclVerification:
    """Check by static rules, build, run, compare with host NCCL, stress, time."""
    return await verifier.verify_workspace(workspace_id, path, original, before, run, progress=progress)
