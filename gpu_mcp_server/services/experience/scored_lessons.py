"""Lessons from attempts and what came after them: mended failures, advice and hints that were followed.

Nothing is written for these lessons: they follow from attempts, their parents and their evidence.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence

from gpu_mcp_server.models.experience import Lesson
from gpu_mcp_server.store.database import Database, Value

SCANNED = 2000
"""Newest attempts that scores are read from."""
FAILURE_CHARACTERS = 120
SHOWN = 240


async def find_fixes(db: Database, steps: str, verified: str, values: Sequence[Value], limit: int) -> list[Lesson]:
    """Return steps from a failed parent to a verified child: what failed, and what the child did.

    Args:
        db: The store.
        steps: FROM and WHERE over attempts `a`, their parents `b` and `problems`.
        verified: Condition on a verified `a`.
        values: Of the placeholders in `steps`.
        limit: How many.
    """
    rows = await db.fetch_all(
        f"SELECT a.attempt_id, a.note, b.reason, problems.json ->> 'name' AS problem {steps} AND {verified} "
        "AND a.problem_id = b.problem_id AND a.note IS NOT NULL AND b.reason IS NOT NULL "
        "AND (b.verdict = 'incorrect' OR b.status = 'compile_failed') ORDER BY a.seq DESC LIMIT ?",
        (*values, limit),
    )
    return [
        Lesson(
            kind="fix", says=f"{row['reason'].partition(chr(10))[0][:FAILURE_CHARACTERS]} -> {row['note']}"[:SHOWN],
            problem=row["problem"], attempt_id=row["attempt_id"],
        )
        for row in rows
    ]  # fmt: skip


async def score_summaries(
    db: Database, attempts: str, verified: str, values: Sequence[Value], limit: int
) -> list[Lesson]:
    """Return for each kind of advice on each device what it promised and what it brought, the most tried first.

    What was voided, or has a time in doubt, brought nothing that is known.

    Args:
        db: The store.
        attempts: FROM and WHERE over attempts `a` and `problems`.
        verified: Condition on a verified `a`.
        values: Of its placeholders.
        limit: How many.
    """
    rows = await db.fetch_all(
        f"SELECT a.device, a.evidence ->> 'advice' AS score, {verified} AND NOT a.doubted AS sure "
        f"{attempts} AND a.evidence ->> 'advice' IS NOT NULL ORDER BY a.seq DESC LIMIT ?",
        (*values, SCANNED),
    )
    groups: defaultdict[tuple[str, str], list[dict[str, float | None]]] = defaultdict(list)
    for row in rows:
        score = json.loads(row["score"])
        if not row["sure"]:
            score["measured"] = None
        groups[score["topic"], row["device"] or "unknown device"].append(score)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [_advice_lesson(topic, device, scores) for (topic, device), scores in ordered[:limit]]


def _advice_lesson(topic: str, device: str, scores: Sequence[dict[str, float | None]]) -> Lesson:
    promised = [score["predicted"] for score in scores if score["predicted"] is not None]
    brought = [score["measured"] for score in scores if score["measured"] is not None]
    faster = sum(gain > 1 for gain in brought)
    said = f"advice {topic!r} on {device}"
    said += f": predicted {statistics.median(promised):.2f}x" if promised else ""
    said += f", measured {statistics.median(brought):.2f}x (medians)" if brought else ", never measured"
    said += f"; faster in {faster} of {len(scores)}"
    failed = len(scores) - len(brought)
    said += f", not correct or not timed in {failed}" if failed else ""
    return Lesson(kind="advice", says=said[:SHOWN], times=len(scores))


async def hint_effects(db: Database, attempts: str, values: Sequence[Value], limit: int) -> list[Lesson]:
    """Return hints of the reflector and whether the attempt that followed got further, newest first.

    Of one that was voided nothing is told: how far it got was not so.

    Args:
        db: The store.
        attempts: FROM and WHERE over attempts `a` and `problems`.
        values: Of its placeholders.
        limit: How many.
    """
    rows = await db.fetch_all(
        "SELECT a.attempt_id, a.evidence ->> 'hint' AS score, problems.json ->> 'name' AS problem "
        f"{attempts} AND a.evidence ->> 'hint' IS NOT NULL AND a.voided IS NULL ORDER BY a.seq DESC LIMIT ?",
        (*values, limit),
    )
    found: list[Lesson] = []
    for row in rows:
        score = json.loads(row["score"])
        effect = "helped" if score["helped"] else "did not help"
        said = f"{effect} ({score['before']} to {score['after']}): {score['text']}"
        found.append(Lesson(kind="hint", says=said[:SHOWN], problem=row["problem"], attempt_id=row["attempt_id"]))
    return found
