"""Tuning: every choice of a source's parameters is judged, coarsely first; no agent is called.

A point whose interval lies beyond the fastest point's is dominated, and is not timed further.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.recipe import Candidate, TunedPoint, TuningTable, Verdict, parameters_text
from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.ranking import bound_of, overlap
from gpu_mcp_server.recipes.run.batch_judging import judge_batch
from gpu_mcp_server.recipes.run.parameter_sampling import check_sampler, propose_points
from gpu_mcp_server.recipes.run.prompt_verdict import is_doubted
from gpu_mcp_server.recipes.run.run_context import Ending, Ground
from gpu_mcp_server.recipes.run.tuning_space import MOST_LISTED, TuningSpace, with_parameters
from gpu_mcp_server.services.builds.candidate_source import MAX_SOURCE_BYTES
from gpu_mcp_server.services.evaluation.candidate_batches import MAX_CANDIDATES
from gpu_mcp_server.services.workspaces.local_files import read_local

COARSE = 0.1
"""Half the width of an interval, as a part of the median, that is enough to tell that a point is dominated."""
ROUND = 16
"""Points that the sampler proposes at once."""
TABLE = "tuning-001"
"""Step that notes the points of a sweep."""
EVIDENCE = "parameters"
"""Under which name an attempt's evidence has the point that it is."""


@dataclass
class Sweep:
    """One source's points."""

    ground: Ground
    source: str
    space: TuningSpace
    parent_id: str | None
    number: int = 0
    sampled: bool = False

    async def run(self) -> list[TunedPoint]:
        """Judge points until all are judged or the time is over; those that are not dominated once more, exactly.

        Raises:
            BadRequest: If the source does not define a parameter once, or a constraint cannot be read.
        """
        listed = self._listed()
        self.sampled = listed is None
        points = await self._swept(listed) if listed is not None else await self._sampled()
        points = mark_dominated(points)
        left = [point for point in points if point.outcome == "correct" and point.dominated_by is None]
        for chunk in _chunks([point.parameters for point in left], MAX_CANDIDATES):
            points = with_exact(points, await self._judge(chunk, None))
        return await self._noted(points)

    async def _noted(self, points: Sequence[TunedPoint]) -> list[TunedPoint]:
        """Note the table as a step of its own."""

        async def work() -> dict[str, Any]:
            table = TuningTable(points=in_order(points), space=self.space.size, sampled=self.sampled)
            self.ground.hand_off(TABLE, table)
            outcome = f"{len(points)} of {self.space.size:,} points" + (", by optuna" if self.sampled else "")
            return {"outcome": outcome, "tuning": table.model_dump(mode="json")}

        done = await self.ground.step(TABLE, "tune", work)
        return TuningTable.model_validate(done["tuning"]).points

    def _listed(self) -> list[Point] | None:
        """Return all points that comply; None where there are more than may be tried."""
        trials = self.ground.plan.tuning.trials
        if self.space.size <= MOST_LISTED:
            found = list(islice(self.space.points(), trials + 1))
            if len(found) <= trials:
                return found
        check_sampler(self.space, trials)
        return None

    async def _swept(self, listed: Sequence[Point]) -> list[TunedPoint]:
        points: list[TunedPoint] = []
        for chunk in _chunks(listed, MAX_CANDIDATES):
            if self.ground.time_over() is not None:
                break
            points += await self._judge(chunk, COARSE)
        return points

    async def _sampled(self) -> list[TunedPoint]:
        points: list[TunedPoint] = []
        trials = self.ground.plan.tuning.trials
        while len(points) < trials and self.ground.time_over() is None:
            begun = self.ground.journal.begun(f"tune-{self.number + 1:03}")
            wanted = min(ROUND, trials - len(points))
            chosen = begun["points"] if begun else propose_points(self.space, points, wanted, self.number)
            if not chosen:
                break
            points += await self._judge(chosen, COARSE)
        return points

    async def _judge(self, points: Sequence[Point], half_width: float | None) -> list[TunedPoint]:
        """Judge points in one call; what the journal has of the step goes before what is proposed now."""
        self.number += 1
        step, ground = f"tune-{self.number:03}", self.ground
        begun = ground.journal.begun(step)
        fresh = {} if begun else {"points": list(points), "coarse": half_width is not None}
        children = [
            (
                f"{step}-{rank:02}",
                Candidate(
                    source=with_parameters(self.source, ground.plan.language, point),
                    idea=parameters_text(point),
                    parameters=point,
                ),
            )
            for rank, point in enumerate(points, 1)
        ]
        verdicts = await judge_batch(
            ground, step, children, self.parent_id, kind="tune", half_width=half_width, **fresh
        )
        return [await self._tuned(p, v, half_width is not None) for p, v in zip(points, verdicts, strict=True)]

    async def _tuned(self, point: Point, verdict: Verdict, coarse: bool) -> TunedPoint:
        found = point_of(point, verdict, coarse)
        if verdict.attempt_id is None:
            return found
        experience = self.ground.lab.store.experience
        await experience.add_evidence(verdict.attempt_id, EVIDENCE, parameters_text(point))
        return found.model_copy(update=_intervals(await experience.get(verdict.attempt_id)))


