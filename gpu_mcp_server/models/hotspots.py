"""Where a program's time goes, and what it could gain."""

from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
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
