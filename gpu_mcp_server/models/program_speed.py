"""Models of whole programs: recorded calls, a judged kernel put in, its gain."""

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.models.problem import ProblemInfo
from gpu_mcp_server.text_safety import join_lines
from gpu_mcp_server.time_format import format_duration

UNDONE = ("no hot spots: ", "no problem was made of ", "not verified: ")
"""First words of reports without a result."""


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class KernelTarget(Model):
    """From the agent to the capture: the part of a program that one kernel is to replace."""

    target: str = Field(default="", max_length=200)
    """`aten::mm`, `package.module:function` or `Net.blocks.*.mlp`; empty where nothing is worth a kernel."""
    why: str = Field(default="", max_length=500)


class CaptureOptions(Model):
    """Options of capture_problem: the calls to record, and tolerances of the problem."""

    record_s: float = Field(default=60.0, gt=0, le=900)
    """Seconds to record from the first call on; the worker then ends the program."""
    sets: int = Field(default=8, ge=1, le=32)
    """Most sets of shapes and values that become cases; the sets with the most data come first."""
    rtol: float | None = Field(default=None, ge=0)
    """Relative tolerance of answers; absent: by their type."""
    atol: float | None = Field(default=None, ge=0)
    timeout_s: float = Field(default=600.0, gt=0, le=1800)
    """Limit of the whole run."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """Seconds to wait for the end; after that the call returns a job_id."""


class CapturedSet(Model):
    """One set of inputs with which the program makes calls."""

    inputs: list[str]
    """Such as `float32[64, 128]`, with strides unless row-major."""
    calls: int


class CaptureReport(ResultModel):
    """Result of capture_problem: a problem made of a program's calls."""

    status: str
    """ok, nothing (no call could be recorded), failed, timeout, oom, running."""
    host: str
    target: str
    problem: ProblemInfo | None = None
    sets: list[CapturedSet] = []
    replayable: list[str] = []
    """Inputs that the judge cannot vary, such as indices; with any, it confirms no time at this problem."""
    notes: list[str] = []
    samples: str | None = None
    """Artifact: the recorded inputs as safetensors."""
    job_id: str | None = None
    attempt_id: str | None = None
    output: str = ""

    def summary(self) -> str:
        """Return the problem and the calls that its cases stand for."""
        if self.status == "running":
            return (
                f"still running on {self.host}, job {self.job_id}; job_status with wait_s waits and makes the problem"
            )
        calls = sum(s.calls for s in self.sets)
        lines = [
            f"captured {self.target}: {_counted(calls, 'call')}, {_counted(len(self.sets), 'case')}"
            if self.problem
            else ""
        ]
        lines[0] = lines[0] or f"{UNDONE[1]}{self.target}: {self.status}"
        lines += [f"  {_counted(s.calls, 'call')}: {', '.join(s.inputs)}" for s in self.sets]
        if self.replayable:
            names = ", ".join(self.replayable)
            lines.append(f"replayable: {names} cannot be varied, so times at this problem are never confirmed")
        lines += [f"note: {note}" for note in self.notes]
        lines += [self.problem.summary()] if self.problem else []
        lines += [f"recorded inputs: read_artifact {self.samples}"] if self.samples else []
        lines += [f"--- output\n{self.output}"] if self.output else []
        about = {"job": self.job_id, "attempt": self.attempt_id}
        lines.append("; ".join(f"{k} {v}" for k, v in about.items() if v))
        return "\n".join(line for line in lines if line)


