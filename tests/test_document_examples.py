"""Commands and plans that the documents show: commands, options, arguments of tools and keys of plans are there."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpu_mcp_server.cli.app import app
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.models.run_plan import RunPlan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
COMMAND: Any = typer.main.get_command(app)
TOOLS = {spec.name: spec.to_mcp().parameters["properties"] for t in discover().values() for spec in t.tools}
LINE = re.compile(r"^(?:[a-z]*\$ )(?:\S*/)?gpu-mcp-server (.+(?:\n    .+)*)$", re.MULTILINE)


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Give the words behind the program's name, of each command in the blocks and lines of a page."""
    text = page.read_text(encoding="utf-8")
    commands = re.findall(r"`gpu-mcp-server ([^`\n]+)`", text)
    for block in re.findall(r"^```(?:console|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        commands += LINE.findall(block)
    for command in commands:
        words = shlex.split(command.replace("\\|", "|").partition(" && ")[0], comments=True)
        yield words[: words.index("--")] if "--" in words else words


def unknown_words(words: list[str]) -> list[str]:
    """Return commands, options and arguments of tools that are not there."""
    at = COMMAND
    rest = list(words)
    while hasattr(at, "commands"):
        if not rest or rest[0] not in at.commands:
            return rest[:1] if rest and not rest[0].startswith("--") else []
        at = at.commands[rest.pop(0)]
    options = {option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)}
    missing = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}]
    if at.name != "call" or missing or rest[:1] in ([], ["TOOL"]):
        return missing
    if rest[0] not in TOOLS:
        return rest[:1]
    given: dict[str, Any] = json.loads(rest[rest.index("--args") + 1]) if "--args" in rest else {}
    return [name for name in given if name not in TOOLS[rest[0]]]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_command_that_a_page_shows_is_there(page: Path):
    assert [(words, gone) for words in shown_commands(page) if (gone := unknown_words(words))] == []


def test_a_command_that_is_gone_is_told_from_one_that_is_there():
    gone = (
        ["no-such"],
        ["hosts", "no"],
        ["run", "--no"],
        ["call", "no_tool"],
        ["call", "read_doc", "--args", '{"x": 1}'],
    )
    assert [words for words in gone if not unknown_words(words)] == []
    assert unknown_words(["call", "read_doc", "--args", '{"uri": "doc://x"}']) == []
    assert sum(len(list(shown_commands(page))) for page in PAGES) > 40


@pytest.mark.parametrize("page", ["headless-runs", "tuning", "projects", "many-runs"])
def test_every_plan_that_a_page_shows_has_keys_that_there_are(page: str):
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    plans = [tomllib.loads(block) for block in re.findall(r"^```toml[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    required = {"name": "x", "problem": "p.toml", "agent": {"command": ["agent"]}}

    assert plans
    for plan in plans:
        RunPlan.model_validate({**required, **plan})
