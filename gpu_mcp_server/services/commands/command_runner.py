"""Runs commands in workspaces, and says how any job stands."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.hostd.protocol import JobRecord, JobSpec, Limits, OutputFile, ProcessSpec
from gpu_mcp_server.models.job import GpuNeeds, JobResult, OutputRef, RankOptions, save_hint
from gpu_mcp_server.services.commands import run_traces
from gpu_mcp_server.services.commands.rank_hosts import PURPOSE as RANKS
from gpu_mcp_server.services.commands.rank_hosts import RankGroup, RankHosts, peers
from gpu_mcp_server.services.commands.run_traces import RunTraceReader, TracedCommand
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.hosts.host_connections import HostProbe, environment_of, leased_name, min_level, roots_of
from gpu_mcp_server.services.jobs.batch_jobs import PURPOSE, is_batch_job
from gpu_mcp_server.services.jobs.command_checks import check_command, check_fetch, job_files, start_failure
from gpu_mcp_server.services.jobs.gpu_needs import ATTACHED_S, DETACHED_S, GpuNeed, exclusive_request
from gpu_mcp_server.services.jobs.gpu_scheduler import GpuScheduler
from gpu_mcp_server.services.jobs.job_runner import WAIT_S, Blobs, FinishedJob, JobRunner, OnOutput, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable, new_job_id
from gpu_mcp_server.services.jobs.output_text import head_and_tail, plain_stdout, safe_text, shown_lines
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains import junit

Progress = Callable[[str], Awaitable[None]]
Settle = Callable[[FinishedJob, JobRow], Awaitable[str | None]]

TIDY_S = 20.0
SETTLE_S = 3.0
"""How long a list waits for a host that is asked about its jobs."""
UNKNOWN_S = 60.0
"""Before that a job that its host does not know may be on its way there."""
ASKED = "asked_outputs"
"""In a job's context: the outputs that the caller named."""
_log = structlog.get_logger()

KEPT_OUTPUT_BYTES = 4 << 20


