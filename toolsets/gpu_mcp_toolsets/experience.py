"""Toolset `experience`: what to do with a history besides looking at it. Off unless it is asked for."""

from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.mcp_api.dependencies import AuditorDep, MemoryDep, ProblemsDep, ProgressDep, SourcesDep
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.attempt import AuditResult
from gpu_mcp_server.models.experience import FoundAttempts, Lessons, NoteResult
from gpu_mcp_server.models.problem import ImplementationChange
from gpu_mcp_toolsets.common_arguments import AnyLanguage, Flags, Source, SourcePath, SourceWorkspace

TOOLSET = Toolset(
    id="experience",
    title="Records",
    instructions=(
        "find_attempts, lessons: earlier tries at any problem; add_note. set_implementation keeps one. audit_attempt "
        "before you report a record."
    ),
    default=False,
)


@TOOLSET.tool("Audit an attempt", effect="runs")
async def audit_attempt(
    auditor: AuditorDep,
    progress: ProgressDep,
    attempt_id: Annotated[str, Field(description="Attempt that has a verdict.")],
) -> AuditResult:
    """Judge an attempt again from its record and confirm or void it.

    It is voided if the second verdict or speed differs. Use it before you build on a record or report it.
    """
    return await auditor.audit(attempt_id, progress=progress)


@TOOLSET.tool("Find attempts like a new one", effect="reads")
async def find_attempts(
    memory: MemoryDep,
    operation: Annotated[str | None, Field(description="Words of the operation: softmax, layer norm.")] = None,
    dtype: Annotated[str | None, Field(description="Type of a tensor: float16.")] = None,
    arch: Annotated[str | None, Field(description="sm_90, or part of the device's name.")] = None,
    bottleneck: Annotated[str | None, Field(description="Words of a profile's verdict.")] = None,
    error: Annotated[str | None, Field(description="Error message, or a word of it: SIGSEGV.")] = None,
    shape: Annotated[
        Literal["small", "medium", "large"] | None, Field(description="Class of the problem's size.")
    ] = None,
    limit: Annotated[int, Field(description="Most attempts to show.", ge=1, le=30)] = 8,
) -> FoundAttempts:
    """Search attempts at all problems: verified first, failures too.

    Use it before you write a kernel.
    """
    return await memory.find(operation, dtype, arch, bottleneck, error, shape, limit)


@TOOLSET.tool("What attempts teach", effect="reads")
async def lessons(
    memory: MemoryDep,
    operation: Annotated[str | None, Field(description="Words of the operation: softmax, layer norm.")] = None,
    problem_id: Annotated[str | None, Field(description="Lessons of this problem alone.")] = None,
    limit: Annotated[int, Field(description="Most lessons to show.", ge=1, le=30)] = 8,
) -> Lessons:
    """List techniques with speed-ups, failures and fixes, notes; what advice and hints brought."""
    return await memory.lessons(operation, problem_id, limit)


@TOOLSET.tool("Leave a note", effect="changes")
async def add_note(
    memory: MemoryDep,
    text: Annotated[str, Field(description="What the next agent should know.", max_length=2000)],
    attempt_id: Annotated[str | None, Field(description="Attempt that it is about.")] = None,
    problem_id: Annotated[str | None, Field(description="Or problem that it is about.")] = None,
) -> NoteResult:
    """Keep a note that lessons shows."""
    return await memory.add_note(text, attempt_id, problem_id)


@TOOLSET.tool("Keep an implementation with a problem", effect="changes")
async def set_implementation(
    problems: ProblemsDep,
    sources: SourcesDep,
    problem_id: Annotated[str, Field(description="Problem, as register_problem returned it.")],
    name: Annotated[str, Field(description="What evaluate_kernels calls it: naive, triton.", max_length=60)],
    source: Source = None,
    path: SourcePath = None,
    workspace_id: SourceWorkspace = None,
    language: AnyLanguage = None,
    entry: Annotated[str, Field(description="Name of the launcher function.")] = "launch",
    flags: Flags = (),
    remove: Annotated[bool, Field(description="Remove it instead; no source then.")] = False,
) -> ImplementationChange:
    """Add, replace or remove a named candidate of a problem; its id stays the same."""
    given = None if remove else await sources.implementation(source, path, workspace_id, language, entry, flags)
    return await problems.change_implementation(problem_id, name, given)
