"""What the records have of a run's candidates: attempts, whole verdicts, sources. What was pruned is absent."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gpu_mcp_server.errors import JobBroken, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.services.evaluation.judge_job import parse_verdict, shape_verdicts
from gpu_mcp_server.services.lab import Lab


@dataclass(frozen=True)
class Judged:
    """One candidate of a run."""

    number: int
    verdict: Verdict
    attempt: Attempt | None = None
    shapes: tuple[ShapeVerdict, ...] = ()
    where: Mapping[str, Any] | None = None
    """Where its answer was wrong: the judge's grid."""
    source: str = ""
    rooflines: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    """Of a profile that was taken of it."""


async def judged(lab: Lab, verdicts: Iterable[Verdict]) -> list[Judged]:
    """Return the candidates of a run in their order."""
    return [await _one(lab, number, verdict) for number, verdict in enumerate(verdicts, 1)]


async def _one(lab: Lab, number: int, verdict: Verdict) -> Judged:
    try:
        attempt = await lab.store.experience.get(verdict.attempt_id or "")
    except NotFound:
        return Judged(number, verdict)
    whole = await _whole(lab, attempt)
    source = await _text(lab, attempt.source_artifact_id)
    where = whole.get("where")
    return Judged(
        number,
        verdict,
        attempt,
        tuple(shape_verdicts(whole)),
        cast("dict[str, Any]", where) if isinstance(where, dict) else None,
        source or "",
        tuple(await lab.memory.rooflines(attempt.attempt_id)),
    )


async def _whole(lab: Lab, attempt: Attempt) -> dict[str, Any]:
    text = await _text(lab, str((attempt.evidence or {}).get("verdict_artifact")))
    try:
        return parse_verdict(text.encode()) if text else {}
    except (JobBroken, json.JSONDecodeError):
        return {}


async def _text(lab: Lab, artifact_id: str | None) -> str:
    if artifact_id is None:
        return ""
    try:
        return (await lab.store.artifacts.read(artifact_id)).decode("utf-8", "replace")
    except NotFound:
        return ""
