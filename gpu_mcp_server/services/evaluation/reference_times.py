"""Times of a problem's reference on a GPU, kept from evaluation to evaluation: a speed-up counts the smaller one.

A kernel that a candidate left running slows the reference on both clocks, and so makes the candidate look faster. What
the reference took beside other candidates tells.
"""

import hashlib
import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.evaluation import overall_speedup
from gpu_mcp_server.services.evaluation.judge_files import judge_sha256
from gpu_mcp_server.services.evaluation.judge_job import shape_verdicts
from gpu_mcp_server.store.database import Database

COUNTED = 9
"""The newest evaluations, of which the median counts: a GPU that became slower for good is believed after five."""
ALIKE = 2
"""Times as many calls of a round, or as few, that an evaluation may have had to count: weights are cold in a round's
first call alone, and a slow candidate has few."""
LEAST = 3
"""Evaluations below which none counts: one may have been lucky."""
ALLOWED = 0.1
"""Part of a time that the judge's two clocks may differ by, as in judge/timing/series.py, which imports NumPy."""
FORMAT = 1
SLOWED = (
    "the reference took %.4g us, but %.4g us in the median of %d earlier evaluations, and speedup and speedup_low "
    "count the latter: look for other work on the GPU and its host, and judge again (timing.fresh)"
)
EARLIER = (
    "SELECT t.median_us FROM reference_times t JOIN attempts a USING (attempt_id) "
    "LEFT JOIN attempts p ON p.attempt_id = a.parent_id AND a.kind = 'confirm' "
    "WHERE t.key = ? AND t.calls BETWEEN ? AND ? AND a.voided IS NULL AND p.voided IS NULL "
    "AND a.seq < (SELECT seq FROM attempts WHERE attempt_id = ?) ORDER BY a.seq DESC LIMIT ?"
)
"""What a voided candidate was judged beside counts no more, nor does its confirmation run."""


class ReferenceTimes:
    """The table, shared by all servers on a store."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def compare(self, attempt: Attempt, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """Return a verdict whose speed-ups count what the reference took before, where it is slower today.

        The upper ends stay: the candidate may have been as slow as the reference, for a reason of the machine's.
        """
        if not _is_compared(attempt, verdict):
            return dict(verdict)
        shapes = [await self._compared(attempt, verdict, shape) for shape in verdict["shapes"]]
        if shapes == verdict["shapes"]:
            return dict(verdict)
        whole = overall_speedup(shape_verdicts({"shapes": shapes}), [shape["speedup"] for shape in shapes])
        return {**verdict, "shapes": shapes, "speedup": whole}

    async def keep(self, attempt: Attempt, verdict: Mapping[str, Any]) -> None:
        """Keep what the reference took beside a candidate whose time is no doubtful one; may be done twice."""
        if not _is_compared(attempt, verdict):
            return
        rows = [
            (_key(attempt, verdict, shape), attempt.attempt_id, timed["calls_per_round"], timed["median_us"])
            for shape in verdict["shapes"]
            for timed in [shape["reference"]]
        ]
        await self._db.execute_many("INSERT OR IGNORE INTO reference_times VALUES (?, ?, ?, ?)", rows)

    async def _compared(
        self, attempt: Attempt, verdict: Mapping[str, Any], shape: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        key, calls = _key(attempt, verdict, shape), shape["reference"]["calls_per_round"]
        alike = calls / ALIKE, calls * ALIKE
        rows = await self._db.fetch_all(EARLIER, (key, *alike, attempt.attempt_id, COUNTED))
        today_us, timed = shape["reference"]["median_us"], shape["candidate"]
        before_us = median(row["median_us"] for row in rows) if len(rows) >= LEAST else today_us
        # Closer than that the rounds' own ratios are better evidence: drift slows both sides of a round.
        if today_us <= (1 + ALLOWED) * before_us:
            return shape
        return {
            **shape,
            "speedup": min(shape["speedup"], before_us / timed["median_us"]),
            "speedup_low": min(shape["speedup_low"], before_us / timed["high_us"]),
            "reference_before_us": before_us,
            "notes": [*shape.get("notes", []), SLOWED % (today_us, before_us, len(rows))],
        }


def _is_compared(attempt: Attempt, verdict: Mapping[str, Any]) -> bool:
    """Say whether a verdict has a speed-up over a reference on a GPU; a program's time is that of a process."""
    return attempt.target == "cuda" and attempt.language != "program" and verdict.get("speedup") is not None


def _key(attempt: Attempt, verdict: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    """Return what the reference's time at a shape depends on: problem, GPU, host, software, judge and clock."""
    about = [
        FORMAT,
        attempt.problem_hash,
        shape["dims"],
        shape.get("basis"),
        verdict.get("device"),
        attempt.driver,
        attempt.host,
        attempt.versions,
        judge_sha256(),  # harness_sha256 differs between kinds of candidates, and one could choose its kind
    ]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
