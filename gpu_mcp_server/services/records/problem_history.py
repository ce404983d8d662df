"""The course of the work on a problem."""

import json
import sqlite3
from collections.abc import Sequence

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory, rank_of, with_best
from gpu_mcp_server.services.records.trust import trust_of
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import visibility_condition
from gpu_mcp_server.store.problem_aliases import require_problem

MAX_POINTS = 10_000
"""Evaluations that are read; a picture of more shows nothing else."""


def history_points(rows: Sequence[sqlite3.Row]) -> list[HistoryPoint]:
    """Number rows in their order, and say at each the best so far, as rankings order attempts."""
    points: list[HistoryPoint] = []
    best: HistoryPoint | None = None
    for number, row in enumerate(rows, 1):
        outcome = "voided" if row["voided"] else row["verdict"] or row["status"]
        same = (
            "attempt_id", "parent_id", "created_at", "speedup", "median_us", "robust", "reason", "note", "by_time",
            "speedup_low", "speedup_high", "user", "shape", "source_artifact_id",
        )  # fmt: skip
        timed = row["speedup"] is not None or bool(row["by_time"])
        evidence = json.loads(row["evidence"] or "{}")
        word = trust_of(row["verdict"], row["voided"], evidence, timed=timed)
        told = {name: row[name] for name in same} | {"time_range_us": evidence.get("time_range_us")}
        found = HistoryPoint(number=number, outcome=outcome, trust=word, **told)
        if outcome == "correct" and timed:
            best = min(best or found, found, key=rank_of)
        points.append(with_best(found, best))
    return points


class ProblemHistoryReader:
    """Reads the evaluations of a problem in order of time."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def read_history(
        self, problem_id: str, device: str | None = None, *, driver: str | None = None, board: bool = False
    ) -> ProblemHistory:
        """Return what was evaluated on one device: the one given, or that with most evaluations.

        With `board`, what was evaluated there under another driver is left out.

        Attempts that never reached a device, such as those that did not compile, belong to every device.

        Raises:
            NotFound: If there is no such problem, or nothing was evaluated on that device.
        """
        problem_id = await require_problem(self._db, problem_id)
        problem = await self._db.fetch_one(
            "SELECT json ->> 'name' AS name FROM problems WHERE problem_id = ?", (problem_id,)
        )
        seen, values = visibility_condition("attempt_id")
        counted = await self._db.fetch_all(
            f"SELECT device FROM attempts WHERE problem_id = ? AND {seen} AND kind = 'evaluate' "  # noqa: S608
            "AND device IS NOT NULL GROUP BY device ORDER BY count(*) DESC, device",
            (problem_id, *values),
        )
        devices = [row["device"] for row in counted]
        if device is not None and device not in devices:
            raise NotFound("device with evaluations", device, hint=f"There are: {', '.join(devices) or 'none'}.")
        device = device or (devices[0] if devices else None)
        rows = await self._db.fetch_all(
            "SELECT attempt_id, parent_id, created_at, status, verdict, voided, "  # noqa: S608 - conditions are our own
            "speedup, median_us, reason, note, source_artifact_id, evidence, evidence ->> 'robust' AS robust, "
            "evidence ->> 'timed_at' AS shape, "
            "evidence ->> '$.speedup_range[0]' AS speedup_low, evidence ->> '$.speedup_range[1]' AS speedup_high, "
            "coalesce(evidence ->> 'ranked_by' = 'time', 0) AS by_time, "
            "(SELECT min(owner) FROM owners WHERE handle = attempts.attempt_id) AS user "
            f"FROM attempts WHERE problem_id = ? AND {seen} AND kind = 'evaluate' AND status != 'running' "
            "AND (device IS NULL OR device = ?) AND (NOT ? OR device IS NULL OR driver IS ?) ORDER BY seq LIMIT ?",
            (problem_id, *values, device, board, driver, MAX_POINTS),
        )
        return ProblemHistory(
            problem_id=problem_id,
            name=problem["name"] if problem else "",
            device=device,
            devices=devices,
            points=history_points(rows),
        )
