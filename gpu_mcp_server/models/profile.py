"""Measurements of a profiler: a kernel's, with the advice that follows from them, and a whole program's hot spots."""

import textwrap
from typing import Any, Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.program_speed import UNDONE
from gpu_mcp_server.time_format import format_duration

ProfileLevel = Literal["quick", "standard", "full"]
SHOWN_SHAPES, SHOWN_MODULES = 2, 2
LITTLE = 0.7
"""Share of the time in which a GPU is busy, below which launches or data cost more than a kernel can bring."""
BOUND_BY = "bound by "
"""Beginning of what an attempt's record has of a profile that found what limits the time; a semicolon ends it."""


class Rule(Model):
    """One remark of the profiler's own analysis."""

    name: str
    section: str = ""
    kind: str = ""
    """OPT (could be faster), WRN or INF."""
    text: str = ""
    scope: str | None = None
    """Whether the speed-up is one of the whole kernel (global) or of one part (local)."""
    speedup_percent: float | None = None
    """The profiler's own estimate."""


class SourceLine(Model):
    """Samples of the program counter on one line of source."""

    file: str
    line: int
    samples: float
    text: str = ""
    stalls: dict[str, float] = {}
    """Reason to samples."""


class KernelReading(Model):
    """All that a profiler said of one kernel; absent is absent, never 0."""

    name: str
    calls: int = 1
    time_us: float | None = None
    """Mean of one call."""
    total_us: float | None = None
    """Of all calls."""
    device: str | None = None
    grid: str | None = None
    block: str | None = None
    metrics: dict[str, float] = {}
    """By the profiler's own name, in base units: bytes, seconds are nanoseconds, hertz."""
    texts: dict[str, str] = {}
    """Metrics that are no numbers."""
    breakdowns: dict[str, list[str]] = {}
    """Throughput metric to the sub-metrics of which it is the maximum."""
    units_percent: dict[str, float] = {}
    """Unit to percent of its peak, where the profiler says so itself."""
    stalls: dict[str, float] = {}
    """Reason to samples or cycles; only their ratio means anything."""
    rules: list[Rule] = []
    lines: list[SourceLine] = []


class RooflineLevel(Model):
    """Place of a kernel under the roof of one level of memory."""

    level: str
    intensity_flop_b: float
    """Arithmetic intensity: FLOPs over bytes moved at this level."""
    bandwidth_gb_s: float
    """Achieved."""
    peak_bandwidth_gb_s: float
    measured_gb_s: float | None = None
    """GB/s of a copy measured on this host; absent if not measured, or for another level."""
    roof_tflop_s: float
    """What this intensity allows: min(compute peak, intensity x peak bandwidth)."""
    of_roof_percent: float


class Roofline(Model):
    """A kernel against the peaks of its device."""

    pipe: str
    """Whose peak it is: fp32, fp64, hgmma_src_fp16 ..."""
    tflop_s: float
    peak_tflop_s: float
    peak_source: str
    measured_tflop_s: float | None = None
    """TFLOP/s of an FMA loop measured on this host; absent if not measured, or for another pipe."""
    levels: list[RooflineLevel] = []


class Advice(Model):
    """One thing to try, with what it may bring."""

    topic: str
    """Cause that it attacks: spills, coalesce, conflicts ..."""
    share: float = Field(ge=0, le=1)
    """Part of the kernel's time that may be won: a rule of thumb of gpu_mcp_server/profilers/advice.py."""
    text: str


class KernelVerdict(Model):
    """The bound of one kernel, with the measurements behind it."""

    name: str
    time_us: float | None = None
    calls: int = 1
    share_percent: float | None = None
    """Of the time of all kernels seen."""
    bound: str | None = None
    """Unit that limits it, `latency` when none is busy; absent when it was not measured."""
    bound_percent: float | None = None
    units_percent: dict[str, float] = {}
    """The busiest units, percent of peak."""
    stalls_percent: dict[str, float] = {}
    roofline: Roofline | None = None
    advice: list[str] = []
    first: Advice | None = None
    """What to try first; absent where nothing was counted that tells causes apart."""
    verdict: str
    """All of it as text."""


