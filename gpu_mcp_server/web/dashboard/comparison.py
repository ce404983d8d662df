"""Two attempts side by side: what differs around them, times at each shape, sources, profiles."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.attempts import shapes_of, source_of
from gpu_mcp_server.web.dashboard.text_format import Listing, PairedListing, difference, paired_difference
from gpu_mcp_server.web.dashboard.whiskers import WhiskerScale, scale_of

FACTS = (
    ("Problem", "problem_id"), ("Problem hash", "problem_hash"), ("Device", "device"), ("Driver", "driver"),
    ("Host", "host"), ("Language", "language"), ("Flags", "flags"), ("Tier", "tier"),
)  # fmt: skip
COMPARABLE = ("problem_id", "problem_hash", "device", "driver")
"""What must be the same for two times to be compared."""


@dataclass(frozen=True)
class ShapePair:
    """Both attempts at one shape."""

    dims: str
    left: ShapeVerdict | None
    right: ShapeVerdict | None
    ratio: float | None
    """The left median over the right one: above 1 the right attempt is faster."""
    overlaps: bool
    """Whether the 95 % intervals of the medians overlap."""


@dataclass(frozen=True)
class ComparisonPage:
    """Content of the page of two attempts."""

    left: Attempt
    right: Attempt
    facts: Sequence[tuple[str, str, str]]
    different: Sequence[str]
    """What keeps their times from being compared."""
    shapes: Sequence[ShapePair]
    scale: WhiskerScale | None
    """Of all medians, in microseconds."""
    changes: Listing | None
    pairs: PairedListing | None
    source_why: str
    """Why the sources are not compared."""
    profiles: Sequence[Attempt | None]
    """The newest of each."""
    profile_said: Sequence[str]
    profile_comparison: str


async def comparison_page(lab: Lab, attempt_ids: Sequence[str]) -> ComparisonPage:
    """Return two attempts side by side.

    Raises:
        BadRequest: If it is not two different attempts.
        NotFound: If there is no such attempt that the visitor may see.
    """
    if len(set(attempt_ids)) != 2:
        raise BadRequest(f"{len(set(attempt_ids))} attempts are chosen.", hint="Choose two different ones.")
    left, right = [await lab.store.experience.get(each) for each in dict.fromkeys(attempt_ids)]
    (before, why), (after, why_not) = await source_of(lab, left), await source_of(lab, right)
    changes = pairs = None
    if before is not None and after is not None:
        changes = await asyncio.to_thread(difference, before, after)
        pairs = await asyncio.to_thread(paired_difference, before, after)
    shapes = _pairs(await shapes_of(lab, left), await shapes_of(lab, right))
    timings = [s.candidate for pair in shapes for s in (pair.left, pair.right) if s and s.candidate]
    profiles = [await _profile_of(lab, left), await _profile_of(lab, right)]
    return ComparisonPage(
        left=left,
        right=right,
        facts=[(label, str(getattr(left, name) or ""), str(getattr(right, name) or "")) for label, name in FACTS],
        different=[label.lower() for label, name in FACTS if name in COMPARABLE and _differs(left, right, name)],
        shapes=shapes,
        scale=scale_of(end for t in timings for end in (t.low_us, t.median_us, t.high_us)),
        changes=changes,
        pairs=pairs,
        source_why=why or why_not,
        profiles=profiles,
        profile_said=[str((p.evidence or {}).get("verdict") or p.reason or p.status) if p else "" for p in profiles],
        profile_comparison=await _compared(lab, *profiles),
    )


def _differs(left: Attempt, right: Attempt, name: str) -> bool:
    return getattr(left, name) != getattr(right, name)


def _pairs(left: Sequence[ShapeVerdict], right: Sequence[ShapeVerdict]) -> Sequence[ShapePair]:
    """Return a row for each shape of either, the left one's first."""
    sides = [{_dims(s): s for s in side} for side in (left, right)]
    found: list[ShapePair] = []
    for dims in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = sides[0].get(dims), sides[1].get(dims)
        a, b = one.candidate if one else None, other.candidate if other else None
        ratio = a.median_us / b.median_us if a and b and b.median_us else None
        overlaps = bool(a and b and a.low_us <= b.high_us and b.low_us <= a.high_us)
        found.append(ShapePair(dims, one, other, ratio, overlaps))
    return found


def _dims(shape: ShapeVerdict) -> str:
    return ", ".join(f"{name} {value}" for name, value in shape.dims.items()) or "the only shape"


async def _profile_of(lab: Lab, attempt: Attempt) -> Attempt | None:
    if attempt.kind == "profile":
        return attempt
    return next(iter((await lab.status.overview.attempt_context(attempt.attempt_id)).profiles), None)


async def _compared(lab: Lab, left: Attempt | None, right: Attempt | None) -> str:
    """Return what changed between two profiles; empty where one is missing or cannot be read."""
    if left is None or right is None:
        return ""
    try:
        answer = await lab.profiles.queries.ask(left.attempt_id, "compare", other=right.attempt_id)
    except GpuMcpError:
        return ""
    return answer.text or ""
