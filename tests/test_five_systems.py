"""The table of five systems: no row without a command, and every command, option and tool in it is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpu_mcp_server.cli.app import app
from gpu_mcp_server.mcp_api.toolset import discover

TEXT = (Path(__file__).parents[1] / "docs/reference/five-systems.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:-1] for line in TEXT.splitlines() if line.startswith("| ") and "---" not in line][1:]
COMMAND = re.compile(r"`gpu-mcp-server ([^`]+)`")
TOOLS = {spec.name for toolset in discover().values() for spec in toolset.tools}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_each_row_has_a_command_that_is_there(row: list[str]):
    commands = COMMAND.findall(row[2])
    assert commands and len(row) == 4
    for words in (text.split() for text in [*commands, *COMMAND.findall(row[3])]):
        at: Any = typer.main.get_command(app)
        while hasattr(at, "commands"):
            assert words and words[0] in at.commands, f"there is no command {words[:1]}"
            at = at.commands[words.pop(0)]
        options = {option for parameter in at.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
        if at.name == "call":
            assert words[0] in TOOLS


def test_the_table_speaks_of_all_five():
    for name in ("HPC", "bifrost", "CUCo", "Daniel", "GEAK-HIP"):
        assert sum(name in row[1] for row in ROWS) >= 3, name
