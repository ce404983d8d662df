"""Recorded candidates of a run: attempts, whole verdicts, sources. Pruned ones are absent."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gpu_mcp_server.errors import JobBroken, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.recipes.run.prompt_verdict import details_text, verdict_of_attempt
from gpu_mcp_server.services.evaluation.judge_job import parse_verdict, shape_verdicts
from gpu_mcp_server.services.evaluation.judge_results import NO_SPEEDUP, ON_PROCESSOR
from gpu_mcp_server.services.evaluation.static_findings import advice_on
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


async def recorded_verdict(lab: Lab, attempt: Attempt, plan: RunPlan) -> Verdict:
    """Return the verdict on an attempt that is recorded, with its lines as far as the records have them."""
    verdict, evidence = verdict_of_attempt(attempt, plan), attempt.evidence or {}
    if attempt.status == "judged":
        whole = await _whole(lab, attempt)
        shapes = _comparable(shape_verdicts(whole), whole)
        said = (whole.get("declared") or "", whole.get("robust") or "")
    else:
        shapes, said = [], ("", "")
    diagnostics = [Diagnostic.model_validate(one) for one in evidence.get("diagnostics", [])]
    advice = await advice_on(await _text(lab, attempt.source_artifact_id))
    return verdict.model_copy(update={"details": details_text(diagnostics, shapes, *said, advice)})


def _comparable(shapes: list[ShapeVerdict], whole: Mapping[str, Any]) -> list[ShapeVerdict]:
    """Return shapes as an evaluation shows them: without speed-ups against a reference on another device."""
    evidence = cast("dict[str, Any]", whole.get("evidence") or {})
    if evidence.get("baseline") != ON_PROCESSOR:
        return shapes
    return [shape.model_copy(update=NO_SPEEDUP) for shape in shapes]


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
