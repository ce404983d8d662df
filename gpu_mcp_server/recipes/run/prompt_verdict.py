"""From an evaluation to the verdict that the next prompt is made of: the stage at which a candidate failed."""

from collections.abc import Sequence

from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict
from gpu_mcp_server.models.recipe import Stage, Verdict
from gpu_mcp_server.models.run_plan import RunPlan
from gpu_mcp_server.ranking import bound_of, trust_place
from gpu_mcp_server.services.experience.experience_search import signature

VOIDED = "voided"
"""Outcome of an attempt that a confirmation run contradicts."""
DETAILS = 2500
DIAGNOSTICS = 8


def reached(plan: RunPlan, speedup: float | None, median_us: float | None) -> bool:
    """Say whether a correct candidate of such figures is what the run is for; without a target none is.

    Args:
        plan: The run's.
        speedup: The one that it has at least; the middle where it is asked whether a confirmation run is worth it.
        median_us: The time that it takes at most; the middle likewise.
    """
    if plan.tier != "performance":
        return True
    target = plan.target
    wanted = [
        speedup is not None and speedup >= target.speedup if target.speedup is not None else None,
        median_us is not None and median_us <= target.median_us if target.median_us is not None else None,
    ]
    asked = [want for want in wanted if want is not None]
    return bool(asked) and all(asked)


def worth(verdict: Verdict) -> tuple[bool, bool, bool, float, float]:
    """Return what the better of two is greater by.

    That is the target, a narrow interval, a time that is not unconfirmable, then `pace`.
    """
    return verdict.stage == "target", not verdict.coarse, not is_doubted(verdict.trust), *pace(verdict)


def trusted_worth(verdict: Verdict) -> tuple[bool, bool, int, float, float]:
    """Return the same as rankings order it: a confirmed time before a provisional one, however fast that seems.

    A run searches by `worth`, as what seems faster is confirmed in the end; what it shows and ends with goes by this.
    """
    return verdict.stage == "target", not verdict.coarse, -trust_place(verdict.trust), *pace(verdict)


def pace(verdict: Verdict) -> tuple[float, float]:
    """Return what the faster of two is greater by: the speed-up that it has at least, without one the time at most."""
    first, second = bound_of(verdict.speedup, verdict.speedup_range, verdict.median_us, verdict.time_range_us)
    return -first, -second


def rate(verdict: Verdict | None) -> float:
    """Return a number to compare a run's verdicts by: the speed-up, where there is no baseline calls a second."""
    if verdict is None:
        return 0.0
    return verdict.speedup or (1e6 / verdict.median_us if verdict.median_us and verdict.time_range_us else 0.0)


def is_doubted(trust: str) -> bool:
    """Say whether a time is unconfirmable."""
    return trust.startswith("unconfirmable")


def verdict_of(evaluation: Evaluation, plan: RunPlan) -> Verdict:
    """Return what an evaluation means for the loop."""
    last = evaluation.shapes[-1].candidate if evaluation.shapes else None
    median_us = evaluation.time_us or (last.median_us if last else None)
    times_us = evaluation.time_range_us() or ((last.low_us, last.high_us) if last else None)
    outcome = evaluation.verdict or evaluation.status
    return Verdict(
        attempt_id=evaluation.attempt_id,
        stage=_stage(
            outcome,
            plan,
            evaluation.trust,
            _end(evaluation.speedup_range(), 0, evaluation.speedup),
            _end(times_us, 1, median_us),
        ),
        outcome=outcome,
        reason=evaluation.reason,
        details=details_text(
            evaluation.diagnostics, evaluation.shapes, evaluation.declared, evaluation.robust, evaluation.advice
        ),
        speedup=evaluation.speedup,
        speedup_range=evaluation.speedup_range(),
        time_range_us=evaluation.time_range_us(),
        trust=evaluation.trust,
        median_us=median_us,
        signature=signature(evaluation.reason),
    )


def details_text(
    diagnostics: Sequence[Diagnostic],
    shapes: Sequence[ShapeVerdict],
    declared: str,
    robust: str,
    advice: Sequence[str],
) -> str:
    """Return the lines of a verdict: the compiler's words or the time at each shape, then what is said beside."""
    said = [d.line_text() for d in diagnostics[:DIAGNOSTICS]] or [s.line_text() for s in shapes]
    said = [f"declared shapes: {declared}"] * bool(declared) + said
    said += [f"robust: {robust}"] * bool(robust)
    return "\n".join([*said, *advice])[:DETAILS]


def verdict_of_attempt(attempt: Attempt, plan: RunPlan) -> Verdict:
    """Return the same of an attempt that is recorded, without lines: `recorded_verdict` has them."""
    outcome = VOIDED if attempt.voided else attempt.verdict or attempt.status
    times_us = attempt.time_range_us or (attempt.evidence or {}).get("median_range_us")
    return Verdict(
        attempt_id=attempt.attempt_id,
        stage=_stage(
            outcome,
            plan,
            attempt.trust or "",
            _end(attempt.speedup_range, 0, attempt.speedup),
            _end(times_us, 1, attempt.median_us),
        ),
        outcome=outcome,
        reason=attempt.voided or attempt.reason or "",
        speedup=attempt.speedup,
        speedup_range=attempt.speedup_range,
        time_range_us=attempt.time_range_us,
        trust=attempt.trust or "",
        median_us=attempt.median_us,
        signature=signature(attempt.reason or ""),
    )


def _end(interval: Sequence[float] | None, end: int, middle: float | None) -> float | None:
    """Return an end of an interval; the middle where none is known."""
    return interval[end] if interval else middle


def _stage(outcome: str, plan: RunPlan, trust: str, speedup: float | None, median_us: float | None) -> Stage:
    """Return where a candidate ended, by the speed-up that it has at least and the time that it takes at most."""
    if outcome == "compile_failed":
        return "compile"
    if outcome != "correct":
        return "correctness"
    counts = plan.tier != "performance" or plan.accept_provisional or trust == "confirmed"
    return "target" if counts and reached(plan, speedup, median_us) else "performance"
