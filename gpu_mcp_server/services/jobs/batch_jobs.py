"""Long jobs: handed to a batch system as jobs of its own, and found again by their rows."""

import asyncio
import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_mcp_server.errors import BadRequest, HostUnavailable
from gpu_mcp_server.hostd.protocol import FileRef, GpuRequest, JobRecord, JobSpec, Limits, OutputFile, ProcessSpec
from gpu_mcp_server.models.job import BatchRequest, BatchSubmission
from gpu_mcp_server.services.hosts.host_connections import Hosts, min_level
from gpu_mcp_server.services.jobs.command_checks import check_command
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable, new_job_id
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.host_settings import BATCH_KINDS
from gpu_mcp_server.settings.server_settings import BatchHost, Settings
from gpu_mcp_server.store.artifacts import Artifacts

if TYPE_CHECKING:
    from gpu_mcp_server.backends.batch_jobs import HostBatchJobs, Task, TaskFiles

PURPOSE = "batch"
CONTEXT = "batch"
"""In a job's context: where its folder is and what the scheduler calls it."""
MARGIN_S = 120.0
"""The scheduler's limit is that much later than ours, so that ours ends the job and there is a record."""
PAUSES_S = (0.3, 0.5, 1.0, 2.0, 5.0)
SETTLED_S = (0.2, 0.5, 1.0, 2.0)
"""A shared file system may show a record later than the scheduler shows the end."""
MAX_ARRAY = 1000
DAY_S = 86_400.0
LONGEST_S = 14 * DAY_S
KEPT_OUTPUT_BYTES = 16 << 20
_ARRAY = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")


def indices(array: str) -> list[int]:
    """Return the indices that `0-3,7` names; none for an empty text.

    Raises:
        BadRequest: If it is not of that form, or names too many.
    """
    found: list[int] = []
    for part in array.split(",") if array else ():
        match = _ARRAY.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MAX_ARRAY:
            raise BadRequest(
                f"array {array!r} cannot be read.", hint=f"Like 0-7 or 1,4,9; {MAX_ARRAY} indices at most."
            )
        found += range(first, last + 1)
    if len(set(found)) != len(found) or len(found) > MAX_ARRAY:
        raise BadRequest(f"array {array!r} names an index twice, or more than {MAX_ARRAY}.")
    return found


