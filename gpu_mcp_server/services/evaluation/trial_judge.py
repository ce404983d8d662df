"""The judge's job of one candidate, from its specification to the verdict and what stands beside that."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_mcp_server.hostd.protocol import JobSpec
from gpu_mcp_server.models.build import kept_diagnostics
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.evaluation.candidate_device import PYTHON_KINDS
from gpu_mcp_server.services.evaluation.crash_diagnosis import CrashDiagnosis, shape_of
from gpu_mcp_server.services.evaluation.crash_stacks import CrashStacks
from gpu_mcp_server.services.evaluation.host_use import HostUse
from gpu_mcp_server.services.evaluation.input_writes import InputWrites
from gpu_mcp_server.services.evaluation.judge_job import GENERATION, is_thorough, judge_spec, output_lines
from gpu_mcp_server.services.evaluation.judge_results import Verdicts
from gpu_mcp_server.services.evaluation.program_candidates import Programs
from gpu_mcp_server.services.evaluation.trial import BuildState, JudgeRequest
from gpu_mcp_server.services.jobs.job_runner import FinishedJob, raise_if_not_run
from gpu_mcp_server.services.jobs.job_services import JobServices
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.toolchains.flags import COMPUTE, linked_libraries

AT_RUN_TIME = ("nvrtc", "nvJitLink")
"""Libraries that make further kernels while a candidate runs."""
LOADS = re.compile(r"\b(?:cu(?:da)?(?:Module|Library)Load\w*|dlopen)\b")
"""Calls by which a candidate loads kernels that were not compiled with it."""
SHARES_S = 60.0
"""Whoever waits for a verdict less long has its GPU alone: a verdict that others may have caused is made again only
while somebody waits."""
UNREAD_PYTHON = "kernels that Python compiles or calls as it runs"


@dataclass(frozen=True)
class FurtherRuns:
    """Runs of a candidate behind its verdict, which explain that and change none."""

    writes: InputWrites
    faults: CrashDiagnosis
    stacks: CrashStacks


class TrialJudge:
    """Has the judge run on a candidate that is ready, and settles what it says."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobServices,
        programs: Programs,
        verdicts: Verdicts,
        baselines: Baselines,
        use: HostUse,
        further: FurtherRuns,
    ) -> None:
        self._settings, self._jobs, self._programs = settings, jobs, programs
        self._verdicts, self._baselines = verdicts, baselines
        self._use, self._further = use, further

    async def judge(self, trial: JudgeRequest, ready: BuildState, advice: Sequence[str], wait_s: float) -> Evaluation:
        """Judge a candidate; when its allocation ends meanwhile once more from the beginning, in a new one."""
        if trial.background:
            return await self._judged(trial, ready, advice, wait_s)
        with self._use.busy(trial.host):
            return await self._judged(trial, ready, advice, wait_s)

    async def _judged(self, trial: JudgeRequest, ready: BuildState, advice: Sequence[str], wait_s: float) -> Evaluation:
        context, until, cut = _context(trial, ready, advice), time.monotonic() + wait_s, ""
        shares = wait_s >= SHARES_S
        if trial.device == "cpu" or len(trial.probe.all_gpus()) <= 1:
            self._baselines.give_way(trial.host)
        for chance in (1, 2):
            spec, blobs = await self._spec(trial, ready, may_share=shares)
            if trial.background:
                spec = spec._replace(gpus=spec.gpus._replace(priority="background"))
            await trial.tell(f"attempt {trial.attempt_id}: judging, job {spec.id}")
            done = await self._run(trial, spec, blobs, context, until - time.monotonic())
            if done is None:
                note = "still being judged; job_status with wait_s has the verdict later"
                return trial.evaluation("running", job_id=spec.id, note=f"{cut}{note}")
            beside = str((await self._verdicts.read(done) or {}).get("beside") or "")
            if chance == 2 or not (beside or self._jobs.runner.was_preempted(done)):
                break
            shares, alone, why = False, "", f"its allocation ended before the verdict ({done.record.note})"
            if beside:
                alone, why = ", alone on its GPU", f"other jobs were there when it failed ({beside})"
            cut = f"judged again from the beginning{alone}, as {why}; "
            # Before anything is told: meanwhile another could settle the job, whose attempt goes on with the next one.
            await self._jobs.table.detach_attempt(spec.id)
            await self._verdicts.experience.resume(trial.attempt_id)
            await trial.tell(f"attempt {trial.attempt_id}: {cut}")
            trial = replace(trial, probe=await self._jobs.runner.probe(trial.host))
        evaluation = await self._settled(trial, done)
        evaluation = await self._further.writes.explain_writes(
            evaluation, trial, ready, left_s=until - time.monotonic()
        )
        evaluation = await self._beside(trial, ready, evaluation, wait_s)
        return evaluation.model_copy(update={"note": f"{cut}{evaluation.note or ''}".removesuffix("; ") or None})

    async def _spec(
        self, trial: JudgeRequest, ready: BuildState, *, may_share: bool
    ) -> tuple[JobSpec, dict[str, bytes]]:
        if trial.program is not None and ready.built is not None:
            return await self._programs.judge_job(
                trial.problem, trial.program, ready.built,
                host=trial.host, device=trial.device, tier=trial.timing.tier,
            )  # fmt: skip
        return judge_spec(
            trial.problem,
            trial.probe,
            self._settings,
            host=trial.host,
            device=trial.device,
            candidate=ready.candidate,
            timing=trial.timing,
            may_share=may_share,
        )

    async def _run(
        self, trial: JudgeRequest, spec: JobSpec, blobs: Mapping[str, bytes], context: Mapping[str, Any], wait_s: float
    ) -> FinishedJob | None:
        async def report_output(name: str, fresh: bytes) -> None:
            for line in output_lines(name, fresh):
                await trial.tell(line)

        try:
            await self._jobs.runner.submit(
                spec, host=trial.host, blobs=blobs, attempt_id=trial.attempt_id, context=context
            )
            return await self._jobs.runner.wait(spec.id, trial.host, on_output=report_output, timeout_s=wait_s)
        except asyncio.CancelledError:
            await self._jobs.runner.end_quietly(spec.id, trial.host)
            raise

    async def _settled(self, trial: JudgeRequest, done: FinishedJob) -> Evaluation:
        raise_if_not_run(done.record, trial.host)
        evaluation = await self._verdicts.finish(done, await self._jobs.table.get(done.record.id))
        seconds = {**evaluation.seconds, "total": time.monotonic() - trial.began}
        return evaluation.model_copy(update={"seconds": seconds})

    async def _beside(
        self, trial: JudgeRequest, ready: BuildState, evaluation: Evaluation, wait_s: float
    ) -> Evaluation:
        """Add what stands beside a verdict: where a kernel broke, torch.compile's time."""
        left_s = 0.0 if trial.slots else wait_s - (time.monotonic() - trial.began)
        if not evaluation.reason.startswith("writes to input"):
            evaluation = await self._further.faults.explain_crash(evaluation, left_s=left_s, tell=trial.tell)
        if trial.problem.program is None:
            evaluation = await self._further.stacks.explain(evaluation, trial, ready, shape_of(evaluation), left_s)
        return await self.add_compiled(evaluation, trial, left_s, later=trial.slots is None)

    async def add_compiled(
        self, evaluation: Evaluation, trial: JudgeRequest, wait_s: float, *, later: bool = False
    ) -> Evaluation:
        """Add torch.compile's time where it is known; wait for it where the call asks for that."""
        how = trial.timing.baseline
        if how == "eager" or evaluation.speedup is None or trial.problem.framework != "torch":
            return evaluation
        if how == "compiled":
            await trial.tell(f"attempt {evaluation.attempt_id}: torch.compile as a baseline, unless it is known")
        return await self._baselines.add_baseline(
            evaluation, trial.problem, trial.probe, trial.device,
            wait_s=max(0.0, wait_s) if how == "compiled" else 0.0, later=later,
        )  # fmt: skip


