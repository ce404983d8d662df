"""The picture of a run: lanes with what each role did, below them the best so far, the bound and the cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import quoteattr

from gpu_mcp_server.models.recipe import Verdict
from gpu_mcp_server.plots.history_plots import escape_text, ticks
from gpu_mcp_server.recipes.reports.run_timeline import FURTHER_LANES, LANES, MAX_STEPS, TimelineStep
from gpu_mcp_server.recipes.run.prompt_verdict import rate, trusted_worth
from gpu_mcp_server.time_format import format_elapsed, format_time, format_time_range

WIDTH, LEFT, RIGHT, TOP, LANE_HEIGHT = 1000, 84, 16, 6, 27
RIGHT_EDGE = WIDTH - RIGHT
LEAST_WIDTH = 3.0
"""Of a bar, as a step of no time happened all the same."""
COURSE_HEIGHT, BOUND_HEIGHT, COST_HEIGHT, GAP = 130, 20, 34, 24
RUNNING_PART = 0.03
"""Part of the width for a running step: the journal does not record its start."""
CHARACTER = 7.5
"""Pixels that a character takes at most, by the larger type of narrow windows."""
SAID_CHARACTERS = 300
FEWEST_TICKS, MOST_TICKS = 3, 6
MULTIPLES = ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
"""Multiples of powers of ten for ticks, the coarser first."""
FAR_TARGET = 10
"""A target so many times beyond what was reached is named at the top; the axis ends before it."""
TINTS = 3
"""Number of tints that tell bounds apart."""
SHADES = {"good": "fine", "bad": "failed", "cheat": "cheat", "warn": "in doubt", "busy": "running", "": "not counted"}

Across = Callable[[int, float], float]
"""From a step's number and a time in seconds to a place."""


@dataclass(frozen=True)
class CoursePoint:
    """A step whose candidate was correct and timed."""

    across: float
    step: str
    best: Verdict
    speedup: float
    """Where there is no baseline, calls a second."""
    ends: tuple[float, float] | None = None
    """95 % interval of the same."""


def run_picture(found: Sequence[TimelineStep], target: float | None = None) -> str:
    """Return a run as SVG, time of its steps from left to right; it has no clock but theirs.

    Args:
        found: The steps.
        target: Speed-up that the run is to reach.
    """
    found = found[:MAX_STEPS]
    lanes = [*LANES, *(lane for lane in FURTHER_LANES if any(step.lane == lane for step in found))]
    done = max((_end(step) for step in found), default=0.0)
    whole = done * (1 + RUNNING_PART) if any(step.seconds is None for step in found) else done

    def x(index: int, seconds: float) -> float:
        part = seconds / whole if whole > 0 else index / max(len(found), 1)
        return LEFT + part * (RIGHT_EDGE - LEFT - LEAST_WIDTH)

    parts = [*(_lane_line(n, lane) for n, lane in enumerate(lanes)), *_bars(found, lanes, x)]
    at = TOP + LANE_HEIGHT * len(lanes)
    rows = (_course(_course_points(found, x), target), COURSE_HEIGHT), (_bounds(found, x), BOUND_HEIGHT)
    for drawn, height in (*rows, (_cost(found, x), COST_HEIGHT)):
        if drawn:
            parts.append(f'<g transform="translate(0 {at + GAP})">{"".join(drawn)}</g>')
            at += height + GAP
    parts.append(f'<g transform="translate(0 {at + 20})">{"".join(_foot(found, done))}</g>')
    body = "\n".join(parts)
    return (
        f'<svg class="lanes" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at + 28}" role="img" '
        f'aria-label="Steps of each role over time, the best so far, the bound, the cost; the table says the same">'
        f"{body}</svg>"
    )


def _lane_line(number: int, lane: str) -> str:
    y = TOP + LANE_HEIGHT * number + LANE_HEIGHT / 2
    return f'<text x="6" y="{y + 4}">{lane}</text><line class="lane" x1="{LEFT}" x2="{RIGHT_EDGE}" y1="{y}" y2="{y}"/>'


def _bars(found: Sequence[TimelineStep], lanes: Sequence[str], x: Across) -> list[str]:
    """Return a bar for each step, and a line down or up to the role that works next."""
    parts: list[str] = []
    ends: tuple[float, float, str] | None = None
    for index, step in enumerate(found):
        left = x(index, step.starts_s)
        right = x(index + 1, _end(step)) if step.seconds is not None else RIGHT_EDGE
        y = TOP + LANE_HEIGHT * lanes.index(step.lane)
        if ends is not None:
            middle = y + LANE_HEIGHT / 2
            parts.append(f'<path class="{ends[2]}" d="M{ends[0]:.1f} {ends[1]:.1f} V{middle:.1f} H{left:.1f}"/>')
        wide = max(right - left, LEAST_WIDTH)
        parts.append(
            f'<rect class={quoteattr(step.shade)} x="{left:.1f}" y="{y + 6}" width="{wide:.1f}" '
            f'height="{LANE_HEIGHT - 12}" rx="2">{_title(f"{step.step}: {step.outcome}. {step.said}")}</rect>'
        )
        ends = (left + wide, y + LANE_HEIGHT / 2, "back" if step.back_to else "on")
    return parts


