"""Recipes are short, name tools that exist, and say when to stop, what is done and how long an answer may be."""

import re
from pathlib import Path

import pytest
from mcp import Client

from gpu_mcp_server import __version__
from gpu_mcp_server.errors import ConfigError, NotFound
from gpu_mcp_server.mcp_api.server import build_server
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.package_files import content_path
from gpu_mcp_server.recipes.agents.recipe_loader import Recipe, read, recipe, recipes
from tests.laboratory import PROBLEM, Folder, called, client_of
from tests.stand_ins import Opener

ALL = list(recipes().values())
TOOLS = {spec.name for toolset in discover().values() for spec in toolset.tools}
TOOL_LIKE = re.compile(r"`([a-z]+_[a-z_]+)`")
NOT_TOOLS = {
    "problem_id", "attempt_id", "local_accessor", "local_path", "num_warps", "num_stages", "eviction_policy", "malloc_device",
    "select_from_group", "reduce_over_group",
}  # fmt: skip
"""Words in backquotes that look like tools: arguments, and names of CUDA, SYCL and Triton."""


def test_every_role_and_procedure_is_there():
    assert [r.name for r in ALL if r.kind == "agent"] == [
        "analyst", "builder", "coder", "optimizer", "reflector", "tester",
    ]  # fmt: skip
    assert [r.name for r in ALL if r.kind == "skill"] == [
        "debug-a-crash", "nccl-device-transform", "optimize-hip", "optimize-kernel", "port-cuda-to-hip",
        "port-cuda-to-sycl", "read-a-profile", "speed-up-my-program", "write-cuda-kernel", "write-cute-kernel",
        "write-tilelang-kernel", "write-triton-kernel",
    ]  # fmt: skip


@pytest.mark.parametrize("one", ALL, ids=lambda r: r.name)
def test_a_recipe_is_short_and_says_what_is_done_and_how_long_its_answer_is(one: Recipe):
    assert len(one.body) <= 3000 and len(one.description) <= 250
    assert re.search(r"\b[Ss]top\b|\bDone\b", one.body), "when to stop"
    assert re.search(r"at\s+most\s+[\d,]+\s+characters", one.body, re.IGNORECASE), "an output budget"
    if one.kind == "skill":
        assert "Done" in one.body


@pytest.mark.parametrize("one", ALL, ids=lambda r: r.name)
def test_a_recipe_names_only_tools_that_exist(one: Recipe):
    named = {name for name in TOOL_LIKE.findall(one.body) if name not in NOT_TOOLS}
    assert named <= TOOLS, named - TOOLS
    assert named, "it says which tools to use"


def test_the_plugin_says_the_version_that_this_is():
    import json

    folder = content_path("agent_recipes")
    assert json.loads((folder / ".claude-plugin" / "plugin.json").read_text())["version"] == __version__
    server = json.loads((folder / ".mcp.json").read_text())["mcpServers"]["gpu"]
    assert set(server["args"][1].split(",")) <= {"default", *discover()}


def test_what_is_no_recipe_is_refused_with_its_file(tmp_path: Path):
    for text in ("no front matter", "---\nname: x\n---\nbody", "---\n: [\n---\nbody"):
        (tmp_path / "x.md").write_text(text)
        with pytest.raises(ConfigError, match=r"x\.md"):
            read("agent", tmp_path / "x.md")
    with pytest.raises(NotFound, match="coder"):
        recipe("codre")


async def test_recipes_are_prompts_with_what_they_were_given(tmp_path: Path):
    async with Client(build_server(Opener(tmp_path), discover())) as client:
        listed = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(listed) == set(recipes())
        coder = listed["coder"]
        assert [(a.name, a.required) for a in coder.arguments or []] == [
            ("problem_id", True), ("hint", False), ("parent", False),
        ]  # fmt: skip
        got = await client.get_prompt("coder", {"problem_id": "p-1", "hint": "try wider loads"})
    (message,) = got.messages
    text = message.content.text
    assert text.startswith("One candidate, one idea.") and text.endswith("- problem_id: p-1\n- hint: try wider loads\n")


async def test_arguments_are_completed_from_what_is_recorded():
    from mcp.types import PromptReference

    with Folder() as folder:
        async with client_of(folder) as client:
            problem_id = (await called(client, "register_problem", **PROBLEM))["problem_id"]
            ref = PromptReference(type="ref/prompt", name="coder")
            found = await client.complete(ref, {"name": "problem_id", "value": "p-"})
            other = await client.complete(ref, {"name": "problem_id", "value": "q"})
            host = await client.complete(ref, {"name": "host", "value": "lo"})
    assert (found.completion.values, other.completion.values, host.completion.values) == ([problem_id], [], ["local"])
