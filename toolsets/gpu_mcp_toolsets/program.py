"""Toolset `program`: find hot spots of a user's program, capture problems, put kernels in, measure."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import (
    CaptureDep,
    DispatchDep,
    HotspotsDep,
    OverlaysDep,
    ProgramVerifierDep,
    ProgressDep,
)
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.profile import HotspotOptions, HotspotReport
from gpu_mcp_server.models.program_speed import (
    ApplyReport,
    CaptureOptions,
    CaptureReport,
    DispatchReport,
    VerifyOptions,
    VerifyReport,
)

TOOLSET = Toolset(
    id="program",
    title="Whole programs",
    instructions="find_hotspots, capture_problem, make_dispatcher, apply_attempt, verify_in_place.",
    default=False,
)

Options = Annotated[HotspotOptions, WithJsonSchema(brief_schema(HotspotOptions))]
VerifyWish = Annotated[VerifyOptions, WithJsonSchema(brief_schema(VerifyOptions))]
CaptureWish = Annotated[CaptureOptions, WithJsonSchema(brief_schema(CaptureOptions))]
Command = Annotated[
    list[str],
    Field(
        description="Python interpreter, then script, -m or -c, arguments.",
        min_length=1,
        max_length=1000,
        examples=[["python3", "train.py"]],
    ),
]
Workspace = Annotated[str | None, Field(description="Workspace, as write_files returned it.")]
Host = Annotated[str | None, Field(description="Host; absent: the default one.")]


@TOOLSET.tool("Find hot spots", effect="runs")
async def find_hotspots(
    hotspots: HotspotsDep,
    progress: ProgressDep,
    command: Command,
    workspace_id: Workspace = None,
    host: Host = None,
    options: Annotated[
        Options,
        Field(description="Part of the run to record, and limits.", examples=[{"warm_s": 20, "record_s": 10}]),
    ] = HotspotOptions(),  # noqa: B008 - frozen
) -> HotspotReport:
    """Run a program that uses torch: operators and kernels by share of the whole.

    Returns shapes, calls, modules, roofline percent, and the most that the whole can gain. Runs the program twice
    if its GPU waits for launches.
    """
    return await hotspots.find(command, workspace_id, host, options, progress=progress)


@TOOLSET.tool("Capture a problem", effect="runs")
async def capture_problem(
    capture: CaptureDep,
    progress: ProgressDep,
    command: Command,
    target: Annotated[
        str,
        Field(
            description="Operator, function or module.",
            min_length=1,
            max_length=200,
            examples=["aten::mm", "module:function", "Net.blocks.*"],
        ),
    ],
    workspace_id: Workspace = None,
    host: Host = None,
    options: Annotated[
        CaptureWish, Field(description="Limits, tolerances of answers.", examples=[{"sets": 4}])
    ] = CaptureOptions(),  # noqa: B008 - frozen
) -> CaptureReport:
    """Make a problem of a program's calls of an operator, function or module.

    Its code is the reference. The judge varies inputs; with indices or masks it confirms no time.
    """
    return await capture.capture(command, target, workspace_id, host, options, progress=progress)


@TOOLSET.tool("Make a dispatcher", effect="runs")
async def make_dispatcher(
    dispatch: DispatchDep,
    progress: ProgressDep,
    problem_id: Annotated[str, Field(description="Problem with several shapes.")],
    attempt_ids: Annotated[
        list[str] | None, Field(description="Correct attempts to choose from; all if absent.", max_length=64)
    ] = None,
) -> DispatchReport:
    """Choose the fewest candidates within 2 % of the best at all shapes; judge a dispatcher.

    Uses the times on record. The dispatcher is code in the candidates' language, judged at hidden shapes too.
    """
    return await dispatch.make(problem_id, attempt_ids or (), progress=progress)


@TOOLSET.tool("Put a kernel into a program", effect="changes")
async def apply_attempt(
    overlays: OverlaysDep,
    attempt_id: Annotated[str, Field(description="Correct attempt at a captured problem.")],
    workspace_id: Annotated[str, Field(description="The program's workspace or a copy with kernels; it stays.")],
) -> ApplyReport:
    """Copy a workspace and add a judged kernel, as an overlay that PYTHONPATH switches on.

    Calls that the kernel was not judged at go to the program's own code.
    """
    return await overlays.apply(attempt_id, workspace_id)


@TOOLSET.tool("Measure the whole program", effect="runs")
async def verify_in_place(
    verifier: ProgramVerifierDep,
    progress: ProgressDep,
    command: Command,
    workspace_id: Annotated[str, Field(description="Copy that apply_attempt made.")],
    host: Host = None,
    outputs: Annotated[list[str] | None, Field(description="Output files; stdout if absent.", max_length=8)] = None,
    options: Annotated[
        VerifyWish, Field(description="Number of pairs, limits, tolerances.", examples=[{"pairs": 12}])
    ] = VerifyOptions(),  # noqa: B008 - frozen
) -> VerifyReport:
    """Run a program alternately without and with its kernels: speed-up of the whole.

    Compares outputs, counts calls.
    """
    return await verifier.verify(command, workspace_id, host, outputs or (), options, progress=progress)
