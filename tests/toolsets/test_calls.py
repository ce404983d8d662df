"""Calls of tools through the in-memory client, in both protocol eras."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult

from gpu_mcp_server.errors import ConfigError, HostUnavailable
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.runtime.result_limits import RESULT_LIMIT, json_size
from tests.stand_ins import Laboratory, Opener

Said = Callable[[CallToolResult], str]
Data = Callable[[CallToolResult], dict[str, Any]]


async def test_a_result_says_the_same_as_data_and_as_text(client: Client, said: Said, data: Data):
    result = await client.call_tool("gpu_status", {})

    assert data(result)["hosts"][0]["host"] == "local"
    assert "local (local)" in said(result)
    assert "driver" not in data(result)["hosts"][0]


async def test_listing_tools_does_not_open_the_laboratory(client: Client, opener: Opener):
    assert len((await client.list_tools()).tools) == sum(len(t.tools) for t in discover().values() if t.default)
    assert opener.opened == 0


async def test_the_laboratory_is_opened_once_for_calls_at_the_same_time(client: Client, opener: Opener):
    await asyncio.gather(*(client.call_tool("gpu_status", {}) for _ in range(5)))

    assert opener.opened == 1


async def test_a_laboratory_that_cannot_open_says_why_and_is_tried_again(client: Client, opener: Opener, said: Said):
    opener.failure = ConfigError("data_dir is a file.", hint="Name a folder.")
    broken = await client.call_tool("gpu_status", {})
    opener.failure = None
    mended = await client.call_tool("gpu_status", {})

    assert broken.is_error
    assert said(broken) == "data_dir is a file. Name a folder."
    assert not mended.is_error


async def test_an_unknown_argument_is_an_error_that_names_the_known_ones(client: Client, said: Said):
    result = await client.call_tool("cancel_job", {"job_id": "j", "force": True})

    assert result.is_error
    assert said(result) == "cancel_job has no argument 'force'; it takes: job_id."


async def test_an_argument_in_the_wrong_place_is_told_its_own(client: Client, said: Said):
    result = await client.call_tool("check_memory", {"attempt_id": "a-1", "tool": "racecheck"})

    assert said(result).endswith("it takes: target, tool. attempt_id is a key of target.")


async def test_arguments_that_do_not_fit_are_named_without_noise(client: Client, said: Said):
    result = await client.call_tool("read_file", {"path": "a", "first_line": 0, "max_lines": "many"})

    assert result.is_error
    assert said(result) == (
        "read_file cannot use its arguments: workspace_id is missing; "
        "first_line: Input should be greater than or equal to 1 (got 0); "
        "max_lines: Input should be a valid integer, unable to parse string as an integer (got 'many'). "
        "read_file takes: workspace_id, path, first_line, max_lines."
    )


async def test_an_unknown_tool_is_an_error_that_names_the_known_ones(client: Client, said: Said):
    result = await client.call_tool("compile", {})

    assert result.is_error
    assert "compile_kernel" in said(result)


async def test_a_foreseen_error_says_what_why_and_what_next(client: Client, lab: Laboratory, said: Said):
    lab.status.gpus.failure = HostUnavailable("Host 'box' does not answer: timed out.")
    result = await client.call_tool("gpu_status", {"host": "box"})

    assert result.is_error
    assert said(result) == (
        "Host 'box' does not answer: timed out. Call gpu_status to see which hosts answer. "
        "The same call may succeed later."
    )


async def test_a_foreseen_error_inside_a_group_is_still_told(client: Client, lab: Laboratory, said: Said):
    lab.status.gpus.failure = ExceptionGroup("two", [ConfigError("Wrong."), ValueError("secret")])
    result = await client.call_tool("gpu_status", {})

    assert said(result) == "Wrong."


async def test_an_unforeseen_error_gives_an_incident_and_no_internals(
    client: Client, lab: Laboratory, said: Said, caplog: pytest.LogCaptureFixture
):
    lab.status.gpus.failure = RuntimeError("password hunter2")
    with caplog.at_level(logging.ERROR):
        result = await client.call_tool("gpu_status", {})

    assert result.is_error
    text = said(result)
    incident = text.partition("incident ")[2][:8]
    assert "hunter2" not in text and "RuntimeError" not in text
    assert f"incident {incident}" in caplog.text and "hunter2" in caplog.text


async def test_a_running_tool_reports_its_progress_and_beats_when_it_is_silent(client: Client, lab: Laboratory):
    heard: list[tuple[float, str]] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, message or ""))
        if len(heard) >= 3:
            lab.commands.release.set()

    result = await client.call_tool("run_command", {"command": ["sleep", "9"]}, progress_callback=hear)

    assert not result.is_error
    assert heard[0][1] == "building part 1"
    assert heard[1][1].startswith("still running: building part 1, ")
    assert [value for value, _ in heard] == sorted({value for value, _ in heard})


async def test_cancelling_a_call_reaches_the_service(client: Client, lab: Laboratory):
    call = asyncio.create_task(client.call_tool("run_command", {"command": ["sleep", "9"]}))
    await lab.commands.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await lab.commands.cancelled.wait()


async def test_a_long_output_is_cut_in_both_channels_and_says_so(
    client: Client, lab: Laboratory, said: Said, data: Data
):
    lab.commands.stdout = "first line\n" + "".join(f"line {i}\n" for i in range(5000)) + "last line\n"
    result = await client.call_tool("run_command", {"command": ["true"]})

    for text in (data(result)["stdout"], said(result)):
        assert "first line" in text and "last line" in text and "characters left out" in text
    assert json_size(data(result)) <= RESULT_LIMIT
    assert len(said(result)) <= RESULT_LIMIT
    assert data(result)["shortened"][0].startswith("stdout: ")
    assert "(shortened: stdout: " in said(result)


async def test_a_long_list_is_cut_at_its_end_and_says_how_many_are_missing(client: Client, said: Said, data: Data):
    written = await client.call_tool("write_files", {"files": {f"src/file{i:03}.c": "int x;\n" for i in range(150)}})

    assert json_size(data(written)) <= RESULT_LIMIT
    assert len(said(written)) <= RESULT_LIMIT
    kept = len(data(written)["files"])
    assert f"files: the last {150 - kept} of 150 items left out" in data(written)["shortened"]
    assert f"files: the last {150 - kept} of 150 items left out" in said(written)


async def test_files_go_into_a_workspace_and_come_back(client: Client, said: Said, data: Data):
    written = await client.call_tool("write_files", {"files": {"a/k.c": "one\ntwo\nthree\n"}})
    workspace_id = data(written)["workspace_id"]
    listed = await client.call_tool("list_files", {"workspace_id": workspace_id, "prefix": "a/"})
    read = await client.call_tool(
        "read_file", {"workspace_id": workspace_id, "path": "a/k.c", "first_line": 2, "max_lines": 1}
    )

    assert [f["path"] for f in data(listed)["files"]] == ["a/k.c"]
    assert data(read)["text"] == "two"
    assert "first_line=3" in said(read)


async def test_a_local_folder_becomes_a_workspace(client: Client, tmp_path: Path, data: Data):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "k.cu").write_text("__global__ void k() {}\n")
    written = await client.call_tool("write_files", {"local_path": str(tmp_path / "src")})

    assert data(written)["written"] == ["k.cu"]


async def test_write_files_wants_either_files_or_a_local_path(client: Client, said: Said):
    result = await client.call_tool("write_files", {})

    assert result.is_error
    assert said(result) == "Give either `files` (texts by path) or `local_path` (of this machine)."


async def test_a_source_given_as_text_path_or_workspace_file_reaches_the_compiler(
    client: Client, lab: Laboratory, tmp_path: Path, data: Data
):
    (tmp_path / "k.cpp").write_text("int a;\n")
    written = await client.call_tool("write_files", {"files": {"k.cu": "int b;\n"}})
    arguments = [
        {"source": "int c;\n", "language": "c"},
        {"path": str(tmp_path / "k.cpp")},
        {"path": "k.cu", "workspace_id": data(written)["workspace_id"], "arch": "sm_90a", "flags": ["-O2"]},
    ]
    for given in arguments:
        assert data(await client.call_tool("compile_kernel", given))["status"] == "ok"

    assert [(source.text, source.language) for source, _ in lab.builds.compiler.given] == [
        ("int c;\n", "c"),
        ("int a;\n", "cpp"),
        ("int b;\n", "cuda"),
    ]
    assert lab.builds.compiler.given[2][1]["arch"] == "sm_90a"
    assert tuple(lab.builds.compiler.given[2][1]["flags"]) == ("-O2",)


async def test_run_command_hands_its_arguments_on(client: Client, lab: Laboratory):
    await client.call_tool("run_command", {"command": ["env"], "env": {"A": "1"}, "gpus": 2, "outputs": ["*"]})

    given = lab.commands.given
    assert (given["argv"], given["env"], given["gpus"], given["outputs"]) == (["env"], {"A": "1"}, 2, ("*",))


async def test_an_artifact_reads_the_same_as_a_tool_and_as_a_resource(client: Client, lab: Laboratory, data: Data):
    artifact_id = await lab.store.artifacts.put(b"one\ntwo\n", name="log.txt", media_type="text/plain")
    lines = await client.call_tool("read_artifact", {"artifact_id": artifact_id})
    whole = await client.read_resource(f"artifact://{artifact_id}")

    assert (data(lines)["path"], data(lines)["text"]) == ("log.txt", "one\ntwo")
    assert getattr(whole.contents[0], "text", None) == "one\ntwo\n"


async def test_an_unknown_artifact_is_an_error_in_both_forms(client: Client, said: Said):
    result = await client.call_tool("read_artifact", {"artifact_id": "b-0"})
    with pytest.raises(MCPError, match="b-0"):
        await client.read_resource("artifact://b-0")

    assert result.is_error
    assert "There is no artifact 'b-0'." in said(result)


async def test_an_attempt_asked_for_alone_comes_with_its_evidence(
    client: Client, lab: Laboratory, said: Said, data: Data
):
    attempt_id = await lab.store.experience.start("evaluate", problem_id="p-1", language="c")
    await lab.store.experience.finish(attempt_id, status="judged", verdict="correct", evidence={"seed": "abc123"})
    result = await client.call_tool("list_attempts", {"attempt_id": attempt_id})

    assert data(result)["attempts"][0]["evidence"] == {"seed": "abc123"}
    assert "abc123" in said(result)
