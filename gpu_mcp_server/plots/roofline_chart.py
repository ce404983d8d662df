"""A roofline as a picture: intensity across, performance up, both logarithmic."""

import io
import math
from collections.abc import Sequence
from typing import Any

from gpu_mcp_server.models.profile import KernelVerdict, Roofline

WIDTH, HEIGHT = 900, 600
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 50, 70
COLOURS = ((31, 119, 180), (214, 39, 40), (44, 160, 44), (148, 103, 189), (255, 127, 14), (23, 190, 207))
GREY, BLACK, WHITE = (215, 215, 215), (20, 20, 20), (255, 255, 255)


def png(verdicts: Sequence[KernelVerdict]) -> bytes | None:
    """Draw the kernels that have a roofline under the roofs of the first; `None` without one, or without Pillow."""
    shown = [(v, v.roofline) for v in verdicts if v.roofline is not None and v.roofline.levels][: len(COLOURS)]
    if not shown:
        return None
    try:
        from PIL import Image, ImageDraw  # only a few profiles end as pictures
    except ImportError:
        return None

    image = Image.new("RGB", (WIDTH, HEIGHT), WHITE)
    plane = _Plane(ImageDraw.Draw(image), [roof for _, roof in shown])
    plane.grid()
    first = shown[0][1]
    for n, level in enumerate(first.levels):
        plane.roof(level.peak_bandwidth_gb_s, first.peak_tflop_s, level.level, 14 * n)
    plane.ceiling(first)
    for n, (v, roof) in enumerate(shown):
        for level in roof.levels:
            plane.point(level.intensity_flop_b, roof.tflop_s, COLOURS[n], level.level)
        plane.legend(n, f"{v.name[:60]}: {roof.tflop_s:.3g} TFLOP/s {roof.pipe}", COLOURS[n])
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


class _Plane:
    """Logarithmic axes."""

    def __init__(self, draw: Any, roofs: Sequence[Roofline]) -> None:
        self.draw = draw
        x = [lv.intensity_flop_b for r in roofs for lv in r.levels]
        x += [r.peak_tflop_s * 1e3 / lv.peak_bandwidth_gb_s for r in roofs for lv in r.levels]
        y = [r.tflop_s for r in roofs] + [r.peak_tflop_s for r in roofs]
        self.x0, self.x1 = math.floor(math.log10(min(x)) - 0.3), math.ceil(math.log10(max(x)) + 0.3)
        self.y0, self.y1 = math.floor(math.log10(min(y)) - 0.3), math.ceil(math.log10(max(y)) + 0.1)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a point."""
        right = (math.log10(x) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)
        up = (math.log10(y) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)
        return LEFT + right, HEIGHT - BOTTOM - up

    def grid(self) -> None:
        """Draw decades and what the axes are."""
        for e in range(self.x0, self.x1 + 1):
            (x, low), (_, high) = self.at(10.0**e, 10.0**self.y0), self.at(10.0**e, 10.0**self.y1)
            self.draw.line((x, low, x, high), fill=GREY)
            self.draw.text((x - 12, low + 6), f"{10.0**e:g}", fill=BLACK)
        for e in range(self.y0, self.y1 + 1):
            (left, y), (right, _) = self.at(10.0**self.x0, 10.0**e), self.at(10.0**self.x1, 10.0**e)
            self.draw.line((left, y, right, y), fill=GREY)
            self.draw.text((left - 48, y - 6), f"{10.0**e:g}", fill=BLACK)
        self.draw.text((WIDTH / 2 - 80, HEIGHT - 30), "intensity, FLOP per byte", fill=BLACK)
        self.draw.text((10, 14), "TFLOP/s", fill=BLACK)

    def roof(self, gb_s: float, peak: float, name: str, down: int) -> None:
        """Draw the slope of one level of memory, up to the ceiling."""
        start = max(10.0**self.x0, 10.0**self.y0 / gb_s * 1e3)
        x, y = self.at(start, start * gb_s / 1e3)
        self.draw.line((x, y, *self.at(peak * 1e3 / gb_s, peak)), fill=BLACK, width=2)
        self.draw.text((x + 8, y - 22 - down), f"{name} {gb_s / 1e3:.3g} TB/s", fill=BLACK)

    def ceiling(self, roof: Roofline) -> None:
        """Draw the compute peak, from the first ridge on."""
        ridge = min(roof.peak_tflop_s * 1e3 / lv.peak_bandwidth_gb_s for lv in roof.levels)
        x, y = self.at(ridge, roof.peak_tflop_s)
        self.draw.line((x, y, WIDTH - RIGHT, y), fill=BLACK, width=2)
        self.draw.text((WIDTH - RIGHT - 230, y - 16), f"{roof.pipe} {roof.peak_tflop_s:.3g} TFLOP/s", fill=BLACK)

    def point(self, intensity: float, tflop_s: float, colour: tuple[int, int, int], level: str) -> None:
        """Draw one kernel at one level."""
        x, y = self.at(intensity, tflop_s)
        self.draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)
        self.draw.text((x + 8, y - 5), level, fill=colour)

    def legend(self, n: int, text: str, colour: tuple[int, int, int]) -> None:
        """Name a kernel."""
        self.draw.text((LEFT + 20, TOP - 30 + 14 * n), text.encode("latin-1", "replace").decode("latin-1"), fill=colour)
