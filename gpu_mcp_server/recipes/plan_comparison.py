"""Two plans on the same problems: run in turn, told apart by pairs."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.models.suite import ComparedPair, PlanComparison, Proportion, SuiteRow
from gpu_mcp_server.recipes.headless_runs import silent
from gpu_mcp_server.recipes.run.bounded_calls import run_bounded
from gpu_mcp_server.recipes.run.paired_statistics import difference_of_shares, mean_of_differences
from gpu_mcp_server.recipes.run.run_context import Tell
from gpu_mcp_server.recipes.suites import RunKeeper, Suites, row_of, run_id_of
from gpu_mcp_server.services.lab import Lab

UNCOMPARED = ("name", "problem", "fresh")
"""Of a plan, what no comparison is about."""


def changed_keys(first: RunPlan, second: RunPlan) -> list[str]:
    """Return what two plans differ in, as `key.key: value | value`.

    Raises:
        BadRequest: If it is nothing, or more than one key of the file's top.
    """
    one, other = (plan.model_dump(mode="json", exclude={*UNCOMPARED}) for plan in (first, second))
    found = [*_differences(one, other, "")]
    tops = sorted({text.partition(":")[0].partition(".")[0] for text in found})
    if not tops:
        raise BadRequest("The two plans are the same.", hint="Change a key; `recipe repeat` says how much one varies.")
    if len(tops) > 1:
        raise BadRequest(
            f"The two plans differ in {', '.join(tops)}: a difference would have no one cause.",
            hint="Let them differ in one key; all of [agent] counts as one.",
        )
    return found


def _differences(one: Any, other: Any, at: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        names: list[str] = [*dict.fromkeys([*one, *other])]  # pyright: ignore[reportUnknownArgumentType] # JSON
        return [
            text
            for name in names
            for text in _differences(one.get(name), other.get(name), f"{at}.{name}".lstrip("."))  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
        ]
    return [] if one == other else [f"{at}: {one!r} | {other!r}"[:300]]


async def compare_plans(
    lab: Lab,
    plans: tuple[RunPlan, RunPlan],
    name: str,
    problems: Mapping[str, Path | str],
    *,
    times: int = 1,
    tell: Tell = silent,
    jobs: int = 1,
    runs: RunKeeper | None = None,
) -> PlanComparison:
    """Run both plans `times` on each problem, in turn, none remembering another; the same call goes on after a kill.

    Raises:
        BadRequest: If the plans differ in nothing or in more than one thing, or a run cannot go on.
    """
    changed = changed_keys(*plans)
    suites = Suites(lab, runs)
    rows: dict[tuple[str, int, int], SuiteRow] = {}

    async def one(problem: str, number: int, side: int) -> None:
        path = problems[problem]
        plan = plans[side].model_copy(update={"fresh": True})
        run_id = run_id_of(name, f"{'ab'[side]}-{problem}-{number}")
        await tell(f"{'AB'[side]} {problem} {number}: begun, {len(rows) + 1} of {len(problems) * times * 2}")

        async def tell_of_run(message: str) -> None:
            await tell(f"{'AB'[side]} {problem} {number} {message}" if jobs > 1 else message)

        rows[problem, number, side] = row_of(problem, await suites.run_problem(plan, run_id, path, tell_of_run))

    order = [(p, n, (n + turn) % 2) for p in problems for n in range(1, times + 1) for turn in (0, 1)]
    await run_bounded(jobs, [partial(one, *each) for each in order])
    pairs = [
        ComparedPair(problem=problem, number=number, a=rows[problem, number, 0], b=rows[problem, number, 1])
        for problem in problems
        for number in range(1, times + 1)
    ]
    report = comparison_of(name, changed, pairs)
    suites.write_report(name, report)
    return report


def comparison_of(name: str, changed: Sequence[str], pairs: Sequence[ComparedPair]) -> PlanComparison:
    """Return what pairs of runs say of two plans; a degenerate problem counts nowhere."""
    counted = [pair for pair in pairs if not (pair.a.degenerate or pair.b.degenerate)]
    passes = [[row.correct for row in side] for side in ([p.a for p in counted], [p.b for p in counted])]
    faster = _means(counted, _log_ratio)
    return PlanComparison(
        name=name,
        changed=[*changed],
        pairs=[*pairs],
        passed_a=Proportion.from_counts(sum(passes[0]), len(counted)),
        passed_b=Proportion.from_counts(sum(passes[1]), len(counted)),
        passed=difference_of_shares(*passes),
        faster=mean_of_differences(faster).exponential(),
        calls=mean_of_differences(_means(counted, lambda p: float(p.b.agent_calls - p.a.agent_calls))),
        tokens=mean_of_differences(_means(counted, lambda p: _minus(p.b.tokens, p.a.tokens))),
        cost_usd=mean_of_differences(_means(counted, lambda p: _minus(p.b.cost_usd, p.a.cost_usd))),
    )


def _means(pairs: Sequence[ComparedPair], value: Callable[[ComparedPair], float | None]) -> list[float]:
    """Return the mean of each problem over its pairs that have the value: repetitions are not independent problems."""
    found: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        if (known := value(pair)) is not None:
            found[pair.problem].append(known)
    if len(found) == 1:
        return next(iter(found.values()))
    return [sum(values) / len(values) for values in found.values()]


def _log_ratio(pair: ComparedPair) -> float | None:
    if not (pair.a.correct and pair.b.correct):
        return None
    if pair.a.speedup and pair.b.speedup:
        return math.log(pair.b.speedup / pair.a.speedup)
    return math.log(pair.a.time_us / pair.b.time_us) if pair.a.time_us and pair.b.time_us else None


def _minus(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None
