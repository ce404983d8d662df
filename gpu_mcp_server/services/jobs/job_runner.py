"""The one path that every job takes: submit, wait, take the record."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import HostUnavailable, JobBroken, NoFreeGpu, NotFound, SandboxTooWeak
from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec, job_record_from_json, to_json
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.runtime.tracing import trace_calls
from gpu_mcp_server.services.hosts.host_connections import HostProbe, Hosts
from gpu_mcp_server.services.jobs.batch_jobs import BatchJobs, is_batch_job
from gpu_mcp_server.services.jobs.call_context import current_call
from gpu_mcp_server.services.jobs.inline_blobs import ALONG_BYTES, InlineBlobs, blobs_to_send, read_blob
from gpu_mcp_server.services.jobs.job_hooks import JobHooks, QuotaCheck
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable, command_of
from gpu_mcp_server.settings.host_settings import BATCH_KINDS

Blobs = Mapping[str, bytes | Path]
Answer = tuple[Any, bytes]
OnOutput = Callable[[str, bytes], Awaitable[None]]

WAIT_S = 20.0
"""One `wait` request at the host; the whole wait is made of many."""
BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Between two attempts to reach a host again that was lost while a job ran there."""
FRAME_BYTES = 64 << 20
"""Attachment of one frame; more blobs travel in several."""


@dataclass(frozen=True)
class FinishedJob:
    """A job's record and the output that was kept."""

    host: str
    record: JobRecord
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class JobProgress:
    """A job as one `wait` found it; the streams from the offsets that were asked for."""

    record: JobRecord
    stdout: bytes
    stderr: bytes


