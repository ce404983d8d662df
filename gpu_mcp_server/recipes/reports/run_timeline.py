"""A headless run as lanes: who worked when, what came of it, and to whom it was handed back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.plots.outcome_shades import status_class
from gpu_mcp_server.recipes.headless_runs import ASKED, settled_verdicts
from gpu_mcp_server.recipes.run.prompt_verdict import VOIDED, rate, trusted_worth
from gpu_mcp_server.time_format import format_time

LANES = ("Analyst", "Coder", "Builder", "Tester")
"""Of every run; others are there where they have steps."""
FURTHER_LANES = ("Reflector", "Profiler", "Tuner")
LANE_OF_KIND = {
    "specification": "Analyst", "lookup": "Analyst", "memory": "Analyst", "code": "Coder", "session": "Coder",
    "pipeline": "Builder", "verify": "Tester", "measure": "Tester", "confirm": "Tester",
    "reflect": "Reflector", "profile": "Profiler", "tune": "Tuner",
}  # fmt: skip
BUILD_OUTCOMES = ("configure_failed", "compile_failed", "link_failed", "no_tests", "broken")
"""Outcomes of a project's check that ended before a test ran."""
MAX_STEPS = 400


@dataclass(frozen=True)
class TimelineStep:
    """One step of a run, in the lane of the role that did it."""

    step: str
    lane: str
    outcome: str
    shade: str
    starts_s: float
    """Seconds of all steps before; a journal has no other clock."""
    seconds: float | None
    """None while it runs."""
    said: str = ""
    back_to: str = ""
    """The role that has to do it again, or better."""
    attempts: tuple[tuple[str, str, str], ...] = ()
    """Of each candidate judged: attempt_id, outcome, speed-up or the time of a call."""
    best: Verdict | None = None
    """The best of its correct and timed candidates, as a confirmation run left it."""
    bound: str = ""
    """What a profile found to limit the time."""
    calls: int = 0
    """Of the agent."""
    cost_usd: float | None = None
    """As the agent reported it."""


def timeline_steps(journal: Sequence[Mapping[str, Any]]) -> list[TimelineStep]:
    """Return the steps of a journal in order, those that were begun last and are not done at the end."""
    done = [entry for entry in journal if entry.get("event") == "done" and "kind" in entry]
    finished = {entry["step"] for entry in done}
    ended = any(entry.get("step") == "end" for entry in journal)
    begun = {e["step"]: e for e in journal if e.get("event") == "begun" and e["step"] not in finished}
    settled = settled_verdicts(journal)
    found: list[TimelineStep] = []
    at = 0.0
    for entry in done:
        found.append(_work(entry, at, settled))
        at += float(entry.get("seconds") or 0.0)
    for entry in begun.values():
        state = "given up" if ended else "running"
        lane = _lane(entry, [])
        found.append(TimelineStep(entry["step"], lane, state, status_class("" if ended else "running"), at, None))
    return found


def _work(entry: Mapping[str, Any], at: float, settled: Mapping[str | None, Verdict]) -> TimelineStep:
    verdicts = _verdicts(entry)
    outcome = str(entry.get("outcome") or "done")
    speeds = [_speed(v) for v in verdicts]
    attempts = tuple(
        (str(v.get("attempt_id") or ""), str(v.get("outcome") or ""), speed)
        for v, speed in zip(verdicts, speeds, strict=True)
    )
    said = str(entry.get("why") or next((v["reason"] for v in verdicts if v.get("reason")), ""))
    return TimelineStep(
        step=str(entry["step"]),
        lane=_lane(entry, verdicts),
        outcome=outcome,
        shade=_shade(entry, verdicts),
        starts_s=at,
        seconds=float(entry.get("seconds") or 0.0),
        said=said,
        back_to=_back_to(entry, verdicts),
        attempts=attempts,
        best=_best(verdicts, settled) if entry.get("kind") != "confirm" else None,
        bound=_bound(entry),
        calls=int(entry.get("kind") in ASKED),
        cost_usd=entry.get("cost_usd"),
    )


def _speed(verdict: Mapping[str, Any]) -> str:
    if verdict.get("speedup"):
        return f"\u00d7{verdict['speedup']:.3g}"
    return format_time(verdict["median_us"] / 1e6) if verdict.get("median_us") else ""


def _bound(entry: Mapping[str, Any]) -> str:
    profile: Any = entry.get("profile")
    return str(cast("Mapping[str, Any]", profile).get("bound") or "") if isinstance(profile, dict) else ""


def _best(verdicts: Sequence[Mapping[str, Any]], settled: Mapping[str | None, Verdict]) -> Verdict | None:
    """Return the best correct verdict that was not timed coarsely; what was voided later is none."""
    read = [Verdict.model_validate(v) for v in verdicts if v.get("outcome") == "correct" and not v.get("coarse")]
    left = [settled.get(v.attempt_id, v) for v in read]
    return max((v for v in left if v.outcome == "correct" and rate(v)), key=trusted_worth, default=None)


def _verdicts(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    one: Any = entry.get("verdict")
    many: Any = entry.get("verdicts") or []
    return [cast("Mapping[str, Any]", v) for v in [*([one] if one else []), *many] if isinstance(v, dict)]


def _stages(verdicts: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(v.get("stage")) for v in verdicts}


def _lane(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return whose step it was: what did not compile never left the Builder."""
    kind = str(entry.get("kind"))
    if kind == "plan":
        return "Tester" if str(entry.get("step")).startswith("test-") else "Builder"
    if kind == "check":
        return "Builder" if entry.get("outcome") in BUILD_OUTCOMES else "Tester"
    if kind != "judge":
        return LANE_OF_KIND.get(kind, "Coder")
    return "Builder" if verdicts and _stages(verdicts) <= {"compile", "code"} else "Tester"


def _shade(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if not verdicts:
        told = entry.get("kind") in ("lookup", "memory", "profile", "tune") or entry.get("outcome") == "caught"
        return "good" if told else status_class(str(entry.get("outcome")))
    outcomes = [str(v.get("outcome")) for v in verdicts]
    return "good" if {"correct", "green"} & {*outcomes} else status_class(outcomes[0])


def _back_to(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if entry.get("kind") in ("tune", "memory"):
        return ""
    if entry.get("kind") == "confirm":
        return "Coder" if VOIDED in (v.get("outcome") for v in verdicts) else ""
    if entry.get("kind") in ("specification", "plan", "code"):
        return "" if entry.get("outcome") == "ok" else _lane(entry, verdicts)
    if entry.get("role") is not None:
        return str(entry["role"]).capitalize()
    return "Coder" if verdicts and "target" not in _stages(verdicts) else ""
