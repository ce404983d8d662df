"""A job as an agent sees it."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.text_safety import join_lines


class OutputRef(Model):
    """A file that a job left behind."""

    path: str
    """Relative to the job's workspace."""
    artifact_id: str | None = None
    """For read_artifact; absent when the file stayed on the host because of its size."""
    size_bytes: int


LARGE_BYTES = 1 << 20
"""Of a file from which on its result says how to save it, rather than to read it."""


def save_hint(outputs: Sequence[OutputRef]) -> str:
    """Return the command that saves the largest output to a file, if it is large; empty otherwise."""
    largest = max(outputs, key=lambda each: each.size_bytes, default=None)
    if largest is None or largest.artifact_id is None or largest.size_bytes < LARGE_BYTES:
        return ""
    return f"{largest.path} as a file: gpu-mcp-server artifact save {largest.artifact_id} FILE"


class RankOptions(Model):
    """Several processes of one program that talk to each other, on one host or several."""

    count: int = Field(ge=1, le=64)
    launcher: Literal["torchrun", "mpirun"] = "torchrun"
    """`torchrun` sets what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR ...); `mpirun` is Open MPI's."""
    hosts: list[str] = Field(default=[], max_length=64)
    """Hosts that share the ranks evenly, the first with rank 0; none: all ranks on the command's host."""


class GpuNeeds(Model):
    """Properties of the GPUs that a job wants, and the job's priority."""

    vendor: Literal["", "nvidia", "amd"] = ""
    """Empty: NVIDIA's where a host has enough, otherwise AMD's; never both in one job."""
    arch: str = ""
    """Such as sm_90 or gfx942."""
    memory_gb: int = Field(default=0, ge=0)
    """Each, at least; 10**9 bytes, so that a card that is sold as 80 GB has 80."""
    nvlink: bool = False
    """Each joined to each other."""
    priority: Literal["interactive", "batch", "background"] = "interactive"
    """Who gives way to whom in line; who waits long rises. A detached job is `batch` at best."""


class RankResult(Model):
    """Ending of one rank."""

    rank: int
    host: str | None = None
    """Where it ran, if ranks are on several hosts."""
    state: str
    """ended, did not end, never started."""
    exit_code: int | None = None
    signal: int | None = None
    seconds: float | None = None
    last: str = ""
    """The end of its stdout and stderr."""


class TestFailure(Model):
    """One test that failed."""

    __test__ = False  # pytest would take it for a test

    name: str
    message: str
    seconds: float | None = None


class TestReport(Model):
    """Counts and failures of a JUnit report."""

    __test__ = False  # pytest would take it for a test

    total: int
    failed: int
    skipped: int = 0
    failures: list[TestFailure] = []
    """At most 10."""
    failures_left_out: int | None = None

    def lines(self) -> list[str]:
        """Say how many passed, and each that failed."""
        passed = self.total - self.failed - self.skipped
        found = [f"tests: {passed} passed, {self.failed} failed, {self.skipped} skipped"]
        found += [f"FAILED {f.name}\n    " + f.message.replace("\n", "\n    ") for f in self.failures]
        return [*found, f"({self.failures_left_out} more failures)"] if self.failures_left_out else found


