"""Toolset `build`: machine code, projects, ports. Not on by default: the list of all tools has to stay small."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import InspectorDep, PorterDep, ProgressDep, ProjectsDep, RunnerDep, SourcesDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.inspection import CodeListing
from gpu_mcp_server.models.job import JobResult
from gpu_mcp_server.models.port import PortResult
from gpu_mcp_server.models.project import ProjectBuild
from gpu_mcp_toolsets.common_arguments import FirstLine, Host, MaxLines, Source, SourcePath

TOOLSET = Toolset(
    id="build",
    title="Builds",
    instructions=(
        "inspect_code: SASS, PTX, AMDGCN, assembly. build_project: CMake, make, ninja, SYCL; run_tests. port_source: "
        "CUDA to HIP, or what SYCL needs."
    ),
    default=False,
)


@TOOLSET.tool("Look at machine code", effect="runs")
async def inspect_code(
    inspector: InspectorDep,
    id: Annotated[str, Field(description="attempt_id or artifact_id of a build.")],
    view: Annotated[
        Literal["sass", "ptx", "amdgcn", "asm"] | None, Field(description="Kind of code; absent: what it is.")
    ] = None,
    kernel: Annotated[str | None, Field(description="Part of the kernel's name.")] = None,
    first_line: FirstLine = 1,
    max_lines: MaxLines = 80,
) -> CodeListing:
    """Show a kernel's instructions by source line, and how many of each kind.

    Look for narrow loads, local memory (spills), and whether tensor instructions are used. C and C++: with the report
    on vectorized loops.
    """
    return await inspector.inspect(id, view=view, kernel=kernel, first_line=first_line, max_lines=max_lines)


@TOOLSET.tool("Build a project", effect="runs")
async def build_project(
    projects: ProjectsDep,
    workspace_id: Annotated[str, Field(description="Workspace, as write_files returned it.")],
    system: Annotated[
        Literal["cmake", "make", "ninja", "sycl"] | None, Field(description="Absent: told from the files.")
    ] = None,
    folder: Annotated[str, Field(description="Where its CMakeLists.txt or Makefile lies.")] = ".",
    targets: Annotated[tuple[str, ...], Field(description="Targets to build; absent: all.")] = (),
    options: Annotated[tuple[str, ...], Field(description="NAME=VALUE for CMake or make.")] = (),
    arch: Annotated[str | None, Field(description="GPU architecture: sm_90, gfx942.")] = None,
    tests: Annotated[bool, Field(description="Run ctest or make test behind it.")] = False,
    timeout_s: Annotated[float, Field(description="Seconds until all is killed.", gt=0, le=3600)] = 600,
    host: Host = None,
) -> ProjectBuild:
    """Configure, build, test a workspace: first errors over all files, failed tests, products.

    Its results lie in the workspace's `build` folder: run them with run_command.
    """
    return await projects.build(
        workspace_id,
        system=system,
        folder=folder,
        targets=targets,
        options=options,
        arch=arch,
        tests=tests,
        timeout_s=timeout_s,
        host=host,
    )


@TOOLSET.tool("Run tests", effect="runs")
async def run_tests(
    runner: RunnerDep,
    progress: ProgressDep,
    command: Annotated[
        list[str],
        Field(description="Test program and arguments, without a shell.", examples=[["pytest", "-q"]], min_length=1),
    ],
    workspace_id: Annotated[str, Field(description="Workspace, as write_files returned it.")],
    report: Annotated[
        tuple[str, ...], Field(description="JUnit XML that other tests write.", examples=[["results/*.xml"]])
    ] = (),
    gpus: Annotated[int, Field(description="How many GPUs it gets.", ge=0)] = 0,
    timeout_s: Annotated[float, Field(description="Seconds until all is killed.", gt=0)] = 600,
    host: Host = None,
) -> JobResult:
    """Run tests: how many passed, and each failed one's message.

    Reads results of pytest, ctest, googletest, also below make; a crash names the last test.
    """
    return await runner.run(
        command,
        workspace_id=workspace_id,
        tests=report,
        gpus=gpus,
        timeout_s=timeout_s,
        host=host,
        progress=progress,
    )


@TOOLSET.tool("Port CUDA to HIP or SYCL", effect="runs")
async def port_source(
    porter: PorterDep,
    sources: SourcesDep,
    source: Source = None,
    path: SourcePath = None,
    workspace_id: Annotated[str | None, Field(description="Workspace: all its files, or path in it.")] = None,
    target: Annotated[Literal["hip", "sycl"], Field(description="Language to port to.")] = "hip",
    arch: Annotated[str | None, Field(description="Architecture to compile for: gfx90a.")] = None,
    host: Host = None,
) -> PortResult:
    """Convert CUDA, list what is left and what differs in meaning, and compile it.

    Warp size 32, 32-bit masks, inline PTX, wmma and TMA need your hand. SYCL without dpct is a checklist.
    """
    files = await sources.files(source, path, workspace_id)
    return await porter.port(files, target=target, arch=arch, host=host)
