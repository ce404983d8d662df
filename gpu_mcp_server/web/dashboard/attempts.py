"""One attempt: verdict and evidence, source and difference, diagnostics, profile, lineage."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.dashboard import AttemptContext
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.plots.roofline_plot import heat_map
from gpu_mcp_server.services.evaluation.judge_job import parse_verdict, shape_verdicts
from gpu_mcp_server.services.jobs.output_text import safe_text
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.rooflines import kernels_of_profile, kernels_of_timing, roofline_data, rows_of
from gpu_mcp_server.web.dashboard.text_format import Listing, difference, listing
from gpu_mcp_server.web.dashboard.whiskers import WhiskerScale, scale_of

SOURCE_BYTES = 1 << 20
VERDICT_BYTES = 16 << 20
ANCESTORS = 40
INSIDE = (
    "verdict_artifact",
    "resources",
    "diagnostics",
    "roofline",
    "verdict",
    "profile_artifact",
    "report_artifact",
    "speedup_range",
    "median_range_us",
)
"""Of the evidence: what has a place of its own on the page."""


@dataclass(frozen=True)
class ErrorGridView:
    """Picture of the places where an answer was wrong."""

    said: str
    picture: str
    """SVG."""


@dataclass(frozen=True)
class AttemptPage:
    """Content of an attempt's page."""

    attempt: Attempt
    problem: str
    """Its name."""
    around: AttemptContext
    ancestors: Sequence[Attempt]
    source: Listing | None
    source_why: str
    """Why there is no source to show."""
    parent: Attempt | None
    changes: Listing | None
    shapes: Sequence[ShapeVerdict]
    scale: WhiskerScale | None
    """Of the shapes' speed-ups."""
    where: ErrorGridView | None
    trials: str
    notes: Sequence[str]
    resources: Sequence[Mapping[str, Any]]
    diagnostics: Sequence[Diagnostic]
    evidence: Sequence[tuple[str, str]]
    profiles: Sequence[tuple[Attempt, str]]
    """With what each says."""
    roofline: str | None
    """Attempt or profile that has one."""
    roof_source: str
    """Whose peaks these are."""


async def attempt_page(lab: Lab, attempt_id: str) -> AttemptPage:
    """Return what there is of an attempt; what is missing, such as a deleted artifact, is left out and said.

    Raises:
        NotFound: If there is no such attempt that the visitor may see.
    """
    attempt = await lab.store.experience.get(attempt_id)
    evidence = dict(attempt.evidence or {})
    around = await lab.status.overview.attempt_context(attempt_id)
    parent = await _optional(lab, attempt.parent_id)
    source, why = await source_of(lab, attempt)
    before = (await source_of(lab, parent))[0] if parent is not None and attempt.kind != "profile" else None
    changes = None
    if source is not None and before is not None:
        changes = await asyncio.to_thread(difference, before, source)
    verdict = await _verdict(lab, evidence)
    mine = [attempt] if attempt.kind == "profile" else []
    problem, shapes = await _problem(lab, attempt.problem_id), _shapes(verdict)
    profiles = [(p, str((p.evidence or {}).get("verdict") or p.reason or p.status)) for p in (*mine, *around.profiles)]
    with_roof = next((p for p, _ in profiles if kernels_of_profile(p)), None)
    kernels = kernels_of_profile(with_roof) if with_roof else kernels_of_timing(problem, attempt, shapes)
    notes = [str(note) for note in cast("list[Any]", verdict.get("notes") or [])]
    return AttemptPage(
        attempt=attempt,
        problem=problem.name if problem else attempt.problem_id or "",
        around=around,
        ancestors=(await lab.store.experience.list("ancestors", attempt_id=attempt_id, limit=ANCESTORS)).attempts[1:],
        source=listing(source) if source is not None else None,
        source_why=why,
        parent=parent,
        changes=changes,
        shapes=shapes,
        scale=scale_of(end for s in shapes for end in (s.speedup_low, s.speedup, s.speedup_high)),
        where=_where(verdict),
        trials=str(verdict.get("trials_summary") or ""),
        notes=notes,
        resources=rows_of(evidence, "resources"),
        diagnostics=_diagnostics(evidence),
        evidence=[(name, _said(value)) for name, value in evidence.items() if name not in INSIDE],
        profiles=profiles,
        roofline=(with_roof or attempt).attempt_id if kernels else None,
        roof_source=str(kernels[0].get("peak_source") or "") if kernels else "",
    )


async def source_of(lab: Lab, attempt: Attempt) -> tuple[str | None, str]:
    """Return an attempt's source as text, or why there is none."""
    if attempt.source_artifact_id is None:
        return None, "no source was kept"
    try:
        info = await lab.store.artifacts.info(attempt.source_artifact_id)
        if info.size_bytes > SOURCE_BYTES:
            return None, f"it has {info.size_bytes:,} bytes: more than {SOURCE_BYTES:,} are not shown here"
        data = await lab.store.artifacts.read(attempt.source_artifact_id)
    except GpuMcpError as error:
        return None, str(error)
    return safe_text(data), ""


async def shapes_of(lab: Lab, attempt: Attempt) -> Sequence[ShapeVerdict]:
    """Return how an attempt did at each shape; nothing where its verdict is gone or of another version."""
    return _shapes(await _verdict(lab, attempt.evidence or {}))


async def rooflines(lab: Lab, attempt_id: str) -> dict[str, Any]:
    """Return kernels and roofs of an attempt, as the plot wants them.

    Raises:
        NotFound: If there is no such attempt that the visitor may see.
    """
    attempt = await lab.store.experience.get(attempt_id)
    verdict = await _verdict(lab, attempt.evidence or {})
    return roofline_data(
        kernels_of_profile(attempt)
        or kernels_of_timing(await _problem(lab, attempt.problem_id), attempt, _shapes(verdict))
    )


def _diagnostics(evidence: Mapping[str, Any]) -> Sequence[Diagnostic]:
    try:
        return [Diagnostic.model_validate(row) for row in rows_of(evidence, "diagnostics")]
    except ValidationError:  # of another version
        return []


async def _optional(lab: Lab, attempt_id: str | None) -> Attempt | None:
    try:
        return await lab.store.experience.get(attempt_id) if attempt_id else None
    except GpuMcpError:
        return None


async def _problem(lab: Lab, problem_id: str | None) -> Problem | None:
    try:
        return await lab.store.problems.get(problem_id) if problem_id else None
    except GpuMcpError:
        return None


def _where(verdict: Mapping[str, Any]) -> ErrorGridView | None:
    where: Any = verdict.get("where")
    try:
        shape = " x ".join(str(int(size)) for size in where["shape"]) or "1"
        said = f"{where['wrong']:,} of {where['looked_at']:,} elements looked at are wrong"
        return ErrorGridView(
            f"output {where['output']} of {shape}: {said}", heat_map(where["share"], "rows", "the last axis")
        )
    except (TypeError, KeyError, ValueError):  # nobody looked, or it is of another version
        return None


async def _verdict(lab: Lab, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole verdict as the judge wrote it; nothing where it is gone."""
    artifact_id = evidence.get("verdict_artifact")
    if not isinstance(artifact_id, str):
        return {}
    try:
        if (await lab.store.artifacts.info(artifact_id)).size_bytes > VERDICT_BYTES:
            return {}
        return parse_verdict(await lab.store.artifacts.read(artifact_id))
    except (GpuMcpError, ValueError):
        return {}


def _shapes(verdict: Mapping[str, Any]) -> Sequence[ShapeVerdict]:
    try:
        return shape_verdicts(verdict)
    except (ValueError, TypeError):  # of another version
        return []


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
