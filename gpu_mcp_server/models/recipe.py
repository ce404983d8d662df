"""Handovers between the roles of a headless run, and the state of a run."""

from typing import ClassVar, Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.time_format import format_time, format_time_range

Stage = Literal["specification", "code", "compile", "correctness", "performance", "target"]
"""Of a candidate: the stage at which it failed, or `target` when it reached it."""
NOT_MEASURED = "not measured"
"""What bounds a kernel, where no profiler says it."""
NO_BASELINE = "no GPU baseline; give a torch reference"
StopReason = Literal[
    "target", "iterations", "rounds", "budget", "specification", "agent", "refused", "degenerate", "compiled", "cached",
    "tuned", "unmeasured", "faster", "no_gain",
]  # fmt: skip
"""cached: an earlier run's best, confirmed on this device, reaches the target. tuned: every
point of a sweep is judged. unmeasured: verified, and its speed target could not be measured here. faster,
no_gain: of the whole program, measured with the kernel in it."""


class Specification(Model):
    """From the analyst to the coder."""

    operation: str = Field(min_length=1, max_length=2000)
    """As a formula."""
    facts: list[str] = Field(default=[], max_length=20)
    """What the coder needs and the problem does not say."""
    bound: str = Field(default="", max_length=500)
    """What limits the time: bytes, operations, launches."""
    plan: list[str] = Field(default=[], max_length=20)
    """Ideas in the order in which to try them."""
    questions: list[str] = Field(default=[], max_length=20)
    """What stays open."""


class BuildPlan(Model):
    """From the builder to the compiler: how every candidate is built."""

    flags: list[str] = Field(default=[], max_length=32)
    """Of the compiler, behind those of the run."""
    entry: str = Field(default="launch", max_length=80)
    """The launcher's name."""
    why: str = Field(default="", max_length=800)
    """Which flags matter, what was left out."""


class TestCase(Model):
    """One input that may break a candidate."""

    __test__: ClassVar[bool] = False
    sizes: dict[str, int] = {}
    """Of the problem's symbols, where a size is the point."""
    values: str = Field(default="", max_length=300)
    """What the inputs hold: infinities, sums that cancel ..."""
    catches: str = Field(min_length=1, max_length=300)
    """The mistake that it would show."""


class TestPlan(Model):
    """From the tester to the coder: what the judge's secret trials are likely to find."""

    __test__: ClassVar[bool] = False
    cases: list[TestCase] = Field(min_length=1, max_length=20)
    memory: bool = False
    """Whether accesses outside the buffers are to be feared."""


class Candidate(Model):
    """From the coder to the judge."""

    source: str = Field(min_length=1, max_length=2**20)
    """The whole file."""
    idea: str = Field(default="", max_length=500)
    parameters: dict[str, str | int | float | bool] = {}
    """Tile sizes, stages, threads: what a history of parameters is made of."""
    analysis: str = Field(default="", max_length=2000)
    """Why it should be fast, or what limits it."""


class Edit(Model):
    """One change of one file."""

    path: str = Field(min_length=1, max_length=500)
    old: str = Field(min_length=1, max_length=2**18)
    """As it stands there, exactly once."""
    new: str = Field(max_length=2**18)


class ProgramEdit(Model):
    """From the agent to the checks of NCCL programs."""

    edits: list[Edit] = Field(min_length=1, max_length=100)
    idea: str = Field(default="", max_length=500)


class ProjectSpecification(Model):
    """From the analyst to coder, tester and builder of a project."""

    purpose: str = Field(min_length=1, max_length=2000)
    """What the program or library computes, as formulas where there are any."""
    interface: list[str] = Field(min_length=1, max_length=30)
    """Functions with their signatures, programs with their arguments: what tests may call."""
    properties: list[str] = Field(min_length=1, max_length=30)
    """What must hold of every answer, so that a test can check it without the code under test."""
    files: list[str] = Field(default=[], max_length=30)
    """Sources that are wanted."""
    questions: list[str] = Field(default=[], max_length=20)
    """What stays open."""


class FileChange(Model):
    """One change of one file of a project."""

    path: str = Field(min_length=1, max_length=200)
    old: str = Field(default="", max_length=2**18)
    """As it stands there, exactly once; empty to write the whole file."""
    new: str = Field(max_length=2**18)


class ProjectChange(Model):
    """From a role of a project to the build."""

    changes: list[FileChange] = Field(default=[], max_length=100)
    harmless: dict[str, str] = Field(default={}, max_length=20)
    """Of the tester alone: why a planted mistake, as it is told of, breaks nothing that the specification promises."""
    objection: str = Field(default="", max_length=1000)
    """Where a test fails, in place of changes. Of the coder: how it contradicts the specification, for the tester; of
    the tester: why it does not, for the coder."""
    idea: str = Field(default="", max_length=500)


