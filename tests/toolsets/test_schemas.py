"""Descriptions of the tools as agents read them: one file a tool. `UPDATE_SNAPSHOTS=1 pytest` writes them anew."""

import json
import os
from pathlib import Path

import pytest

from gpu_mcp_server.mcp_api.toolset import ToolSpec, discover

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
SPECS = [spec for toolset in discover().values() for spec in toolset.tools]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_tool_is_described_as_in_its_snapshot(spec: ToolSpec):
    tool = spec.to_mcp()
    assert tool.annotations is not None
    shown = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "annotations": tool.annotations.model_dump(by_alias=True, exclude_none=True),
    }
    text = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    file = SNAPSHOTS / f"{spec.name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")

    assert file.read_text(encoding="utf-8") == text


def test_there_is_no_snapshot_without_its_tool():
    assert {file.stem for file in SNAPSHOTS.glob("*.json")} == {spec.name for spec in SPECS}
