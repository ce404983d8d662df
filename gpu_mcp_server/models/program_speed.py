"""A program as a whole: where its time goes, which calls were recorded, what a kernel brought to it."""

from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.problem import ProblemInfo
from gpu_mcp_server.time_format import format_duration

SHOWN_SHAPES, SHOWN_MODULES = 2, 2


class HotspotOptions(Model):
    """Which part of a program's run is recorded."""

    warm_s: float = Field(default=0.0, ge=0, le=1700)
    """Seconds of the program to leave out first: loading, compiling, warm-up."""
    record_s: float = Field(default=30.0, gt=0, le=300)
    """Seconds to record; the program is ended then."""
    steps: int = Field(default=0, ge=0, le=100_000)
    """Optimizer steps to record, then the program is ended; 0: as long as record_s."""
    timeout_s: float = Field(default=600.0, gt=0, le=1800)
    """Limit of the whole run."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """How long to wait before the answer is a job_id alone."""


class InputShape(Model):
    """One set of inputs that an operator was called with."""

    inputs: list[str]
    """In torch's words: `float[64, 128]`; scalars by their type."""
    calls: int
    total_us: float
    roofline_percent: float | None = None
    """Of the least time that the device's data sheet allows for these inputs, where both are known."""


class Hotspot(Model):
    """An operator or a kernel, with all of its calls."""

    name: str
    kind: Literal["operator", "kernel"]
    """kernel: of a GPU, launched by no operator of torch (a CUDA graph, another library)."""
    share: float
    """Of the recorded time, 0 to 1."""
    at_most_speedup: float
    """Of the whole, were this free. Source: Amdahl, AFIPS 1967: 1 / (1 - share)."""
    calls: int
    total_us: float
    """On a GPU its kernels' time; on a processor its own, without the operators inside it."""
    shapes: list[InputShape] = []
    """The longest first."""
    kernels: list[str] = []
    """Of a GPU, that it launched: which library's."""
    modules: list[str] = []
    """Of torch, around its calls, the longest first; forward alone, as backward runs outside of them."""

    def line_text(self) -> str:
        """Say it on one line, and its inputs, kernels and modules below."""
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
    """Modules of torch of one place in the model; numbers in their paths stand as `*`."""

    path: str
    calls: int
    share: float
    """Of the recorded time, forward alone, with all modules inside it."""


class HotspotReport(ResultModel):
    """Where a program's time goes."""

    status: str
    """ok, failed (before anything was recorded), timeout, oom, running."""
    host: str
    device: str | None = None
    """The GPU; absent where the program used none."""
    profiler: str | None = None
    wall_s: float | None = None
    """Of the recorded part."""
    steps: int | None = None
    device_busy: float | None = None
    """Part of the recorded time in which the GPU worked, 0 to 1."""
    elsewhere: float | None = None
    """Part that no operator covers: the interpreter, loading of data, waits. On a processor alone."""
    hotspots: list[Hotspot] = []
    hotspots_left_out: int | None = None
    modules: list[HotModule] = []
    notes: list[str] = []
    job_id: str | None = None
    attempt_id: str | None = None
    seconds: float | None = None
    """Of the whole job."""
    sandbox: str | None = None
    output: str = ""
    """The end of what the program printed, where it failed."""

    def summary(self) -> str:
        """Say what takes longest and what it could bring, then the others."""
        lines = [self._head()]
        if self.device_busy is not None:
            lines.append(f"the GPU works {self.device_busy:.0%} of the time" + self._idle())
        if self.hotspots:
            lines += [" share  whole at most", *(h.line_text() for h in self.hotspots)]
        if self.hotspots_left_out:
            lines.append(f"({self.hotspots_left_out} more operators, each with a smaller share)")
        if self.elsewhere is not None:
            lines.append(f"{self.elsewhere:6.1%}         outside of operators: the interpreter, loading of data, waits")
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
            return f"no hot spots: {self.status}"
        first = self.hotspots[0]
        where = f"on {self.device}" if self.device else "on the processor"
        return (
            f"{first.name} takes {first.share:.0%} of {format_duration(self.wall_s)} {where}: the whole becomes at "
            f"most {first.at_most_speedup:.2f} times as fast by it"
        )

    def _idle(self) -> str:
        if self.device_busy is None or self.device_busy > 0.7:
            return ""
        return ": a faster kernel gains little; launch fewer (CUDA graphs, torch.compile) or feed data earlier"


