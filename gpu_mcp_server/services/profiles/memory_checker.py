"""Checks programs for mistakes with memory: compute-sanitizer around a program or an attempt."""

from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.memory_check import CheckReport, CheckTool, MemoryCheck
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.profilers import sanitizer
from gpu_mcp_server.services.builds.candidate_source import source_of_attempt
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.profiles import profile_targets
from gpu_mcp_server.services.profiles.processor_checks import (
    ProcessorCheck,
    judge_run,
    plan_attempt,
    plan_program,
)
from gpu_mcp_server.services.profiles.processor_drivers import PROCESSOR_LANGUAGES
from gpu_mcp_server.services.profiles.profile_targets import FOLDER, ProfileTarget, Targets
from gpu_mcp_server.services.profiles.tool_jobs import SHOWN_OUTPUT, FinishedToolJob, ToolJob, ToolJobs

ABOUT, LOG = f"{FOLDER}/check.json", f"{FOLDER}/check.log"
FOUND_CODE = 86
"""Exit code for findings; programs of ours and of tests use smaller ones."""
PADDING_BYTES = 64
SHOWN = 10
MOST_S = 3600.0
"""Above this a check is refused."""

FACTORS: Mapping[CheckTool, float] = {"memcheck": 10.0, "racecheck": 200.0, "initcheck": 5.0, "synccheck": 3.0}
"""What a checker costs at least, as a factor on the time of a program whose kernels matter.

Source: on an H200 kernels became 130-280, 85,000, 14-150 and 4-35 times slower; a program is not only kernels.
"""
OPTIONS: Mapping[CheckTool, tuple[str, ...]] = {
    "memcheck": ("--padding", str(PADDING_BYTES)),
    "racecheck": ("--racecheck-report", "analysis"),
    "initcheck": (),
    "synccheck": (),
}
"""Padding: without it a write one past the end lands in the next allocation and is missed. Analysis: one record for a
race instead of one for each byte."""
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Otherwise torch's and Triton's tensors share allocations, and a write past the end of one is missed."""
NEXT: Mapping[CheckTool, str] = {
    "memcheck": "racecheck for shared memory, initcheck for what was never written",
    "racecheck": "synccheck if barriers stand in branches",
    "initcheck": "memcheck, if it was not run yet",
    "synccheck": "racecheck, if it was not run yet",
}

NEXT_ON_PROCESSOR: Mapping[CheckTool, str] = {
    "memcheck": "racecheck, if it has threads; reads of memory that was never written are not looked for on a "
    "processor, gcc -fanalyzer finds some",
    "racecheck": "memcheck, if it was not run yet",
}


class Checker:
    """Programs in, findings out."""

    def __init__(self, tools: ToolJobs, targets: Targets) -> None:
        self._tools, self._targets = tools, targets

    async def check(
        self,
        what: RunTarget,
        tool: CheckTool = "memcheck",
        *,
        progress: Progress | None = None,
    ) -> MemoryCheck:
        """Run a program alone, then under the checker, and understand what it says.

        Args:
            what: A program, or an attempt whose launcher is called.
            tool: Which of compute-sanitizer's tools.
            progress: Told what happens meanwhile.

        Raises:
            BadRequest: If the target cannot be checked so.
            ToolMissing: If the host has no compute-sanitizer, or neither GPU nor compiler for the attempt.
        """
        if (planned := await self._processor_plan(what, tool)) is not None:
            return await self._check_processor(*planned, what, tool, progress)
        target, timeout_s = await self._targets.resolve(what), what.timeout_s
        checker = self._tools.tool(target, "compute-sanitizer")
        if tool == "initcheck" and target.waits_for_peers:
            raise BadRequest(
                "initcheck breaks programs that use NCCL's device interface: it does not see what peers write.",
                hint="Use memcheck or synccheck for them.",
            )
        refused = _too_long(target, tool) if what.shape is None and not what.count else None
        if refused is not None:
            return MemoryCheck(status="not_checked", tool=tool, host=target.host, note=refused)
        alone_s = min(60.0, timeout_s)
        plan = {
            "command": list(target.argv),
            "checker": [checker.path, *arguments(tool, what, api_errors=not target.waits_for_peers)],
            "alone_s": alone_s,
            "limit_s": timeout_s,
            "factor": 0.0 if what.count else FACTORS[tool],
            "most_s": MOST_S,
            "about": ABOUT,
        }
        job = ToolJob(
            kind="check",
            purpose="check",
            worker="run_memory_check",
            plan=plan,
            outputs=(ABOUT, LOG),
            limit_s=timeout_s + alone_s,
            env=ENVIRONMENT,
            tool=checker,
            extra_files={},
            context={"tool": tool, "checker": f"compute-sanitizer {checker.version}", "timeout_s": timeout_s},
        )
        return await self._run(job, target, what, tool, progress)

    async def _processor_plan(self, what: RunTarget, tool: CheckTool) -> tuple[ProcessorCheck, ProfileTarget] | None:
        """Return the plan for an attempt in C or C++, and for a program on a host without a GPU."""
        if (what.command is None) == (what.attempt_id is None):
            return None
        if what.command is not None:
            target = await self._targets.program(what.command, what.workspace_id, what.host)
            on_gpu = len(target.probe.gpus) >= profile_targets.GPUS or target.probe.amd_gpus
            return None if on_gpu else (plan_program(target, tool), target)
        attempt = await self._tools.experience.get(what.attempt_id or "")
        judged = attempt.kind == "evaluate" and attempt.source_artifact_id and attempt.problem_id
        if attempt.language not in PROCESSOR_LANGUAGES or not judged:
            return None
        where = await self._targets.program(("true",), None, what.host or attempt.host)
        source = await source_of_attempt(self._tools.artifacts, attempt)
        problem = await self._targets.problem_of(attempt)
        return plan_attempt(attempt, source, problem, what.shape, where, tool)

    async def _check_processor(
        self, plan: ProcessorCheck, target: ProfileTarget, what: RunTarget, tool: CheckTool, progress: Progress | None
    ) -> MemoryCheck:
        told = {"compile": plan.compile, "command": plan.command, "limit_s": what.timeout_s, "log": LOG, "about": ABOUT}
        job = ToolJob(
            kind="check",
            purpose="check",
            worker="run_sanitized",
            plan=told,
            outputs=(ABOUT, LOG),
            limit_s=what.timeout_s * (2 if plan.compile else 1),
            env=plan.env,
            tool=plan.tool,
            extra_files=plan.files,
            context={
                "tool": tool,
                "checker": plan.checker,
                "processor": True,
                "compiled": bool(plan.compile),
                "whole": plan.whole,
            },
            gpus=0,
        )
        return await self._run(job, target, what, tool, progress)

    async def _run(
        self, job: ToolJob, target: ProfileTarget, what: RunTarget, tool: CheckTool, progress: Progress | None
    ) -> MemoryCheck:
        job_id, made = await self._tools.start(job, target)
        if progress is not None:
            await progress(f"{tool}, job {job_id} on {target.host}")
        done = await self._tools.wait(job_id, target.host, what.wait_s, progress)
        if done is None:
            note = "still running; job_status with wait_s has the findings later"
            return MemoryCheck(status="running", tool=tool, host=target.host, job_id=job_id, attempt_id=made, note=note)
        return await self.finish(done, await self._tools.row(job_id))

    async def finish_and_describe(self, done: FinishedJob, row: JobRow) -> str:
        """Settle a job that somebody asks about later; return what it found."""
        return (await self.finish(done, row)).summary()

    async def finish(self, done: FinishedJob, row: JobRow) -> MemoryCheck:
        """Turn a finished check into its result and remember it; may be done twice, counts once."""
        ended = await self._tools.fetch_results(done, row, ABOUT)
        context = row.context
        log = ended.files.get(LOG, b"")
        said, sources = log.decode("utf-8", "replace"), await self._sources(context)
        if on_processor := bool(context.get("processor")):
            status, note, report = judge_run(ended, safe_text(log), sources)
        else:
            report = sanitizer.parse(said, sources)
            status, note = status_and_note(ended, report)
        findings = report.findings[:SHOWN]
        result = MemoryCheck(
            status=status,
            tool=context["tool"],
            checker=context["checker"],
            findings=findings,
            findings_left_out=max(0, len(report.findings) - SHOWN) or None,
            errors=report.errors,
            note=note,
            next=(NEXT_ON_PROCESSOR if on_processor else NEXT)[context["tool"]] if status == "clean" else None,
            job_id=row.job_id,
            attempt_id=row.attempt_id,
            host=done.host,
            seconds=ended.seconds if on_processor else ended.about.get("checked", {}).get("seconds") or ended.seconds,
            sandbox=done.record.level,
            log_artifact_id=await self._tools.artifacts.put(log, name="check.log", media_type="text/plain")
            if log
            else None,
            output=(safe_text(log[-SHOWN_OUTPUT:]) if on_processor else ended.output)
            if status not in ("clean", "findings")
            else "",
        )
        evidence = {
            "tool": result.tool,
            "log_artifact": result.log_artifact_id,
            "findings": [f.line_text()[:300] for f in findings],
        }
        if row.attempt_id:
            first = findings[0].line_text().partition("\n")[0] if findings else note
            kept = "ok" if status == "clean" else status
            await self._tools.experience.finish(row.attempt_id, status=kept, reason=first, evidence=evidence)
        return result

    async def _sources(self, context: Mapping[str, Any]) -> Mapping[str, str]:
        if context.get("sources"):
            return context["sources"]
        workspace_id = context.get("workspace_id")
        return await self._targets.sources(workspace_id) if workspace_id else {}


def arguments(tool: CheckTool, chosen: RunTarget, *, api_errors: bool) -> list[str]:
    """Return compute-sanitizer's options."""
    found = ["--tool", tool, "--log-file", LOG, "--print-limit", str(sanitizer.PRINT_LIMIT)]
    found += ["--error-exitcode", str(FOUND_CODE), "--target-processes", "all", *OPTIONS[tool]]
    if tool == "memcheck" and not api_errors:  # NCCL's own probing fails twenty calls in a program that is right
        found += ["--report-api-errors", "no"]
    if chosen.kernel:
        name = chosen.kernel
        found += ["--kernel-name", f"regex={name[6:]}" if name.startswith("regex:") else f"kns={name}"]
    found += ["--launch-skip", str(chosen.skip)] if chosen.skip else []
    return [*found, *(["--launch-count", str(chosen.count)] if chosen.count else [])]