def _course_points(found: Sequence[TimelineStep], x: Across) -> list[CoursePoint]:
    judged = [(x(n + 1, _end(step)), step.step, step.best) for n, step in enumerate(found) if step.best is not None]
    if any(best.speedup for _, _, best in judged):
        return [CoursePoint(at, name, b, b.speedup, b.speedup_range) for at, name, b in judged if b.speedup]
    return [
        CoursePoint(at, name, b, rate(b), (1e6 / b.time_range_us[1], 1e6 / b.time_range_us[0]))
        for at, name, b in judged
        if b.time_range_us
    ]


def _course(points: Sequence[CoursePoint], target: float | None) -> list[str]:
    """Return the best so far as a line, each judged step's best as a point with its interval; nothing without any."""
    if not points:
        return []
    by_time = points[0].best.speedup is None
    target = None if by_time else target
    ends = [end for point in points for end in point.ends or ()]
    values = [*([] if by_time else [1.0]), *ends, *(point.speedup for point in points)]
    near = target is not None and target <= FAR_TARGET * max(values)
    low, high = _padded_range([*values, target] if target and near else values)

    def y(speedup: float) -> float:
        return COURSE_HEIGHT * (1 - math.log(speedup / low) / math.log(high / low))

    parts = [_tick(_speed_text(tick, by_time), y(tick)) for tick in _spread_ticks(low, high)]
    if target:
        at = y(target) if near else 0.0
        parts += [f'<line class="target" x1="{LEFT}" x2="{RIGHT_EDGE}" y1="{at:.1f}" y2="{at:.1f}"/>'] * near
        parts.append(f'<text x="{RIGHT_EDGE}" y="{at - 4:.1f}" text-anchor="end">target \u00d7{target:g}</text>')
    parts.append(f'<path class="best" d="{_best_so_far(points, y)} H{RIGHT_EDGE}"/>')
    for point in points:
        if point.ends:
            parts.append(_whisker(point.across, *(y(end) for end in point.ends)))
    parts += [_point(point, y(point.speedup)) for point in points]
    said = "shortest time of a call so far (no GPU baseline)" if by_time else "best speed-up so far"
    return [*parts, f'<text x="{LEFT}" y="-8">{said}; bars: 95 % interval; hollow: not confirmed</text>']


def _speed_text(value: float, by_time: bool) -> str:
    return format_time(1 / value) if by_time else f"\u00d7{value:g}"


def _best_so_far(points: Sequence[CoursePoint], y: Callable[[float], float]) -> str:
    """Return the way of the line: it goes on where a candidate ranks before the best: by trust, then its low end."""
    way, best = "", points[0]
    for point in points:
        if not way:
            way = f"M{point.across:.1f} {y(point.speedup):.1f}"
        elif trusted_worth(point.best) > trusted_worth(best.best):
            way += f" H{point.across:.1f} V{y(point.speedup):.1f}"
        else:
            continue
        best = point
    return way


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = max((high / low) ** 0.08, 1.1)
    return low / room, high * room


def _spread_ticks(low: float, high: float) -> list[float]:
    """Return numbers between two ends, 1 among them if it lies there, neither few nor many."""
    sets = [ticks(low, high, multiples) for multiples in MULTIPLES]
    found = next((each for each in sets if len(each) >= FEWEST_TICKS), sets[-1])
    every = math.ceil(len(found) / MOST_TICKS)
    return found[(found.index(1.0) if 1.0 in found else 0) % every :: every]


def _tick(said: str, y: float) -> str:
    line = f'<line class="lane" x1="{LEFT}" x2="{RIGHT_EDGE}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{said}</text>'


def _whisker(x: float, low: float, high: float) -> str:
    caps = "".join(f" M{x - 4:.1f} {end:.1f} H{x + 4:.1f}" for end in (low, high))
    return f'<path class="range" d="M{x:.1f} {low:.1f} V{high:.1f}{caps}"/>'