class ProfileResult(ResultModel):
    """Result of profiling a target."""

    status: str
    """ok, failed (the program), no_kernels, not_measured, timeout, oom, running."""
    level: ProfileLevel
    profiler: str | None = None
    """Name and version."""
    profile_id: str | None = None
    """For query_profile."""
    job_id: str | None = None
    host: str
    device: str | None = None
    verdict: str = ""
    """At most 1,600 characters."""
    kernels: list[KernelVerdict] = Field(default=[], exclude=True)
    not_measured: list[str] = []
    """Missing tools, with reasons and ways to get them."""
    report_artifact_id: str | None = None
    """The profiler's own report, for its own viewer."""
    roofline_artifact_id: str | None = None
    """PNG."""
    output_artifact_id: str | None = None
    """What program and profiler printed."""
    seconds: float | None = None
    sandbox: str | None = None
    note: str | None = None

    def summary(self) -> str:
        """Give the verdict, then handles."""
        lines = [self.verdict] if self.verdict else [f"{self.status}: no verdict"]
        if self.status != "ok":
            lines.insert(0, f"profile {self.status}")
        lines += [f"not measured: {n}" for n in self.not_measured]
        lines += [f"note: {self.note}"] if self.note else []
        about = {
            "profile_id": self.profile_id,
            "job": self.job_id,
            "profiler": self.profiler,
            "report": self.report_artifact_id,
            "roofline": self.roofline_artifact_id,
            "output": self.output_artifact_id,
        }
        handles = "; ".join(f"{k} {v}" for k, v in about.items() if v)
        lines += textwrap.wrap(handles, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        return "\n".join(lines)


class ProfileAnswer(ResultModel):
    """Answer of a stored profile to a question."""

    profile_id: str
    about: str
    """Subject of the list."""
    rows: list[dict[str, Any]] = []
    text: str = ""
    rows_left_out: int | None = None

    def summary(self) -> str:
        """Say it as lines."""
        lines = [f"{self.profile_id}: {self.about}"]
        lines += [self.text] if self.text else []
        lines += ["  ".join(f"{k}={_short(v)}" for k, v in row.items() if v is not None) for row in self.rows]
        if self.rows_left_out:
            lines.append(f"({self.rows_left_out} more; ask with a narrower expression)")
        return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class HotspotOptions(Model):
    """Options of find_hotspots: the part of a program's run to record."""

    warm_s: float = Field(default=0.0, ge=0, le=1700)
    """Seconds of the program to leave out first: loading, compiling, warm-up."""
    record_s: float = Field(default=30.0, gt=0, le=300)
    """Seconds to record; the worker then ends the program."""
    steps: int = Field(default=0, ge=0, le=100_000)
    """Optimizer steps to record before the worker ends the program; 0: record_s alone limits it."""
    timeout_s: float = Field(default=600.0, gt=0, le=1800)
    """Limit of the whole job, a second run included."""
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
    """Share of the whole time, 0 to 1: by the run whose GPU was busier, of the recorded part where there is one run."""
    busy_share: float | None = None
    """Share of the time in which the GPU was busy, 0 to 1; absent without a GPU."""
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
        busy = "" if self.busy_share is None else f"  {self.busy_share:6.1%}"
        gain = f"{self.share:6.1%}{busy}  {self.at_most_speedup:.2f} times"
        lines = [f"{gain}  {self.name}: {self.calls} calls, {each} each"]
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
    """Share of the recorded time that the host spends in their forward, nested modules included; not in backward."""
    busy_share: float | None = None
    """Share of the time in which the GPU was busy, by the kernels that their forward launched; absent without a GPU."""

    def line_text(self) -> str:
        """Return one line."""
        busy = "" if self.busy_share is None else f"  {self.busy_share:6.1%}"
        return f"{self.share:6.1%}{busy}  {self.path}: {self.calls} calls"


class SecondRun(Model):
    """The program run again with records of the GPU's work alone, which slow launches less than those of operators."""

    wall_s: float
    """Seconds of its recorded part."""
    kernels: int
    """Calls of kernels, copies and fills in it."""
    device_busy: float
    """Share of its time in which the GPU was busy, 0 to 1."""
    alike: float
    """Part of the kernels' time that both runs share by name, 0 to 1."""


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
    """Share of the recorded time in which the GPU was busy, 0 to 1; torch's profiler lowers it."""
    second: SecondRun | None = None
    """By which shares and bounds are, unless its GPU was less busy; absent where none was needed or could be used."""
    second_missing: str | None = None
    """Why there is no second run where one was needed: shares and bounds are too low then."""
    elsewhere: float | None = None
    """Share outside of operators: interpreter, data loading, waits. Known on a CPU alone."""
    hotspots: list[Hotspot] = []
    operators: int | None = None
    """Number of operators and kernels, listed or not."""
    operators_us: float | None = None
    """Time of all operators and kernels."""
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
        lines += self._busy_lines()
        if self.hotspots:
            busy = "" if self.device is None else "  of the GPU's busy time"
            doubt = " (too low)" if self.second_missing else ""
            lines += [f" share{busy}  whole at most{doubt}", *(h.line_text() for h in self.hotspots)]
        if self.operators and self.operators > len(self.hotspots):
            lines.append(f"({self._left_out(self.operators - len(self.hotspots))})")
        if self.elsewhere is not None:
            lines.append(f"{self.elsewhere:6.1%}         outside of operators: the interpreter, data loading, waits")
        if self.modules:
            lines += [self._modules_head(), *(m.line_text() for m in self.modules)]
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
        wall_s = self.second.wall_s if self.second else self.wall_s
        takes = f"{first.name} takes {first.share:.0%} of {format_duration(wall_s)} {where}"
        if self.second_missing:
            return f"{takes} under the profiler: what it can bring to the whole is unknown"
        return f"{takes}: the whole becomes at most {first.at_most_speedup:.2f} times as fast by it"

    def _left_out(self, more: int) -> str:
        part = sum(h.total_us for h in self.hotspots) / max(self.operators_us or 0.0, 1e-9)
        whole = "the kernels' time" if self.device else "the operators' time"
        return f"those listed have {part:.0%} of {whole}; {more} more operators have the rest"

    def _modules_head(self) -> str:
        if self.device is None:
            return "modules: the time in their forward, modules inside them included; backward is in none of them"
        return (
            "modules: the host's time in their forward under the profiler, mostly launches; then their kernels' part "
            "of the GPU's busy time. Modules inside them are included, backward is in none of them"
        )

    def _busy_lines(self) -> list[str]:
        if self.device_busy is None:
            return []
        # On an H100 an image model's step took 6 ms under the profiler and 2 ms without (results/programs-in-place.md).
        busy = f"the GPU is busy {self.device_busy:.0%} of the time under the profiler, which slows launches"
        if self.second_missing:
            return [
                f"{busy}; its share without it is unknown: {self.second_missing}",
                "the shares of the whole are too low, those of the GPU's busy time are right",
            ]
        if self.second is None:
            return [f"the GPU is busy {self.device_busy:.0%} of the time"]
        lines = [
            f"the GPU is busy {self.second.device_busy:.0%} of the time, by a second run that recorded its work alone; "
            f"{self.device_busy:.0%} under the full profiler"
        ]
        if self.second.device_busy < LITTLE:
            lines.append(
                "a faster kernel gains little: launch fewer kernels (CUDA graphs, torch.compile) or load data earlier"
            )
        return lines