class Verdict(Model):
    """From the judge to the next prompt."""

    attempt_id: str | None = None
    """None where nothing could be judged: no answer, or a change outside the EVOLVE-BLOCKs."""
    stage: Stage
    outcome: str
    """correct, incorrect, cheat, voided (a confirmation run says otherwise), compiles (nobody judged it),
    compile_failed, no_candidate, frozen_lines_changed."""
    reason: str = ""
    details: str = ""
    """Diagnostics, or times at each shape."""
    speedup: float | None = None
    median_us: float | None = None
    """Of a call: over all shapes where the time ranks, else at the last shape."""
    speedup_range: tuple[float, float] | None = None
    """95 % interval, where every shape has one."""
    time_range_us: tuple[float, float] | None = None
    """95 % interval of the time of a call, where the reference is no baseline on the device: the time ranks then."""
    trust: str = ""
    """Of the time: confirmed, provisional, contradicted, or unconfirmable and why."""
    coarse: bool = False
    """Timed with a wide interval, to leave out what is dominated: it is no best, and reaches no target."""
    signature: str = ""
    """Of the error, without numbers and names: two that are equal are one error."""

    def speed_text(self) -> str:
        """Say how fast it is: by its speed-up, or by the time of a call where it has none."""
        if self.speedup is not None:
            return f"speed-up {self.speedup:.3g}{format_range(self.speedup_range)}"
        if self.median_us is None:
            return "not timed"
        text = f"{format_time(self.median_us / 1e6)} a call"
        if self.time_range_us is None:
            return text
        return f"{text} ({format_time_range(*(end / 1e6 for end in self.time_range_us))}; {NO_BASELINE})"


class CandidateProfile(Model):
    """From the profiler to the next prompt: what bounds a correct candidate, and one thing to try."""

    attempt_id: str
    level: Literal["standard", "quick", "times"]
    """times: no profiler ran, and the judge's times stand alone."""
    profile_id: str | None = None
    """For query_profile."""
    bound: str = NOT_MEASURED
    evidence: str = ""
    """The profiler's verdict, or the judge's time against the device's floor."""
    topic: str = ""
    """Cause that the advice attacks: spills, coalesce, floor ...; empty without advice."""
    advice: str = ""
    predicted: float | None = None
    """How many times faster the whole candidate may become by it: a rule of thumb, scored by the next attempt."""
    not_measured: str = ""
    """Why a higher level has no answer."""


class AdviceScore(Model):
    """Measured gain of a profile's advice: kept with the attempt that followed it."""

    topic: str
    predicted: float | None = None
    measured: float | None = None
    """Time of the attempt that was profiled over that of the next one; None where that was not correct or not timed."""
    profiled: str
    """attempt_id of the profiled one."""


class Hint(Model):
    """From the reflector to the next prompts."""

    kind: Literal["compile", "correctness", "performance", "research", "diversity"]
    cause: str = Field(default="", max_length=500)
    """Of the failures, as their evidence supports it."""
    text: str = Field(min_length=1, max_length=500)


class HintEffect(Model):
    """Effect of a hint of the reflector: kept with the attempt that followed it."""

    text: str
    before: Stage
    """Where candidates failed when the hint was asked for."""
    after: Stage
    """Where the next one ended."""
    helped: bool


class TunedPoint(Model):
    """One choice of all parameters, judged."""

    parameters: Point
    outcome: str
    """correct, incorrect, compile_failed ..."""
    attempt_id: str | None = None
    speedup: float | None = None
    speedup_range: tuple[float, float] | None = None
    """95 % interval."""
    median_us: float | None = None
    """At the last shape; over all shapes where there is no baseline."""
    median_range_us: tuple[float, float] | None = None
    """95 % interval."""
    trust: str = ""
    """Of the time; one that is unconfirmable dominates none that is not."""
    dominated_by: str | None = None
    """attempt_id of the point that is faster beyond both intervals: this one was timed coarsely alone."""
    coarse: bool = False
    """Whether its interval is wide: it was timed only to compare it."""
    reason: str = ""

    def parameters_text(self) -> str:
        """Return the parameters on one line."""
        return parameters_text(self.parameters)

    def line_text(self) -> str:
        """Say it on one line."""
        text = f"{self.parameters_text()}: {self.outcome}"
        if self.speedup is not None:
            ends = self.speedup_range
            text += f", speed-up {self.speedup:.3g}" + (f" ({ends[0]:.3g}-{ends[1]:.3g})" if ends else "")
        elif self.median_us is not None:
            text += f", {self.time_text()} a call"
        text += f", {self.trust}" if self.trust else ""
        text += f", dominated by {self.dominated_by}" if self.dominated_by else ""
        text += f"; {self.reason[:120]}" if self.reason and self.outcome != "correct" else ""
        return text + (f" [{self.attempt_id}]" if self.attempt_id else "")

    def time_text(self) -> str:
        """Return the time of a call, with its interval where that is known; empty of one that was not timed."""
        if self.median_us is None:
            return ""
        ends = self.median_range_us
        between = f" ({format_time_range(ends[0] / 1e6, ends[1] / 1e6)})" if ends else ""
        return format_time(self.median_us / 1e6) + between


