"""Stored profiles, to ask: kernels, metrics, source lines, rules, another profile beside."""

import fnmatch
import json
from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import ValidationError

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.profile import KernelReading, ProfileAnswer
from gpu_mcp_server.profilers import bottleneck
from gpu_mcp_server.profilers.compare import compare_profiles
from gpu_mcp_server.profilers.roofline import Peaks
from gpu_mcp_server.services.profiles.profiler import peaks_of
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.artifacts import Artifacts

About = Literal["kernels", "metrics", "lines", "rules", "verdict", "compare"]
ROWS = 40


class Profiles:
    """Queries of stored profiles."""

    def __init__(self, experience: AttemptStore, artifacts: Artifacts) -> None:
        self._experience, self._artifacts = experience, artifacts

    async def ask(
        self, profile_id: str, about: About, *, kernel: str | None = None, name: str = "*", other: str | None = None
    ) -> ProfileAnswer:
        """Answer a question about a stored profile.

        Args:
            profile_id: The profile.
            about: What is asked for.
            kernel: Only kernels with this in their name.
            name: For metrics and rules: part of the name, or a pattern with `*`; several by commas.
            other: For `compare`: the profile to stand beside it.

        Raises:
            NotFound: If there is no such profile.
            BadRequest: If there is nothing to compare with.
        """
        readings, peaks = await self._readings(profile_id)
        chosen = [r for r in readings if kernel is None or kernel in r.name]
        if about == "compare":
            if other is None:
                raise BadRequest("compare needs `other`, a second profile_id.")
            beside, _ = await self._readings(other)
            beside = [r for r in beside if kernel is None or kernel in r.name] or beside
            return ProfileAnswer(
                profile_id=profile_id, about=f"against {other}", text=compare_profiles(chosen, beside, peaks)
            )
        if about == "verdict":
            text = bottleneck.text_of(bottleneck.verdicts(chosen, peaks))
            return ProfileAnswer(profile_id=profile_id, about="verdict", text=text)
        rows = _ROWS[about](chosen, name)
        return ProfileAnswer(
            profile_id=profile_id, about=about, rows=rows[:ROWS], rows_left_out=max(0, len(rows) - ROWS) or None
        )

    async def _readings(self, profile_id: str) -> tuple[list[KernelReading], Peaks | None]:
        attempt = await self._experience.get(profile_id)
        evidence = attempt.evidence or {}
        if attempt.kind != "profile" or "profile_artifact" not in evidence:
            raise NotFound("profile", profile_id, hint="profile_kernel returns profile ids.")
        document: Any = json.loads(await self._artifacts.read(str(evidence["profile_artifact"])))
        try:
            found = [KernelReading.model_validate(r) for r in cast("list[Any]", document)]
        except ValidationError as error:
            raise NotFound("readable profile", profile_id, hint="It is of another version; profile again.") from error
        return found, peaks_of(evidence.get("device"), evidence.get("ceilings"))


def _kernels(readings: Sequence[KernelReading], name: str) -> list[dict[str, Any]]:
    whole = sum(r.total_us or 0.0 for r in readings)
    return [
        {
            "kernel": v.name,
            "time_us": v.time_us,
            "calls": v.calls,
            "share_percent": round(v.share_percent, 1) if v.share_percent is not None and whole else None,
            "bound": v.bound,
            "bound_percent": v.bound_percent,
        }
        for v in bottleneck.verdicts(readings)
    ]


def _metrics(readings: Sequence[KernelReading], name: str) -> list[dict[str, Any]]:
    return [
        {"kernel": r.name, "metric": metric, "value": value}
        for r in readings
        for metric, value in sorted({**r.metrics, **r.texts, **r.units_percent}.items())
        if _matches(metric, name)
    ]


def _lines(readings: Sequence[KernelReading], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for r in readings:
        whole = sum(line.samples for line in r.lines) or 1.0
        for line in r.lines:
            why = sorted(line.stalls, key=lambda k: -line.stalls[k])[:2]
            found.append(
                {
                    "kernel": r.name,
                    "line": f"{line.file.rpartition('/')[2]}:{line.line}",
                    "percent": round(100 * line.samples / whole, 1),
                    "stalls": ", ".join(why),
                    "text": line.text[:120],
                }
            )
    return found


def _rules(readings: Sequence[KernelReading], name: str) -> list[dict[str, Any]]:
    return [
        {"kernel": r.name, "rule": x.name, "speedup_percent": x.speedup_percent, "scope": x.scope, "text": x.text[:300]}
        for r in readings
        for x in sorted(r.rules, key=lambda x: -(x.speedup_percent or 0.0))
        if x.kind != "INF" and _matches(x.name, name)
    ]


def _matches(text: str, patterns: str) -> bool:
    """Say whether one of the comma-separated patterns is in the text; without `*` it may stand anywhere."""
    low = text.lower()
    return any(
        fnmatch.fnmatchcase(low, p if "*" in p else f"*{p}*")
        for p in (x.strip().lower() for x in patterns.split(","))
        if p
    )


_ROWS = {"kernels": _kernels, "metrics": _metrics, "lines": _lines, "rules": _rules}
