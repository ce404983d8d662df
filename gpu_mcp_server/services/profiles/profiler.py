"""Profiles programs and attempts: a profiler around them, its report kept, a verdict for the agent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.profile import BOUND_BY, KernelReading, KernelVerdict, ProfileLevel, ProfileResult
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.plots import roofline_chart
from gpu_mcp_server.profilers import bottleneck, ncu, report_detection, rocprof_commands, timeline
from gpu_mcp_server.profilers.roofline import Peaks
from gpu_mcp_server.profilers.sanitizer import line_of
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.hosts.device_specs import spec_of
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.profiles.measured_ceilings import Ceilings, MeasuredCeilings
from gpu_mcp_server.services.profiles.processor_profiler import ProcessorProfiler
from gpu_mcp_server.services.profiles.profile_plans import ABOUT, FOLDER, REPORT, ROCPROF, plan_profile
from gpu_mcp_server.services.profiles.profile_targets import ProfileTarget, Targets
from gpu_mcp_server.services.profiles.tool_jobs import FinishedToolJob, ToolJob, ToolJobs

MAX_REPORT_FILES = 40
MOST_LOG_BYTES = 1 << 16
"""Of a file, to look for what a profiler could not do."""


class Profiler:
    """Programs in, verdicts out."""

    def __init__(
        self, tools: ToolJobs, targets: Targets, ceilings: MeasuredCeilings, processor: ProcessorProfiler
    ) -> None:
        self._tools, self._targets, self._ceilings, self._processor = tools, targets, ceilings, processor

    async def profile(
        self,
        what: RunTarget,
        level: ProfileLevel = "standard",
        *,
        progress: Progress | None = None,
    ) -> ProfileResult:
        """Profile a program of a workspace, or an attempt; or read a report that was made elsewhere.

        Args:
            what: The program, the attempt, or the report.
            level: `quick`: times and stall samples, no counters: Python programs, attempts in Triton, or whatever nsys
                can start; `standard`: ncu's counters for limit, roofline, stalls, lines; `full`: all of ncu's. On a
                processor both of these are perf's, and `quick` times calls alone.
            progress: Told what happens meanwhile.

        Raises:
            BadRequest: If the target cannot be profiled so.
            ToolMissing: If the host has no GPU or no profiler.
        """
        if what.report is not None:
            return await self._read(what.report, what.workspace_id, what.host, level)
        if (planned := await self._processor.plan(what, level)) is not None:
            return await self._run(*planned, what, level, progress)
        target = await self._targets.resolve(what, calls=3, amd=True)
        if level != "quick" and target.vendor == "nvidia" and target.waits_for_peers:
            raise BadRequest(
                "ncu cannot replay kernels that wait for peers (NCCL's device interface): it hangs.",
                hint="Use level quick, or profile with one rank.",
            )
        job = plan_profile(level, target, self._tools, what)
        if level != "quick" and target.vendor == "nvidia":
            found = await self._ceilings.measure_once(target.host, target.probe)
            job = job.with_context(ceilings=found.model_dump() if found else None)
        return await self._run(job, target, what, level, progress)

    async def _run(
        self, job: ToolJob, target: ProfileTarget, what: RunTarget, level: ProfileLevel, progress: Progress | None
    ) -> ProfileResult:
        job_id, made = await self._tools.start(job, target)
        if progress is not None:
            await progress(f"profile {level}, job {job_id} on {target.host}")
        done = await self._tools.wait(job_id, target.host, what.wait_s, progress)
        if done is None:
            note = "still running; job_status with wait_s has the verdict later"
            return ProfileResult(
                status="running", level=level, host=target.host, job_id=job_id, profile_id=made, note=note
            )
        return await self.finish(done, await self._tools.row(job_id))

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Settle a job that somebody asks about later; return its verdict."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> ProfileResult:
        """Turn a finished profile into its result and remember it; may be done twice, counts once."""
        ended = await self._tools.fetch_results(done, row, ABOUT, keep=(REPORT,))
        context = row.context
        if context.get("processor"):
            return await self._finish_on_processor(ended)
        log = ended.files.get(f"{FOLDER}/ncu.log", b"").decode("utf-8", "replace")
        found = {k: v for k, v in ended.files.items() if k != ABOUT and not k.endswith((".log", ".rep"))}
        _, readings = report_detection.read(found)
        readings = with_text(readings, await self._sources(context))
        missing = missing_of(context, readings, log + "\n" + ended.output)
        lines = timeline_of(found)
        status = status_of(ended, readings, missing)
        device = next((k.device for k in readings if k.device), None) or context.get("device")
        report = await self._tools.keep(done, REPORT, f"{row.job_id}.ncu-rep")
        saved = f"the report as a file: gpu-mcp-server artifact save {report} FILE.ncu-rep" if report else None
        result = ProfileResult(
            status=status,
            level=context["level"],
            profiler=context["profiler"],
            job_id=row.job_id,
            host=done.host,
            device=device,
            not_measured=missing,
            report_artifact_id=report,
            output_artifact_id=await self._tools.keep_output(done) if status != "ok" else None,
            seconds=ended.seconds,
            sandbox=done.record.level,
            note="; ".join(filter(None, (note_of(ended, status), saved))) or None,
        )
        return await self._remembered(result, readings, row.attempt_id or "", lines, context.get("ceilings"))

    async def _finish_on_processor(self, ended: FinishedToolJob) -> ProfileResult:
        row, context = ended.row, ended.row.context
        sources = await self._sources(context)
        seen = self._processor.read(ended, sources)
        result = ProfileResult(
            status=seen.status,
            level=context["level"],
            profiler=seen.profiler,
            job_id=row.job_id,
            host=ended.done.host,
            device=context["device"],
            not_measured=[],
            output_artifact_id=await self._tools.keep_output(ended.done) if seen.status != "ok" else None,
            seconds=ended.seconds,
            sandbox=ended.done.record.level,
            note=seen.note,
        )
        return await self._remembered(result, with_text(seen.readings, sources), row.attempt_id or "", ())

    async def _remembered(
        self,
        result: ProfileResult,
        readings: Sequence[KernelReading],
        attempt_id: str,
        lines: Sequence[str],
        ceilings: Mapping[str, Any] | None = None,
    ) -> ProfileResult:
        peaks = peaks_of(result.device, ceilings)
        verdicts = bottleneck.verdicts(readings, peaks)
        text = bottleneck.text_of(verdicts, result.not_measured, timeline=lines)
        picture = roofline_chart.png(verdicts)
        artifacts = self._tools.artifacts
        document = json.dumps([k.model_dump(exclude_defaults=True) for k in readings]).encode()
        kept = await artifacts.put(document, name="profile.json", media_type="application/json")
        result = result.model_copy(
            update={
                "profile_id": attempt_id,
                "verdict": text,
                "kernels": verdicts,
                "roofline_artifact_id": await artifacts.put(picture, name="roofline.png", media_type="image/png")
                if picture
                else None,
            }
        )
        evidence = {
            "level": result.level,
            "profiler": result.profiler,
            "device": result.device,
            "ceilings": ceilings,
            "profile_artifact": kept,
            "report_artifact": result.report_artifact_id,
            "verdict": text,
            "roofline": _rooflines(verdicts),
        }
        bound = f"{BOUND_BY}{verdicts[0].bound}; " if verdicts and verdicts[0].bound else ""
        reason = (bound + (text or result.note or "").partition("\n")[0])[:300]
        await self._tools.experience.finish(
            attempt_id, status=result.status, reason=reason, evidence=evidence, median_us=None
        )
        return result

    async def _read(
        self, report: str, workspace_id: str | None, host: str | None, level: ProfileLevel
    ) -> ProfileResult:
        if workspace_id is None:
            raise BadRequest("A report is read from a workspace.", hint="write_files with local_path puts it into one.")
        listed = await self._targets.workspaces.manifest(workspace_id)
        paths = [f.path for f in listed if f.path == report or f.path.startswith(report.rstrip("/") + "/")]
        if not paths:
            raise BadRequest(f"{report!r} is no file or folder of workspace {workspace_id}.", hint="See list_files.")
        files = {p: await self._targets.workspaces.read_bytes(workspace_id, p) for p in paths[:MAX_REPORT_FILES]}
        profiler, readings = report_detection.read(files)
        attempt_id = await self._tools.experience.start("profile", note=f"report {report}"[:200], host=host)
        unread = report_detection.describe_unread(files)[:3] if len(files) > 1 or not readings else []
        said = "\n".join(report_detection.text_of_bytes(data[:MOST_LOG_BYTES]) for data in files.values())
        lost = ncu.lost_counters(said)
        hint = f"none of these files is a report that is known: {report_detection.KNOWN}"
        result = ProfileResult(
            status="ok" if readings else "not_measured",
            level=level,
            profiler=profiler or None,
            host=host or "-",
            device=next((k.device for k in readings if k.device), None),
            not_measured=[*lost, *([] if lost else ncu.unread_counters(readings)), *unread]
            if readings
            else [*lost, hint, *unread],
            note=f"read from {len(files)} files, nothing was run",
        )
        return await self._remembered(result, readings, attempt_id, timeline_of(files))

    async def _sources(self, context: Mapping[str, Any]) -> Mapping[str, str]:
        if context.get("sources"):
            return context["sources"]
        workspace_id = context.get("workspace_id")
        return await self._targets.sources(workspace_id) if workspace_id else {}


def peaks_of(device: str | None, ceilings: Mapping[str, Any] | None = None) -> Peaks | None:
    """Return a device's sheet from the knowledge base, with what was measured of the same device."""
    spec = spec_of(device) if device else None
    found = Ceilings.model_validate(ceilings or {})
    if device is None or found.device != device:
        found = Ceilings()
    if spec is None and found.copy_gb_s is None:
        return None
    sheet = (spec.name, spec.dram_gb_s, spec.tflop_s) if spec else (str(device), 0.0, dict[str, float]())
    return Peaks(*sheet, copy_gb_s=found.copy_gb_s, fma_tflop_s=found.fma_tflop_s)


