"""Bounds of a correct candidate below its target: from a profile, or the judge's times where none can be made."""

import json
from typing import Any

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.evaluation import ShapeVerdict
from gpu_mcp_server.models.profile import Advice, KernelVerdict, ProfileLevel, ProfileResult
from gpu_mcp_server.models.recipe import NOT_MEASURED, AdviceScore, CandidateProfile, Verdict
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.recipes.run.run_candidates import judged
from gpu_mcp_server.recipes.run.run_context import Ground
from gpu_mcp_server.time_format import format_time

LEVELS: tuple[ProfileLevel, ...] = ("standard", "quick")
"""Counters first; a timeline where they are denied or cannot be read."""
EVIDENCE_CHARACTERS = 1600
REASON_CHARACTERS = 300
LEAST_SHARE_LEFT = 0.1
"""No advice is said to make a candidate more than ten times faster: its weight is a rule of thumb."""
ADVICE = "advice"
"""Under which name an attempt's evidence has the score of the advice that it followed."""
FLOOR_ADVICE = {
    "memory": "move fewer bytes: read each input once, keep intermediate values in registers, use wide loads",
    "compute": "use the fastest units of this type (tensor instructions), and keep them fed",
    "launch": "use one launch; nothing inside the kernel can bring more",
}


async def profile_candidate(ground: Ground, step: str, verdict: Verdict) -> CandidateProfile | None:
    """Profile a correct candidate that was timed, once; None of any other.

    Counters are asked for first, then a timeline. Where neither can be had, the judge's time and floor stand alone.
    """
    if verdict.stage != "performance" or verdict.attempt_id is None or ground.plan.tier != "performance":
        return None
    attempt_id = verdict.attempt_id

    async def work() -> dict[str, Any]:
        found, why = await _measured(ground, attempt_id)
        found = found or await _timed(ground, verdict, why)
        ground.hand_off(step, found)
        outcome = f"{found.level}: {bound_text(found)}" if found.level != "times" else "times alone"
        return {"outcome": outcome, "profile": found.model_dump(mode="json")}

    return CandidateProfile.model_validate((await ground.step(step, "profile", work))["profile"])


async def score_advice(ground: Ground, profile: CandidateProfile | None, before: Verdict, after: Verdict) -> None:
    """Keep with the attempt that followed an advice what the advice promised and what came of it."""
    if profile is None or not profile.topic or after.attempt_id in (None, profile.attempt_id):
        return
    score = AdviceScore(
        topic=profile.topic, predicted=profile.predicted, measured=gain_of(before, after), profiled=profile.attempt_id
    )
    await ground.lab.store.experience.add_evidence(str(after.attempt_id), ADVICE, score.model_dump_json())


def gain_of(before: Verdict, after: Verdict) -> float | None:
    """Return how many times faster a correct verdict is than another; None where either is not correct or not timed."""
    if before.outcome != "correct" or after.outcome != "correct":
        return None
    if before.speedup and after.speedup:
        return after.speedup / before.speedup
    return before.median_us / after.median_us if before.median_us and after.median_us else None


def bound_text(profile: CandidateProfile) -> str:
    """Say what bounds a candidate, or that it is not measured."""
    return f"bound by {profile.bound}" if profile.bound != NOT_MEASURED else "what bounds it is not measured"


def profile_text(profile: CandidateProfile | None) -> str:
    """Return a profile as the next prompt has it; nothing without one."""
    if profile is None:
        return ""
    said = [f"Profile of {profile.attempt_id} ({profile.level}): {bound_text(profile)}.", profile.evidence]
    if profile.advice:
        gain = f" It may become {profile.predicted:.2g} times as fast by it." if profile.predicted else ""
        said.append(f"Try one thing: {profile.advice}.{gain} The next verdict scores this advice.")
    said += [f"Not measured: {profile.not_measured}"] if profile.not_measured else []
    return "\n".join(part for part in said if part)


async def _measured(ground: Ground, attempt_id: str) -> tuple[CandidateProfile | None, str]:
    """Return the profile of the highest level that has an answer, or None and why no level has one."""
    profiler, why = ground.lab.profiles.profiler, ""
    for level in LEVELS:
        try:
            result = await profiler.profile(RunTarget(attempt_id=attempt_id, host=ground.plan.host), level)
        except GpuMcpError as error:
            why = str(error)[:REASON_CHARACTERS]
            continue
        kernel = result.kernels[0] if result.kernels else None
        if kernel is not None and (kernel.bound is not None or level == LEVELS[-1]):
            return _of_kernel(attempt_id, result, kernel), ""
        why = "; ".join([*result.not_measured, result.note or result.status])[:REASON_CHARACTERS]
    return None, why


def _of_kernel(attempt_id: str, result: ProfileResult, kernel: KernelVerdict) -> CandidateProfile:
    first = kernel.first
    return CandidateProfile(
        attempt_id=attempt_id,
        level="standard" if result.level == "standard" else "quick",
        profile_id=result.profile_id,
        bound=_bound(kernel),
        evidence=result.verdict[:EVIDENCE_CHARACTERS],
        topic=first.topic if first else "",
        advice=first.text.rstrip(".") if first else "",
        predicted=predicted_gain(first, kernel.share_percent) if first else None,
        not_measured="; ".join(result.not_measured)[:REASON_CHARACTERS],
    )


def _bound(kernel: KernelVerdict) -> str:
    if kernel.bound is None:
        return NOT_MEASURED
    return f"{kernel.bound} ({kernel.bound_percent:.0f} %)" if kernel.bound_percent is not None else kernel.bound


def predicted_gain(advice: Advice, share_percent: float | None) -> float:
    """Return how many times faster all kernels become if an advice wins its part of one kernel's time.

    Source:
        Amdahl's law: 1 / (1 - won), where won is the advice's part times the kernel's share of the time.
    """
    won = advice.share * (share_percent if share_percent is not None else 100.0) / 100
    return 1 / max(1 - won, LEAST_SHARE_LEFT)


async def _timed(ground: Ground, verdict: Verdict, why: str) -> CandidateProfile:
    """Return what the judge's own times say: the last shape against its floor, where the device has one."""
    assert verdict.attempt_id is not None
    candidates = await judged(ground.lab, [verdict])
    shape = candidates[0].shapes[-1] if candidates and candidates[0].shapes else None
    profile = CandidateProfile(attempt_id=verdict.attempt_id, level="times", not_measured=why)
    if shape is None or shape.candidate is None:
        return profile
    return profile.model_copy(update=_against_floor(shape, shape.candidate.median_us))


def _against_floor(shape: ShapeVerdict, median_us: float) -> dict[str, Any]:
    at = f"{format_time(median_us / 1e6)} at {json.dumps(shape.dims)}"
    if not shape.floor_us or shape.floor_by is None:
        return {"evidence": f"{at}; the device's floor is not known"}
    room = median_us / shape.floor_us
    return {
        "evidence": f"{at}; the floor is {format_time(shape.floor_us / 1e6)}, by {shape.floor_by}",
        "topic": f"floor {shape.floor_by}",
        "advice": FLOOR_ADVICE[shape.floor_by],
        "predicted": min(max(room, 1.0), 1 / LEAST_SHARE_LEFT),
    }
