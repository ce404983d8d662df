"""Toolset `team`: what others may see."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import SharingDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.sharing import ShareResult

TOOLSET = Toolset(
    id="team",
    title="Team",
    instructions=("What you make is yours; share shows it to your project or everybody."),
    default=False,
)


@TOOLSET.tool("Share with others", effect="changes")
async def share(
    sharing: SharingDep,
    handle: Annotated[str, Field(description="Id of a workspace, job, attempt, artifact, problem or note.")],
    to: Annotated[Literal["project", "everybody", "nobody"], Field(description="Users that may see it.")] = "project",
) -> ShareResult:
    """Let your project or everybody see a handle's content; `nobody` takes it back.

    They may read, not change it. An attempt takes its job and artifacts along.
    """
    return await sharing.share(handle, to)
