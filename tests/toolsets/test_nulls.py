"""Clients send null for every argument that a model left out; nested values may arrive as text."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver.exceptions import ToolError

from gpu_mcp_server.mcp_api.lab_tool import LabTool
from gpu_mcp_server.mcp_api.toolset import ToolSpec, discover
from tests.laboratory import Folder, called, client_of, refused

SPECS = [spec for toolset in discover().values() for spec in toolset.tools]
TENSORS = [{"name": "x", "dtype": "float32", "shape": ["n"]}]
WORDS = {"files": {"a": "b"}, "shapes": [{"n": 1}], "inputs": TENSORS, "outputs": TENSORS}
"""What a schema does not tell enough of to make an example."""


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    with Folder() as folder:
        async with client_of(folder) as client:
            yield client


def example(name: str, schema: dict[str, Any]) -> Any:
    """Return a value that a schema allows."""
    if name in WORDS:
        return WORDS[name]
    if "anyOf" in schema:
        return example(name, schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "array":
        return [example("", schema.get("items", {}))]
    if kind == "object":
        return {key: example(key, schema["properties"][key]) for key in schema.get("required", [])}
    return {"integer": 1, "number": 1.0, "boolean": True}.get(str(kind), "x")


def filled(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: example(name, schema["properties"][name]) for name in schema.get("required", [])}


def tool_of(spec: ToolSpec) -> LabTool:
    tool = spec.to_mcp()
    assert isinstance(tool, LabTool)
    return tool


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_null_for_what_is_optional_is_as_if_it_were_not_given(spec: ToolSpec):
    tool = tool_of(spec)
    required = filled(tool.parameters)
    left_out = tool._accepted(required)
    optional = [name for name in tool.parameters["properties"] if name not in required]
    for name in optional:
        assert tool._accepted({**required, name: None}) == left_out, name
    assert tool._accepted({**required, **dict.fromkeys(optional)}) == left_out


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_null_for_what_is_required_is_an_error_that_names_it(spec: ToolSpec):
    tool = tool_of(spec)
    required = filled(tool.parameters)
    for name in required:
        with pytest.raises(ToolError, match=f"{spec.name} cannot use its arguments: {name} is null, and must be given"):
            tool._accepted({**required, name: None})


def test_null_inside_of_an_argument_is_left_out_where_a_field_has_a_name_of_ours():
    run = tool_of(next(s for s in SPECS if s.name == "run_command"))
    sent = {"command": ["true"], "needs": {"arch": "sm_90", "memory_gb": None, "nvlink": None}, "gpus": "null"}
    assert run._accepted(sent) == run._accepted({"command": ["true"], "needs": {"arch": "sm_90"}})
    for wrong in ({"env": {"A": None}}, {"outputs": ["a", None]}, {"needs": {"arch": None, "of": 1}}):
        with pytest.raises(ToolError, match=f"{next(iter(wrong))}"):
            run._accepted({"command": ["true"], **wrong})


async def test_tools_run_with_null_for_all_that_is_optional(client: Client):
    listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}

    def nulls(tool: str) -> dict[str, None]:
        schema = listed[tool]
        return {name: None for name in schema["properties"] if name not in schema.get("required", [])}

    ran = await called(client, "run_command", **nulls("run_command") | {"command": ["echo", "hi"]})
    assert ran["stdout"] == "hi\n"
    await called(client, "list_attempts", **nulls("list_attempts"))
    await called(client, "gpu_status", **nulls("gpu_status"))
    built = nulls("compile_kernel") | {"source": "int f(void) { return 0; }", "language": "c"}
    assert (await called(client, "compile_kernel", **built))["status"] == "ok"
    text = await refused(client, "run_command", command=None, timeout_s=None)
    assert "command is null, and must be given" in text and "timeout_s:" not in text


async def test_nested_arguments_may_arrive_as_text(client: Client):
    made = await called(client, "write_files", files='{"a.sh": "echo hi\\n"}')
    assert made["written"] == ["a.sh"]
    sent = {"command": '["sh", "-c", "echo $X"]', "env": '{"X": "1"}', "timeout_s": "30", "detach": "false"}
    assert (await called(client, "run_command", **sent))["stdout"] == "1\n"
