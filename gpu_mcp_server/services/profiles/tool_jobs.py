"""Jobs of profilers and checkers: one of our workers runs the tool around the target, on a GPU that nobody else has."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.attempt import AttemptKind
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.commands.command_runner import Progress, last_line_to
from gpu_mcp_server.services.hosts.host_connections import device_name, environment_of, min_level, roots_of
from gpu_mcp_server.services.jobs.command_checks import job_files
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable, new_job_id
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.profiles import profile_targets
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts

GPU_WAIT_S = 600.0
MEMORY_BYTES = 32 << 30
TMP_BYTES = 2 << 30
DISK_BYTES = 4 << 30
KEPT_OUTPUT_BYTES = 2 << 20
SHOWN_OUTPUT = 1200
GRACE_S = 20.0
"""For our worker to write down what it saw after its own limits have struck."""

HOMES = ("/opt/nvidia", "/opt/rocm")
"""Where NVIDIA's and AMD's tools lie when the program on the PATH is a small script or a link."""


class NeededTool(NamedTuple):
    """A program that a tool of ours cannot do without on NVIDIA's GPUs."""

    user: str
    hint: str


NEEDED = {
    "ncu": NeededTool(
        "profile_kernel", "Nsight Compute comes with the CUDA toolkit (apt-get install cuda-nsight-compute)."
    ),
    "compute-sanitizer": NeededTool(
        "check_memory",
        "It comes with the CUDA toolkit; or pip install nvidia-cuda-sanitizer-api into judge_python.",
    ),
}
"""By the program's name; `doctor` asks for each."""


@dataclass(frozen=True)
class ToolJob:
    """One run of a tool around a target."""

    kind: AttemptKind
    purpose: str
    worker: str
    plan: Mapping[str, Any]
    """For the worker, as JSON."""
    outputs: Sequence[str]
    limit_s: float
    env: Mapping[str, str]
    tool: Tool | None
    extra_files: Mapping[str, bytes]
    context: Mapping[str, Any]
    """What whoever settles the job needs."""
    gpus: int | None = None
    """That it holds alone; as many as a profiler does unless given."""
    counted: bool = False
    """Whether perf may count its events, in place of tracing its children."""

    def with_context(self, **more: Any) -> "ToolJob":
        """Return the same job with more to remember until it is settled."""
        return replace(self, context={**self.context, **more})


@dataclass(frozen=True)
class FinishedToolJob:
    """A tool's job that came to its end."""

    done: FinishedJob
    row: JobRow
    files: Mapping[str, bytes]
    """Outputs by path, those that came back."""
    about: Mapping[str, Any]
    """What the worker wrote down; empty when it could not."""
    output: str
    """What was printed, errors first."""

    @property
    def seconds(self) -> float | None:
        """Of the whole job."""
        return self.done.record.wall_s

    @property
    def status(self) -> str:
        """Return the job's status."""
        return self.done.record.status or "broken"


