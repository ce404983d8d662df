"""Runs an attempt again from its record: a verdict that cannot be had twice is voided."""

import asyncio
import json
import time
from typing import cast

from gpu_mcp_server.errors import (
    BadRequest,
    GpuMcpError,
    HostUnavailable,
    NoFreeGpu,
    NotFound,
    SandboxTooWeak,
    ToolMissing,
)
from gpu_mcp_server.models.attempt import Attempt, AuditResult, OldVerdicts, RedoneVerdicts
from gpu_mcp_server.models.evaluation import Evaluation, Tier, TimingOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, source_of_attempt
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.confirmation_outcomes import ConfirmationOutcomes
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.evaluation.judge_job import TRUSTED
from gpu_mcp_server.services.jobs.call_context import is_left_running
from gpu_mcp_server.services.jobs.server_liveness import ServerLiveness
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.confirmations import Confirmations, Why
from gpu_mcp_server.store.artifacts import Artifacts

WAIT_S = 3600.0
"""For one run, its turn included."""
OF_THE_HOST = (HostUnavailable, NoFreeGpu, SandboxTooWeak)
"""Errors that say nothing of a run: it is owed again, and no try is counted."""


class Auditor:
    """Confirms attempts or voids them, at once or behind other work; a voided row stays, marked."""

    def __init__(
        self,
        evaluator: Evaluator,
        experience: AttemptStore,
        artifacts: Artifacts,
        confirmations: Confirmations,
        outcomes: ConfirmationOutcomes,
        server: ServerLiveness,
    ) -> None:
        self._evaluator, self._experience, self._artifacts = evaluator, experience, artifacts
        self._confirmations, self._outcomes, self._server = confirmations, outcomes, server

    async def audit(self, attempt_id: str, *, progress: Progress | None = None, why: Why = "audit") -> AuditResult:
        """Judge an attempt's source again, on the same host, with the same flags; what came of it is kept.

        Where the caller goes away first, the run is owed: the server makes it.

        Raises:
            NotFound: If the attempt or its source is gone.
            BadRequest: If it is no evaluation with a verdict.
        """
        attempt = await self._auditable(attempt_id)
        source = await source_of_attempt(self._artifacts, attempt)
        run = await self._confirmations.begin(attempt_id, why, self._server.register(), attempt.host or "")
        return await self.confirm(attempt, source, run, progress=progress)

    async def confirm_behind(self, attempt_id: str, run: str | None) -> AuditResult:
        """Do the same for a run that this server has begun, giving way to all others.

        Raises:
            NotFound, BadRequest: As `audit` does.
        """
        try:
            attempt = await self._auditable(attempt_id)
            source = await source_of_attempt(self._artifacts, attempt)
        except (NotFound, BadRequest) as error:
            await self._confirmations.finish(attempt_id, "failed", str(error), 0.0)
            raise
        return await self.confirm(attempt, source, run, background=True)

    async def confirm(
        self,
        attempt: Attempt,
        source: CandidateSource,
        run: str | None,
        *,
        background: bool = False,
        progress: Progress | None = None,
    ) -> AuditResult:
        """Judge an attempt again whose run has begun, and note the outcome; the run is owed again if there is none."""
        began = time.monotonic()
        try:
            again = await self._judged(attempt, source, progress, background)
        except ToolMissing as error:
            result = await self._not_judged(attempt, error)
            await self._confirmations.finish(attempt.attempt_id, "failed", result.why, 0.0)
            return result
        except BaseException as error:
            if not is_left_running():
                gone = isinstance(error, asyncio.CancelledError)
                counted = not gone and not isinstance(error, OF_THE_HOST)
                why, seconds = "" if gone else str(error), time.monotonic() - began
                await self._confirmations.release(attempt.attempt_id, run, why, counted=counted, seconds=seconds)
            raise
        return await self._outcomes.settle(attempt, again, run, time.monotonic() - began)

    async def _auditable(self, attempt_id: str) -> Attempt:
        attempt = await self._experience.get(attempt_id)
        if attempt.kind != "evaluate" or attempt.verdict is None or not attempt.source_artifact_id:
            raise BadRequest(
                f"Attempt {attempt_id} has no verdict to audit: of kind {attempt.kind}, status {attempt.status}.",
                hint="list_attempts shows evaluations with their verdicts.",
            )
        if attempt.entry is None:
            raise BadRequest(
                f"Attempt {attempt_id} was recorded without its launcher and flags.", hint="Evaluate its source again."
            )
        return attempt

    async def _judged(
        self, attempt: Attempt, source: CandidateSource, progress: Progress | None, background: bool
    ) -> Evaluation:
        tier = cast("Tier", attempt.tier or "performance")
        return await self._evaluator.evaluate(
            attempt.problem_id or "",
            source,
            host=attempt.host,
            device=attempt.target,
            flags=json.loads(attempt.flags or "[]"),
            entry=attempt.entry or "launch",
            timing=TimingOptions(tier=tier, precision="exact", baseline="eager"),
            parent_id=attempt.attempt_id,
            note=f"audit of {attempt.attempt_id}",
            progress=progress,
            wait_s=WAIT_S,
            kind="confirm",
            background=background,
        )

    async def _not_judged(self, attempt: Attempt, error: ToolMissing) -> AuditResult:
        """Keep that an audit was tried: a candidate that asks for what is not there undoes no more than its verdict."""
        audit_id = await self._experience.start(
            "confirm",
            status="refused",
            reason=str(error),
            parent_id=attempt.attempt_id,
            problem_id=attempt.problem_id,
            problem_hash=attempt.problem_hash,
            source_hash=attempt.source_hash,
            source_artifact_id=attempt.source_artifact_id,
            language=attempt.language,
            host=attempt.host,
            note=f"audit of {attempt.attempt_id}",
        )
        return AuditResult(
            attempt_id=attempt.attempt_id,
            audit_attempt_id=audit_id,
            outcome="not_judged",
            why=f"{error} The first evaluation had it: the host has changed, or the candidate avoids it.",
            verdict_before=attempt.verdict or "",
            speedup_before=attempt.speedup,
        )

    async def older(self, problem_id: str | None = None) -> OldVerdicts:
        """Return the correct verdicts that a candidate may have forged, by ranking.

        Raises:
            NotFound: If there is no such problem.
        """
        return OldVerdicts(boards=await self._experience.older(TRUSTED, problem_id))

    async def redo(self, problem_id: str | None = None, *, progress: Progress | None = None) -> RedoneVerdicts:
        """Judge the best of each ranking again if it may be forged, and the next best where that one is voided.

        Raises:
            NotFound: If there is no such problem.
        """
        done = RedoneVerdicts(audits=[])
        for board in (await self.older(problem_id)).boards:
            for attempt in board.attempts:
                if await self._experience.is_beaten_since(TRUSTED, board, attempt):
                    break
                try:
                    done.audits.append(await self.audit(attempt.attempt_id, progress=progress))
                except GpuMcpError as error:
                    done.failed.append(f"{attempt.attempt_id} could not be judged again: {error}")
                    break
                if done.audits[-1].outcome != "voided":
                    break
        return done