def timeline_of(files: Mapping[str, bytes]) -> list[str]:
    """Return lines about the traces of a run, or else its sums; several files or processes are several ranks."""
    traces = report_detection.read_events(files)
    if not traces:
        return report_detection.read_sums(files)
    ranks = traces if len(traces) > 1 else timeline.split_processes(next(iter(traces.values())))
    return [*timeline.describe_timeline(next(iter(ranks.values()))), *timeline.describe_ranks(ranks)]


def with_text(readings: Sequence[KernelReading], sources: Mapping[str, str]) -> list[KernelReading]:
    """Return readings whose hot lines have their text, from the workspace where the report had none."""
    found: list[KernelReading] = []
    for reading in readings:
        lines = [
            line if line.text else line.model_copy(update={"text": line_of(sources, line.file, line.line) or ""})
            for line in reading.lines
        ]
        found.append(reading.model_copy(update={"lines": lines}))
    return found


def missing_of(context: Mapping[str, Any], readings: Sequence[KernelReading], said: str) -> list[str]:
    """Return what was not measured, why, and what to do."""
    found = list(context.get("missing", []))
    if context["profiler"].startswith(ROCPROF):
        found += rocprof_commands.missing_counters(context["level"], [n for r in readings for n in r.metrics])
    elif context["level"] != "quick":
        found += [*ncu.unread_counters(readings), *ncu.lost_counters(said)] if readings else ncu.troubles(said)
    return found


def status_of(ended: FinishedToolJob, readings: Sequence[KernelReading], missing: Sequence[str]) -> str:
    """Return how a profile ended, in one word."""
    if readings:
        return "ok"
    if ended.status in ("timeout", "oom", "cancelled", "caller_lost", "disk_quota"):
        return ended.status
    if any("no kernel was profiled" in m for m in missing):
        return "no_kernels"
    return "not_measured" if missing else "failed"


def note_of(ended: FinishedToolJob, status: str) -> str | None:
    """Return what went wrong, with the last words of the program."""
    if status == "ok":
        code = ended.about.get("code")
        return f"the program ended with {code} under the profiler" if code else None
    last = "; ".join(line for line in ended.output.strip().splitlines()[-3:] if line.strip())
    return "; ".join(filter(None, [ended.done.record.note, last[:600]])) or None


def _rooflines(verdicts: Sequence[KernelVerdict]) -> list[dict[str, Any]]:
    return [{"kernel": v.name, **v.roofline.model_dump()} for v in verdicts[:8] if v.roofline]