class JobResult(ResultModel):
    """State and output of a job, ended or so far."""

    job_id: str
    host: str
    purpose: str
    state: str
    """queued, running or finished."""
    status: str | None = None
    """ok, failed, timeout, oom, disk_quota, cancelled, caller_lost, no_gpu, refused, broken; once finished."""
    exit_code: int | None = None
    signal: int | None = None
    """Signal that ended the program, as a number."""
    wall_s: float | None = None
    peak_memory_bytes: int | None = None
    level: str | None = None
    """Sandbox level: full, namespaces, apptainer, landlock or unconfined."""
    weaker_because: str | None = None
    """What keeps the level below full."""
    note: str | None = None
    """Which limit struck, what was left out, what to do."""
    stdout: str = ""
    stderr: str = ""
    stdout_left_out_bytes: int | None = None
    """Bytes of stdout that are not shown here."""
    stdout_next_offset: int | None = None
    """For job_status: the stdout_offset of what comes next, while it runs or when an offset was given."""
    stderr_left_out_bytes: int | None = None
    stdout_artifact_id: str | None = None
    """The whole of what was kept, when it is more than shown here."""
    stderr_artifact_id: str | None = None
    ranks: list[RankResult] = []
    tests: TestReport | None = None
    """From the JUnit XML of ctest, pytest, googletest or others."""
    outputs: list[OutputRef] = []
    gpus: list[str] = []
    workspace_id: str | None = None
    attempt_id: str | None = None
    """The attempt that this job belongs to, when it compiles or judges one."""

    def summary(self) -> str:
        """Say how it ended, then its output."""
        head = f"{self.job_id} on {self.host}: {self.state}"
        if self.status:
            head = f"{self.status}: job {self.job_id} on {self.host}"
        for name in ("exit_code", "signal", "wall_s", "level"):
            value = getattr(self, name)
            if value is not None:
                head += f", {name} {round(value, 4) if isinstance(value, float) else value}"
        lines = [head]
        if self.note:
            lines.append(join_lines([f"note: {self.note}"]))
        if self.weaker_because:
            lines.append(f"sandbox is not full: {self.weaker_because}")
        if self.gpus:
            lines.append(f"gpus: {', '.join(self.gpus)}")
        if self.attempt_id:
            lines.append(f"attempt: {self.attempt_id}")
        if self.workspace_id:
            lines.append(f"workspace: {self.workspace_id}")
        if self.tests:
            lines += self.tests.lines()
        for r in self.ranks:
            how = f"exit {r.exit_code}" if r.exit_code is not None else f"signal {r.signal}" if r.signal else r.state
            lines.append(f"--- rank {r.rank}: {how}" + (f"\n{r.last}" if r.last else ""))
        for name in ("stdout", "stderr"):
            text = getattr(self, name)
            left = getattr(self, f"{name}_left_out_bytes")
            if text:
                lines.append(f"--- {name}\n{text}")
            if left:
                artifact = getattr(self, f"{name}_artifact_id")
                lines.append(
                    f"({left} bytes of {name} left out" + (f"; read_artifact {artifact})" if artifact else ")")
                )
        if self.stdout_next_offset is not None:
            lines.append(f"next stdout_offset: {self.stdout_next_offset}")
        if self.outputs:
            lines.append(
                "outputs: "
                + ", ".join(f"{o.path} ({o.size_bytes} B, {o.artifact_id or 'kept on host'})" for o in self.outputs)
            )
        return "\n".join(lines)


class BatchRequest(Model):
    """A program for a batch system, and on what it runs."""

    argv: tuple[str, ...]
    """Program and arguments; never a shell line."""
    workspace_id: str | None = None
    """Files that lie in its working folder; new and changed ones come back into it."""
    env: dict[str, str] = {}
    """Besides it each task has ARRAY_TASK, RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    gpus: int | None = None
    """GPUs of each node; as the host's settings say if not given. So are nodes."""
    nodes: int | None = None
    tasks_per_node: int = 1
    """Processes on each node, each in its own sandbox with its share of the GPUs."""
    array: str = ""
    """Indices such as 0-7: that many jobs."""
    launcher: Literal["srun", "mpirun"] = "srun"
    """What starts the tasks."""
    time_s: float = 3600.0
    """Wall-clock limit."""
    outputs: tuple[str, ...] = ()
    """Files to bring back when there is no workspace."""


class BatchSubmission(ResultModel):
    """Submission that the scheduler has accepted."""

    host: str
    number: str
    """The scheduler's."""
    job_ids: list[str]
    """One for each index of an array; job_status, cancel_job and read_artifact take them."""
    gpu_hours: float
    """At most."""
    note: str | None = None

    def summary(self) -> str:
        """Number, ids and what comes next."""
        more = f" and {len(self.job_ids) - 3} more" if len(self.job_ids) > 3 else ""
        line = (
            f"{', '.join(self.job_ids[:3])}{more}: {self.host} has it as {self.number}; job_status tells how it stands"
        )
        return f"{line}. {self.note}" if self.note else line