class CaptureOptions(Model):
    """Which calls are recorded, and by what the problem is judged."""

    record_s: float = Field(default=60.0, gt=0, le=900)
    """Seconds from the first call on; the program is ended then."""
    sets: int = Field(default=8, ge=1, le=32)
    """Most sets of shapes and values that become cases; those with the most data are taken."""
    rtol: float | None = Field(default=None, ge=0)
    """By the type unless given."""
    atol: float | None = Field(default=None, ge=0)
    timeout_s: float = Field(default=600.0, gt=0, le=1800)
    """Limit of the whole run."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """How long to wait before the answer is a job_id alone."""


class CapturedSet(Model):
    """One set of inputs with which the program makes calls."""

    inputs: list[str]
    """`float32[64, 128]`, with steps where they are not row-major."""
    calls: int


class CaptureReport(ResultModel):
    """The problem that was made of a program's calls."""

    status: str
    """ok, nothing (no call could be recorded), failed, timeout, oom, running."""
    host: str
    target: str
    problem: ProblemInfo | None = None
    sets: list[CapturedSet] = []
    replayable: list[str] = []
    """Inputs that come as they were recorded, as they cannot be varied: times at this problem are never confirmed."""
    notes: list[str] = []
    samples: str | None = None
    """Artifact: the recorded inputs as safetensors."""
    job_id: str | None = None
    attempt_id: str | None = None
    output: str = ""

    def summary(self) -> str:
        """Say which problem there is, and what its cases stand for."""
        if self.status == "running":
            return (
                f"still running on {self.host}, job {self.job_id}; job_status with wait_s waits and makes the problem"
            )
        calls = sum(s.calls for s in self.sets)
        lines = [f"captured {self.target}: {calls} calls, {len(self.sets)} cases" if self.problem else ""]
        lines[0] = lines[0] or f"no problem was made of {self.target}: {self.status}"
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
    """A copy of a program with a judged kernel in it."""

    workspace_id: str
    """The copy."""
    of: str
    """The workspace that was copied; it is as it was."""
    attempt_id: str
    replaces: str
    cases: int
    """Sets of inputs that the kernel answers."""
    kernel_speedup: float | None = None
    patch: str
    """Artifact: what was changed, as a unified diff."""
    files: list[str]
    notes: list[str] = []

    def summary(self) -> str:
        """Say how to run it, and how to take it out."""
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
    """How a program is measured and compared."""

    pairs: int = Field(default=8, ge=6, le=60)
    """Of runs, one before and one after, in turns; 6 are the fewest with a 95 % interval."""
    run_s: float = Field(default=300.0, gt=0, le=1700)
    """Limit of one run."""
    rtol: float = Field(default=1e-3, ge=0)
    atol: float = Field(default=1e-6, ge=0)
    timeout_s: float = Field(default=1700.0, gt=0, le=1800)
    """Limit of all runs together."""
    wait_s: float = Field(default=240.0, ge=0, le=240)
    """How long to wait before the answer is a job_id alone."""


class VerifyReport(ResultModel):
    """What a kernel brought to the whole program."""

    status: str
    """faster, slower, same (the interval holds 1), wrong (outputs differ), unused (the kernel never ran), failed,
    timeout, running."""
    host: str
    workspace_id: str
    attempt_id: str | None = None
    speedup: float | None = None
    """Of the whole: median of the pairs' ratios, before over after, by the outside clock."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    """Ends of its 95 % interval."""
    kernel_speedup: float | None = None
    before_s: float | None = None
    """Median of a run."""
    after_s: float | None = None
    pairs: int = 0
    kernel_calls: int | None = None
    """In each run with the kernel, the fewest."""
    passed_on: int | None = None
    """Calls of a run that the kernel was not judged at."""
    compared: str = ""
    notes: list[str] = []
    job_id: str | None = None
    output: str = ""

    def summary(self) -> str:
        """Say what it brought to the whole, beside what it brings as a kernel."""
        if self.status == "running":
            return f"still running on {self.host}, job {self.job_id}; job_status with wait_s waits for its end"
        lines = [self._head()]
        if self.before_s is not None and self.after_s is not None:
            lines.append(
                f"a run takes {format_duration(self.before_s)} before and {format_duration(self.after_s)} after, "
                f"medians of {self.pairs} runs each, by turns, by the outside clock"
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
            return f"not verified: {self.status}"
        kernel = f"{self.kernel_speedup:.2f} times as a kernel, " if self.kernel_speedup else ""
        whole = f"{self.speedup:.2f} ({self.speedup_low:.2f} to {self.speedup_high:.2f}) of the whole"
        words = {
            "faster": "the program became faster",
            "slower": "the program became slower: take the kernel out",
            "same": "no gain is shown: the interval holds 1",
        }
        return f"{kernel}{whole}: {words.get(self.status, self.status)}"
