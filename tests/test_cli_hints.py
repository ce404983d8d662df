"""Hints: over MCP they name tools, on the command line commands."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from gpu_mcp_server.cli.app import app
from gpu_mcp_server.cli.output import fail
from gpu_mcp_server.cli.tool_commands import CALLED, PHRASES, TWINS, name_commands
from gpu_mcp_server.mcp_api.toolset import discover
from tests.commands import Commands
from tests.laboratory import Folder, client_of, refused

ROOT = Path(__file__).parents[1]
TOOLS = {spec.name for toolset in discover().values() for spec in toolset.tools}
NAMED = re.compile(rf"\b({'|'.join(sorted(TOOLS - {'lessons', 'share'}, key=len, reverse=True))})\b")


def hints_of(tree: ast.AST) -> Iterator[str]:
    """Yield every text that is given as a hint; what is put into it counts as `X`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            given: ast.expr = node.value
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(isinstance(name, ast.Name) and "hint" in name.id.lower() for name in names):
                continue
            given = node.value
        else:
            continue
        inner = {id(part) for each in ast.walk(given) if isinstance(each, ast.JoinedStr) for part in each.values}
        for each in ast.walk(given):
            if isinstance(each, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in each.values)  # type: ignore[misc]
            elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inner:
                yield each.value


HINTS = sorted(
    {
        hint
        for folder in ("gpu_mcp_server", "toolsets")
        for path in (ROOT / folder).rglob("*.py")
        # to parse the rest takes each worker most of a second
        if "hint" in (text := path.read_text()).lower() and NAMED.search(text)
        for hint in hints_of(ast.parse(text))
        if NAMED.search(hint)
    }
)


def test_many_hints_name_a_tool():
    assert len(HINTS) > 25


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_that_names_a_tool_names_a_command_on_the_command_line(hint: str):
    said = name_commands(hint)

    assert NAMED.findall(re.sub(r"`gpu-mcp-server call \w+`", "", said)) == []
    assert "`gpu-mcp-server " in said


def test_every_tool_has_a_command_and_every_command_is_there():
    assert {*TWINS, *CALLED} | {"lessons", "share"} == TOOLS
    group = typer.main.get_command(app)
    for words in {*TWINS.values(), *PHRASES.values()}:
        command = group
        for word in words.partition(" --")[0].split():
            assert isinstance(command, TyperGroup) and word in command.commands, words
            command = command.commands[word]


def test_a_name_that_was_given_or_is_in_a_command_already_stays():
    for text in (
        "There is no tool 'job_status'.",
        "`gpu-mcp-server call list_problems`",
        "my_run_command",
        "run_tests()",
    ):
        assert name_commands(text) == text


def test_a_tool_that_was_typed_and_a_list_of_what_may_be_called_keep_their_names():
    said = name_commands(
        "list_files takes: prefix. read_file shows one. You may call: run_tests, lessons.", "list_files"
    )
    assert said == "list_files takes: prefix. `gpu-mcp-server pull` shows one. You may call: run_tests, lessons."


def test_an_error_is_printed_with_the_command(capsys: pytest.CaptureFixture[str]):
    fail("No. Ask job_status with wait_s.", as_json=False)
    assert capsys.readouterr().err == "No. Ask `gpu-mcp-server logs --follow`.\n"


async def test_the_same_error_names_a_tool_over_mcp_and_a_command_on_the_command_line(commands: Commands):
    with Folder() as folder:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GPU_MCP_DATA_DIR": str(folder / "data")}
        done = commands.run("logs", "j-none", env=environment, cwd=folder)
        assert done.returncode == 1 and "`gpu-mcp-server run`" in done.stderr and "run_command" not in done.stderr
        async with client_of(folder) as client:
            assert "run_command" in await refused(client, "job_status", job_id="j-none")
