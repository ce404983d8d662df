"""The rows of attempts that evaluations are: begun, and ended when there is no verdict."""

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_mcp_server.errors import BadRequest, HostDrained, NoFreeGpu, QuotaExceeded, SandboxTooWeak, ToolMissing
from gpu_mcp_server.models.build import CompileResult, kept_diagnostics
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.evaluation.candidate_device import versions_of
from gpu_mcp_server.services.evaluation.trial import JudgeRequest
from gpu_mcp_server.services.hosts.host_connections import device_name
from gpu_mcp_server.services.jobs.call_context import is_left_running
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts

REFUSALS = (BadRequest, QuotaExceeded, NoFreeGpu, HostDrained, SandboxTooWeak)
"""Nothing of the candidate ran, and the call's error says why: a row would teach nobody anything."""
LATE = "not begun: the call's time was over before its turn"
GAVE_WAY = "the confirmation run gave way to another call, or its command ended; it is owed again"


class TrialRecords:
    """Records trials: that they began, and why they ended without a verdict."""

    def __init__(self, experience: AttemptStore, artifacts: Artifacts) -> None:
        self._experience, self._artifacts = experience, artifacts

    async def check_parent(self, parent_id: str | None) -> None:
        """Return if an attempt's parent is there, or it has none.

        Raises:
            NotFound: If there is no such attempt.
        """
        if parent_id is not None:
            await self._experience.get(parent_id)

    async def begin(
        self, trial: JudgeRequest, *, parent_id: str | None, note: str | None, batch_id: str | None
    ) -> JudgeRequest:
        """Note that a candidate is tried; return the trial with the attempt's id."""
        data, media_type = trial.source.stored_form()
        attempt_id = await self._experience.start(
            trial.kind,
            parent_id=parent_id,
            problem_id=trial.problem.problem_id,
            problem_hash=trial.problem.content_hash,
            source_hash=hashlib.sha256(data).hexdigest(),
            source_artifact_id=await self._artifacts.put(data, name=trial.source.name, media_type=media_type),
            source_name=trial.source.name,
            language=trial.language,
            host=trial.host,
            device=device_name(trial.probe, trial.device),
            driver=trial.probe.driver,
            level=trial.probe.level,
            note=note,
            versions=versions_of(trial.probe, trial.device),
            batch_id=batch_id,
            flags=json.dumps(trial.flags),
            entry=trial.entry,
            target=trial.device,
            tier=trial.timing.tier,
        )
        return replace(trial, attempt_id=attempt_id)

    async def end_late(self, trial: JudgeRequest) -> Evaluation:
        """Note that the call's time was over before the candidate's turn."""
        await self._experience.finish(trial.attempt_id, status="cancelled", reason=LATE)
        return trial.evaluation("refused", reason=LATE)

    async def end_broken(self, trial: JudgeRequest, error: BaseException) -> None:
        """Note what kept the candidate from being judged; where the call was refused, nothing was tried.

        Where this server ends and the job goes on, the next one notes its end.
        """
        if is_left_running():
            return
        if isinstance(error, ToolMissing) or (trial.kind == "evaluate" and isinstance(error, REFUSALS)):
            await self._experience.forget(trial.attempt_id)
            return
        gone = isinstance(error, asyncio.CancelledError)
        left = GAVE_WAY if trial.kind == "confirm" else "the call was cancelled, or its client went away"
        reason = left if gone else str(error)[:500]
        await self._experience.finish(trial.attempt_id, status="cancelled" if gone else "error", reason=reason)

    async def refuse_hip(self, trial: JudgeRequest, built: CompileResult | None, advice: Sequence[str]) -> Evaluation:
        """Say that a HIP kernel compiles and that nobody runs it: there is no judge in HIP, and often no device.

        It is no attempt: nothing was tried.
        """
        reason = "HIP kernels are compiled only" if trial.probe.amd_gpus else f"no AMD device on host {trial.host!r}"
        await self._experience.forget(trial.attempt_id)
        arch = f" for {built.arch}" if built and built.arch else ""
        return replace(trial, attempt_id="").evaluation(
            "refused",
            reason=reason,
            resources=built.resources if built else [],
            diagnostics=built.diagnostics if built else [],
            advice=advice,
            note=f"it compiles{arch} and was not judged: the judge calls kernels on processors and NVIDIA GPUs; "
            "on an AMD GPU it judges program problems (GEAK, program.toml). "
            "compile_kernel records HIP compiles as attempts",
            seconds={"compile": time.monotonic() - trial.began},
        )

    async def end_uncompiled(self, trial: JudgeRequest, built: CompileResult, advice: Sequence[str]) -> Evaluation:
        """Keep the compiler's words of a candidate that does not compile."""
        first = built.diagnostics[0].line_text() if built.diagnostics else built.note or built.status
        evidence = {"diagnostics": kept_diagnostics(built.diagnostics)}
        await self._experience.finish(trial.attempt_id, status="compile_failed", reason=first, evidence=evidence)
        return trial.evaluation(
            "compile_failed",
            reason=first.partition("\n")[0],
            diagnostics=built.diagnostics,
            resources=built.resources,
            advice=advice,
            level=built.level,
            note=built.note,
            seconds={"compile": time.monotonic() - trial.began},
        )
