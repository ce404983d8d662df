"""The speed target of mode nccl: the user's whole program against its original."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.models.nccl_check import NcclProgramTimes, NcclRunOptions
from gpu_mcp_server.models.suite import PairedDifference
from gpu_mcp_server.recipes.run.paired_statistics import mean_of_differences
from gpu_mcp_server.recipes.run.run_context import Ground


@dataclass(frozen=True)
class ProgramSpeed:
    """Measured speed of a program beside its target."""

    ratio: PairedDifference
    """Time of the original over that of the changed program."""
    said: str
    reached: bool
    measured: bool


async def measure_speed(
    ground: Ground, label: str, original: tuple[Mapping[str, str], str], changed: tuple[Mapping[str, str], str]
) -> ProgramSpeed:
    """Measure a verified program once, as step measure-LABEL."""
    options = NcclRunOptions.model_validate(ground.plan.nccl.model_dump(include=set(NcclRunOptions.model_fields)))

    async def work() -> dict[str, Any]:
        times = await ground.lab.nccl.times.measure(original, changed, options, ground.tell)
        speed = speed_of(times, ground.plan.target.speedup)
        told = {"speedup": speed.ratio.mean} if speed.measured else {}
        ground.hand_off(f"measure-{label}", times)
        return {"outcome": speed.said, "times": times.model_dump(mode="json"), **told}

    done = await ground.step(f"measure-{label}", "measure", work)
    return speed_of(NcclProgramTimes.model_validate(done["times"]), ground.plan.target.speedup)


def speed_of(times: NcclProgramTimes, target: float | None) -> ProgramSpeed:
    """Return how many times faster the changed program is, as the geometric mean over the pairs with its interval."""
    if times.not_measured or not times.changed_s:
        nothing = times.not_measured or "no pair was run"
        return ProgramSpeed(PairedDifference(of=0), f"not measured: {nothing}", reached=False, measured=False)
    pairs = zip(times.original_s, times.changed_s, strict=True)
    ratio = mean_of_differences([math.log(before / after) for before, after in pairs]).exponential()
    reached = target is not None and ratio.low is not None and ratio.low >= target
    said = f"the whole program is {ratio.text('.3g')} times as fast as the original"
    return ProgramSpeed(ratio, said + (f"; target {target:g}" if target is not None else ""), reached, measured=True)
