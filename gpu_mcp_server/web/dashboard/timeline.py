"""A headless run as four lanes: who worked when, what came of it, and to whom it was handed back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from xml.sax.saxutils import quoteattr

from gpu_mcp_server.plots.history_plots import escape_text
from gpu_mcp_server.web.dashboard.text_format import display_text, format_elapsed, format_number, status_class

LANES = ("Analyst", "Coder", "Builder", "Tester")
LANE_OF_KIND = {"specification": "Analyst", "lookup": "Analyst", "code": "Coder", "session": "Coder"}
MAX_STEPS = 400
WIDTH, LEFT, RIGHT, TOP, LANE_HEIGHT = 1180, 70, 14, 8, 30
LEAST_WIDTH = 3.0
"""Of a bar, as a step of no time happened all the same."""


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
    """Of each candidate judged: attempt_id, outcome, speed-up."""


def timeline_steps(journal: Sequence[Mapping[str, Any]]) -> list[TimelineStep]:
    """Return the steps of a journal in order, those that were begun last and are not done at the end."""
    done = [entry for entry in journal if entry.get("event") == "done" and "kind" in entry]
    finished = {entry["step"] for entry in done}
    ended = any(entry.get("step") == "end" for entry in journal)
    begun = {e["step"]: e for e in journal if e.get("event") == "begun" and e["step"] not in finished}
    found: list[TimelineStep] = []
    at = 0.0
    for entry in done:
        found.append(_work(entry, at))
        at += float(entry.get("seconds") or 0.0)
    for entry in begun.values():
        state = "given up" if ended else "running"
        lane = _lane(entry, [])
        found.append(TimelineStep(entry["step"], lane, state, status_class("" if ended else "running"), at, None))
    return found


def _work(entry: Mapping[str, Any], at: float) -> TimelineStep:
    verdicts = _verdicts(entry)
    outcome = str(entry.get("outcome") or "done")
    attempts = tuple(
        (str(v.get("attempt_id") or ""), str(v.get("outcome") or ""), format_number(v.get("speedup"))) for v in verdicts
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
    )


def _verdicts(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    one: Any = entry.get("verdict")
    many: Any = entry.get("verdicts") or []
    return [cast("Mapping[str, Any]", v) for v in [*([one] if one else []), *many] if isinstance(v, dict)]


def _stages(verdicts: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(v.get("stage")) for v in verdicts}


def _lane(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return whose step it was: what did not compile never left the Builder."""
    kind = str(entry.get("kind"))
    if kind != "judge":
        return LANE_OF_KIND.get(kind, "Coder")
    return "Builder" if verdicts and _stages(verdicts) <= {"compile", "code"} else "Tester"


def _shade(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if not verdicts:
        return "good" if entry.get("kind") == "lookup" else status_class(str(entry.get("outcome")))
    outcomes = [str(v.get("outcome")) for v in verdicts]
    return "good" if "correct" in outcomes else status_class(outcomes[0])


def _back_to(entry: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if entry.get("kind") in ("specification", "code"):
        return "" if entry.get("outcome") == "ok" else _lane(entry, verdicts)
    return "Coder" if verdicts and "target" not in _stages(verdicts) else ""


def picture(found: Sequence[TimelineStep]) -> str:
    """Return the lanes as SVG, time from left to right, a line down or up to whoever works next."""
    found = found[:MAX_STEPS]
    whole = max((w.starts_s + (w.seconds or 0.0) for w in found), default=0.0)
    height = TOP + LANE_HEIGHT * len(LANES) + 22
    room = WIDTH - LEFT - RIGHT
    by_time = whole > 0

    def x(index: int, seconds: float) -> float:
        part = seconds / whole if by_time else index / max(len(found), 1)
        return LEFT + part * (room - LEAST_WIDTH)

    parts = [_lane_line(n, lane) for n, lane in enumerate(LANES)]
    ends: tuple[float, float, str] | None = None
    for index, w in enumerate(found):
        left, right = x(index, w.starts_s), x(index + 1, w.starts_s + (w.seconds or 0.0))
        y = TOP + LANE_HEIGHT * LANES.index(w.lane)
        if ends is not None:
            middle = y + LANE_HEIGHT / 2
            parts.append(f'<path class="{ends[2]}" d="M{ends[0]:.1f} {ends[1]:.1f} V{middle:.1f} H{left:.1f}"/>')
        title = escape_text(display_text(f"{w.step}: {w.outcome}. {w.said}", 300))
        wide = max(right - left, LEAST_WIDTH)
        parts.append(
            f'<rect class={quoteattr(w.shade)} x="{left:.1f}" y="{y + 7}" width="{wide:.1f}" '
            f'height="{LANE_HEIGHT - 14}" rx="2"><title>{title}</title></rect>'
        )
        ends = (left + wide, y + LANE_HEIGHT / 2, "back" if w.back_to else "on")
    if by_time:
        parts.append(f'<text x="{LEFT}" y="{height - 6}">0 s</text>')
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{format_elapsed(whole)} in steps</text>'
        )
    body = "\n".join(parts)
    return (
        f'<svg class="lanes" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Steps of each role over time; the table below says the same">{body}</svg>'
    )


def _lane_line(number: int, lane: str) -> str:
    y = TOP + LANE_HEIGHT * number + LANE_HEIGHT / 2
    return (
        f'<text x="4" y="{y + 4}">{lane}</text><line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    )
