"""The server as clients start it: choice of tools, stdio, HTTP."""

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.mcp_api.server import build_server, instructions_for, select_toolsets
from gpu_mcp_server.mcp_api.toolset import Toolset, discover
from tests.laboratory import HONEST, PROBLEM, Folder, called
from tests.stand_ins import Opener

SERVER = [sys.executable, "-m", "gpu_mcp_server"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **more}


OFFERED = [spec.name for _, specs in select_toolsets(discover()) for spec in specs]


async def names(server: Any) -> list[str]:
    async with Client(server) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


async def test_read_only_leaves_only_tools_that_look(tmp_path: Path):
    assert await names(build_server(Opener(tmp_path), discover(), read_only=True)) == [
        "gpu_status",
        "read_file",
        "list_files",
        "job_status",
        "read_artifact",
        "list_problems",
        "list_attempts",
        "query_profile",
        "search_docs",
        "read_doc",
    ]


async def test_toolsets_and_excluded_tools_choose_what_is_offered(tmp_path: Path):
    server = build_server(Opener(tmp_path), discover(), only=["evaluate"], exclude_tools=["list_attempts"])

    assert await names(server) == [
        "register_problem",
        "import_problem",
        "list_problems",
        "evaluate_kernel",
        "evaluate_kernels",
    ]
    guide, off = str(server.instructions).split("Off, until")
    assert "run_command" not in guide and "register_problem" in guide
    assert "\ncore: gpu_status, write_files" in off


def test_an_unknown_toolset_or_tool_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=rf"'cuda'.*{', '.join(discover())}, default, all"):
        select_toolsets(discover(), toolsets=["cuda"])
    with pytest.raises(ConfigError, match=r"'rm'.*run_command"):
        select_toolsets(discover(), exclude_tools=["rm"])


def test_a_toolset_that_is_off_by_default_is_on_with_its_name_or_all():
    extra = Toolset(id="extra", title="Extra", instructions="", default=False, tools=discover()["core"].tools[:1])
    available = discover() | {"extra": extra}

    assert [t.id for t, _ in select_toolsets(available)] == ["core", "evaluate", "profile", "nccl", "docs"]
    assert [t.id for t, _ in select_toolsets(available, toolsets=["default", "extra"])] == [
        "core",
        "evaluate",
        "profile",
        "nccl",
        "docs",
        "extra",
    ]
    assert [t.id for t, _ in select_toolsets(available, toolsets=["all"])] == [*discover(), "extra"]


def test_instructions_never_outgrow_their_budget():
    long = Toolset(id="x", title="X", instructions="word " * 1000, tools=discover()["core"].tools)

    said = instructions_for([(long, long.tools)])
    assert len(said) <= 2000 and "Read the tools of x" in said


def test_instructions_with_all_toolsets_lose_no_guidance(tmp_path: Path):
    said = build_server(Opener(tmp_path), discover(), only=["all"]).instructions or ""

    for toolset in discover().values():
        assert toolset.instructions in said, toolset.id
        assert [spec.name for spec in toolset.tools if spec.name not in said] == []
    assert "Off, until" not in said


def test_instructions_name_each_toolset_that_is_off_on_a_line(tmp_path: Path):
    said = (build_server(Opener(tmp_path), discover()).instructions or "").splitlines()

    at = said.index("Off, until the user starts the server with `--toolsets default,NAME`:")
    off = [toolset for toolset in discover().values() if not toolset.default]
    assert said[at + 1 :] == [f"{each.id}: {', '.join(spec.name for spec in each.tools)}" for each in off]


def test_starting_imports_nothing_heavy():
    heavy = "{'asyncssh', 'chromadb', 'docker', 'kernelguard', 'numpy', 'torch', 'aiosqlite', 'pynvml', 'msgpack'}"
    code = (
        "import sys; from gpu_mcp_server.mcp_api.server import server_from_settings; from gpu_mcp_server.settings.server_settings import load_settings; "
        f"import gpu_mcp_server.cli.app; server_from_settings(load_settings()); print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


async def test_a_server_that_is_cancelled_closes_its_laboratory(tmp_path: Path):
    opener, closed = Opener(tmp_path), asyncio.Event()

    @asynccontextmanager
    async def slow_to_close():
        async with opener() as lab:
            yield lab
            await asyncio.sleep(0)
            closed.set()

    server = build_server(slow_to_close, discover())._lowlevel_server
    with anyio.CancelScope() as scope:
        async with server.lifespan(server) as app:
            await app.lab()
            scope.cancel()  # as the SDK does where a server takes longer to end than it waits

    assert closed.is_set() and opener.closed == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdio_serves_both_eras(tmp_path: Path, mode: str):
    parameters = StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=environment(tmp_path))
    async with Client(parameters, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("no_such_tool", {})

    assert [tool.name for tool in tools] == OFFERED
    assert result.is_error


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
async def test_kernels_are_judged_over_stdio_and_remembered():
    """The main job, once: what an agent does with a server of its own."""
    with Folder() as folder:
        env = environment(folder, GPU_MCP_DATA_DIR=str(folder / "data"), GPU_MCP_INDEX_DOCUMENTATION="false")
        async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=env)) as client:
            host = (await called(client, "gpu_status"))["hosts"][0]
            if host.get("level") not in ("full", "namespaces"):
                pytest.skip(f"jobs cannot run here: sandbox level {host.get('level')}")
            problem_id = (await called(client, "register_problem", **PROBLEM))["problem_id"]
            wrong, cheat = HONEST.replace("+ 1;", "+ 1.5f;"), "int launch(void) { return 0; }"
            given = {"problem_id": problem_id, "language": "c", "timing": {"tier": "correctness"}}
            found = [await called(client, "evaluate_kernel", source=text, **given) for text in (HONEST, wrong, cheat)]
            failures = await called(client, "list_attempts", problem_id=problem_id, view="failures")

    assert [each["verdict"] for each in found] == ["correct", "incorrect", "cheat"]
    assert {a["attempt_id"] for a in failures["attempts"]} == {each["attempt_id"] for each in found[1:]}


def test_stdout_carries_nothing_but_the_protocol(tmp_path: Path):
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    said = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "cancel_job", "arguments": {"x": 1}}},
    ]
    process = subprocess.Popen(
        SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdin and process.stdout and process.stderr
    answers: dict[int, dict[str, Any]] = {}
    for message in said:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        if "id" in message:
            answer = json.loads(process.stdout.readline())
            answers[answer["id"]] = answer["result"]
    rest, log = process.communicate()

    assert rest == b""
    assert process.returncode == 0
    assert [tool["name"] for tool in answers[2]["tools"]] == OFFERED
    assert answers[3]["isError"]
    assert all(json.loads(line) for line in log.splitlines())


def test_wrong_settings_are_told_on_stderr_and_end_the_start(tmp_path: Path):
    done = subprocess.run(
        SERVER, capture_output=True, text=True, env=environment(tmp_path, GPU_MCP_TOOLSETS="nonsense"), check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "nonsense" in done.stderr and "Traceback" not in done.stderr
