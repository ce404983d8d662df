"""Reads what `workers/run_perf.py` saw of a program on a processor: times of its calls, perf's counts and samples.

The program can write these files too: all has limits, and what is malformed counts as unseen.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.profile import KernelReading, SourceLine

TOOL = "processor"
"""Value of a reading's text `tool`."""
COUNTERS = {
    "cycles": "cycles",
    "instructions": "instructions",
    "cache-misses": "cache misses",
    "branch-misses": "branch misses",
}
"""Of the hardware, by perf's name."""
FUNCTION = "samples in "
"""Before a function's name, among a reading's metrics."""
UNKNOWN, VECTORS = "unknown", "vectorization"
"""Names of a reading's texts."""
INSTALL = "apt-get install linux-perf (on Ubuntu linux-tools-generic)"
NO_COUNTERS = "hardware counters, hot lines and ceilings: level quick has none; level standard does"
PARANOID = 2
"""Highest perf_event_paranoid at which a login may count its own programs."""
Name = Annotated[str, Field(max_length=400)]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class RunSeen(Model):
    """End of one command."""

    code: int
    seconds: float = Field(ge=0, lt=1e7)
    cpu_s: float | None = Field(default=None, ge=0, lt=1e9)
    timed_out: bool = False
    error: Name = ""


class PerfSeen(Model):
    """Result of trying perf."""

    paranoid: Name = ""
    why: Name = ""
    """missing or refused; empty where it worked."""
    said: Name = ""
    version: Name = ""


class SamplesSeen(Model):
    """Samples of the processor's place, by function and by line."""

    event: Name
    samples: Count
    functions: list[tuple[Name, Name, Count]] = Field(default=[], max_length=100)
    lines: list[tuple[Name, Count, Count]] = Field(default=[], max_length=100)


class ProcessorRun(Model):
    """All that was seen; absent is absent, never 0."""

    cores: int = Field(default=0, ge=0, lt=1 << 20)
    compiled: RunSeen | None = None
    timed: RunSeen | None = None
    perf: PerfSeen | None = None
    counts: dict[Name, Annotated[float, Field(ge=0, lt=1e18)]] = Field(default={}, max_length=50)
    sampled: SamplesSeen | None = None


class CallTimes(Model):
    """Times of calls that a program measured itself."""

    calls: int = Field(gt=0)
    wall_ns: int = Field(gt=0)
    cpu_ns: int = Field(ge=0)
    waited_ns: int = Field(ge=0)
    """Of the thread that called: ready, without a core."""
    each_ns: list[int] = Field(min_length=1, max_length=1000)


def read_run(about: Mapping[str, object]) -> ProcessorRun:
    """Return what the worker wrote down; nothing of it where it is malformed."""
    try:
        return ProcessorRun.model_validate_json(json.dumps(about))
    except (ValidationError, ValueError, RecursionError):
        return ProcessorRun()


def read_times(data: bytes) -> CallTimes | None:
    """Return the times of a program's calls: calls, wall, processor and waiting time, then a line each."""
    lines = data[: 1 << 16].decode("ascii", "replace").splitlines()
    try:
        calls, wall, used, waited = (int(word) for word in lines[0].split())
        return CallTimes(
            calls=calls,
            wall_ns=wall,
            cpu_ns=used,
            waited_ns=min(waited, wall - 1),
            each_ns=[int(line) for line in lines[1:1001]],
        )
    except (IndexError, ValueError):
        return None


def reading_of(
    name: str, run: ProcessorRun, times: CallTimes | None, given: Mapping[str, float], texts: Mapping[str, str]
) -> KernelReading:
    """Return the reading of a program, or of the calls that it timed.

    Args:
        name: Of the launcher or the program.
        run: What was seen.
        times: Of its calls.
        given: What else is known, by metric: the host's ceilings, bytes of the tensors.
        texts: Likewise.
    """
    metrics = {**given, "cores": float(run.cores), **run.counts} if run.cores else {**given, **run.counts}
    timed = run.timed or RunSeen(code=0, seconds=0)
    if times is not None:
        metrics["busy cores"] = times.cpu_ns / (times.wall_ns - times.waited_ns)
        metrics["waited percent"] = 100 * times.waited_ns / times.wall_ns
    elif timed.cpu_s is not None:
        metrics["processor s"] = timed.cpu_s
    lines: list[SourceLine] = []
    if run.sampled is not None:
        metrics["samples"] = float(run.sampled.samples)
        metrics |= {f"{FUNCTION}{fn} ({file})": float(n) for fn, file, n in run.sampled.functions}
        lines = [SourceLine(file=file, line=line, samples=n) for file, line, n in run.sampled.lines]
    found = {"tool": TOOL, **texts}
    if missing := missing_of(run):
        found[UNKNOWN] = missing
    median_us = statistics.median(times.each_ns) / 1e3 if times else timed.seconds * 1e6
    return KernelReading(
        name=name,
        calls=times.calls if times else 1,
        time_us=median_us,
        total_us=times.wall_ns / 1e3 if times else timed.seconds * 1e6,
        metrics=metrics,
        texts=found,
        lines=lines,
    )


def missing_of(run: ProcessorRun) -> str:
    """Return which counters are unknown, why, and what an administrator can do; nothing where all were counted."""
    if run.perf is None:
        return NO_COUNTERS if run.timed else ""
    lost = [words for event, words in COUNTERS.items() if event not in run.counts]
    if not lost:
        return ""
    if run.perf.why == "missing":
        return f"{', '.join(lost)}, hot lines: perf is not on this host. An administrator runs: {INSTALL}"
    if run.perf.why:
        return f"{', '.join(lost)}, hot lines: perf may not count here. {_administrator_line(run.perf)}"
    sampled = "" if run.sampled and run.sampled.samples else "; perf took no samples"
    return f"{', '.join(lost)}: the kernel offers no such counter here, as on most virtual machines{sampled}"


def _administrator_line(perf: PerfSeen) -> str:
    try:
        paranoid = int(perf.paranoid)
    except ValueError:
        paranoid = None
    if paranoid is not None and paranoid > PARANOID:
        return f"An administrator runs: sysctl kernel.perf_event_paranoid={PARANOID} (it is {paranoid})"
    said = f" perf said: {perf.said}" if perf.said else ""
    return f"In a container an administrator starts it with: docker run --cap-add PERFMON.{said}"


def shares_of(rows: Sequence[tuple[str, float]], whole: float, least: float) -> list[tuple[str, float]]:
    """Return names and percent of the whole, the most first, those of at least `least` percent."""
    found = [(name, 100 * n / whole) for name, n in rows] if whole > 0 else []
    return [(name, share) for name, share in sorted(found, key=lambda row: -row[1]) if share >= least]
