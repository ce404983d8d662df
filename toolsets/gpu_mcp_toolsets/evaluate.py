"""Toolset `evaluate`: problems, verdicts, history."""

from typing import Annotated, Literal, get_args

from pydantic import Field, WithJsonSchema

from gpu_mcp_server.mcp_api.dependencies import (
    BaselinesDep,
    BatchesDep,
    EvaluatorDep,
    ExperienceDep,
    ProgressDep,
    RegistryDep,
    RunnerDep,
    SourcesDep,
)
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
        "register_problem once: a Python reference, tensors, shapes, tolerances (list_problems shows what is there and "
        "the launcher that a candidate must define). evaluate_kernel then judges candidates: correct, incorrect "
        "or cheat, time with interval, speed-up; clock, data and answers are outside the candidate, so measure nothing "
        "yourself. Pass parent and note; list_attempts shows the best, the ancestors or the failures: look before you "
        "try again."
    ),
)

MADE = ("made", "weights")
# Said once and short: pydantic's own schema of two lists of TensorSpec takes 1,900 bytes of every conversation.
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "dtype": {"enum": list(get_args(DType))},
        "shape": {"type": "array"},
        "distribution": {
            "enum": [d for d in get_args(TensorSpec.model_fields["distribution"].annotation) if d not in MADE]
        },
    },
}
Inputs = Annotated[list[TensorSpec], Field(min_length=1), WithJsonSchema({"type": "array", "items": _TENSOR})]
Outputs = Annotated[
    list[TensorSpec], Field(min_length=1), WithJsonSchema({"type": "array", "items": {"type": "object"}})
]
Wished = Annotated[ImportOverrides | None, WithJsonSchema({"type": "object"})]
Trials = Annotated[RegistrationOptions | None, WithJsonSchema({"type": "object"})]
TRIALS = (
    '{constraints: ["n % 4 == 0"], fixed_shapes, distributions: declared, robust: '
    'required, precision: strict, libraries: forbidden, backward: true}, and flops: "2*m*n*k".'
)
TIMING = "{precision: exact} for a record; cache: both; mode: graph; baseline: compiled; tier: smoke; fresh."
Candidates = Annotated[
    tuple[CandidateSpec, ...],
    Field(max_length=32),
    WithJsonSchema({"type": "array", "items": {"type": "object"}}),
]
Seconds = Annotated[float, Field(ge=0, le=240), WithJsonSchema({"type": "number"})]
DEFAULT_TIMING = TimingOptions()
Timing = Annotated[TimingOptions, WithJsonSchema({"type": "object"})]


@TOOLSET.tool("Register a problem", effect="runs")
async def register_problem(
    registry: RegistryDep,
    sources: SourcesDep,
    progress: ProgressDep,
    name: Annotated[str, Field(description="Short.", max_length=80)],
    inputs: Annotated[Inputs, Field(description="As the reference takes them; shape: symbols or sizes.")],
    outputs: Annotated[Outputs, Field(description="As returned.")],
    shapes: Annotated[list[dict[str, int]], Field(description="Sizes: {rows: 512}.", min_length=1)],
    rtol: Annotated[float, Field(description="Relative.", ge=0)],
    atol: Annotated[float, Field(description="Absolute.", ge=0)],
    reference: Annotated[str | None, Field(description="Python text (NumPy or torch): def reference(x).")] = None,
    reference_path: Annotated[str | None, Field(description="Local Python file.")] = None,
    trials: Annotated[Trials, Field(description=TRIALS)] = None,
    host: Host = None,
) -> ProblemInfo:
    """Register a problem: a Python reference, tensors, shapes, tolerance.

    Refused if the reference fails, or trivial answers (zeros, copy, mean) pass. Returns problem_id and launcher.
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
    path: Annotated[str | None, Field(description="Local file or folder.")] = None,
    text: Annotated[str | None, Field(description="Or its text.", max_length=2**20)] = None,
    wish: Annotated[Wished, Field(description="KernelBench: {rtol, distribution: normal, accept_degenerate}.")] = None,
    host: Host = None,
) -> ProblemInfo:
    """Register a problem from its file: KernelBench, problem.toml, program.toml, GEAK."""
    return await registry.import_file(await sources.problem(text, path, wish), host=host, progress=progress)


@TOOLSET.tool("List problems", effect="reads")
async def list_problems(
    registry: RegistryDep, problem_id: Annotated[str | None, Field(description="Only this one.")] = None
) -> ProblemList:
    """List problems: launcher signatures, shapes, tolerances, best attempt."""
    return await registry.problems(problem_id)


@TOOLSET.tool("Judge a kernel", effect="runs")
async def evaluate_kernel(
    evaluator: EvaluatorDep,
    sources: SourcesDep,
    progress: ProgressDep,
    problem_id: Annotated[str, Field(description="From list_problems.")],
    source: Source = None,
    path: SourcePath = None,
    workspace_id: SourceWorkspace = None,
    language: AnyLanguage = None,
    device: Annotated[Literal["cpu", "cuda"] | None, Field(description="Else by language.")] = None,
    entry: Annotated[str, Field(description="Launcher function.")] = "launch",
    flags: Flags = (),
    timing: Annotated[Timing, Field(description=TIMING)] = DEFAULT_TIMING,
    host: Host = None,
    parent: Parent = None,
    note: Note = None,
    wait_s: Wait = 240,
) -> Evaluation:
    """Compile and judge a candidate: correct, incorrect or cheat; time; speed-up.

    Kinds: resource gpu-mcp://docs/candidates; launcher: list_problems.
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
    problem_id: Annotated[str, Field(description="Its id.")],
    candidates: Annotated[
        Candidates, Field(description="{name, source or path, workspace_id, language, flags, entry, fresh}.")
    ] = (),
    implementations: Annotated[tuple[str, ...], Field(description="The problem's own, or all.")] = (),
    tier: Annotated[Tier, Field(description="smoke: one call.")] = "performance",
    host: Host = None,
    wait_s: Annotated[Seconds, Field(description="Then: what is known.")] = 240,
) -> Comparison:
    """Judge up to 32 candidates: one table, best first, an attempt each."""
    entrants = await sources.resolve_many(candidates)
    return await batches.compare(
        problem_id, entrants, implementations=implementations, tier=tier, host=host, wait_s=wait_s, progress=progress
    )


@TOOLSET.tool("List attempts", effect="reads")
async def list_attempts(
    experience: ExperienceDep,
    baselines: BaselinesDep,
    runner: RunnerDep,
    problem_id: Annotated[str | None, Field(description="At this problem.")] = None,
    view: Annotated[
        Literal["best", "recent", "ancestors", "failures"],
        Field(description="best: of one device; ancestors: of attempt_id."),
    ] = "best",
    attempt_id: Annotated[str | None, Field(description="Whose ancestors; else: only it, with evidence.")] = None,
    device: Annotated[str | None, Field(description="For best.")] = None,
    limit: Annotated[int, Field(description="How many.", ge=1, le=100)] = 10,
) -> AttemptList:
    """Show what was tried: best first, ancestors, or failures with reasons."""
    await runner.refresh_running_jobs()
    found = await experience.describe(view, attempt_id, problem_id=problem_id, device=device, limit=limit)
    return found.model_copy(
        update={"attempts": [await baselines.attempt_with_compiled(each) for each in found.attempts]}
    )
