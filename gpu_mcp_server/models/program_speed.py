"""Models of whole programs: hot spots, recorded calls, a judged kernel put in, its gain."""

from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.evaluation import format_range
from gpu_mcp_server.models.problem import ProblemInfo
from gpu_mcp_server.text_safety import join_lines
from gpu_mcp_server.time_format import format_duration

SHOWN_SHAPES, SHOWN_MODULES = 2, 2
UNDONE = ("no hot spots: ", "no problem was made of ", "not verified: ")
"""First words of reports without a result."""


class HotspotOptions(Model):
    """Options of find_hotspots: the part of a program's run to record."""

    warm_s: float = Field(default=0.0, ge=0, le=1700)
    """Seconds of the program to leave out first: loading, compiling, warm-up."""
    record_s: float = Field(default=30.0, gt=0, le=300)
    """Seconds to record; the worker then ends the program."""
    steps: int = Field(default=0, ge=0, le=100_000)
    """Optimizer steps to record before the worker ends the program; 0: record_s alone limits it."""
    timeout_s: float = Field(default=600.0, gt=0, le=1800)
    """Limit of the whole run."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """Seconds to wait for the end; after that the call returns a job_id."""


class InputShape(Model):
    """One set of inputs that an operator was called with."""

    inputs: list[str]
    """In torch's notation: `float[64, 128]`; scalars by their type."""
    calls: int
    total_us: float
    roofline_percent: float | None = None
    """Least time by the device's data sheet, in percent of the measured time; absent where either is unknown."""


class Hotspot(Model):
    """An operator or a kernel, with all of its calls."""

    name: str
    kind: Literal["operator", "kernel"]
    """kernel: a GPU kernel that no torch operator launched (a CUDA graph, another library)."""
    share: float
    """Share of the recorded time, 0 to 1."""
    at_most_speedup: float
    """Speed-up of the whole if this took no time: 1 / (1 - share). Source: Amdahl, AFIPS 1967."""
    calls: int
    total_us: float
    """On a GPU the time of its kernels; on a CPU its own time, without nested operators."""
    shapes: list[InputShape] = []
    """The longest first."""
    kernels: list[str] = []
    """GPU kernels that it launched, each with its library."""
    modules: list[str] = []
    """Torch modules around its forward calls, the longest first; backward runs outside of modules."""

    def line_text(self) -> str:
        """Return one line, with inputs, kernels and modules below."""
        each = format_duration(self.total_us / max(self.calls, 1) / 1e6)
        lines = [f"{self.share:6.1%}  {self.at_most_speedup:.2f} times  {self.name}: {self.calls} calls, {each} each"]
        for shape in self.shapes[:SHOWN_SHAPES]:
            roof = f", {shape.roofline_percent:.0f} % of its roofline" if shape.roofline_percent is not None else ""
            part = 100 * shape.total_us / self.total_us if self.total_us else 0.0
            lines.append(f"    {', '.join(shape.inputs)}: {shape.calls} calls, {part:.0f} % of it{roof}")
        if self.kernels:
            lines.append(f"    kernels: {', '.join(self.kernels[:3])}")
        if self.modules:
            lines.append(f"    in {', '.join(self.modules[:SHOWN_MODULES])}")
        return "\n".join(lines)


class HotModule(Model):
    """Torch modules with one path in the model; `*` replaces numbers in the path."""

    path: str
    calls: int
    share: float
    """Share of the recorded time: forward alone, nested modules included."""


