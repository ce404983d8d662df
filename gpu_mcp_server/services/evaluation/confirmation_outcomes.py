"""Compare a second evaluation of an attempt with the first, and act on the outcome."""

from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.attempt import Attempt, AuditResult, Outcome
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.services.evaluation.judge_job import parse_verdict, shape_verdicts
from gpu_mcp_server.services.evaluation.verdict_cache import VerdictCache
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.time_format import format_time_range

SLOWER = 0.8
"""A shape is slower when the upper end of its speed-up's interval is below this part of the recorded lower end.

Medians alone do not tell: on a shared processor those of one honest candidate were 6.9 and 5.0, with intervals that
touched.
"""


class ConfirmationOutcomes:
    """Settles confirmation runs: figures that are replaced, attempts that are voided, the next that owes a run."""

    def __init__(
        self,
        experience: AttemptStore,
        artifacts: Artifacts,
        confirmations: Confirmations,
        table: JobTable,
        kept: VerdictCache,
    ) -> None:
        self._experience, self._artifacts, self._confirmations = experience, artifacts, confirmations
        self._table, self._kept = table, kept

    async def settle(self, attempt: Attempt, again: Evaluation, run: str | None, seconds: float) -> AuditResult:
        """Note what a second evaluation says of an attempt; may be done twice. `run` is when that run began."""
        outcome, why = compare_verdicts(attempt, await self._shapes(attempt), again)
        attempt_id = attempt.attempt_id
        stands = await self._confirmations.get(attempt_id)
        if outcome == "voided" and again.verdict == attempt.verdict and stands and stands.needs_two(run):
            outcome, why = "not_judged", f"one more run decides: {why}"
        if outcome == "voided":
            await self._experience.void(attempt_id, f"{why} (audit {again.attempt_id})", again.attempt_id)
            await self._confirmations.finish(attempt_id, "void", why, seconds)
            await self._confirmations.owe_next(attempt_id)
        elif outcome == "confirmed":
            await self._replace(attempt, again)
            await self._confirmations.finish(attempt_id, "done", why, seconds)
        elif outcome == "not_judged" or again.unconfirmable():
            failed = await self._confirmations.release(attempt_id, run, why, counted=True, seconds=seconds)
            if failed and attempt.trust == "provisional" and (doubt := again.unconfirmable()):
                await self._experience.add_evidence(attempt_id, "unconfirmable", doubt)
        else:
            await self._confirmations.finish(attempt_id, "failed", why, seconds)
        return AuditResult(
            attempt_id=attempt_id,
            audit_attempt_id=again.attempt_id,
            outcome=outcome,
            why=why,
            verdict_before=attempt.verdict or "",
            verdict_now=again.verdict,
            speedup_before=attempt.speedup,
            speedup_now=again.speedup,
        )

    async def _replace(self, attempt: Attempt, again: Evaluation) -> None:
        """Put the second evaluation's figures in place of the first ones, in the record and in the kept verdict."""
        if attempt.trust is None:
            return
        await self._confirmations.confirm(attempt, await self._experience.get(again.attempt_id))
        try:
            row = await self._table.get(attempt.job_id or "")
        except NotFound:
            return
        told: dict[str, Any] = {
            "attempt_id": attempt.attempt_id,
            "job_id": attempt.job_id,
            "trust": "confirmed",
            "news": [],
        }
        await self._kept.put(str(row.context.get("request") or ""), again.model_copy(update=told))

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
    if before.trust and (doubt := now.unconfirmable()):
        return "not_comparable", f"the same verdict; the second run's time is unconfirmable: {doubt}"
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
    """Return the low end by a shape's timed rounds: its own may be by rounds in which calls are kept apart.

    Where the reference was slower than before, its time in those rounds says nothing.
    """
    if shape.speedup_low is None or shape.candidate is None or shape.reference is None or shape.reference_before_us:
        return shape.speedup_low
    return max(shape.speedup_low, shape.reference.low_us / shape.candidate.high_us)
