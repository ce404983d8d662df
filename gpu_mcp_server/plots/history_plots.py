"""Pictures of a problem's history as SVG, which needs nothing to be shown: the course, and lineage."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.text_safety import escape_controls
from gpu_mcp_server.time_format import format_time

COLOURS = {"correct": "#1a7f37", "incorrect": "#cf222e", "cheat": "#8250df", "voided": "#6e7781"}
OTHER = "#9a6700"
"""Of what never had a verdict: not compiled, timed out."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FLOOR = 900, 420, 70, 20, 40, 320
FAILED_AT = 370
"""Height at which failures and what could not be timed are drawn, below the axis."""
LANE_LEFT, LANE_WIDTH, ROW_TOP, ROW_HEIGHT, LABEL_WIDTH = 26, 18, 50, 26, 620
NOTE_CHARS = 80
"""Of a note beside its attempt; the rest is in the title."""
MAX_NODES = 400
TIME_AXIS = "time of a call (no GPU baseline)"
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def colour(outcome: str) -> str:
    """Return the colour of an outcome."""
    return COLOURS.get(outcome, OTHER)


def plot_history(history: ProblemHistory) -> str:
    """Return speed-up over attempts, logarithmic: the best so far as a line, attempts as points, failures below.

    Where there is no baseline, the time of a call stands for it, the shorter the higher.
    """
    rated = rates_of(history)
    points = (rated or history).points
    good = [p.speedup for p in points if p.outcome == "correct" and p.speedup]
    ends = [end for p in points if p.outcome == "correct" for end in (p.speedup_low, p.speedup_high) if end]
    ends += [] if rated else [1.0]
    low, high = bracket(min([*good, *ends]), max([*good, *ends])) if good else (0.5, 2.0)

    def x(number: int) -> float:
        return LEFT + (number - 1) * (WIDTH - LEFT - RIGHT) / max(len(points) - 1, 1)

    def y(speedup: float) -> float:
        return FLOOR - (math.log(speedup) - math.log(low)) / (math.log(high) - math.log(low)) * (FLOOR - TOP)

    parts = [label(LEFT, 14, f"{history.name} on {history.device or 'no device'}")]
    for value in ticks(low, high):
        parts.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='#d0d7de'/>"
        )
        said = format_time(1 / value) if rated else f"\u00d7{value:g}"
        parts.append(label(LEFT - 8, y(value) + 4, said, anchor="end"))
    parts.append(label(LEFT, TOP - 8, TIME_AXIS if rated else "speed-up against the reference"))
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, FLOOR + 24, "attempt number", anchor="middle"))
    parts += [label(x(p.number), FLOOR + 24, f"{p.number}", "middle") for p in [*points[:1], *points[1:][-1:]]]
    line = [f"{x(p.number):.1f},{y(p.best):.1f}" for p in points if p.best is not None]
    if line:
        parts.append(label(WIDTH - RIGHT, TOP - 8, "line: the best so far, confirmed ones first", anchor="end"))
        parts.append(f"<polyline points='{_stepped(line)}' fill='none' stroke='#0969da' stroke-width='2'/>")
    for p in points:
        at = y(p.speedup) if p.outcome == "correct" and p.speedup else FAILED_AT
        if at != FAILED_AT and p.speedup_low and p.speedup_high:
            parts.append(_whisker(x(p.number), y(p.speedup_low), y(p.speedup_high)))
        parts.append(_dot(x(p.number), at, p))
    parts.append(label(LEFT - 8, FAILED_AT + 4, "no time", anchor="end"))
    parts.append(label(WIDTH - RIGHT, HEIGHT - 12, f"{len(points)} attempts, bars: 95 % interval", anchor="end"))
    for place, (outcome, shade) in enumerate({**COLOURS, "no verdict": OTHER}.items()):
        at = LEFT + 110 * place
        parts.append(f"<rect x='{at}' y='{HEIGHT - 22}' width='10' height='10' fill='{shade}'/>")
        parts.append(label(at + 15, HEIGHT - 12, outcome))
    return svg(WIDTH, HEIGHT, parts)


