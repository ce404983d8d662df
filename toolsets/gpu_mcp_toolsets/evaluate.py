"""Toolset `evaluate`: problems, verdicts, history."""

from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import (
    BatchesDep,
    EvaluatorDep,
    ListingDep,
    ProgressDep,
    RegistryDep,
    RunnerDep,
    SourcesDep,
)
from gpu_mcp_server.mcp_api.schemas import brief_schema
from gpu_mcp_server.mcp_api.toolset import Toolset
from gpu_mcp_server.models.attempt import AttemptList
from gpu_mcp_server.models.comparison import CandidateSpec, Comparison
from gpu_mcp_server.models.evaluation import Evaluation, Tier, TimingOptions
from gpu_mcp_server.models.problem import (
    DType,
    ImportOverrides,
    ProblemInfo,
    ProblemList,
    RegistrationOptions,
    TensorSpec,
)
from gpu_mcp_toolsets.common_arguments import (
    AnyLanguage,
    Flags,
    Host,
    Note,
    Offset,
    Parent,
    Source,
    SourcePath,
    SourceWorkspace,
    Wait,
)

TOOLSET = Toolset(
    id="evaluate",
    title="Judge and memory",
    instructions=(
        "register_problem (or import_problem) says what a candidate must define; so does list_problems. "
        "evaluate_kernel (many: evaluate_kernels) judges: correct, incorrect or cheat, time, speed-up; clock and data "
        "are outside the candidate: measure nothing yourself. Pass parent and note; see list_attempts "
        "(best, ancestors, failures) before you try again."
    ),
)

MADE = ("made", "weights")
RARE = ("uint16", "uint32", "complex64", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Types that a suite's problems have, and no schema need list."""
# Said once and short: pydantic's own schema of two lists of TensorSpec takes 1,900 bytes of every conversation.
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "dtype": {"type": "string", "enum": [d for d in get_args(DType) if d not in RARE]},
        "shape": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        "distribution": {
            "type": "string",
            "enum": [d for d in get_args(TensorSpec.model_fields["distribution"].annotation) if d not in MADE],
        },
    },
}
Inputs = Annotated[list[TensorSpec], Field(min_length=1), WithJsonSchema({"type": "array", "items": _TENSOR})]
Outputs = Annotated[
    list[TensorSpec], Field(min_length=1), WithJsonSchema({"type": "array", "items": {"type": "object"}})
]
EXAMPLE_TENSORS = [[{"name": "x", "dtype": "float32", "shape": ["m", "n"]}]]
Name = Annotated[str | None, WithJsonSchema({"type": "string"})]
Sizes = Annotated[list[Any] | None, WithJsonSchema({"type": "array"})]
Wished = Annotated[ImportOverrides | None, WithJsonSchema({"type": "object"})]
Trials = Annotated[RegistrationOptions | None, WithJsonSchema(brief_schema(RegistrationOptions))]
TIMING = "exact: for a record; compiled: wait for torch.compile; fresh: judge again; confirm: judge twice."
Candidates = Annotated[
    tuple[CandidateSpec, ...],
    Field(max_length=32),
    WithJsonSchema({"type": "array", "items": {"type": "object"}}),
]
DEFAULT_TIMING = TimingOptions()
Timing = Annotated[TimingOptions, WithJsonSchema(brief_schema(TimingOptions))]


@TOOLSET.tool("Register a problem", effect="runs")
async def register_problem(
    registry: RegistryDep,
    sources: SourcesDep,
    progress: ProgressDep,
    name: Annotated[str, Field(description="Short name for lists.", max_length=80)],
    inputs: Annotated[
        Inputs,
        Field(description="In the reference's order; shape has symbols or sizes.", examples=EXAMPLE_TENSORS),
    ],
    outputs: Annotated[
        Outputs,
        Field(
            description="What it returns, likewise.",
            examples=[[{"name": "y", "dtype": "float32", "shape": ["m"]}]],
        ),
    ],
    shapes: Annotated[
        list[dict[str, int]],
        Field(description="Sizes of every symbol.", examples=[[{"m": 512, "n": 1000}]], min_length=1),
    ],
    rtol: Annotated[float, Field(description="Relative tolerance, say 1e-4.", ge=0)],
    atol: Annotated[float, Field(description="Absolute tolerance, say 1e-6.", ge=0)],
    reference: Annotated[str | None, Field(description="Python, NumPy or torch: def reference(x).")] = None,
    reference_path: Annotated[str | None, Field(description="Or its file on this machine.")] = None,
    trials: Annotated[
        Trials,
        Field(
            description="Further rules of it.",
            examples=[{"constraints": ["n % 4 == 0", "oh == h // 2"], "flops": "2*m*n*k"}],
        ),
    ] = None,
    host: Host = None,
) -> ProblemInfo:
    """Register a reference with tensors, shapes, tolerance.

    Refused if it fails, or trivial answers (zeros, copy, mean) pass. Returns problem_id, launcher.
    """
    text = await sources.reference(reference, reference_path)
    return await registry.register(
        name=name,
        inputs=inputs,
        outputs=outputs,
        shapes=shapes,
        rtol=rtol,
        atol=atol,
        reference=text,
        **(trials or RegistrationOptions()).model_dump(),
        host=host,
        progress=progress,
    )


