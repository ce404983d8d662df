"""Points of a space that is too large to sweep: proposed by optuna from what was judged so far."""

from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.recipe import TunedPoint
from gpu_mcp_server.models.run_plan import Point
from gpu_mcp_server.recipes.run.tuning_space import TuningSpace

TRIES = 200
"""Proposals for each point that is wanted; those that break a constraint or were judged are left out."""


def check_sampler(space: TuningSpace, trials: int) -> None:
    """Return if optuna can be imported.

    Raises:
        BadRequest: If it is not installed.
    """
    try:
        import optuna as optuna  # pyright: ignore[reportMissingImports] # an extra
    except ImportError:
        raise BadRequest(
            f"[tune] has {space.size:,} points, more than tuning.trials {trials}, and optuna is not installed.",
            hint="Install gpu-mcp-server[tune], or leave fewer points by values, constraints or more trials.",
        ) from None


def propose_points(space: TuningSpace, judged: Sequence[TunedPoint], count: int, seed: int) -> list[Point]:
    """Return up to `count` new points that comply; the same ones for the same history and seed.

    A point that is not correct, or was not timed, counts as one without speed: the sampler keeps away from it.

    Source:
        Tree-structured Parzen estimator: Bergstra et al., Algorithms for hyper-parameter optimization, NIPS 2011, as
        in optuna (TPESampler); `constant_liar` spreads the proposals of one round.
    """
    import optuna  # pyright: ignore[reportMissingImports] # an extra; 0.5 s to import

    tools: Any = optuna
    tools.logging.set_verbosity(tools.logging.WARNING)
    sampler = tools.samplers.TPESampler(seed=seed, constant_liar=True)
    study = tools.create_study(direction="maximize", sampler=sampler)
    choices = {
        name: tools.distributions.CategoricalDistribution(list(range(len(values))))
        for name, values in space.values.items()
    }
    for one in judged:
        at = {name: space.values[name].index(value) for name, value in one.parameters.items()}
        study.add_trial(tools.trial.create_trial(params=at, distributions=choices, value=_speed(one)))
    known = [point.parameters for point in judged]
    found: list[Point] = []
    for _ in range(TRIES * count):
        indices = study.ask(choices).params
        point: Point = {name: values[indices[name]] for name, values in space.values.items()}
        if point not in known and space.admits(point):
            known.append(point)
            found.append(point)
            if len(found) == count:
                break
    return found


def _speed(point: TunedPoint) -> float:
    if point.outcome != "correct":
        return 0.0
    if point.speedup is not None:
        return point.speedup
    return 1 / point.median_us if point.median_us else 0.0