async def tune(ground: Ground) -> Ending:
    """Sweep the source of the plan."""
    path = Path(cast("str", ground.plan.tuning.source))
    source = (await asyncio.to_thread(read_local, path, MAX_SOURCE_BYTES)).decode()
    try:
        points = await _sweep_of(ground, source, None).run()
    except BadRequest as error:
        return Ending("refused", f"{error} {error.hint}".strip()[:500])
    return _ending(ground, points)


async def tune_best(ground: Ground, ending: Ending) -> Ending:
    """Sweep the best of a run that ended below its target, where the plan has parameters and the best defines them."""
    plan = ground.plan
    over = ending.stopped in ("target", "cached") or ground.time_over() is not None
    if plan.mode == "tune" or not plan.tune or over or ground.best is None:
        return ending
    try:
        points = await _sweep_of(ground, ground.best_source, ground.best.attempt_id).run()
    except BadRequest as error:
        return Ending(ending.stopped, f"{ending.why}; not tuned: {error}"[:500])
    tuned = _ending(ground, points)
    return Ending("target" if tuned.stopped == "target" else ending.stopped, f"{ending.why}; {tuned.why}"[:500])


def _sweep_of(ground: Ground, source: str, parent_id: str | None) -> Sweep:
    return Sweep(ground, source, TuningSpace(ground.plan.tune, tuple(ground.plan.tuning.constraints)), parent_id)


def _ending(ground: Ground, points: Sequence[TunedPoint]) -> Ending:
    if not points:
        return Ending("refused", "no point of [tune] complies with tuning.constraints")
    counts = f"{len(points)} points: {sum(p.outcome == 'correct' for p in points)} correct, "
    counts += f"{sum(p.dominated_by is not None for p in points)} dominated"
    if points[0].outcome != "correct":
        return Ending("tuned", counts)
    said = f"{counts}; the fastest: {points[0].parameters_text()}"
    if ground.best is not None and ground.best.stage == "target":
        return Ending("target", f"{ground.best.attempt_id} reached it; {said}")
    return Ending("tuned", said)


def point_of(parameters: Point, verdict: Verdict, coarse: bool) -> TunedPoint:
    """Return a verdict as a point, without intervals."""
    return TunedPoint(
        parameters=parameters, outcome=verdict.outcome, attempt_id=verdict.attempt_id, speedup=verdict.speedup,
        median_us=verdict.median_us, coarse=coarse, trust=verdict.trust, reason=verdict.reason[:300],
    )  # fmt: skip


def _intervals(attempt: Attempt) -> dict[str, Any]:
    evidence = attempt.evidence or {}
    ranked_us = evidence.get("time_range_us") or evidence.get("median_range_us")
    kept = {"speedup_range": evidence.get("speedup_range"), "median_range_us": ranked_us}
    return {name: tuple(ends) for name, ends in kept.items() if ends}


def mark_dominated(points: Sequence[TunedPoint]) -> list[TunedPoint]:
    """Return the points, each with a faster one whose interval lies beyond its own; one without an interval stays."""
    best = next(iter(in_order([point for point in points if point.outcome == "correct"])), None)
    if best is None:
        return [*points]
    return [
        point.model_copy(update={"dominated_by": best.attempt_id or "another"}) if dominates(best, point) else point
        for point in points
    ]


def dominates(one: TunedPoint, other: TunedPoint) -> bool:
    """Say whether one correct point is faster than another beyond both intervals."""
    if "correct" not in (one.outcome, other.outcome) or one.outcome != other.outcome:
        return False
    if is_doubted(one.trust) and not is_doubted(other.trust):
        return False
    intervals = [(each.speedup_range, each.median_range_us) for each in (one, other)]
    return overlap(*intervals) is False


def in_order(points: Iterable[TunedPoint]) -> list[TunedPoint]:
    """Return points, the fastest first: exactly timed ones ahead of coarse ones, then those that are not correct.

    The speed-up that a point has at least counts, without one the time at most; an unconfirmable one stands behind.
    """

    def rank(point: TunedPoint) -> tuple[bool, bool, bool, float, float]:
        bound = bound_of(point.speedup, point.speedup_range, point.median_us, point.median_range_us)
        return point.outcome != "correct", point.dominated_by is not None, is_doubted(point.trust), *bound

    return sorted(points, key=rank)


def with_exact(points: Sequence[TunedPoint], exact: Sequence[TunedPoint]) -> list[TunedPoint]:
    """Return the points with those that were judged once more in their place."""
    later = {point.parameters_text(): point for point in exact}
    return [later.get(point.parameters_text(), point) for point in points]


def tuned_points(entries: Iterable[Mapping[str, Any]]) -> list[TunedPoint]:
    """Return the points of the sweep that finished steps of a journal have, the fastest first."""
    found = next((entry["tuning"] for entry in entries if "tuning" in entry), None)
    return TuningTable.model_validate(found).points if found is not None else []


def _chunks(points: Sequence[Point], size: int) -> list[Sequence[Point]]:
    return [points[at : at + size] for at in range(0, len(points), size)]