class ApplyReport(ResultModel):
    """Result of apply_attempt: a copy of a program with a judged kernel in it."""

    workspace_id: str
    """The copy."""
    of: str
    """The program's own workspace, without any kernel; it stays unchanged."""
    attempt_id: str
    replaces: str
    cases: int
    """Sets of inputs that the kernel answers."""
    kernel_speedup: float | None = None
    kernels: list[str]
    """Attempts whose kernels are in the copy, this one last."""
    patch: str
    """Artifact: all changes to the original workspace; `git apply` takes it."""
    files: list[str]
    notes: list[str] = []

    def summary(self) -> str:
        """Return how to run the copy with the kernel, and without it."""
        lines = [
            f"workspace {self.workspace_id}: a copy of {self.of} in which {self.attempt_id} answers {self.replaces} at "
            f"{_counted(self.cases, 'set')} of inputs",
            "run it with PYTHONPATH=speedup_overlay before the command; without that, the program is as before",
            *([f"kernels in it: {', '.join(self.kernels)}"] if len(self.kernels) > 1 else []),
            f"changed: {', '.join(self.files)}",
            f"patch: read_artifact {self.patch}",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


class VerifyOptions(Model):
    """Options of verify_in_place: repetitions, limits, and tolerances of outputs."""

    pairs: int = Field(default=8, ge=6, le=60)
    """Pairs of runs, without and with the kernel; 6 are the fewest with a 95 % interval."""
    run_s: float = Field(default=300.0, gt=0, le=1700)
    """Limit of one run."""
    rtol: float = Field(default=1e-3, ge=0)
    atol: float = Field(default=1e-6, ge=0)
    skip_unsteady: bool = False
    """Leave out numbers that differ between runs without the kernel, such as times; the answer counts them."""
    timeout_s: float = Field(default=1700.0, gt=0, le=1800)
    """Limit of all runs together."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """Seconds to wait for the end; after that the call returns a job_id."""


class PlacedKernel(Model):
    """A kernel in a copy, and what it did in a run."""

    attempt_id: str | None = None
    replaces: str = ""
    speedup: float | None = None
    """Alone, as it was judged."""
    calls: int | None = None
    """Calls that it answered in a run: the fewest of all runs."""
    passed_on: int | None = None
    """Calls of a run that it was not judged at: the program's own code, or a kernel put in before, answered them."""

    def line_text(self) -> str:
        """Return its name, calls and speed-up on one line."""
        name = " for ".join(filter(None, (self.attempt_id, self.replaces))) or "the kernel"
        passed = f"; {self.passed_on} calls of a run went to the program's own code" if self.passed_on else ""
        return f"{name} ran {self.calls} times in each run{passed}"


class VerifyReport(ResultModel):
    """Result of verify_in_place: the speed-up of the whole program by the kernels in a copy."""

    status: str
    """faster, slower, same (the interval holds 1), wrong (outputs differ), unused (a kernel never ran), failed,
    timeout, running."""
    host: str
    workspace_id: str
    speedup: float | None = None
    """Speed-up of the whole: median over pairs of time before over time after, measured outside the program."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    """Ends of its 95 % interval."""
    before_s: float | None = None
    """Median seconds of a run without the kernels."""
    after_s: float | None = None
    pairs: int = 0
    kernels: list[PlacedKernel] = []
    compared: str = ""
    """What all runs wrote, against the first run without the kernel."""
    notes: list[str] = []
    job_id: str | None = None
    output: str = ""

    def summary(self) -> str:
        """Return the speed-up of the whole beside that of the kernel alone."""
        if self.status == "running":
            return f"still running on {self.host}, job {self.job_id}; job_status with wait_s waits for its end"
        lines = [self._head()]
        if self.before_s is not None and self.after_s is not None:
            lines.append(
                f"a run takes {format_duration(self.before_s)} before and {format_duration(self.after_s)} after, "
                f"medians of {self.pairs} alternating runs each, measured outside the program"
            )
        lines += [kernel.line_text() for kernel in self.kernels if kernel.calls is not None]
        lines += [f"outputs: {self.compared}"] if self.compared else []
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"--- output\n{self.output}"] if self.output else []
        about = {"job": self.job_id, "workspace": self.workspace_id}
        lines.append("; ".join(f"{k} {v}" for k, v in about.items() if v))
        return "\n".join(line for line in lines if line)

    def _head(self) -> str:
        if self.speedup is None or self.speedup_low is None or self.speedup_high is None:
            return f"{UNDONE[2]}{self.status}; see the notes and the output below"
        alone = [f"{kernel.speedup:.2f}" for kernel in self.kernels if kernel.speedup]
        of = "a kernel" if len(self.kernels) == 1 else f"{len(self.kernels)} kernels"
        kernel = f"{' and '.join(alone)} times as {of}, " if alone and len(alone) == len(self.kernels) else ""
        whole = f"{self.speedup:.2f} ({self.speedup_low:.2f} to {self.speedup_high:.2f}) of the whole"
        words = {
            "faster": "the program became faster",
            "slower": f"the program became slower: take the kernel{'s' if len(self.kernels) > 1 else ''} out",
            "same": "no gain is shown: the interval holds 1",
        }
        return f"{kernel}{whole}: {words.get(self.status, self.status)}"


class DispatchRow(Model):
    """A shape, and the candidates that answer it."""

    dims: dict[str, int]
    best: str
    """Attempt with the shortest time of all."""
    taken: str
    """Attempt of the chosen set that answers here."""
    best_us: float
    taken_us: float
    single_us: float
    """Time of the candidate that is best over all shapes."""


class DispatchReport(ResultModel):
    """Result of make_dispatcher: the smallest set of candidates within 2 % of the best, and one that dispatches."""

    status: str
    """single (one candidate is within 2 % of the best at all shapes: no dispatcher), correct, incorrect, cheat,
    compile_failed, running: the dispatcher's own verdict."""
    problem_id: str
    candidates: int
    """Judged candidates that were compared."""
    chosen: list[str]
    best_single: str
    single_over_best: float
    """Time of the best single candidate over that of the best at each shape."""
    set_over_best: float
    """Time of the chosen set over that of the best at each shape, at most 1.02."""
    rows: list[DispatchRow]
    reason: str = ""
    attempt_id: str | None = None
    """The dispatcher, judged like every candidate, at hidden shapes too."""
    job_id: str | None = None
    speedup: float | None = None
    speedup_range: tuple[float, float] | None = None
    covers: str = ""
    source: str | None = None
    """Artifact: the dispatcher's code."""
    notes: list[str] = []

    def summary(self) -> str:
        """Return the choice, the dispatcher's verdict, then the shapes."""
        alone = f"the best one alone, {self.best_single}, takes {self.single_over_best:.3f} of the best at each shape"
        lines = [f"{self.candidates} judged candidates of {self.problem_id}; {alone}"]
        if self.status == "single":
            lines.append("no dispatcher is needed: one candidate is within 2 % of the best at all shapes")
        else:
            lines.append(f"smallest set within 2 %: {', '.join(self.chosen)}, takes {self.set_over_best:.3f}")
            speed = f", speed-up {self.speedup:.3g}{format_range(self.speedup_range)}" if self.speedup else ""
            covers = f" for {self.covers}" if self.covers else ""
            lines.append(f"dispatcher {self.attempt_id}: {self.status}{covers}{speed}")
            lines += [self.reason] if self.reason else []
        for row in self.rows:
            dims = ", ".join(f"{name}={size}" for name, size in row.dims.items()) or "the only shape"
            times = [format_duration(us / 1e6) for us in (row.taken_us, row.best_us, row.single_us)]
            lines.append(f"  {dims}: {row.taken} {times[0]} (best of all {times[1]}, best single {times[2]})")
        lines += [f"code: read_artifact {self.source}"] if self.source else []
        lines += [f"job {self.job_id}: job_status with wait_s has the verdict later"] if self.job_id else []
        lines += [f"note: {note}" for note in self.notes]
        return join_lines(lines)
