"""Runs an attempt again from its record: a verdict that cannot be had twice is voided."""

import json
from collections.abc import Sequence
from typing import cast

from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound, ToolMissing
from gpu_mcp_server.models.attempt import Attempt, AuditResult, OldVerdicts, Outcome, RedoneVerdicts
from gpu_mcp_server.models.build import CandidateLanguage
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, Tier, TimingOptions
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource, kept_source
from gpu_mcp_server.services.commands.command_runner import Progress
from gpu_mcp_server.services.evaluation.evaluator import Evaluator
from gpu_mcp_server.services.evaluation.judge_job import TRUSTED, parse_verdict, shape_verdicts
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.time_format import format_time_range

SLOWER = 0.8
"""A shape is slower when the upper end of its speed-up's interval is below this part of the recorded lower end.

Medians alone do not tell: on a shared processor those of one honest candidate were 6.9 and 5.0, with intervals that
touched.
"""


class Auditor:
    """Confirms attempts or voids them; a voided row stays, marked."""

    def __init__(self, evaluator: Evaluator, experience: AttemptStore, artifacts: Artifacts) -> None:
        self._evaluator, self._experience, self._artifacts = evaluator, experience, artifacts

    async def audit(self, attempt_id: str, *, progress: Progress | None = None) -> AuditResult:
        """Judge an attempt's source again, on the same host, with the same flags.

        Raises:
            NotFound: If the attempt or its source is gone.
            BadRequest: If it is no evaluation with a verdict.
        """
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
        data = await self._artifacts.read(attempt.source_artifact_id)
        kept = await self._artifacts.info(attempt.source_artifact_id)
        language = cast("CandidateLanguage", attempt.language if attempt.language in NAMES else "c")
        try:
            again = await self._judged(attempt, kept_source(data, kept.media_type, language), progress)
        except ToolMissing as error:
            return await self._not_judged(attempt, error)
        outcome, why = compare_verdicts(attempt, await self._shapes(attempt), again)
        if outcome == "voided":
            await self._experience.void(attempt_id, f"{why} (audit {again.attempt_id})")
        return AuditResult(
            attempt_id=attempt_id,
            audit_attempt_id=again.attempt_id,
            outcome=outcome,
            why=why,
            verdict_before=attempt.verdict,
            verdict_now=again.verdict,
            speedup_before=attempt.speedup,
            speedup_now=again.speedup,
        )

    async def _judged(self, attempt: Attempt, source: CandidateSource, progress: Progress | None) -> Evaluation:
        return await self._evaluator.evaluate(
            attempt.problem_id or "",
            source,
            host=attempt.host,
            device=attempt.target,
            flags=json.loads(attempt.flags or "[]"),
            entry=attempt.entry or "launch",
            timing=TimingOptions(tier=cast("Tier", attempt.tier or "performance"), precision="exact"),
            parent_id=attempt.attempt_id,
            note=f"audit of {attempt.attempt_id}",
            progress=progress,
        )

    async def _not_judged(self, attempt: Attempt, error: ToolMissing) -> AuditResult:
        """Keep that an audit was tried: a candidate that asks for what is not there undoes no more than its verdict."""
        audit_id = await self._experience.start(
            "evaluate",
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
            why=f"{error} It did not miss that when it was judged: the host has changed, or the candidate avoids it.",
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
                if (await self._experience.best_since(TRUSTED, board) or 0.0) > (attempt.speedup or 0.0):
                    break
                try:
                    done.audits.append(await self.audit(attempt.attempt_id, progress=progress))
                except GpuMcpError as error:
                    done.failed.append(f"{attempt.attempt_id} could not be judged again: {error}")
                    break
                if done.audits[-1].outcome != "voided":
                    break
        return done

    async def _shapes(self, attempt: Attempt) -> list[ShapeVerdict]:
        """Return the recorded verdicts by shape; none when their artifact is gone."""
        try:
            whole = await self._artifacts.read(str((attempt.evidence or {}).get("verdict_artifact")))
        except NotFound:
            return []
        return shape_verdicts(parse_verdict(whole))


def compare_verdicts(before: Attempt, shapes: Sequence[ShapeVerdict], now: Evaluation) -> tuple[Outcome, str]:
    """Say whether the second verdict confirms the first, and why."""
    if now.verdict is None:
        return "not_judged", f"the second run has no verdict: {now.reason or now.status}"
    if now.device != before.device:
        return "not_comparable", f"the host is another device now: {now.device} instead of {before.device}"
    if now.verdict != before.verdict:
        return "voided", f"the second run says {now.verdict}: {now.reason or 'no reason given'}"
    if before.speedup and not shapes:
        return "not_comparable", "the same verdict; the recorded times are gone"
    for then, again in zip(shapes, now.shapes, strict=False):
        low = timed_low(then)
        if low and again.speedup_high and again.speedup_high < SLOWER * low:
            return "voided", (
                f"at {then.dims} the second run reaches a speed-up of "
                f"{again.speedup_low:.3g}-{again.speedup_high:.3g}, not {then.speedup_low:.3g}-{then.speedup_high:.3g}"
            )
        then_us, now_us = then.candidate, again.candidate
        if not then.speedup and then_us and now_us and now.time_us and now_us.low_us > then_us.high_us / SLOWER:
            return "voided", (
                f"at {then.dims} the second run takes {format_time_range(now_us.low_us / 1e6, now_us.high_us / 1e6)}, "
                f"not {format_time_range(then_us.low_us / 1e6, then_us.high_us / 1e6)}"
            )
    if before.speedup and not now.speedup:
        return "not_comparable", "the same verdict; the second run could not time every shape"
    return "confirmed", "the same verdict" + (f", speed-up {now.speedup:.3g}" if now.speedup else "")


def timed_low(shape: ShapeVerdict) -> float | None:
    """Return the low end by a shape's timed rounds: its own may be by rounds in which calls are kept apart."""
    if shape.speedup_low is None or shape.candidate is None or shape.reference is None:
        return shape.speedup_low
    return max(shape.speedup_low, shape.reference.low_us / shape.candidate.high_us)
