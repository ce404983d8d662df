"""The picture of a run: lanes with what each role did, below them the best so far, the bound and the cost."""

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import quoteattr

from gpu_mcp_server.plots.history_plots import bracket, escape_text, ticks
from gpu_mcp_server.recipes.reports.run_timeline import FURTHER_LANES, LANES, MAX_STEPS, TimelineStep
from gpu_mcp_server.time_format import format_elapsed

WIDTH, LEFT, RIGHT, TOP, LANE_HEIGHT = 1180, 70, 14, 8, 30
LEAST_WIDTH = 3.0
"""Of a bar, as a step of no time happened all the same."""
COURSE_HEIGHT, ROW_HEIGHT, GAP = 120, 24, 16
LABEL_ROOM = 120
"""Pixels between two labels of one row; a label without room is left to its title."""
SAID_CHARACTERS = 300

Across = Callable[[int, float], float]
"""From a step's number and a time in seconds to a place."""


def run_picture(found: Sequence[TimelineStep]) -> str:
    """Return a run as SVG, time of its steps from left to right; it has no clock but theirs."""
    found = found[:MAX_STEPS]
    lanes = [*LANES, *(lane for lane in FURTHER_LANES if any(step.lane == lane for step in found))]
    whole = max((step.starts_s + (step.seconds or 0.0) for step in found), default=0.0)

    def x(index: int, seconds: float) -> float:
        part = seconds / whole if whole > 0 else index / max(len(found), 1)
        return LEFT + part * (WIDTH - LEFT - RIGHT - LEAST_WIDTH)

    parts = [*(_lane_line(n, lane) for n, lane in enumerate(lanes)), *_bars(found, lanes, x)]
    at = TOP + LANE_HEIGHT * len(lanes) + GAP
    for row, height in ((_course, COURSE_HEIGHT + GAP), (_bounds, ROW_HEIGHT), (_cost, ROW_HEIGHT)):
        drawn = row(found, at, x)
        parts += drawn
        at += height if drawn else 0
    if whole > 0:
        parts.append(f'<text x="{LEFT}" y="{at + 8}">0 s</text>')
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{at + 8}" text-anchor="end">{format_elapsed(whole)} in steps</text>'
        )
    body = "\n".join(parts)
    return (
        f'<svg class="lanes" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at + 14}" role="img" '
        f'aria-label="Steps of each role over time, the best so far, the bound, the cost; the table says the same">'
        f"{body}</svg>"
    )


def _lane_line(number: int, lane: str) -> str:
    y = TOP + LANE_HEIGHT * number + LANE_HEIGHT / 2
    return (
        f'<text x="4" y="{y + 4}">{lane}</text><line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    )


def _bars(found: Sequence[TimelineStep], lanes: Sequence[str], x: Across) -> list[str]:
    """Return a bar for each step, and a line down or up to whoever works next."""
    parts: list[str] = []
    ends: tuple[float, float, str] | None = None
    for index, step in enumerate(found):
        left, right = x(index, step.starts_s), x(index + 1, _end(step))
        y = TOP + LANE_HEIGHT * lanes.index(step.lane)
        if ends is not None:
            middle = y + LANE_HEIGHT / 2
            parts.append(f'<path class="{ends[2]}" d="M{ends[0]:.1f} {ends[1]:.1f} V{middle:.1f} H{left:.1f}"/>')
        wide = max(right - left, LEAST_WIDTH)
        parts.append(
            f'<rect class={quoteattr(step.shade)} x="{left:.1f}" y="{y + 7}" width="{wide:.1f}" '
            f'height="{LANE_HEIGHT - 14}" rx="2">{_title(f"{step.step}: {step.outcome}. {step.said}")}</rect>'
        )
        ends = (left + wide, y + LANE_HEIGHT / 2, "back" if step.back_to else "on")
    return parts


def _course(found: Sequence[TimelineStep], top: float, x: Across) -> list[str]:
    """Return the best so far as a line, each judged step's best as a point with its interval; nothing without any."""
    judged = [(x(n + 1, _end(step)), step, step.best) for n, step in enumerate(found) if step.best is not None]
    values = [value for _, _, best in judged for value in best if value]
    if not values:
        return []
    low, high = bracket(min([*values, 1.0]), max([*values, 1.0]))

    def y(speedup: float) -> float:
        return top + COURSE_HEIGHT * (1 - math.log(speedup / low) / math.log(high / low))

    parts = [
        f'<line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">\u00d7{tick:g}</text>'
        for tick in ticks(low, high)
    ]
    way, best = "", 0.0
    for across, step, (speedup, least, most) in judged:
        if speedup > best:
            best = speedup
            way += f" H{across:.1f} V{y(best):.1f}" if way else f"M{across:.1f} {y(best):.1f}"
        if least and most:
            parts.append(f'<path class="range" d="M{across:.1f} {y(least):.1f} V{y(most):.1f}"/>')
        interval = f", 95 % {least:.3g} to {most:.3g}" if least and most else ", no interval"
        said = _title(f"{step.step}: speed-up {speedup:.3g}{interval}")
        parts.append(f'<circle class="good" cx="{across:.1f}" cy="{y(speedup):.1f}" r="3.5">{said}</circle>')
    parts.insert(0, f'<path class="best" d="{way} H{WIDTH - RIGHT}"/>')
    return [*parts, f'<text x="{LEFT + 4}" y="{top - 4}">best speed-up so far, bars: 95 % interval</text>']


def _bounds(found: Sequence[TimelineStep], top: float, x: Across) -> list[str]:
    """Return what each profile found to limit the time, where it was taken."""
    profiled = [(x(n, step.starts_s), step) for n, step in enumerate(found) if step.bound]
    return _row("bound", top, [(across, step.bound, step.step) for across, step in profiled])


def _cost(found: Sequence[TimelineStep], top: float, x: Across) -> list[str]:
    """Return what the agent has cost so far at its calls, as it reports it."""
    calls, cost, told = 0, list[float](), list[tuple[float, str, str]]()
    for n, step in enumerate(found):
        calls += step.calls
        cost += [step.cost_usd] if step.cost_usd is not None else []
        if step.calls:
            spent = f"{sum(cost):.2f} USD, " if cost else ""
            told.append((x(n + 1, _end(step)), f"{spent}call {calls}", step.step))
    return _row("cost", top, told)


def _row(name: str, top: float, told: Sequence[tuple[float, str, str]]) -> list[str]:
    """Return texts along one row, those without room as marks with a title; the last is always written."""
    if not told:
        return []
    y = top + ROW_HEIGHT / 2
    parts = [f'<text x="4" y="{y + 4}">{name}</text>']
    last = min(told[-1][0], WIDTH - RIGHT - LABEL_ROOM)
    free = float(LEFT)
    for number, (across, text, step) in enumerate(told):
        title = _title(f"{step}: {text}")
        parts.append(f'<circle class="mark" cx="{across:.1f}" cy="{y}" r="2.5">{title}</circle>')
        place = last if number == len(told) - 1 else across
        if number == len(told) - 1 or (place >= free and place + LABEL_ROOM <= last):
            parts.append(f'<text x="{place + 6:.1f}" y="{y + 4}">{escape_text(text[:24])}</text>')
            free = place + LABEL_ROOM
    return parts


def _end(step: TimelineStep) -> float:
    return step.starts_s + (step.seconds or 0.0)


def _title(text: str) -> str:
    cut = text if len(text) <= SAID_CHARACTERS else f"{text[:SAID_CHARACTERS]} [\u2026]"
    return f"<title>{escape_text(cut)}</title>"