class JobRunner:
    """Runs job specifications on hosts.

    Attributes:
        hosts: The hosts.
        steward: Asked before each submit and told of each end.
        gatekeeper: Asked whether the current user may have another job.
        long: Looks after jobs that are a batch system's own.
    """

    def __init__(self, hosts: Hosts, table: JobTable) -> None:
        self.hosts = hosts
        self._table = table
        self._there: dict[str, set[str]] = {}
        self._brought = InlineBlobs()
        self._ahead: dict[str, tuple[bool, asyncio.Task[tuple[Any, bytes]]]] = {}
        self.steward: JobHooks | None = None
        self.long: BatchJobs | None = None
        self.gatekeeper: QuotaCheck | None = None

    async def probe(self, host: str) -> HostProbe:
        """Return what a host has."""
        return await self.hosts.probe(host)

    @trace_calls("push")
    async def submit(
        self,
        spec: JobSpec,
        *,
        host: str,
        blobs: Blobs,
        workspace_id: str | None = None,
        attempt_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        ahead: bool | None = None,
    ) -> JobRow:
        """Start a job; returns its row when its folder exists on the host.

        Only contents travel that the host does not have. A submit that is sent twice runs once. Who waits for it
        right after says so by `ahead` (whether with its output): the question then travels along, and a job at a
        distance costs one round trip.

        Raises:
            HostUnavailable, HostError, DiskFull: If the host cannot take it.
        """
        call_context = current_call()
        call_context = call_context if call_context is not None and call_context.wants(spec.purpose) else None
        if call_context is not None and call_context.before_job is not None:
            await call_context.before_job(spec.id)
        spec = spec._replace(grace_s=self.hosts.grace_s(host), detached=spec.detached or call_context is not None)
        spec = self.with_host_defaults(spec, host)
        allocation = await self.hosts.allocation(host)
        about = {**command_of(spec), **(context or {}), **({"allocation": allocation} if allocation else {})}
        if spec.gpus.count:
            about |= {"gpus": spec.gpus.count, **({"lease": spec.gpus.lease} if spec.gpus.lease else {})}
        async with self._gate(spec):
            row = await self._table.add(spec.id, host, spec.purpose, workspace_id, attempt_id, about)
        there = self.known_blobs(host)
        wanted = spec.contents()
        sending = await blobs_to_send(blobs, wanted - there)
        for _ in range(3):
            small = await self._send_large(host, sending)
            listed = [[s, len(d)] for s, d in small.items()]
            submitting = self.hosts.call(host, "submit", b"".join(small.values()), spec=to_json(spec), blobs=listed)
            if ahead is not None:
                answer, _ = await self._asking_ahead(submitting, spec.id, host, ahead)
            else:
                answer, _ = await submitting
            missing = answer.get("missing", [])
            if not missing:
                there |= wanted
                if call_context is not None:
                    call_context.note(spec.id)
                return row
            there -= set(missing)
            sending = {s: await read_blob(blobs[s]) for s in missing}
        raise JobBroken(f"Host {host!r} keeps losing the job's files.", hint="Check the disk of its state folder.")

    def with_host_defaults(self, spec: JobSpec, host: str) -> JobSpec:
        """Return a job with what is a host's or the pool's to say."""
        if common := self.hosts.environment(host):
            own = (p if p.trusted else p._replace(env={**common, **p.env}) for p in spec.processes)
            spec = spec._replace(processes=tuple(own))
        return spec if self.steward is None else self.steward.before_submit(spec, host)

    def known_blobs(self, host: str) -> set[str]:
        """Return the hashes of the contents that a host is believed to have."""
        return self._there.setdefault(host, set())

    def _gate(self, spec: JobSpec) -> AbstractAsyncContextManager[None]:
        if self.gatekeeper is None or current_user().is_local:
            return nullcontext()
        return self.gatekeeper.job(spec.gpus.count, self.poll)

    async def _asking_ahead(
        self, submitting: Coroutine[Any, Any, tuple[Any, bytes]], job_id: str, host: str, on_output: bool
    ) -> tuple[Any, bytes]:
        """Submit, and send the first question for the job's end behind it without waiting for the answer."""
        first = asyncio.create_task(submitting)
        waiting = self.hosts.call(
            host, "wait", again=False, job=job_id, timeout_s=WAIT_S, stdout_at=0, stderr_at=0, on_output=on_output,
            note_seen="" if on_output else None, along_bytes=ALONG_BYTES,
        )  # fmt: skip
        asked = asyncio.create_task(waiting)  # begun after the other one, and so written after it
        asked.add_done_callback(_heard_or_not)
        try:
            answer = await first
        except BaseException:
            first.cancel()
            asked.cancel()
            raise
        self._ahead[job_id] = (on_output, asked)
        return answer

    async def _answered_ahead(self, job_id: str, on_output: bool, timeout_s: float, batch: bool) -> Answer | None:
        """Return the answer to the question that was sent along with the submit; `None` where it does not fit."""
        asked_output, asked = self._ahead.pop(job_id)
        if asked_output != on_output or timeout_s < WAIT_S:
            asked.cancel()
            return None
        try:
            return await asked
        except (NotFound, HostUnavailable) as error:
            if batch and isinstance(error, HostUnavailable):
                raise  # to ask again at once would take a new allocation
            return None  # its files were not all there yet, or the link was lost; it is asked again

    async def _send_large(self, host: str, sending: dict[str, bytes]) -> dict[str, bytes]:
        """Send all but the last frameful ahead; return what still fits into the submit itself."""
        frame: dict[str, bytes] = {}
        size = 0
        for sha256, data in sending.items():
            if frame and size + len(data) > FRAME_BYTES:
                await self.hosts.call(
                    host, "put", b"".join(frame.values()), blobs=[[s, len(d)] for s, d in frame.items()]
                )
                frame, size = {}, 0
            frame[sha256] = data
            size += len(data)
        return frame

    async def poll(
        self,
        job_id: str,
        host: str,
        *,
        timeout_s: float = 0.0,
        stdout_at: int = 0,
        stderr_at: int = 0,
        on_output: bool = False,
        note_seen: str | None = None,
    ) -> JobProgress:
        """Return a job's state and its output from the offsets, waiting up to `timeout_s` for its end."""
        along_bytes = ALONG_BYTES if timeout_s else 0
        at = {"stdout_at": stdout_at, "stderr_at": stderr_at}
        arguments: dict[str, Any] = {"job": job_id, "timeout_s": timeout_s, **at, "along_bytes": along_bytes}
        batch = self.hosts.kind(host) in BATCH_KINDS
        row = await self._table.get(job_id) if batch and self.long is not None else None
        if row is not None and self.long is not None and is_batch_job(row):
            record, out, err = await self.long.look(row, timeout_s, stdout_at, stderr_at, note_seen)
            if record.state == "finished":
                await self._table.finish(job_id, record)
            return JobProgress(record, out, err)
        lost = await self._lost_with_allocation(job_id, host) if batch and not self.hosts.is_connected(host) else None
        if lost is not None:
            return JobProgress(lost, b"", b"")
        fits = job_id in self._ahead and not stdout_at and not stderr_at
        early = await self._answered_ahead(job_id, on_output, timeout_s, batch) if fits else None
        try:
            answer, data = early or await self.hosts.call(
                host, "wait", again=not batch, **arguments, on_output=on_output, note_seen=note_seen
            )
        except NotFound:
            lost = await self._lost_with_allocation(job_id, host) if batch else None
            if lost is None:
                raise
            return JobProgress(lost, b"", b"")
        record = job_record_from_json(answer["record"])
        if record.state == "finished":
            await self._table.finish(job_id, record)
            if self.steward is not None:
                self.steward.on_job_end(record)
        ends = answer["stdout"], answer["stdout"] + answer["stderr"]
        self._brought.keep(answer["along"], data[ends[1] :])
        return JobProgress(record, data[: ends[0]], data[ends[0] : ends[1]])

    async def wait(
        self, job_id: str, host: str, *, on_output: OnOutput | None = None, timeout_s: float | None = None
    ) -> FinishedJob | None:
        """Wait for a job's end; `None` when `timeout_s` passed first.

        A host that is lost meanwhile is asked again as soon as it can be reached. `on_output` also gets the job's place
        in the queue for GPUs, in words, under the name `queue`.
        """
        out, err = bytearray(), bytearray()
        note = "" if on_output is not None else None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = WAIT_S if deadline is None or _is_task(job_id) else min(WAIT_S, deadline - time.monotonic())
            if left <= 0:
                return None
            at = {"stdout_at": len(out), "stderr_at": len(err)}
            seen = await self._look_again(
                job_id, host, timeout_s=left, **at, on_output=on_output is not None, note_seen=note
            )
            if on_output is not None and seen.record.state == "queued" and seen.record.note != note:
                await on_output("queue", seen.record.note.encode())
            note = seen.record.note if note is not None else None
            for name, kept, fresh in (("stdout", out, seen.stdout), ("stderr", err, seen.stderr)):
                kept += fresh
                if fresh and on_output is not None:
                    await on_output(name, fresh)
            finished = seen.record.state == "finished"
            if finished and len(out) >= seen.record.stdout_kept and len(err) >= seen.record.stderr_kept:
                return FinishedJob(host, seen.record, bytes(out), bytes(err))

    async def follow(self, job_id: str, on_output: OnOutput) -> JobRecord:
        """Give a job's output from its beginning as it comes, and return its record at the end.

        Raises:
            NotFound: If no job has this id.
        """
        done = await self.wait(job_id, (await self._table.get(job_id)).host, on_output=on_output)
        assert done is not None
        return done.record

    async def _lost_with_allocation(self, job_id: str, host: str) -> JobRecord | None:
        """Return the record of a job whose allocation has ended: the one that is known, or that it was not finished.

        Asking for the job itself would take a new allocation, in which nobody knows it.
        """
        row = await self._table.get(job_id)
        number = row.context.get("allocation")
        ended = await self.hosts.end_of_allocation(host, number) if number else None
        if ended is None:
            return None
        if row.record is not None:
            return row.record._replace(stdout_kept=0, stderr_kept=0)
        record = JobRecord(job_id, "finished", row.purpose, "broken", f"it was not finished: {ended}")
        await self._table.finish(job_id, record)
        return record

    async def _look_again(self, job_id: str, host: str, **arguments: Any) -> JobProgress:
        """Look at a job, and where the host is lost meanwhile, try to reach it again as long as the job lives there.

        Raises:
            HostUnavailable: If it does not come back within the host's grace.
        """
        lost_at: float | None = None
        for pause_s in itertools.chain(BACK_OFF_S, itertools.repeat(BACK_OFF_S[-1])):
            try:
                return await self.poll(job_id, host, **arguments)
            except HostUnavailable as error:
                lost_at = lost_at or time.monotonic()
                if not error.retryable or time.monotonic() + pause_s > lost_at + self.hosts.grace_s(host):
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("the pauses have no end")

    async def run(
        self, spec: JobSpec, *, host: str, blobs: Blobs | None = None, on_output: OnOutput | None = None, **row: Any
    ) -> FinishedJob:
        """Submit and wait; cancelling the task ends the job.

        Raises:
            SandboxTooWeak, NoFreeGpu, JobBroken: If the host did not run it; how the job itself ended is in the record.
        """
        try:
            await self.submit(spec, host=host, blobs=blobs or {}, ahead=on_output is not None, **row)
            done = await self.wait(spec.id, host, on_output=on_output)
        except asyncio.CancelledError:
            await self.end_quietly(spec.id, host)
            raise
        assert done is not None
        raise_if_not_run(done.record, host)
        return done

    def was_preempted(self, done: FinishedJob) -> bool:
        """Say whether a job is unfinished because its batch system ended the allocation: time, preemption, a person."""
        record = done.record
        return self.hosts.kind(done.host) in BATCH_KINDS and record.status == "broken" and "not finished" in record.note

    async def end_quietly(self, job_id: str, host: str) -> None:
        """Cancel a job from a task that is being cancelled itself; not where the server ends and the job need not."""
        call_context = current_call()
        if call_context is not None and call_context.leaving and call_context.job_id == job_id:
            return
        ending = asyncio.create_task(self.cancel(job_id, host))
        try:
            await asyncio.wait_for(asyncio.shield(ending), 5.0)
        except (TimeoutError, asyncio.CancelledError, HostUnavailable):
            return
        except Exception:
            return

    async def cancel(self, job_id: str, host: str) -> None:
        """Ask a job to end; it is over when its record is final."""
        row = await self._table.get(job_id) if self.long is not None and self.hosts.kind(host) in BATCH_KINDS else None
        if row is not None and self.long is not None and is_batch_job(row):
            await self.long.cancel(row)
            return
        await self.hosts.call(host, "cancel", job=job_id)

    async def fetch(self, host: str, sha256: str) -> bytes:
        """Return the content of an output file."""
        brought = self._brought.get(sha256)
        return brought if brought is not None else (await self.hosts.call(host, "fetch", sha256=sha256))[1]


def _is_task(job_id: str) -> bool:
    """Say whether whoever asked for the job went away with its id: then nobody waits for an answer in time."""
    call_context = current_call()
    return call_context is not None and call_context.is_task and call_context.job_id == job_id


def raise_if_not_run(record: JobRecord, host: str) -> None:
    """Turn the statuses that are our failures into exceptions.

    Raises:
        SandboxTooWeak, NoFreeGpu, JobBroken: By the record's status.
    """
    match record.status:
        case "refused":
            raise SandboxTooWeak(f"Host {host!r} refused the job: {record.note}.")
        case "no_gpu":
            raise NoFreeGpu(
                f"Host {host!r} has nothing free: {record.note}.",
                hint="gpu_status shows the holders of the GPUs; try again later.",
            )
        case "broken":
            full = "disk_full" in record.note
            hint = "Free space there, or set state_dir to another disk." if full else ""
            raise JobBroken(f"Host {host!r} broke off job {record.id}: {record.note}.", hint=hint)
        case _:
            return


def _heard_or_not(asked: "asyncio.Task[tuple[Any, bytes]]") -> None:
    """Take note of how a question ended, whose answer perhaps nobody wants any more."""
    if not asked.cancelled():
        asked.exception()
