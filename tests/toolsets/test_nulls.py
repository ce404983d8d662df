"""Clients send null for every argument that a model left out; nested values may arrive as text."""

import json
import re
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


def takes_an_object(schema: dict[str, Any]) -> bool:
    return "object" in (schema.get("type"), schema.get("items", {}).get("type"))


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


OBJECTS = [
    (spec, name)
    for spec in SPECS
    for name, schema in spec.to_mcp().parameters["properties"].items()
    if takes_an_object(schema)
]


@pytest.mark.parametrize(("spec", "name"), OBJECTS, ids=lambda each: getattr(each, "name", each))
def test_an_object_has_an_example_that_is_accepted_and_shown_where_it_is_wrong(spec: ToolSpec, name: str):
    tool = tool_of(spec)
    examples = tool.fn_metadata.arg_model.model_fields[name].examples
    assert examples, f"{spec.name}({name}) has no example"
    required = filled(tool.parameters)
    tool._accepted({**required, name: examples[0]})
    with pytest.raises(ToolError, match=re.escape(f"For example {name}: {json.dumps(examples[0])}.")):
        tool._accepted({**required, name: "a word"})


@pytest.mark.parametrize(
    ("tool", "name", "wrong", "said"),
    [
        ("evaluate_kernel", "timing", {"mdoe": 1}, "timing has no key 'mdoe'; its keys: tier, precision, cache"),
        ("evaluate_kernel", "timing", "exact", "timing must be an object with some of the keys tier, precision"),
        ("register_problem", "trials", {"seed": 1}, "trials has no key 'seed'; its keys: constraints, fixed_shapes"),
        ("register_problem", "inputs", [{"dim": 1}], "inputs.0 has no key 'dim'; its keys: name, dtype, shape"),
        ("register_problem", "shapes", [7], "shapes.0 must be an object (got 7)"),
        ("run_command", "needs", {"count": 1}, "needs has no key 'count'; its keys: vendor, arch, memory_gb"),
        ("run_command", "ranks", 4, "ranks must be an object with some of the keys count, launcher, hosts (got 4)"),
        ("check_memory", "target", {"id": "a-1"}, "target has no key 'id'; its keys: command, workspace_id"),
        ("import_problem", "wish", {"tol": 1}, "wish has no key 'tol'; its keys: rtol, atol, distribution"),
        ("evaluate_kernels", "candidates", [{"code": ""}], "candidates.0 has no key 'code'; its keys: name, source"),
        ("verify_nccl", "run", {"gpus": 2}, "run has no key 'gpus'; its keys: ranks, launcher"),
    ],
)
def test_a_wrong_key_of_an_object_is_answered_with_its_keys(tool: str, name: str, wrong: Any, said: str):
    found = tool_of(next(each for each in SPECS if each.name == tool))
    with pytest.raises(ToolError, match=re.escape(said)):
        found._accepted({**filled(found.parameters), name: wrong})


def test_a_wrong_word_within_an_argument_is_answered_with_the_words_there_and_not_with_the_arguments():
    tool = tool_of(next(each for each in SPECS if each.name == "register_problem"))
    with pytest.raises(ToolError, match=r"trials\.requires\.0: Input should be '.*tensor core' ") as refused:
        tool._accepted({**filled(tool.parameters), "trials": {"requires": ["fp3"]}})
    assert "register_problem takes: " not in str(refused.value)


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
