"""The graph as pictures: Mermaid text, and an SVG that needs nothing to be shown."""

from dataclasses import dataclass

from gpu_mcp_server.models.collective import CollectiveGraph, CollectiveSite
from gpu_mcp_server.plots.history_plots import escape_text
from gpu_mcp_server.text_safety import escape_controls

MAX_SITES = 40
"""Sites in a picture; a person sees nothing in more."""
ROW = 34
WIDTH = 960
COLUMNS = {"producer": 20, "send": 230, "site": 410, "recv": 640, "consumer": 790}
BOX = {"producer": 180, "send": 150, "site": 200, "recv": 130, "consumer": 160}
FILL = {"producer": "#dbe9f6", "send": "#eeeeee", "site": "#ffe3b3", "recv": "#eeeeee", "consumer": "#d8f0dc"}


@dataclass(frozen=True)
class SiteRow:
    """One site with what flows in and out."""

    site: CollectiveSite
    cells: dict[str, list[str]]

    @property
    def height(self) -> int:
        """Rows of boxes that it needs."""
        return max(1, *(len(c) for c in self.cells.values()))


def mermaid(graph: CollectiveGraph) -> str:
    """Return the graph as a Mermaid flowchart: kernels to buffers to collectives to buffers to kernels."""
    lines = ["flowchart LR"]
    names: dict[str, str] = {}

    def node(kind: str, text: str) -> str:
        key = f"{kind}:{text}"
        if key not in names:
            names[key] = f"n{len(names)}"
            opening, closing = {"buffer": ("[(", ")]"), "site": ("{{", "}}")}.get(kind, ("[", "]"))
            lines.append(f'  {names[key]}{opening}"{_quoted(text)}"{closing}')
        return names[key]

    for site in graph.sites[:MAX_SITES]:
        own = node("site", f"{site.id} {site.call} :{site.line} ({site.phase})")
        for buffer in site.buffers:
            held = node("buffer", buffer.name)
            lines.append(f"  {held} --> {own}" if buffer.role == "send" else f"  {own} --> {held}")
            lines += [f"  {node('kernel', p)} --> {held}" for p in buffer.producers[:4]]
            lines += [f"  {held} --> {node('kernel', p)}" for p in buffer.consumers[:4]]
    if len(graph.sites) > MAX_SITES:
        lines.append(f'  more["{len(graph.sites) - MAX_SITES} more sites"]')
    return "\n".join(dict.fromkeys(lines)) + "\n"


def svg(graph: CollectiveGraph) -> str:
    """Return the graph as an SVG with one row a site."""
    rows = [SiteRow(s, _cells(s)) for s in graph.sites[:MAX_SITES]]
    height = 60 + sum(r.height * ROW + 16 for r in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="monospace" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    parts += [f'<text x="{x}" y="24" font-weight="bold">{escape_text(name)}</text>' for name, x in COLUMNS.items()]
    top = 40
    for row in rows:
        parts += _drawn(row, top)
        top += row.height * ROW + 16
    if len(graph.sites) > MAX_SITES:
        parts.append(f'<text x="20" y="{height - 6}">{len(graph.sites) - MAX_SITES} more sites</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cells(site: CollectiveSite) -> dict[str, list[str]]:
    cells: dict[str, list[str]] = {name: [] for name in COLUMNS}
    cells["site"] = [f"{site.id} {site.call}:{site.line}"]
    for buffer in site.buffers:
        cells["send" if buffer.role == "send" else "recv"].append(buffer.name)
        cells["producer"] += buffer.producers[:4]
        cells["consumer"] += buffer.consumers[:4]
    return cells


def _drawn(row: SiteRow, top: int) -> list[str]:
    parts: list[str] = []
    middle = top + row.height * ROW // 2
    order = list(COLUMNS)
    for name in order:
        cells = row.cells[name]
        first = top + (row.height - len(cells)) * ROW // 2
        for number, text in enumerate(cells):
            x, y = COLUMNS[name], first + number * ROW
            shown = _cut(text, BOX[name] // 8 + 2)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{BOX[name]}" height="{ROW - 8}" rx="4" fill="{FILL[name]}"/>'
                f'<text x="{x + 6}" y="{y + 17}">{escape_text(shown)}<title>{escape_text(text)}</title></text>'
            )
            following = order[order.index(name) + 1] if name != order[-1] else None
            if following and row.cells[following]:
                end = COLUMNS[following]
                parts.append(f'<line x1="{x + BOX[name]}" y1="{y + 13}" x2="{end}" y2="{middle - 4}" stroke="#666"/>')
    return parts


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _quoted(text: str) -> str:
    return escape_controls(text).replace('"', "'").replace("<", "&lt;").replace(">", "&gt;")