def rates_of(history: ProblemHistory) -> ProblemHistory | None:
    """Return a history in which calls a second stand for speed-ups; None where an attempt has one, or no time ranks."""
    points = history.points
    if any(p.speedup for p in points) or not any(p.by_time and p.median_us for p in points):
        return None

    def set_rates(point: HistoryPoint) -> HistoryPoint:
        if not point.by_time or not point.median_us:
            return point.model_copy(update={"best": 1e6 / point.best_us if point.best_us else None})
        low_us, high_us = point.time_range_us or (None, None)
        return point.model_copy(
            update={
                "speedup": 1e6 / point.median_us,
                "speedup_low": 1e6 / high_us if high_us else None,
                "speedup_high": 1e6 / low_us if low_us else None,
                "best": 1e6 / point.best_us if point.best_us else None,
            }
        )

    return history.model_copy(update={"points": [set_rates(point) for point in points]})


def plot_speedups(found: Mapping[str, float], ends: Mapping[str, tuple[float, float]]) -> str:
    """Return a bar for each name, from 1 to its speed-up, logarithmic, with its interval; empty without any.

    Args:
        found: Speed-ups.
        ends: Their 95 % intervals, of those that are known.
    """
    shown = dict(list(found.items())[:MAX_NODES])
    if not shown:
        return ""
    drawn = [*shown.values(), *(end for name in shown for end in ends.get(name, ()))]
    low, high = bracket(min([*drawn, 0.5]), max([*drawn, 2.0]))
    left, floor = 300, 30 + 20 * len(shown)

    def x(value: float) -> float:
        return left + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (WIDTH - left - RIGHT)

    parts: list[str] = []
    for value in ticks(low, high):
        parts.append(f"<line x1='{x(value):.1f}' x2='{x(value):.1f}' y1='10' y2='{floor}' stroke='#d0d7de'/>")
        parts.append(label(x(value), floor + 16, f"\u00d7{value:g}", anchor="middle"))
    parts.append(label((left + WIDTH - RIGHT) / 2, floor + 34, "speed-up against the reference", anchor="middle"))
    for row, (name, value) in enumerate(shown.items()):
        start, end = sorted((x(1.0), x(value)))
        fill = COLOURS["correct"] if value > 1 else OTHER
        size = f"width='{max(end - start, 1):.1f}' height='14'"
        parts.append(f"<rect x='{start:.1f}' y='{16 + 20 * row}' {size} fill='{fill}'/>")
        if name in ends:
            first, last = (f"{x(end):.1f}" for end in ends[name])
            way = f"M{first} {19 + 20 * row} v8 M{first} {23 + 20 * row} H{last} M{last} {19 + 20 * row} v8"
            parts.append(f"<path d='{way}' fill='none' stroke='#57606a'/>")
        parts.append(label(left - 8, 28 + 20 * row, f"{name[:36]}: \u00d7{value:.3g}", anchor="end"))
    return svg(WIDTH, floor + 46, parts)


def plot_lineage(history: ProblemHistory, *, link: Callable[[str], str] | None = None) -> str:
    """Return a row for each attempt in order of time, with lines to its children in lanes left of all labels.

    Args:
        history: The attempts.
        link: Address of an attempt, where pages of attempts are.
    """
    points = history.points[-MAX_NODES:]
    lanes = lineage_lanes(points)
    row = {p.attempt_id: n for n, p in enumerate(points)}
    text_x = LANE_LEFT + (max(lanes.values(), default=0) + 1) * LANE_WIDTH

    def x(attempt_id: str) -> float:
        return LANE_LEFT + lanes[attempt_id] * LANE_WIDTH

    def y(attempt_id: str) -> float:
        return ROW_TOP + row[attempt_id] * ROW_HEIGHT

    parts = [label(20, 24, f"{history.name}: lineage of {len(points)} of {len(history.points)} attempts")]
    for p in points:
        if p.parent_id is not None and p.parent_id in lanes:
            turn, to = y(p.attempt_id) - ROW_HEIGHT / 2, x(p.attempt_id)
            way = f"M{x(p.parent_id):.1f} {y(p.parent_id):.1f} V{turn:.1f} H{to:.1f} V{y(p.attempt_id):.1f}"
            parts.append(f"<path d='{way}' fill='none' stroke='#8c959f'/>")
    for p in points:
        said = p.outcome.replace("_", " ")
        if p.outcome == "correct" and p.speedup:
            said = f"\u00d7{p.speedup:.3g}"
        elif p.outcome == "correct" and p.by_time and p.median_us:
            said = format_time(p.median_us / 1e6)
        words = " ".join((p.note or p.reason or "").split())
        text = f"{p.number}  {said}" + (f"  {words[:NOTE_CHARS]}" if words else "")
        drawn = _dot(x(p.attempt_id), y(p.attempt_id), p) + label(text_x, y(p.attempt_id) + 4, text)
        parts.append(f"<a href={quoteattr(link(p.attempt_id))}>{drawn}</a>" if link else drawn)
    return svg(text_x + LABEL_WIDTH, ROW_TOP + len(points) * ROW_HEIGHT, parts)


