"""Toolset `profile`: memory checks, profiles, questions about them."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import CheckerDep, ProfilerDep, ProfilesDep, ProgressDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.memory_check import CheckTool, MemoryCheck
from gpu_mcp_server.models.profile import ProfileAnswer, ProfileLevel, ProfileResult
from gpu_mcp_server.models.run_target import RunTarget

TOOLSET = Toolset(
    id="profile",
    title="Bugs and bottlenecks",
    instructions=(
        "check_memory finds wrong accesses, races, unwritten reads and bad barriers with their line: use it on a small "
        "shape when results are wrong. profile_kernel says what bounds a kernel and what to try; query_profile shows "
        "more, or compares two. `target`: {command, workspace_id} or {attempt_id, shape}; `skip` warm-up launches."
    ),
)

About = Literal["kernels", "metrics", "lines", "rules", "verdict", "compare"]

# Said once and short: two tools share it, and pydantic's schema of it takes 1,100 bytes of every conversation.
Target = Annotated[RunTarget, WithJsonSchema({"type": "object"})]


@TOOLSET.tool("Check memory", effect="runs")
async def check_memory(
    checker: CheckerDep,
    progress: ProgressDep,
    target: Annotated[
        Target,
        Field(
            description="{command, workspace_id} or {attempt_id, shape}; kernel, skip, count, host, timeout_s, wait_s."
        ),
    ],
    tool: Annotated[CheckTool, Field(description="racecheck: shared memory; initcheck: unwritten reads.")] = "memcheck",
) -> MemoryCheck:
    """Run compute-sanitizer: findings with source line, thread, distance.

    Slow (10-300 times, racecheck more): use small shapes.
    """
    return await checker.check(target, tool, progress=progress)


@TOOLSET.tool("Profile a kernel", effect="runs")
async def profile_kernel(
    profiler: ProfilerDep,
    progress: ProgressDep,
    target: Annotated[Target, Field(description="As for check_memory; or {report: PATH, workspace_id}.")],
    level: Annotated[ProfileLevel, Field(description="quick: times, no counters.")] = "standard",
) -> ProfileResult:
    """Say what bounds a kernel: limit, roofline, stalls, hot lines, occupancy, what to try."""
    return await profiler.profile(target, level, progress=progress)


@TOOLSET.tool("Ask a profile", effect="reads")
async def query_profile(
    profiles: ProfilesDep,
    profile_id: Annotated[str, Field(description="From profile_kernel.")],
    about: Annotated[About, Field(description="What to show.")] = "kernels",
    kernel: Annotated[str | None, Field(description="In its name.")] = None,
    name: Annotated[str, Field(description="Metric or rule: dram, l1tex*hit*.")] = "*",
    other: Annotated[str | None, Field(description="To compare with.")] = None,
) -> ProfileAnswer:
    """Show more of a profile, or two side by side."""
    return await profiles.ask(profile_id, about, kernel=kernel, name=name, other=other)
