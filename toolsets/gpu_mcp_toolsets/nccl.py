"""Toolset `nccl`: from host-driven collectives to device-initiated ones, verified by somebody else than the program."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.models.nccl_check import NcclRunOptions, NcclVerification
from gpu_mcp_server.toolset import NcclVerifierDep, ProgressDep, Toolset

TOOLSET = Toolset(
    id="nccl",
    title="NCCL",
    instructions="verify_nccl checks device-initiated NCCL code; a PASS that the program prints proves little.",
)

# Said once and short: pydantic's schema of it would go into every conversation.
Run = Annotated[NcclRunOptions, WithJsonSchema({"type": "object"})]


@TOOLSET.tool("Verify NCCL device code", effect="runs")
async def verify_nccl(
    verifier: NcclVerifierDep,
    progress: ProgressDep,
    workspace_id: Annotated[str, Field(description="From write_files.")],
    path: Annotated[str, Field(description="Main file.")],
    original: Annotated[str | None, Field(description="Main file with host collectives.")] = None,
    before: Annotated[str | None, Field(description="workspace_id of the stage's input: frozen text.")] = None,
    run: Annotated[
        Run, Field(description="ranks, launcher self|torchrun|mpirun, arguments, until static|build|run|all, host.")
    ] = NcclRunOptions(),  # noqa: B008 - frozen
) -> NcclVerification:
    """Check by static rules, build, run, compare with host NCCL, stress, time.

    Each check names its evidence.
    """
    return await verifier.verify_workspace(workspace_id, path, original, before, run, progress=progress)
