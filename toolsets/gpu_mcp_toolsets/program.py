"""Toolset `program`: a user's whole program, where its time goes."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import HotspotsDep, ProgressDep
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.hotspots import HotspotOptions, HotspotReport

TOOLSET = Toolset(
    id="program",
    title="Whole programs",
    instructions="find_hotspots: what a faster kernel could bring to a program.",
    default=False,
)

Options = Annotated[HotspotOptions, WithJsonSchema(brief_schema(HotspotOptions))]


@TOOLSET.tool("Find hot spots", effect="runs")
async def find_hotspots(
    hotspots: HotspotsDep,
    progress: ProgressDep,
    command: Annotated[
        list[str],
        Field(
            description="Python interpreter, then script, -m or -c, and arguments.",
            min_length=1,
            max_length=1000,
            examples=[["python3", "train.py"]],
        ),
    ],
    workspace_id: Annotated[str | None, Field(description="Workspace, as write_files returned it.")] = None,
    host: Annotated[str | None, Field(description="Host; absent: the default one.")] = None,
    options: Annotated[
        Options,
        Field(description="Which part of the run is recorded.", examples=[{"warm_s": 20, "record_s": 10}]),
    ] = HotspotOptions(),  # noqa: B008 - frozen
) -> HotspotReport:
    """Run a program that uses torch: operators and kernels by share of the whole.

    With shapes, calls, modules, distance to the roofline, and the speed-up of the whole at most.
    """
    return await hotspots.find(command, workspace_id, host, options, progress=progress)