def _point(point: CoursePoint, y: float) -> str:
    ends = point.best.speedup_range
    interval = f"95 % {ends[0]:.3g} to {ends[1]:.3g}" if ends else "no interval"
    speed = f"speed-up {point.speedup:.3g}"
    if (times := point.best.time_range_us) and point.best.speedup is None:
        interval = f"95 % {format_time_range(times[0] / 1e6, times[1] / 1e6)}"
        speed = f"{format_time(1 / point.speedup)} a call"
    trust = f", {point.best.trust}" if point.best.trust else ""
    shade = "good" if point.best.trust == "confirmed" else "hollow"
    said = _title(f"{point.step}: {speed}, {interval}{trust}")
    return f'<circle class="{shade}" cx="{point.across:.1f}" cy="{y:.1f}" r="3.5">{said}</circle>'


def _bounds(found: Sequence[TimelineStep], x: Across) -> list[str]:
    """Return what each profile found to limit the time, until the next profile; equal ones in a row have one label."""
    profiled = [(x(n, step.starts_s), step) for n, step in enumerate(found) if step.bound]
    if not profiled:
        return []
    ends = [*(across for across, _ in profiled[1:]), float(RIGHT_EDGE)]
    parts = ['<text x="6" y="15">bound</text>']
    tints: dict[str, int] = {}
    for kind, group in groupby(zip(profiled, ends, strict=True), lambda each: each[0][1].bound.partition(" (")[0]):
        alike, tint = list(group), tints.setdefault(kind, len(tints) % TINTS)
        left, right = alike[0][0][0], alike[-1][1]
        for (across, step), end in alike:
            said = _title(f"{step.step}: {step.bound}")
            place = f'x="{across:.1f}" width="{end - across:.1f}" height="{BOUND_HEIGHT}"'
            parts.append(f'<rect class="bound tint{tint}" {place}>{said}</rect>')
        parts.append(f'<line class="edge" x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="{BOUND_HEIGHT}"/>')
        text = alike[0][0][1].bound if len(alike) == 1 else kind
        text = text if _fits(text, right - left) else kind
        parts += [f'<text x="{left + 5:.1f}" y="15">{escape_text(text)}</text>'] * _fits(text, right - left)
    return parts


def _fits(text: str, wide: float) -> bool:
    return len(text) * CHARACTER + 10 <= wide


def _cost(found: Sequence[TimelineStep], x: Across) -> list[str]:
    """Return what the agent has cost so far, as it reports it, as a rising line; its calls where it reports nothing."""
    called = [(x(n + 1, _end(step)), step) for n, step in enumerate(found) if step.calls]
    if not called:
        return []
    known = any(step.cost_usd for _, step in called)
    total = sum((step.cost_usd or 0.0) if known else step.calls for _, step in called)
    parts, way, spent, calls = list[str](), f"M{LEFT} {COST_HEIGHT}", 0.0, 0
    for across, step in called:
        calls += step.calls
        spent += (step.cost_usd or 0.0) if known else step.calls
        y = COST_HEIGHT * (1 - spent / total)
        way += f" H{across:.1f} V{y:.1f}"
        said = _title(f"{step.step}: {f'{spent:.2f} USD, ' if known else ''}call {calls}")
        parts.append(f'<circle class="mark" cx="{across:.1f}" cy="{y:.1f}" r="2">{said}</circle>')
    text = f"{spent:.2f} USD, " if known else "cost unknown, "
    text += f"{calls} call{'s' * (calls != 1)}"
    area = f'<path class="spent" d="{way} H{RIGHT_EDGE} V{COST_HEIGHT} Z"/>'
    label = (
        f'<text x="6" y="{COST_HEIGHT - 4}">cost</text><text x="{RIGHT_EDGE}" y="-5" text-anchor="end">{text}</text>'
    )
    return [area, *parts, label]


def _foot(found: Sequence[TimelineStep], done: float) -> list[str]:
    """Return the ends of the axis, and between them what the colours say."""
    parts = [f'<text x="{LEFT}" y="0">0 s</text>'] * (done > 0)
    parts += [f'<text x="{RIGHT_EDGE}" y="0" text-anchor="end">{format_elapsed(done)} in steps</text>'] * (done > 0)
    at = LEFT + 60.0
    for shade, said in SHADES.items():
        if any(step.shade == shade for step in found):
            parts.append(f'<rect class="{shade}" x="{at}" y="-10" width="10" height="10" rx="2"/>')
            parts.append(f'<text x="{at + 15}" y="0">{said}</text>')
            at += 30 + CHARACTER * len(said)
    if any(step.back_to for step in found[:-1]):
        parts.append(f'<path class="back" d="M{at} -5 h14"/><text x="{at + 19}" y="0">handed back</text>')
    return parts


def _end(step: TimelineStep) -> float:
    return step.starts_s + (step.seconds or 0.0)


def _title(text: str) -> str:
    cut = text if len(text) <= SAID_CHARACTERS else f"{text[:SAID_CHARACTERS]} [\u2026]"
    return f"<title>{escape_text(cut)}</title>"