def lineage_lanes(points: Sequence[HistoryPoint]) -> Mapping[str, int]:
    """Return the lane of each attempt, from 0 at the left.

    The last child goes on in its parent's lane, the others branch off to its right. A lane is free again below the
    last row that needs it, so that no line passes through another attempt.
    """
    row = {p.attempt_id: n for n, p in enumerate(points)}
    last: dict[str, str] = {p.parent_id: p.attempt_id for p in points if p.parent_id in row}
    heir = {child: parent for parent, child in last.items()}
    lanes: dict[str, int] = {}
    busy_until: list[int] = []
    for n, p in enumerate(points):
        if p.attempt_id in heir:
            lane = lanes[heir[p.attempt_id]]
        else:
            least = lanes.get(p.parent_id or "", -1) + 1
            free = (at for at in range(least, len(busy_until)) if busy_until[at] < n)
            lane = next(free, max(least, len(busy_until)))
        busy_until += [-1] * (lane + 1 - len(busy_until))
        lanes[p.attempt_id] = lane
        busy_until[lane] = row[last[p.attempt_id]] if p.attempt_id in last else n
    return lanes


def _stepped(line: Sequence[str]) -> str:
    """Return the corners of a staircase through points `x,y`."""
    corners = [line[0]]
    for before, after in itertools.pairwise(line):
        corners += [f"{after.partition(',')[0]},{before.partition(',')[2]}", after]
    return " ".join(corners)


def ticks(low: float, high: float, multiples: Sequence[float] = (1, 2, 5)) -> list[float]:
    """Return multiples of powers of ten between two positive numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in multiples if low <= m * 10.0**p <= high]


def bracket(low: float, high: float) -> tuple[float, float]:
    """Return the nearest ticks around two positive numbers, which differ."""
    around = ticks(low / 10, high * 10)
    least = max(tick for tick in around if tick <= low)
    return least, min(tick for tick in around if tick >= high and tick > least)


def _whisker(x: float, low: float, high: float) -> str:
    ends = f"M{x - 4:.1f} {high:.1f} H{x + 4:.1f} M{x:.1f} {high:.1f} V{low:.1f} M{x - 4:.1f} {low:.1f} H{x + 4:.1f}"
    return f"<path d='{ends}' fill='none' stroke='#57606a'/>"


def _dot(x: float, y: float, point: HistoryPoint) -> str:
    said = " ".join(filter(None, [point.attempt_id, point.outcome, point.trust, point.note, point.reason]))
    return (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5' fill='{colour(point.outcome)}'>"
        f"<title>{escape_text(said[:400])}</title></circle>"
    )


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a text at a place."""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='#24292f' {FONT}>{escape_text(text)}</text>"


def escape_text(text: str) -> str:
    """Return a text of others as an element's: it is no markup, steers nothing, and has only XML's characters."""
    return escape(escape_controls(text))


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """Return a picture on white ground."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
    head += f"viewBox='0 0 {width:.0f} {height:.0f}'><rect width='100%' height='100%' fill='#ffffff'/>"
    return head + "\n" + "\n".join(parts) + "\n</svg>\n"
