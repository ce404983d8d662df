"""Two pictures of a candidate as SVG: where it stands under its device's roofs, and where its answer is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.plots.history_plots import bracket, escape_text, label, svg, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 460, 80, 30, 30, 60
CELL_W, CELL_H = 16, 14
COLOURS = {"before": "#bf8700", "after": "#0969da"}


@dataclass(frozen=True)
class DevicePeaks:
    """Peak rates of a device."""

    bandwidth_gb_s: float
    tflop_s: float
    compute: str
    """Whose peak that is: a type, a pipe."""
    source: str


@dataclass(frozen=True)
class RooflinePoint:
    """A candidate under them."""

    when: str
    """before or after."""
    intensity_flop_b: float
    tflop_s: float
    says: str


def roofline(roofs: DevicePeaks, points: Sequence[RooflinePoint]) -> str:
    """Return performance over arithmetic intensity, both logarithmic, under memory's and compute's roof.

    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
    """
    ridge = roofs.tflop_s * 1e3 / roofs.bandwidth_gb_s
    x0, x1 = bracket(*_span([ridge, *(p.intensity_flop_b for p in points)], 4))
    y0, y1 = bracket(*_span([roofs.tflop_s, *(p.tflop_s for p in points)], 2))

    def x(value: float) -> float:
        return LEFT + math.log(value / x0) / math.log(x1 / x0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - math.log(value / y0) / math.log(y1 / y0) * (HEIGHT - TOP - BOTTOM)

    parts = [label(LEFT, 18, f"performance, TFLOP/s; roofs: {roofs.source}")]
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 26, "arithmetic intensity, FLOP per byte", "middle"))
    for value in ticks(x0, x1):
        parts += [_line(x(value), TOP, x(value), HEIGHT - BOTTOM, "#d0d7de")]
        parts += (
            [label(x(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle")]
            if _plain(value) or value in (x0, x1)
            else []
        )
    for value in ticks(y0, y1):
        parts += [_line(LEFT, y(value), WIDTH - RIGHT, y(value), "#d0d7de")]
        parts += [label(LEFT - 8, y(value) + 4, f"{value:g}", "end")] if _plain(value) or value in (y0, y1) else []
    start = max(x0, y0 * 1e3 / roofs.bandwidth_gb_s)
    parts.append(_line(x(start), y(start * roofs.bandwidth_gb_s / 1e3), x(ridge), y(roofs.tflop_s), "#24292f", 2))
    parts.append(_line(x(ridge), y(roofs.tflop_s), WIDTH - RIGHT, y(roofs.tflop_s), "#24292f", 2))
    parts.append(label(WIDTH - RIGHT, y(roofs.tflop_s) - 6, f"{roofs.tflop_s:.3g} TFLOP/s {roofs.compute}", "end"))
    parts.append(label(x(start) + 8, HEIGHT - BOTTOM - 10, f"{roofs.bandwidth_gb_s:.4g} GB/s"))
    for point in points:
        at = f"cx='{x(point.intensity_flop_b):.1f}' cy='{y(point.tflop_s):.1f}'"
        parts.append(
            f"<circle {at} r='6' fill='{COLOURS[point.when]}'><title>{escape_text(point.says)}</title></circle>"
        )
    for place, (when, colour) in enumerate(COLOURS.items()):
        parts.append(f"<rect x='{LEFT + 90 * place}' y='{HEIGHT - 22}' width='10' height='10' fill='{colour}'/>")
        parts.append(label(LEFT + 15 + 90 * place, HEIGHT - 12, when))
    return svg(WIDTH, HEIGHT, parts)


def heat_map(share: Sequence[Sequence[float]], rows: str, columns: str) -> str:
    """Return a grid of cells, white where all is right, red where all is wrong, grey where nobody looked."""
    wide = max((len(line) for line in share), default=0)
    left, top = 60, 26
    parts = [label(left, 16, f"along {columns}"), label(left - 8, top + 12, rows, "end")]
    for r, line in enumerate(share):
        for c, part in enumerate(line):
            size = f"width='{CELL_W}' height='{CELL_H}' stroke='#d0d7de'"
            said = f"{part:.1%} wrong" if part >= 0 else "not looked at"
            parts.append(
                f"<rect x='{left + c * CELL_W}' y='{top + r * CELL_H}' {size} fill='{_heat(part)}'>"
                f"<title>row {r}, column {c}: {said}</title></rect>"
            )
    return svg(left + wide * CELL_W + 20, top + len(share) * CELL_H + 12, parts)


def _heat(part: float) -> str:
    """Return a colour; the smallest share that is not 0 can be told from none."""
    if part < 0:
        return "#d0d7de"
    strength = 0.0 if part == 0 else 0.2 + 0.8 * min(part, 1.0)
    other = round(255 * (1 - strength))
    return f"#{255 - round(48 * strength):02x}{other:02x}{other:02x}"


def _span(values: Sequence[float], room: float) -> tuple[float, float]:
    return min(values) / room, max(values) * room


def _plain(value: float) -> bool:
    """Say whether a tick is a power of ten."""
    return f"{value:e}".startswith("1.0")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    at = f"x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'"
    return f"<line {at} stroke='{colour}' stroke-width='{width}'/>"
