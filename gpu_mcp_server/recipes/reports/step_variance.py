"""Which step makes repeated runs of one plan differ: whose answers do, and whose gains spread the result."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.models.suite import StepVariance
from gpu_mcp_server.recipes.reports.text_difference import mean_difference

Journal = Sequence[Mapping[str, Any]]


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
    """Return by how much each step raised the best speed-up so far; a candidate's gain is its author's step's."""
    best, found = 0.0, dict[str, float]()
    for entry in journal:
        if entry["event"] != "done" or not ("verdict" in entry or "verdicts" in entry):
            continue
        verdicts = [Verdict.model_validate(one) for one in [entry.get("verdict"), *entry.get("verdicts", [])] if one]
        speeds = [one.speedup for one in verdicts if one.outcome == "correct" and not one.coarse and one.speedup]
        now = max([best, *speeds])
        step = str(entry["step"])
        found[step.replace("judge-", "code-", 1) if "verdict" in entry else step] = now - best
        best = now
    return found


def _covariance(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.covariance(one, other) if len(one) > 1 else 0.0


def _place(step: str) -> tuple[bool, str, str]:
    """Return where a step stands: preparations first, then by number."""
    name, _, number = step.partition("-0")
    return name in ("code", "judge", "reflect", "tune", "session"), number, name