class TuningTable(Model):
    """The points of a sweep, the fastest first."""

    points: list[TunedPoint]
    space: int
    """Points that the parameters have without constraints."""
    sampled: bool
    """Whether optuna chose them."""


def parameters_text(point: Point) -> str:
    """Return a point on one line: `BLOCK_M=64 num_stages=2`."""
    return " ".join(f"{name}={value}" for name, value in point.items())


HANDOFFS: dict[str, type[Model]] = {
    "specification": Specification, "build-plan": BuildPlan, "test-plan": TestPlan, "candidate": Candidate,
    "edit": ProgramEdit, "verdict": Verdict, "project-specification": ProjectSpecification, "change": ProjectChange,
    "profile": CandidateProfile, "hint": Hint, "tuning": TuningTable,
}  # fmt: skip
"""Each is kept with the run, as handoffs/STEP.json."""


class RunCost(Model):
    """Cost of a run so far."""

    wall_s: float = 0.0
    agent_calls: int = 0
    cost_usd: float | None = None
    """As agents reported it."""
    tokens: int | None = None
    """As agents reported them."""
    tool_calls: int | None = None
    """In agent mode: of our tools."""
    tool_characters: int | None = None
    """What they put before its model."""


class RunStep(Model):
    """One step of a run, done."""

    step: str
    """code-003, judge-003 ...: in the journal once as begun, once as done."""
    kind: Literal[
        "memory",
        "specification",
        "plan",
        "code",
        "session",
        "reflect",
        "judge",
        "confirm",
        "tune",
        "profile",
        "lookup",
        "pipeline",
        "verify",
        "measure",
        "check",
    ]
    seconds: float
    outcome: str
    attempt_id: str | None = None
    speedup: float | None = None
    median_us: float | None = None

    def line_text(self) -> str:
        """Say it on one line."""
        text = f"{self.step}: {self.outcome}"
        text += f", speed-up {self.speedup:.3g}" if self.speedup is not None else ""
        text += f", {format_time(self.median_us / 1e6)} a call" if self.median_us and self.speedup is None else ""
        text += f" [{self.attempt_id}]" if self.attempt_id else ""
        return f"{text} ({self.seconds:.1f} s)"


SHOWN_POINTS = 8
"""Of a sweep, in a summary."""


class RunState(ResultModel):
    """A run as it stands."""

    run_id: str
    name: str
    mode: str
    problem_id: str | None = None
    degenerate: bool = False
    """Whether an answer without work is right for its problem; no score counts it."""
    state: Literal["unfinished", "finished"]
    stopped: StopReason | None = None
    why: str = ""
    steps: list[RunStep] = []
    best: Verdict | None = None
    best_source_artifact_id: str | None = None
    spent: RunCost = RunCost()
    tuned: list[TunedPoint] = []
    """Points of `[tune]`, the fastest first."""
    next_step: str = ""
    """What whoever reads this can do next."""

    def summary(self) -> str:
        """Say how it ended, the best, then the steps."""
        head = f"{self.run_id} ({self.mode}): {self.stopped or self.state}"
        lines = [head + (f" - {self.why}" if self.why else "")]
        lines += [f"next: {self.next_step}"] if self.next_step else []
        lines += [] if self.mode == "project" else [self._best_text()]
        cost = f", {self.spent.cost_usd:.2f} USD as reported" if self.spent.cost_usd is not None else ""
        calls, shown = self.spent.tool_calls, self.spent.tool_characters
        tools = f", {calls} of tools with {shown or 0:,} characters" if calls is not None else ""
        lines.append(f"spent: {self.spent.agent_calls} calls of the agent{tools}, {self.spent.wall_s:.0f} s{cost}")
        lines += [step.line_text() for step in self.steps]
        lines += [f"tuned, {len(self.tuned)} points, the fastest first:"] if self.tuned else []
        lines += [f"- {point.line_text()}" for point in self.tuned[:SHOWN_POINTS]]
        left = len(self.tuned) - SHOWN_POINTS
        lines += [f"- {left} more: `gpu-mcp-server recipe show {self.run_id} --json`"] if left > 0 else []
        return "\n".join(lines)

    def _best_text(self) -> str:
        if self.best is None:
            return f"best: none is {'verified' if self.mode == 'nccl' else 'correct'}"
        best = self.best
        return f"best: {best.attempt_id}, {best.speed_text()}" + (f", {best.trust}" if best.trust else "")