class BatchJobs:
    """Hands jobs over, and looks after them."""

    def __init__(
        self, settings: Settings, hosts: Hosts, table: JobTable, workspaces: Workspaces, artifacts: Artifacts
    ) -> None:
        self._settings, self._hosts, self._table = settings, hosts, table
        self._workspaces, self._artifacts = workspaces, artifacts
        self._by_host: dict[str, HostBatchJobs] = {}

    async def submit(self, asked: BatchRequest, host: str | None = None) -> BatchSubmission:
        """Hand a program to the scheduler of a host, as a job of its own.

        Args:
            asked: What to run, and on what.
            host: Of kind slurm or pbs; if not given the default host, or the only one of these.

        Raises:
            BadRequest: If it would cost more GPU hours than the settings allow, or an argument is beyond its limits.
            ConfigError: If the scheduler refuses it.
        """
        from gpu_mcp_server.backends.schedulers import LongJob

        where, settings = self._host(host)
        check_command(asked.argv, asked.env, min(asked.time_s, DAY_S), "")
        if asked.time_s > LONGEST_S:
            raise BadRequest(f"time_s {asked.time_s:g} is more than {LONGEST_S:g}.")
        numbers = indices(asked.array)
        limit_s = math.ceil((asked.time_s + MARGIN_S) / 60) * 60.0
        changes = {"gpus": asked.gpus, "nodes": asked.nodes, "time_s": limit_s}
        ask = settings.model_copy(update={key: value for key, value in changes.items() if value is not None})
        hours = self._affordable(ask, where, asked.time_s, max(1, len(numbers)))
        manifest = await self._workspaces.manifest(asked.workspace_id) if asked.workspace_id else []
        spec = self.specification(asked, ask, manifest)
        job = LongJob(f"gpu-mcp-{spec.id[-8:]}", asked.array, asked.tasks_per_node, asked.launcher)
        blobs = {f.sha256: self._artifacts.blob_path(f.sha256) for f in manifest}
        number = await self._of(where, ask).submit(spec, job, blobs)
        ranks = ask.nodes * asked.tasks_per_node
        ids = await self._note(where, number, spec, asked, numbers, ranks)
        note = _about_talk(spec.network, ranks)
        return BatchSubmission(host=where, number=number, job_ids=ids, gpu_hours=hours, note=note)

    def specification(self, asked: BatchRequest, ask: BatchHost, manifest: Sequence[FileRef]) -> JobSpec:
        """Return the job that each task runs."""
        each = ask.gpus // asked.tasks_per_node
        return JobSpec(
            id=new_job_id(),
            purpose=PURPOSE,
            detached=True,
            network=ask.ranks_network and ask.nodes * asked.tasks_per_node > 1,
            processes=(ProcessSpec(argv=tuple(asked.argv), env=dict(asked.env)),),
            files={"main": tuple(manifest)},
            outputs=("*",) if asked.workspace_id else tuple(asked.outputs),
            roots=tuple(ask.roots),
            gpus=GpuRequest(count=each, mode="exclusive" if each else "none", vendor=""),
            limits=Limits(wall_s=asked.time_s, output_bytes=KEPT_OUTPUT_BYTES),
            min_level=min_level(self._settings),
        )

    async def _note(
        self, where: str, number: str, spec: JobSpec, asked: BatchRequest, numbers: Sequence[int], ranks: int
    ) -> list[str]:
        """Enter a row for each job of the array, or for the only one; return their ids."""
        ids: list[str] = []
        element = self._of(where).dialect.element
        for index in numbers or [None]:
            ids.append(spec.id if index is None else f"{spec.id}-{index}")
            called = number if index is None else element(number, index)
            about = {"folder": spec.id, "number": called, "index": index or 0, "ranks": ranks}
            context = {CONTEXT: about, "asked_outputs": list(asked.outputs)}
            await self._table.add(ids[-1], where, PURPOSE, asked.workspace_id, None, context)
        return ids

    def _host(self, name: str | None) -> tuple[str, BatchHost]:
        batch = {key: host for key, host in self._settings.hosts.items() if isinstance(host, BatchHost)}
        chosen = name or self._settings.default_host
        if chosen not in batch and name is None and len(batch) == 1:
            chosen = next(iter(batch))
        if chosen not in batch:
            kinds = " or ".join(BATCH_KINDS)
            raise BadRequest(
                f"{chosen!r} is no host of kind {kinds}." if chosen else f"A host of kind {kinds} must be named.",
                hint=f"Name one of {', '.join(batch)}."
                if batch
                else "There is none: run_command with detach takes other hosts; a person adds a cluster with "
                "`gpu-mcp-server hosts add`.",
            )
        return str(chosen), batch[str(chosen)]

    def _affordable(self, ask: BatchHost, where: str, time_s: float, count: int) -> float:
        hours = ask.gpus * ask.nodes * time_s / 3600 * count
        if hours > ask.max_gpu_hours:
            raise BadRequest(
                f"It could cost {hours:g} GPU hours, max_gpu_hours of host {where!r} is {ask.max_gpu_hours:g}.",
                hint="Ask for less time, fewer GPUs or a shorter array; or a person raises it.",
            )
        return hours

    def _of(self, where: str, host: BatchHost | None = None) -> "HostBatchJobs":
        from gpu_mcp_server.backends.batch_jobs import HostBatchJobs

        if host is not None:
            return HostBatchJobs(where, host)
        if where not in self._by_host:
            settings = self._settings.hosts.get(where)
            if not isinstance(settings, BatchHost):
                raise HostUnavailable(f"Host {where!r} is not in the settings any more.", retryable=False)
            self._by_host[where] = HostBatchJobs(where, settings)
        return self._by_host[where]

    async def look(
        self, row: JobRow, timeout_s: float, stdout_at: int, stderr_at: int, note_seen: str | None
    ) -> tuple[JobRecord, bytes, bytes]:
        """Return how a job stands and its output from the offsets, waiting up to `timeout_s` for something new."""
        task, host = _task(row), self._of(row.host)
        deadline = time.monotonic() + timeout_s
        for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
            seen = await host.read(task, stdout_at, stderr_at)
            if len(seen.records) >= task.ranks:
                return _joined(row, task, seen.records, ""), seen.stdout, seen.stderr
            job = await host.state(task)
            if job is None:
                return await self._ended(row, host, task, stdout_at, stderr_at)
            words = f"{job.state.words} of the scheduler: {job.reason}" if job.state.phase == "waits" else ""
            record = JobRecord(row.job_id, "running" if job.state.phase != "waits" else "queued", PURPOSE, note=words)
            news = bool(seen.stdout or seen.stderr) or (note_seen is not None and words != note_seen)
            left = deadline - time.monotonic()
            if news or left <= 0:
                return record, seen.stdout, seen.stderr
            await asyncio.sleep(min(pause_s, left))
        raise AssertionError("the pauses have no end")

    async def _ended(
        self, row: JobRow, host: "HostBatchJobs", task: "Task", stdout_at: int, stderr_at: int
    ) -> tuple[JobRecord, bytes, bytes]:
        """Return the record of a job that the scheduler does not run any more."""
        seen: TaskFiles | None = None
        for pause_s in SETTLED_S:
            seen = await host.read(task, stdout_at, stderr_at)
            if len(seen.records) >= task.ranks:
                return _joined(row, task, seen.records, ""), seen.stdout, seen.stderr
            await asyncio.sleep(pause_s)
        assert seen is not None
        return _joined(row, task, seen.records, await host.story(task)), seen.stdout, seen.stderr

    async def cancel(self, row: JobRow) -> None:
        """End a job."""
        await self._of(row.host).cancel(_task(row))

    async def fetch_outputs(self, row: JobRow, outputs: Sequence[OutputFile]) -> None:
        """Bring the contents of a job's outputs here."""
        for output in outputs:
            if not self._artifacts.has(output.sha256):
                await self._artifacts.put_blob(await self._of(row.host).fetch(_task(row), output.sha256))