class HotspotReport(ResultModel):
    """Result of find_hotspots: operators and kernels by their share of a program's time."""

    status: str
    """ok, failed (before anything was recorded), timeout, oom, running."""
    host: str
    device: str | None = None
    """The GPU; absent where the program used none."""
    profiler: str | None = None
    wall_s: float | None = None
    """Seconds of the recorded part."""
    steps: int | None = None
    device_busy: float | None = None
    """Share of the recorded time in which the GPU was busy, 0 to 1."""
    elsewhere: float | None = None
    """Share outside of operators: interpreter, data loading, waits. Known on a CPU alone."""
    hotspots: list[Hotspot] = []
    hotspots_left_out: int | None = None
    modules: list[HotModule] = []
    notes: list[str] = []
    job_id: str | None = None
    attempt_id: str | None = None
    seconds: float | None = None
    """Seconds of the whole job."""
    sandbox: str | None = None
    output: str = ""
    """The end of what the program printed, where it failed."""

    def summary(self) -> str:
        """Return the longest operator with its possible gain, then the others."""
        lines = [self._head()]
        if self.device_busy is not None:
            lines.append(f"the GPU is busy {self.device_busy:.0%} of the time" + self._idle())
        if self.hotspots:
            lines += [" share  whole at most", *(h.line_text() for h in self.hotspots)]
        if self.hotspots_left_out:
            lines.append(f"({self.hotspots_left_out} more operators, each with a smaller share)")
        if self.elsewhere is not None:
            lines.append(f"{self.elsewhere:6.1%}         outside of operators: the interpreter, data loading, waits")
        if self.modules:
            lines += ["modules, forward alone:"]
            lines += [f"{m.share:6.1%}  {m.path}: {m.calls} calls" for m in self.modules]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"--- output\n{self.output}"] if self.output else []
        about = {"job": self.job_id, "attempt": self.attempt_id}
        lines.append("; ".join(f"{k} {v}" for k, v in about.items() if v))
        return "\n".join(line for line in lines if line)

    def _head(self) -> str:
        if self.status == "running":
            return f"still running on {self.host}; job_status with wait_s waits for its end"
        if not self.hotspots or self.wall_s is None:
            return f"{UNDONE[0]}{self.status}; see the notes and the output below"
        first = self.hotspots[0]
        where = f"on {self.device}" if self.device else "on the processor"
        return (
            f"{first.name} takes {first.share:.0%} of {format_duration(self.wall_s)} {where}: the whole becomes at "
            f"most {first.at_most_speedup:.2f} times as fast by it"
        )

    def _idle(self) -> str:
        if self.device_busy is None or self.device_busy > 0.7:
            return ""
        return ": a faster kernel gains little; launch fewer kernels (CUDA graphs, torch.compile) or load data earlier"


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
        lines = [f"captured {self.target}: {calls} calls, {len(self.sets)} cases" if self.problem else ""]
        lines[0] = lines[0] or f"{UNDONE[1]}{self.target}: {self.status}"
        lines += [f"  {s.calls} calls: {', '.join(s.inputs)}" for s in self.sets]
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
    """The original workspace; it stays unchanged."""
    attempt_id: str
    replaces: str
    cases: int
    """Sets of inputs that the kernel answers."""
    kernel_speedup: float | None = None
    patch: str
    """Artifact: the changes as a unified diff."""
    files: list[str]
    notes: list[str] = []

    def summary(self) -> str:
        """Return how to run the copy with the kernel, and without it."""
        lines = [
            f"workspace {self.workspace_id}: a copy of {self.of} in which {self.attempt_id} answers {self.replaces} at "
            f"{self.cases} sets of inputs",
            "run it with PYTHONPATH=speedup_overlay before the command; without that, the program is as before",
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
    timeout_s: float = Field(default=1700.0, gt=0, le=1800)
    """Limit of all runs together."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """Seconds to wait for the end; after that the call returns a job_id."""


class VerifyReport(ResultModel):
    """Result of verify_in_place: the speed-up of the whole program by a kernel."""

    status: str
    """faster, slower, same (the interval holds 1), wrong (outputs differ), unused (the kernel never ran), failed,
    timeout, running."""
    host: str
    workspace_id: str
    attempt_id: str | None = None
    speedup: float | None = None
    """Speed-up of the whole: median over pairs of time before over time after, measured outside the program."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    """Ends of its 95 % interval."""
    kernel_speedup: float | None = None
    before_s: float | None = None
    """Median seconds of a run without the kernel."""
    after_s: float | None = None
    pairs: int = 0
    kernel_calls: int | None = None
    """Calls that the kernel answered in a run: the fewest of all runs."""
    passed_on: int | None = None
    """Calls of a run that went to the program's own code: the kernel was not judged at their inputs."""
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
        if self.kernel_calls is not None:
            passed = f"; {self.passed_on} calls of a run went to the program's own code" if self.passed_on else ""
            lines.append(f"the kernel ran {self.kernel_calls} times in each run{passed}")
        lines += [f"outputs: {self.compared}"] if self.compared else []
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"--- output\n{self.output}"] if self.output else []
        about = {"job": self.job_id, "kernel": self.attempt_id, "workspace": self.workspace_id}
        lines.append("; ".join(f"{k} {v}" for k, v in about.items() if v))
        return "\n".join(line for line in lines if line)

    def _head(self) -> str:
        if self.speedup is None or self.speedup_low is None or self.speedup_high is None:
            return f"{UNDONE[2]}{self.status}; see the notes and the output below"
        kernel = f"{self.kernel_speedup:.2f} times as a kernel, " if self.kernel_speedup else ""
        whole = f"{self.speedup:.2f} ({self.speedup_low:.2f} to {self.speedup_high:.2f}) of the whole"
        words = {
            "faster": "the program became faster",
            "slower": "the program became slower: take the kernel out",
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
