"""Pictures of a problem's history as SVG, which needs nothing to be shown: the course, and who descends from whom."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from gpu_mcp_server.models.history import HistoryPoint, ProblemHistory
from gpu_mcp_server.text_safety import escape_controls

COLOURS = {"correct": "#1a7f37", "incorrect": "#cf222e", "cheat": "#8250df", "voided": "#6e7781"}
OTHER = "#9a6700"
"""Of what never had a verdict: not compiled, timed out."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FLOOR = 900, 420, 70, 20, 40, 320
FAILED_AT = 370
"""Height at which failures and what could not be timed are drawn, below the axis."""
STEP_X, STEP_Y = 150, 46
MAX_NODES = 400
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def colour(outcome: str) -> str:
    """Return the colour of an outcome."""
    return COLOURS.get(outcome, OTHER)


def plot_history(history: ProblemHistory) -> str:
    """Return speed-up over attempts, logarithmic: the best so far as a line, attempts as points, failures below."""
    points = history.points
    good = [p.speedup for p in points if p.outcome == "correct" and p.speedup]
    low, high = (min([*good, 1.0]), max([*good, 1.0])) if good else (0.5, 2.0)
    low, high = low / 1.15, high * 1.15

    def x(number: int) -> float:
        return LEFT + (number - 1) * (WIDTH - LEFT - RIGHT) / max(len(points) - 1, 1)

    def y(speedup: float) -> float:
        return FLOOR - (math.log(speedup) - math.log(low)) / (math.log(high) - math.log(low)) * (FLOOR - TOP)

    parts = [label(LEFT, 22, f"{history.name} on {history.device or 'no device'}: speed-up over attempts")]
    for value in ticks(low, high):
        parts.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='#d0d7de'/>"
        )
        parts.append(label(LEFT - 8, y(value) + 4, f"{value:g}", anchor="end"))
    line = [f"{x(p.number):.1f},{y(p.best):.1f}" for p in points if p.best is not None]
    if line:
        parts.append(f"<polyline points='{_stepped(line)}' fill='none' stroke='#0969da' stroke-width='2'/>")
    for p in points:
        at = y(p.speedup) if p.outcome == "correct" and p.speedup else FAILED_AT
        parts.append(_dot(x(p.number), at, p))
    parts.append(label(LEFT - 8, FAILED_AT + 4, "no time", anchor="end"))
    parts.append(label(WIDTH - RIGHT, HEIGHT - 12, f"{len(points)} attempts", anchor="end"))
    for place, (outcome, shade) in enumerate({**COLOURS, "no verdict": OTHER}.items()):
        at = LEFT + 110 * place
        parts.append(f"<rect x='{at}' y='{HEIGHT - 22}' width='10' height='10' fill='{shade}'/>")
        parts.append(label(at + 15, HEIGHT - 12, outcome))
    return svg(WIDTH, HEIGHT, parts)


def plot_speedups(found: Mapping[str, float]) -> str:
    """Return a bar for each name, from 1 to its speed-up, logarithmic; empty without any."""
    shown = dict(list(found.items())[:MAX_NODES])
    if not shown:
        return ""
    low, high = min([*shown.values(), 0.5]) / 1.15, max([*shown.values(), 2.0]) * 1.15
    left, floor = 300, 30 + 20 * len(shown)

    def x(value: float) -> float:
        return left + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (WIDTH - left - RIGHT)

    parts: list[str] = []
    for value in ticks(low, high):
        parts.append(f"<line x1='{x(value):.1f}' x2='{x(value):.1f}' y1='10' y2='{floor}' stroke='#d0d7de'/>")
        parts.append(label(x(value), floor + 16, f"{value:g}", anchor="middle"))
    for row, (name, value) in enumerate(shown.items()):
        start, end = sorted((x(1.0), x(value)))
        fill = COLOURS["correct"] if value > 1 else OTHER
        size = f"width='{max(end - start, 1):.1f}' height='14'"
        parts.append(f"<rect x='{start:.1f}' y='{16 + 20 * row}' {size} fill='{fill}'/>")
        parts.append(label(left - 8, 28 + 20 * row, f"{name[:36]}: {value:.3g}", anchor="end"))
    return svg(WIDTH, floor + 30, parts)


def plot_lineage(history: ProblemHistory, *, link: Callable[[str], str] | None = None) -> str:
    """Return a forest: each attempt below its parent, in order of time from left to right.

    Args:
        history: The attempts.
        link: Address of an attempt, where pages of attempts are.
    """
    points = history.points[-MAX_NODES:]
    depth, column = _places(points)
    where = {p.attempt_id: (30 + column[p.attempt_id] * STEP_X, 60 + depth[p.attempt_id] * STEP_Y) for p in points}
    parts = [label(20, 24, f"{history.name}: who descends from whom ({len(points)} of {len(history.points)} attempts)")]
    for p in points:
        if p.parent_id in where:
            (x1, y1), (x2, y2) = where[p.parent_id], where[p.attempt_id]
            parts.append(f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='#8c959f'/>")
    for p in points:
        x, y = where[p.attempt_id]
        said = f"{p.speedup:.3g}x" if p.outcome == "correct" and p.speedup else p.outcome
        drawn = _dot(x, y, p) + label(x + 10, y + 4, f"{p.number}: {said}")
        parts.append(f"<a href={quoteattr(link(p.attempt_id))}>{drawn}</a>" if link else drawn)
    width = max((x for x, _ in where.values()), default=0) + STEP_X
    return svg(max(width, 400), max((y for _, y in where.values()), default=0) + 40, parts)


def _places(points: Sequence[HistoryPoint]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return row and column of each attempt: a first child stands below its parent, the next ones to its right."""
    depth: dict[str, int] = {}
    column: dict[str, int] = {}
    taken: dict[int, int] = {}
    for p in points:
        row = depth[p.parent_id] + 1 if p.parent_id in depth else 0
        wanted = column.get(p.parent_id or "", 0)
        depth[p.attempt_id] = row
        column[p.attempt_id] = max(wanted, taken.get(row, -1) + 1)
        taken[row] = column[p.attempt_id]
    return depth, column


def _stepped(line: Sequence[str]) -> str:
    """Return the corners of a staircase through points `x,y`."""
    corners = [line[0]]
    for before, after in itertools.pairwise(line):
        corners += [f"{after.partition(',')[0]},{before.partition(',')[2]}", after]
    return " ".join(corners)


def ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two positive numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]


def _dot(x: float, y: float, point: HistoryPoint) -> str:
    said = " ".join(filter(None, [point.attempt_id, point.outcome, point.note, point.reason]))
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