@TOOLSET.tool("Import a problem", effect="runs")
async def import_problem(
    registry: RegistryDep,
    sources: SourcesDep,
    progress: ProgressDep,
    path: Annotated[str | None, Field(description="File or folder on this machine.")] = None,
    text: Annotated[str | None, Field(description="Or the file's text.", max_length=2**20)] = None,
    torch: Annotated[Name, Field(description="Or a function: torch.nn.functional.gelu.")] = None,
    shapes: Annotated[Sizes, Field(description="For torch: [[1024, 4096]].")] = None,
    dtype: Annotated[Name, Field(description="For torch; else float32.")] = None,
    wish: Annotated[
        Wished,
        Field(
            description="Keys to change; a wrong key lists all.",
            examples=[{"rtol": 0.01}],
        ),
    ] = None,
    host: Host = None,
) -> ProblemInfo:
    """Register a problem from a file (KernelBench, GPU MODE, SOL-ExecBench, GEAK)."""
    if torch is not None:
        return await registry.import_torch(torch, shapes or [], dtype or "float32", wish, host=host, progress=progress)
    return await sources.import_from(text, path, wish, partial(registry.import_file, host=host, progress=progress))


@TOOLSET.tool("List problems", effect="reads")
async def list_problems(
    registry: RegistryDep,
    problem_id: Annotated[str | None, Field(description="Show this one alone.")] = None,
    offset: Offset = 0,
) -> ProblemList:
    """List problems: launchers, shapes, best attempt."""
    return await registry.problems(problem_id, offset)


@TOOLSET.tool("Judge a kernel", effect="runs")
async def evaluate_kernel(
    evaluator: EvaluatorDep,
    sources: SourcesDep,
    progress: ProgressDep,
    problem_id: Annotated[str, Field(description="Its id, of list_problems.")],
    source: Source = None,
    path: SourcePath = None,
    workspace_id: SourceWorkspace = None,
    language: AnyLanguage = None,
    device: Annotated[Literal["cpu", "cuda"] | None, Field(description="Absent: by the language.")] = None,
    entry: Annotated[str, Field(description="Name of the launcher.")] = "launch",
    flags: Flags = (),
    timing: Annotated[Timing, Field(description=TIMING, examples=[{"tier": "smoke"}])] = DEFAULT_TIMING,
    host: Host = None,
    parent: Parent = None,
    note: Note = None,
    wait_s: Wait = 240,
) -> Evaluation:
    """Compile and judge a candidate: correct, incorrect or cheat; time; speed-up.

    Kinds: read_doc gpu-mcp://docs/candidates; launcher: list_problems.
    """
    given = await sources.resolve(source, path, workspace_id, language)
    return await evaluator.evaluate(
        problem_id,
        given,
        host=host,
        device=device,
        flags=flags,
        entry=entry,
        timing=timing,
        parent_id=parent,
        note=note,
        wait_s=wait_s,
        progress=progress,
        reuse=not timing.fresh,
    )


@TOOLSET.tool("Judge many", effect="runs")
async def evaluate_kernels(
    batches: BatchesDep,
    sources: SourcesDep,
    progress: ProgressDep,
    problem_id: Annotated[str, Field(description="Its id, of list_problems.")],
    candidates: Annotated[
        Candidates,
        Field(
            description="Each: name, and source or path, workspace_id, language, flags, entry.",
            examples=[[{"name": "v2", "path": "v2.cu", "flags": ["-O3"]}]],
        ),
    ] = (),
    implementations: Annotated[
        tuple[str, ...], Field(description="Names of the problem's own candidates, or all.")
    ] = (),
    tier: Annotated[Tier, Field(description="smoke: one call; correctness: not timed.")] = "performance",
    host: Host = None,
    wait_s: Annotated[float, Field(description="Seconds to wait at most.", ge=0, le=240)] = 240,
) -> Comparison:
    """Judge up to 32 candidates: one table, best first, an attempt each."""
    entrants = await sources.resolve_many(candidates)
    return await batches.compare(
        problem_id, entrants, implementations=implementations, tier=tier, host=host, wait_s=wait_s, progress=progress
    )


@TOOLSET.tool("List attempts", effect="reads")
async def list_attempts(
    listing: ListingDep,
    runner: RunnerDep,
    problem_id: Annotated[str | None, Field(description="Attempts at it alone.")] = None,
    view: Annotated[
        Literal["best", "recent", "ancestors", "failures"],
        Field(description="ancestors: those of attempt_id."),
    ] = "best",
    attempt_id: Annotated[str | None, Field(description="This one whole, or its ancestors.")] = None,
    device: Annotated[str | None, Field(description="Part of its name.")] = None,
    limit: Annotated[int, Field(description="Most rows to show.", ge=1, le=100)] = 10,
    offset: Offset = 0,
    source: Annotated[bool, Field(description="Show sources as well.")] = False,
) -> AttemptList:
    """Show earlier attempts."""
    await runner.refresh_running_jobs()
    return await listing.list_attempts(
        view, attempt_id, problem_id=problem_id, device=device, limit=limit, offset=offset, with_sources=source
    )
