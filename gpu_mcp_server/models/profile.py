"""Measurements of a profiler, and the advice that follows from them."""

import textwrap
from typing import Any, Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel

ProfileLevel = Literal["quick", "standard", "full"]


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
        lines += textwrap.wrap(handles, 80, break_long_words=False, break_on_hyphens=False)
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
