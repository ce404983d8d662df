"""Attribute differences between repeated runs of a plan to steps: differing answers, and the spread of gains."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.suite import StepVariance
from gpu_mcp_server.recipes.headless_runs import settled_verdicts
from gpu_mcp_server.recipes.reports.text_difference import mean_difference
from gpu_mcp_server.recipes.run.prompt_verdict import rate, trusted_worth

Journal = Sequence[Mapping[str, Any]]
LOOP = ("code", "judge", "reflect", "tune", "session")
"""Steps that come once a candidate or a round, after the preparations."""
_NUMBERED = re.compile(r"([a-z-]+?)-(\d+)(?!\w)")


def variance_by_step(journals: Sequence[Journal], answers: Sequence[Mapping[str, str]]) -> list[StepVariance]:
    """Return for each step of repeated runs its share of the spread of their best speed-ups, in order of the steps.

    Args:
        journals: Of each run, its entries.
        answers: Of each run, the agent's answer by step.

    Source:
        The best so far starts at 0 and ends at the run's result, so the result is the sum of the steps' gains, and
        Var(result) = sum over steps of Cov(gain of the step, result). A share is one term over the sum: all of them
        add up to 1, and a step that makes runs alike has a negative one.
    """
    gains = [gains_of(journal) for journal in journals]
    results = [sum(own.values()) for own in gains]
    whole = _covariance(results, results)
    names = dict.fromkeys(name for own in (*answers, *gains) for name in own)
    return [
        StepVariance(
            step=name,
            runs=sum(name in own or name in said for own, said in zip(gains, answers, strict=True)),
            difference=mean_difference([own[name] for own in answers if name in own]),
            share=_covariance([own.get(name, 0.0) for own in gains], results) / whole if whole else None,
        )
        for name in sorted(names, key=_place)
    ]


def gains_of(journal: Journal) -> dict[str, float]:
    """Return by how much each step raised the speed-up of the best so far; a candidate's gain is its author's step's.

    Verdicts count as confirmation runs left them, and the better one is as for rankings. Where there is no baseline,
    calls a second stand for the speed-up. In agent mode steps have names of attempts, which no two runs share: there a
    candidate is the first, the second ... that the agent had judged.
    """
    settled, own, found = settled_verdicts(journal), 0, dict[str, float]()
    best: Verdict | None = None
    for entry in journal:
        judged = "verdict" in entry or "verdicts" in entry
        if entry["event"] != "done" or not judged or entry.get("kind") == "confirm":
            continue
        read = [Verdict.model_validate(one) for one in [entry.get("verdict"), *entry.get("verdicts", [])] if one]
        left = [settled.get(one.attempt_id, one) for one in read if not one.coarse]
        good = [one for one in [best, *left] if one is not None and one.outcome == "correct" and rate(one)]
        now = max(good, key=trusted_worth, default=None)
        step = str(entry["step"])
        if step.startswith("judge-a-"):
            own += 1
            step = f"judge-{own:03}"
        found[step.replace("judge-", "code-", 1) if "verdict" in entry else step] = rate(now) - rate(best)
        best = now
    return found


def _covariance(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.covariance(one, other) if len(one) > 1 else 0.0


def _place(step: str) -> tuple[bool, int, str]:
    """Return where a step stands: preparations first, then by number."""
    found = _NUMBERED.match(step)
    name, number = (found[1], int(found[2])) if found else (step, 0)
    return name in LOOP, number, step