def status_and_note(ended: FinishedToolJob, report: CheckReport) -> tuple[str, str | None]:
    """Return status and note of a check."""
    alone: Mapping[str, Any] = ended.about.get("alone", {})
    checked: Mapping[str, Any] = ended.about.get("checked", {})
    notes: list[str] = []
    if alone.get("timed_out"):
        notes.append(
            f"alone it did not end within {alone.get('seconds', 0):.0f} s: a barrier that not all threads reach?"
        )
    elif alone and alone.get("code"):
        notes.append(f"the program alone ended with {alone.get('error') or alone['code']}")
    if "refused_s" in ended.about:
        return "not_checked", too_long_text(
            ended.row.context["tool"], alone.get("seconds", 0.0), ended.about["refused_s"]
        )
    if report.findings:
        return "findings", "; ".join(notes) or None
    if report.troubles:
        return "not_checked", "; ".join([*report.troubles, *notes])
    if checked.get("timed_out") or ended.status == "timeout":
        notes.append("the checker's time was over before it found anything: a smaller input, or a `count` of launches")
        return "timeout", "; ".join(notes)
    if ended.status == "oom":
        return "oom", "; ".join([*notes, ended.done.record.note])
    if report.errors == 0 and not checked.get("code"):
        return "clean", "; ".join(notes) or None
    if report.errors is None:
        return "not_checked", "; ".join([*notes, "compute-sanitizer did not come to its summary"])
    return "failed", "; ".join(notes) or f"the program ended with {checked.get('code')}, without findings"


def too_long_text(tool: CheckTool, alone_s: float, expected_s: float) -> str:
    """Say why a check is refused and how to shrink it."""
    return (
        f"refused: {alone_s:.3g} s without {tool}, at least {expected_s / 3600:.2g} hours with it. Use a small shape "
        "(a mistake shows at 64 elements as at a million), and target {kernel: NAME, count: 1}"
    )


def _too_long(target: ProfileTarget, tool: CheckTool) -> str | None:
    """Return why an attempt's kernel would take too long, by the time that was measured for it."""
    attempt = target.attempt
    if attempt is None or attempt.median_us is None or tool != "racecheck":
        return None
    expected_s = attempt.median_us / 1e6 * 85_000
    return too_long_text(tool, attempt.median_us / 1e6, expected_s) if expected_s > MOST_S else None
