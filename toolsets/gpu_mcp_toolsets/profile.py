"""Toolset `profile`: memory checks, profiles, questions about them."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import CheckerDep, ProfilerDep, ProfilesDep, ProgressDep
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.memory_check import CheckTool, MemoryCheck
from gpu_mcp_server.models.profile import ProfileAnswer, ProfileLevel, ProfileResult
from gpu_mcp_server.models.run_target import RunTarget

TOOLSET = Toolset(
    id="profile",
    title="Bugs and bottlenecks",
    instructions=(
        "check_memory: wrong accesses, races, unwritten reads, bad barriers; use a small shape. profile_kernel: what "
        "bounds a kernel, what to try (skip warm-up); query_profile: more, or two compared."
    ),
)

About = Literal["kernels", "metrics", "lines", "rules", "verdict", "compare"]

CheckTarget = Annotated[RunTarget, WithJsonSchema(brief_schema(RunTarget, without=["report"]))]
ProfileTarget = Annotated[RunTarget, WithJsonSchema(brief_schema(RunTarget))]


@TOOLSET.tool("Check memory", effect="runs")
async def check_memory(
    checker: CheckerDep,
    progress: ProgressDep,
    target: Annotated[
        CheckTarget,
        Field(
            description="command and workspace_id, or attempt_id and shape; skip launches of kernel.",
            examples=[{"attempt_id": "a-1", "shape": {"n": 512}}],
        ),
    ],
    tool: Annotated[
        CheckTool, Field(description="racecheck: shared data; initcheck: unwritten reads; synccheck: barriers.")
    ] = "memcheck",
) -> MemoryCheck:
    """Run compute-sanitizer (C, C++: gcc's): findings with lines.

    Slow (10-300 times, racecheck more): use small shapes.
    """
    return await checker.check(target, tool, progress=progress)


@TOOLSET.tool("Profile a kernel", effect="runs")
async def profile_kernel(
    profiler: ProfilerDep,
    progress: ProgressDep,
    target: Annotated[
        ProfileTarget,
        Field(
            description="command, attempt_id, or report: a file that a profiler wrote.",
            examples=[{"attempt_id": "a-1", "skip": 3}],
        ),
    ],
    level: Annotated[ProfileLevel, Field(description="quick: times, no counters.")] = "standard",
) -> ProfileResult:
    """Say what bounds a kernel: limit, roofline, stalls, hot lines, occupancy, what to try."""
    return await profiler.profile(target, level, progress=progress)


@TOOLSET.tool("Ask a profile", effect="reads")
async def query_profile(
    profiles: ProfilesDep,
    profile_id: Annotated[str, Field(description="Profile, as profile_kernel returned it.")],
    about: Annotated[About, Field(description="Which part to show.")] = "kernels",
    kernel: Annotated[str | None, Field(description="Part of the kernel's name.")] = None,
    name: Annotated[str, Field(description="Metric or rule: dram, l1tex*hit*.")] = "*",
    other: Annotated[str | None, Field(description="profile_id to compare with.")] = None,
) -> ProfileAnswer:
    """Show more of a profile, or two side by side."""
    return await profiles.ask(profile_id, about, kernel=kernel, name=name, other=other)