def is_batch_job(row: JobRow) -> bool:
    """Say whether a job is a batch job of its own."""
    return CONTEXT in row.context


def _task(row: JobRow) -> "Task":
    from gpu_mcp_server.backends.batch_jobs import Task

    return Task(**row.context[CONTEXT])


def _joined(row: JobRow, task: "Task", records: Mapping[int, JobRecord], ended: str) -> JobRecord:
    """Make one record of those of all ranks: the first that went wrong, or rank 0's.

    Args:
        row: The job.
        task: The same as the scheduler knows it.
        records: By rank; with `ended` some may be missing.
        ended: How the scheduler says that it ended.
    """
    missing = [rank for rank in range(task.ranks) if rank not in records]
    wrong = {rank: r for rank, r in sorted(records.items()) if r.status != "ok"}
    notes = [f"rank {rank}: {_how(r)}" for rank, r in wrong.items()] if task.ranks > 1 else []
    if missing:
        which = "" if task.ranks == 1 else f"; rank {', '.join(map(str, missing[:8]))} left no record"
        notes.insert(0, f"it was not finished: {ended}{which}")
    base = next(iter(wrong.values()), None) or records.get(0) or JobRecord(row.job_id, "finished", PURPOSE, "broken")
    first = records.get(0)
    outputs = tuple(
        o._replace(path=o.path if rank == 0 else f"rank-{rank}/{o.path}")
        for rank, r in sorted(records.items()) for o in r.outputs
    )  # fmt: skip
    note = "; ".join(n for n in (*notes[:9], base.note if task.ranks == 1 else "") if n)
    return base._replace(id=row.job_id, status="broken" if missing else base.status, note=note[:2000], outputs=outputs,
        stdout_bytes=first.stdout_bytes if first else 0, stderr_bytes=first.stderr_bytes if first else 0,
        stdout_kept=first.stdout_kept if first else 0, stderr_kept=first.stderr_kept if first else 0,
    )  # fmt: skip


def _how(record: JobRecord) -> str:
    leader = record.leader
    code = f" with exit code {leader.exit_code}" if leader is not None and leader.exit_code else ""
    return f"{record.status}{code}" + (f" ({record.note[:200]})" if record.note else "")


def _about_talk(talk: bool, ranks: int) -> str | None:
    if talk:
        return "its ranks may use the nodes' network (ranks_network of the host)"
    return "its ranks have no network between them: ranks_network of the host is off" if ranks > 1 else None