class CommandRunner:
    """Commands as jobs."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobRunner,
        table: JobTable,
        workspaces: Workspaces,
        artifacts: Artifacts,
        experience: AttemptStore,
        pool: GpuScheduler,
        documents: Documents,
    ) -> None:
        self._documents = documents
        self._settings, self._jobs, self._table, self._pool = settings, jobs, table, pool
        self._workspaces, self._artifacts, self._experience = workspaces, artifacts, experience
        self._aftermath = RunTraceReader(jobs, workspaces)
        self._groups = RankHosts(settings, jobs)
        self.settlers: dict[str, Settle] = {}
        """By purpose: what to do with a finished job beyond its record; returns a line for the agent."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        workspace_id: str | None = None,
        host: str | None = None,
        env: Mapping[str, str] | None = None,
        gpus: int = 0,
        needs: GpuNeeds | None = None,
        timeout_s: float | None = None,
        stdin: str = "",
        outputs: Sequence[str] = (),
        detach: bool = False,
        fetch: bool = False,
        ranks: RankOptions | None = None,
        tests: Sequence[str] | None = None,
        wait_s: float = 240.0,
        progress: Progress | None = None,
        on_output: OnOutput | None = None,
    ) -> JobResult:
        """Run a program in a sandbox, its files taken from and returned to a workspace.

        Args:
            argv: Program and arguments; never a shell line.
            workspace_id: Files that lie in its working folder; new and changed ones come back into it.
            host: Where; if not given the default host, or for GPUs the best one.
            env: Environment on top of the fixed one.
            gpus: GPUs to lease, exclusively.
            needs: What they must be, and how urgent it is.
            timeout_s: Wall-clock limit of the job; unless given ATTACHED_S, or DETACHED_S if it is detached.
            stdin: Text on its stdin.
            outputs: Files to bring back as artifacts when there is no workspace.
            detach: Whether the job outlives this server.
            fetch: Whether it may use the network; only without a GPU and if the settings allow it.
            ranks: Several processes of it that talk to each other.
            tests: It runs tests; patterns of the JUnit reports that it is known to write, apart from those we ask for.
            wait_s: How long to wait before answering with the job's id alone.
            progress: Told what happens meanwhile.
            on_output: Given the output as it comes, by name of the stream; `queue` is the job's place in the queue.

        Raises:
            BadRequest, LimitExceeded: If an argument is beyond its limits.
        """
        timeout_s = timeout_s if timeout_s is not None else DETACHED_S if detach else ATTACHED_S
        check_command(argv, env or {}, timeout_s, stdin)
        if fetch:
            check_fetch(gpus, ranks, allowed=self._settings.allow_fetch)
        reports = {run_traces.TESTS: junit.checked_patterns(tests)} if tests is not None else {}
        manifest = await self._workspaces.manifest(workspace_id) if workspace_id else []
        groups = await self._groups.distribute(ranks, timeout_s, detach=detach) if ranks and ranks.hosts else []
        need = GpuNeed.from_request(gpus, needs)
        named = groups[0].host if groups else host
        where = await self._pool.place(named, need, files={f.sha256: f.size for f in manifest})
        probe = await self._jobs.probe(where)
        told = {"gpus": gpus, "ranks": ranks, "timeout_s": timeout_s, "env": env, "tests": tests is not None}
        ready = prepare_command(argv, need, [(g.host, g.probe, g) for g in groups] or [(where, probe, None)], told)
        made = ready[0]
        more, blobs = job_files(made.files)
        spec = JobSpec(
            id=groups[0].job_id if groups else new_job_id(),
            purpose="fetch" if fetch else RANKS if groups else "run",
            processes=(ProcessSpec(argv=made.argv, env=environment_of(probe, made.env)),),
            files={"main": (*manifest, *more)},
            outputs=("*",) if workspace_id else (*outputs, *made.outputs),
            roots=roots_of(probe, (*self._settings.hosts[where].roots, *made.roots)),
            gpus=exclusive_request(need, detached=detach, priority=needs.priority if needs else "interactive"),
            limits=Limits(wall_s=timeout_s, output_bytes=KEPT_OUTPUT_BYTES),
            min_level=min_level(self._settings),
            network=fetch or bool(groups),
            detached=detach,
            stdin=stdin,
        )
        attempt_id = await self._attempted(spec, where, probe, argv, workspace_id)
        blobs |= {f.sha256: self._artifacts.blob_path(f.sha256) for f in manifest}
        row: dict[str, Any] = {
            "workspace_id": workspace_id,
            "attempt_id": attempt_id,
            "context": {ASKED: list(outputs), "ranks": made.ranks, **peers(groups), **reports},
        }
        if progress is not None:
            await progress(f"job {spec.id} on {where}")
        if detach:
            await self._jobs.submit(spec, host=where, blobs=blobs, **row)
            return await self.status(spec.id, wait_s=0)
        then = await self._groups.start_others(groups, self._shares(spec, groups, ready), blobs) if groups else None
        return await self._run_attached(spec, where, blobs, row, wait_s, on_output or last_line_to(progress), then)

    async def _attempted(
        self, spec: JobSpec, where: str, probe: HostProbe, argv: Sequence[str], workspace_id: str | None
    ) -> str:
        return await self._experience.start(
            "run",
            host=where,
            job_id=spec.id,
            level=probe.level,
            device=leased_name(probe, spec.gpus),
            driver=probe.driver,
            evidence={"argv": [a[:200] for a in argv[:50]], "workspace_id": workspace_id},
        )

    def _shares(self, spec: JobSpec, groups: Sequence[RankGroup], ready: Sequence[TracedCommand]) -> list[JobSpec]:
        """Return the jobs of all groups: like the first one's, each with the command of its own host."""
        found: list[JobSpec] = []
        for group, made in zip(groups, ready, strict=True):
            process = ProcessSpec(argv=made.argv, env=environment_of(group.probe, made.env))
            roots = roots_of(group.probe, (*self._settings.hosts[group.host].roots, *made.roots))
            outputs = tuple(dict.fromkeys((*(o for o in spec.outputs if not run_traces.is_trace(o)), *made.outputs)))
            outputs = spec.outputs if "*" in spec.outputs else outputs
            found.append(spec._replace(id=group.job_id, processes=(process,), roots=roots, outputs=outputs))
        return found

    async def _run_attached(
        self,
        spec: JobSpec,
        where: str,
        blobs: Blobs,
        row: Mapping[str, Any],
        wait_s: float,
        on_output: OnOutput | None,
        then: Callable[[], None] | None = None,
    ) -> JobResult:
        try:
            ahead = on_output is not None if wait_s >= WAIT_S else None
            noted = await self._jobs.submit(spec, host=where, blobs=blobs, **row, ahead=ahead)
            if then is not None:
                then()
            done = await self._jobs.wait(spec.id, where, timeout_s=wait_s, on_output=on_output)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(spec.id, where)
            raise
        if done is None:
            return await self.status(spec.id, wait_s=0)
        raise_if_not_run(done.record, where)
        return await self._finished(done, noted)

    async def status(self, job_id: str, *, wait_s: float = 0.0, stdout_offset: int = 0) -> JobResult:
        """Say how a job stands, also one of an earlier server; waits up to `wait_s` for its end."""
        row = await self._table.get(job_id)
        result, end = await self._status(row, wait_s, stdout_offset)
        return result.model_copy(update={"stdout_next_offset": end}) if end else result

    async def _status(self, row: JobRow, wait_s: float, stdout_offset: int) -> tuple[JobResult, int | None]:
        """Return a job's result, and where its stdout goes on for who reads it in parts."""
        job_id = row.job_id
        try:
            seen = await self._jobs.poll(job_id, row.host, timeout_s=wait_s, stdout_at=stdout_offset)
        except NotFound:
            if row.record is None:
                return self._result(await self._lost(row), row, b"", b""), None
            result = self._result(row.record._replace(stdout_kept=0, stderr_kept=0), row, b"", b"")
            gone = "its host does not know it any more: only the record is left"
            return result.model_copy(update={"note": "; ".join(filter(None, [gone, result.note]))}), None
        if seen.record.state == "finished":
            if (
                stdout_offset == 0
                and len(seen.stdout) >= seen.record.stdout_kept
                and len(seen.stderr) >= seen.record.stderr_kept
            ):
                return await self._finished(FinishedJob(row.host, seen.record, seen.stdout, seen.stderr), row), None
            done = await self._jobs.wait(job_id, row.host)
            assert done is not None
            rest = replace(done, stdout=done.stdout[stdout_offset:])
            return await self._finished(rest, row), len(done.stdout) if stdout_offset else None
        result = self._result(seen.record, row, seen.stdout, seen.stderr)
        place = f", {result.note}" if seen.record.state == "queued" and result.note else ""
        note = f"still {seen.record.state}{place}; job_status with wait_s waits for its end"
        return result.model_copy(update={"note": note}), stdout_offset + len(seen.stdout)

    async def finish_leftovers(self) -> None:
        """Finish what an earlier server left: jobs that ended without it, and their attempts."""
        await self.refresh_running_jobs(TIDY_S)
        await self._experience.abandon()

    async def refresh_running_jobs(self, patience_s: float = SETTLE_S) -> dict[str, str]:
        """Ask for the jobs that count as running; return the state of each that goes on, running if no host answers."""
        rows = await self._table.unfinished_jobs()
        states = await asyncio.gather(*(self._settle(row, patience_s) for row in rows))
        return {row.job_id: state for row, state in zip(rows, states, strict=True) if state != "finished"}

    async def _settle(self, row: JobRow, patience_s: float) -> str:
        try:
            async with asyncio.timeout(patience_s):
                return (await self._status(row, 0.0, 0))[0].state
        except (GpuMcpError, TimeoutError) as error:
            _log.info("a job of an earlier server cannot be asked", job=row.job_id, error=str(error))
            return "running"

    async def _lost(self, row: JobRow) -> JobRecord:
        """End a job that its host does not know; NotFound where it may still be on its way there."""
        if (datetime.now(UTC) - datetime.fromisoformat(row.submitted_at)).total_seconds() <= UNKNOWN_S:
            hint = f"It is being sent there, or was lost: after {UNKNOWN_S:.0f} s it counts as lost."
            raise NotFound(f"job on the host {row.host}", row.job_id, hint=hint)
        note = "its host does not know it: it never got there, or was cleared away, or this store is of a backup"
        record = JobRecord(row.job_id, "finished", row.purpose, "broken", note)
        await self._table.finish(row.job_id, record)
        if row.attempt_id:
            await self._experience.finish(row.attempt_id, by_job=row.job_id, status="broken", reason=note)
        return record

    async def cancel(self, job_id: str) -> JobResult:
        """End a job and say how it ended."""
        row = await self._table.get_own(job_id)
        if row.record is not None:
            result = await self.status(job_id)
            notes = filter(None, ["it had ended before, nothing was cancelled", result.note])
            return result.model_copy(update={"note": "; ".join(notes)})
        await self._jobs.cancel(job_id, row.host)
        return await self.status(job_id, wait_s=10.0)

    async def recent(self, limit: int = 20) -> list[JobResult]:
        """Return the newest jobs of this store, as their hosts know them."""
        await self.refresh_running_jobs()
        rows = await self._table.recent(limit)
        return [
            self._result(r.record or JobRecord(id=r.job_id, state="running", purpose=r.purpose), r, b"", b"")
            for r in rows
        ]

    async def _finished(self, done: FinishedJob, row: JobRow) -> JobResult:
        record = done.record
        result = self._result(record, row, done.stdout, done.stderr)
        update: dict[str, object] = {}
        for name, data in (("stdout", done.stdout), ("stderr", done.stderr)):
            if getattr(result, f"{name}_left_out_bytes"):
                update[f"{name}_artifact_id"] = await self._artifacts.put(
                    data, name=f"{row.job_id}.{name}", media_type="text/plain"
                )
        if is_batch_job(row) and self._jobs.long is not None:
            await self._jobs.long.fetch_outputs(row, record.outputs)
        outputs: list[OutputRef] = []
        for output in filter(run_traces.is_listed, record.outputs):
            artifact_id = None
            if row.purpose in ("run", "fetch", RANKS, PURPOSE):
                if not self._artifacts.has(output.sha256):
                    await self._artifacts.put_blob(await self._jobs.fetch(row.host, output.sha256))
                artifact_id = await self._artifacts.put(self._artifacts.blob_path(output.sha256), name=output.path)
            outputs.append(OutputRef(path=output.path, artifact_id=artifact_id, size_bytes=output.size))
        ran = row.purpose in ("run", RANKS)
        traces = await self._aftermath.read_traces(done, row) if ran else run_traces.RunTraces()
        refused: list[str] = []
        made = [o for o in record.outputs if not run_traces.is_trace(o.path)]
        made += [await self._brought(at, output) for at, output in traces.elsewhere]
        if row.workspace_id and made:
            refused = await self._workspaces.adopt(row.workspace_id, made)
        settle = self.settlers.get(row.purpose)
        line = await settle(done, row) if settle else None
        if settle is None and row.attempt_id:
            await self._experience.finish(row.attempt_id, status=record.status or "broken", reason=record.note or None)
        absent = await self._not_made(row, record)
        explained = await self._documents.explain_output(result.stderr, result.stdout) if ran else ""
        note = None if line and result.note and result.note in line else result.note
        notes = line, *traces.notes, note, absent, "; ".join(refused[:5]), explained, save_hint(outputs)
        update |= {"outputs": outputs, "ranks": traces.ranks, "tests": traces.tests}
        return result.model_copy(update={**update, "note": "; ".join(filter(None, notes)) or None})

    async def _brought(self, host: str, output: OutputFile) -> OutputFile:
        """Return a file that another host's ranks made, below that host's name, its content here."""
        if not self._artifacts.has(output.sha256):
            await self._artifacts.put_blob(await self._jobs.fetch(host, output.sha256))
        return output._replace(path=f"{host}/{output.path}")

    async def _not_made(self, row: JobRow, record: JobRecord) -> str:
        """Name the files that were asked for by name and are not there."""
        there = {o.path for o in record.outputs} | {left.partition(": ")[0] for left in record.outputs_left_out}
        missing = [p for p in row.context.get(ASKED, []) if p != "*" and p not in there]
        if missing and row.workspace_id:
            kept = {ref.path for ref in await self._workspaces.manifest(row.workspace_id)}
            missing = [p for p in missing if p not in kept]
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return f"asked for in outputs, but not there: {', '.join(missing[:5])}{more}" if missing else ""

    def _result(self, record: JobRecord, row: JobRow, stdout: bytes, stderr: bytes) -> JobResult:
        out, out_left = head_and_tail(plain_stdout(row.purpose, stdout))
        err, err_left = head_and_tail(safe_text(stderr))
        leader = record.leader
        program, code = start_failure(err, leader.exit_code if leader else None)
        notes = [n for n in (program, record.note, "; ".join(record.outputs_left_out[:5])) if n]

        def dropped(count: int) -> int:
            return max(0, count) if record.state == "finished" else 0

        return JobResult(
            job_id=row.job_id,
            host=row.host,
            purpose=row.purpose,
            state=record.state,
            status=record.status,
            exit_code=code,
            signal=leader.signal if leader else None,
            wall_s=record.wall_s,
            peak_memory_bytes=leader.peak_memory_bytes if leader else None,
            level=record.level,
            weaker_because=record.weaker_because or None,
            note="; ".join(notes) or None,
            stdout=out,
            stderr=err,
            stdout_left_out_bytes=out_left + dropped(record.stdout_bytes - record.stdout_kept) or None,
            stderr_left_out_bytes=err_left + dropped(record.stderr_bytes - record.stderr_kept) or None,
            gpus=list(record.gpus),
            workspace_id=row.workspace_id,
            attempt_id=row.attempt_id,
        )


def prepare_command(
    argv: Sequence[str],
    need: GpuNeed,
    places: Sequence[tuple[str, HostProbe, RankGroup | None]],
    told: Mapping[str, Any],
) -> list[TracedCommand]:
    """Return a command as it is started at each of the places, which have what it needs.

    Raises:
        NoFreeGpu, ToolMissing: If one of them has not.
    """
    for host, probe, _ in places:
        need.check(probe, host)
    return [run_traces.instrument_command(argv, probe, host, **told, group=group) for host, probe, group in places]


def last_line_to(progress: Progress | None) -> OnOutput | None:
    """Return what tells the last line of fresh output as progress."""
    if progress is None:
        return None

    async def report_output(name: str, fresh: bytes) -> None:
        if said := shown_lines(safe_text(fresh[-400:])):
            await progress(f"{name}: {said[-1][:160]}")

    return report_output