class ToolJobs:
    """Starts them, waits, takes what they leave."""

    def __init__(
        self, settings: Settings, jobs: JobRunner, table: JobTable, artifacts: Artifacts, experience: AttemptStore
    ) -> None:
        self._settings, self._jobs, self._table = settings, jobs, table
        self.artifacts, self.experience = artifacts, experience

    @staticmethod
    def tool(target: ProfileTarget, name: str) -> Tool:
        """Return a tool of the target's host.

        Raises:
            ToolMissing: If the host has none.
        """
        found = target.probe.toolchains.tools.get(name)
        if found is None:
            raise ToolMissing(name, target.host, hint=NEEDED[name].hint if name in NEEDED else "")
        return found

    async def start(self, job: ToolJob, target: ProfileTarget) -> tuple[str, str]:
        """Note an attempt and submit the job; return both ids."""
        spec, blobs = self._spec(job, target)
        attempt, probe = target.attempt, target.probe
        attempt_id = await self.experience.start(
            job.kind,
            parent_id=attempt.attempt_id if attempt else None,
            problem_id=attempt.problem_id if attempt else None,
            source_hash=attempt.source_hash if attempt else None,
            language=attempt.language if attempt else None,
            host=target.host,
            job_id=spec.id,
            level=probe.level,
            device=device_name(probe, "hip" if target.vendor == "amd" else "cuda"),
            driver=probe.driver,
            evidence={"argv": [a[:200] for a in target.argv[:50]], "workspace_id": target.workspace_id},
        )
        context = {**job.context, "workspace_id": target.workspace_id}
        if attempt is not None:
            context["sources"] = dict(target.sources)
        await self._jobs.submit(spec, host=target.host, blobs=blobs, attempt_id=attempt_id, context=context)
        return spec.id, attempt_id

    def _spec(self, job: ToolJob, target: ProfileTarget) -> tuple[JobSpec, dict[str, bytes | Path]]:
        more, blobs = job_files(job.extra_files)
        own = self._settings.hosts[target.host].roots
        gpus = GpuRequest()
        if count := profile_targets.GPUS if job.gpus is None else job.gpus:
            gpus = GpuRequest(count, "exclusive", wait_s=GPU_WAIT_S, vendor=target.vendor)
        process = ProcessSpec(
            argv=("{python}", json.dumps(job.plan)),
            env=environment_of(target.probe, job.env),
            program=worker_source(job.worker),
            profiled=not job.counted,
            counted=job.counted,
        )
        limits = Limits(
            wall_s=job.limit_s + GRACE_S,
            memory_bytes=MEMORY_BYTES,
            tmp_bytes=TMP_BYTES,
            disk_bytes=DISK_BYTES,
            shm_bytes=1 << 30,
            output_bytes=KEPT_OUTPUT_BYTES,
        )
        spec = JobSpec(
            id=new_job_id(),
            purpose=job.purpose,
            processes=(process,),
            files={"main": (*target.files, *more)},
            outputs=tuple(job.outputs),
            roots=roots_of(target.probe, (*own, *(job.tool.roots if job.tool else ()), *HOMES)),
            gpus=gpus,
            limits=limits,
            min_level=min_level(self._settings),
        )
        return spec, {**target.blobs, **blobs}

    async def wait(self, job_id: str, host: str, wait_s: float, progress: Progress | None) -> FinishedJob | None:
        """Wait for the end; cancelling the caller ends the job. `None` when `wait_s` passed first.

        Raises:
            SandboxTooWeak, NoFreeGpu, JobBroken: If the host did not run it.
        """
        try:
            done = await self._jobs.wait(job_id, host, timeout_s=wait_s, on_output=last_line_to(progress))
        except asyncio.CancelledError:
            await self._jobs.end_quietly(job_id, host)
            raise
        if done is not None:
            raise_if_not_run(done.record, host)
        return done

    async def row(self, job_id: str) -> JobRow:
        """Return a job as it was submitted."""
        return await self._table.get(job_id)

    async def fetch_results(
        self, done: FinishedJob, row: JobRow, about: str, keep: Sequence[str] = ()
    ) -> FinishedToolJob:
        """Fetch what a job left; files named in `keep` stay where they are, as they go into artifacts unread."""
        files: dict[str, bytes] = {}
        for output in done.record.outputs:
            if output.path not in keep:
                files[output.path] = await self._jobs.fetch(done.host, output.sha256)
        try:
            seen: Any = json.loads(files.get(about, b"{}"))
        except ValueError:
            seen = {}
        said = safe_text(done.stderr[-SHOWN_OUTPUT:] + done.stdout[-SHOWN_OUTPUT:])
        about_it = cast("dict[str, Any]", seen) if isinstance(seen, dict) else dict[str, Any]()
        return FinishedToolJob(done, row, files, about_it, said[-SHOWN_OUTPUT:])

    async def keep(self, done: FinishedJob, path: str, name: str) -> str | None:
        """Keep one output as an artifact; `None` if there is none, or it stayed on the host."""
        output = next((o for o in done.record.outputs if o.path == path), None)
        if output is None:
            return None
        if not self.artifacts.has(output.sha256):
            await self.artifacts.put_blob(await self._jobs.fetch(done.host, output.sha256))
        return await self.artifacts.put(self.artifacts.blob_path(output.sha256), name=name)

    async def keep_output(self, done: FinishedJob) -> str | None:
        """Keep what was printed."""
        data = done.stderr + done.stdout
        return await self.artifacts.put(data, name="output.txt", media_type="text/plain") if data.strip() else None
