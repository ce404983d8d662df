"""The Grafana dashboard of deploy/ asks only for figures and labels that /metrics has."""

import json
import re
from pathlib import Path
from typing import Any

from gpu_mcp_server.web.metrics import Metrics
from tests.web.site import served

BOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"


def expressions() -> list[str]:
    """Return every query of the board."""
    board: Any = json.loads(BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


async def test_every_query_names_figures_that_the_server_reports():
    async with served(tokens=False) as site:
        page = (await site.ask("GET", "/metrics")).text
    known = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    known |= {f"{name}_bucket" for name in known}
    asked = {name for said in expressions() for name in re.findall(r"\b(?:gpu_mcp|process)_\w+", said)}
    assert len(asked) > 6 and asked <= known, asked - known


def test_every_query_groups_by_labels_that_the_figure_has():
    labels = {
        name: {*collector._labelnames, "le", "instance"}
        for collector, names in Metrics().registry._collector_to_names.items()
        if hasattr(collector, "_labelnames")
        for name in names
    }
    for said in expressions():
        (figure, *_) = re.findall(r"\bgpu_mcp_\w+", said) or [""]
        grouped = {each.strip() for inside in re.findall(r"by \(([^)]*)\)", said) for each in inside.split(",")}
        chosen = set(re.findall(r"(\w+)=~?\\?\"", said))
        assert not figure or grouped | chosen <= labels[figure], said


def test_no_query_says_zero_of_a_server_that_does_not_answer():
    assert not [said for said in expressions() if "vector(" in said]
    panels: Any = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"] and panel["datasource"]["uid"] == "${source}"