def _context(trial: JudgeRequest, ready: BuildState, advice: Sequence[str]) -> Mapping[str, Any]:
    """Return what another server needs to settle the job."""
    built = ready.built
    return {
        "generation": GENERATION,
        "problem_id": trial.problem.problem_id,
        "language": trial.language,
        "device": trial.device,
        "request": trial.key,
        "thorough": is_thorough(trial.timing) or trial.program is not None,
        "confirm": trial.timing.confirm,
        "resources": [r.model_dump() for r in built.resources] if built else [],
        "advice": list(advice),
        "warnings": kept_diagnostics(built.diagnostics) if built else [],
        "compile_s": time.monotonic() - trial.began,
        "compiler": built.compiler if built else None,
        "binding": ready.binding,
        "headers": built.headers if built else [],
        "binary": built.artifact_id if built else None,
        "cached": built.cached if built else None,
        "extensions": "; ".join(ready.said),
        "unbuilt": ready.unbuilt,
        **_code(trial, ready),
    }


def _code(trial: JudgeRequest, ready: BuildState) -> Mapping[str, Any]:
    """Return where a candidate's machine code is, and what may compute besides whose code cannot be read."""
    built = ready.built.artifact_id if ready.built else None
    linked = linked_libraries(trial.flags, (*COMPUTE, *AT_RUN_TIME))
    unread = UNREAD_PYTHON if trial.source.language in PYTHON_KINDS else "torch's own kernels" if ready.binding else ""
    unread = f"kernels of {', '.join(linked)}" if linked else unread
    loads = LOADS.search(trial.source.text)
    unread = f"what it loads by {loads[0]}" if loads and not unread else unread
    return {"binaries": [built] if built else list(ready.binaries), "unread": unread}
