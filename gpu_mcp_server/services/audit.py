"""Runs an attempt again from its record: a verdict that cannot be had twice is voided."""

import json

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt, AuditResult, Outcome
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.evaluator import Evaluator
from gpu_mcp_server.services.experience import Experience
from gpu_mcp_server.services.runner import Progress
from gpu_mcp_server.services.sources import Source
from gpu_mcp_server.store.artifacts import Artifacts

SUFFIXES = {"c": "kernel.c", "cpp": "kernel.cpp", "cuda": "kernel.cu"}
SLOWER = 0.8
"""Part of the recorded speed-up that the second run must reach.

Medians of honest candidates repeat within a few percent on an idle GPU and within 10 % on a shared processor
(benchmarks/results); a fifth less is neither.
"""


class Auditor:
    """Confirms attempts or voids them; a voided row stays, marked."""

    def __init__(self, evaluator: Evaluator, experience: Experience, artifacts: Artifacts) -> None:
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
                f"Attempt {attempt_id} has no verdict to audit: it is a {attempt.kind} with status {attempt.status}.",
                hint="list_attempts shows evaluations with their verdicts.",
            )
        text = (await self._artifacts.read(attempt.source_artifact_id)).decode()
        language = attempt.language if attempt.language in ("c", "cpp", "cuda") else "c"
        again = await self._evaluator.evaluate(
            attempt.problem_id or "",
            Source(text, language, SUFFIXES[language]),
            host=attempt.host,
            device=attempt.target,
            flags=json.loads(attempt.flags or "[]"),
            entry=attempt.entry or "launch",
            parent_id=attempt_id,
            note=f"audit of {attempt_id}",
            progress=progress,
        )
        outcome, why = judged_again(attempt, again)
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


def judged_again(before: Attempt, now: Evaluation) -> tuple[Outcome, str]:
    """Say whether the second verdict confirms the first, and why."""
    if now.verdict is None:
        return "not_judged", f"the second run has no verdict: {now.reason or now.status}"
    if now.device != before.device:
        return "not_comparable", f"the host is another device now: {now.device} instead of {before.device}"
    if now.verdict != before.verdict:
        return "voided", f"the second run says {now.verdict}: {now.reason or 'no reason given'}"
    if before.speedup and now.speedup and now.speedup < SLOWER * before.speedup:
        return "voided", f"the second run reaches a speed-up of {now.speedup:.3g}, not {before.speedup:.3g}"
    return "confirmed", "the same verdict" + (f", speed-up {now.speedup:.3g}" if now.speedup else "")
