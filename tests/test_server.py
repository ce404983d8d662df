"""The server as clients start it: choice of tools, stdio, HTTP."""

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.server import build_server, checked_loopback, http_app, instructions_for, selected
from gpu_mcp_server.toolset import Toolset, discover
from tests.stand_ins import Opener

SERVER = [sys.executable, "-m", "gpu_mcp_server"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **more}


OFFERED = [spec.name for _, specs in selected(discover()) for spec in specs]


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
    assert "run_command" not in str(server.instructions)
    assert "register_problem, import_problem, list_problems, evaluate_kernel" in str(server.instructions)


def test_an_unknown_toolset_or_tool_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=rf"'cuda'.*{', '.join(discover())}, default, all"):
        selected(discover(), toolsets=["cuda"])
    with pytest.raises(ConfigError, match=r"'rm'.*run_command"):
        selected(discover(), exclude_tools=["rm"])


def test_a_toolset_that_is_off_by_default_is_on_with_its_name_or_all():
    extra = Toolset(id="extra", title="Extra", instructions="", default=False, tools=discover()["core"].tools[:1])
    available = discover() | {"extra": extra}

    assert [t.id for t, _ in selected(available)] == ["core", "evaluate", "profile", "nccl", "docs"]
    assert [t.id for t, _ in selected(available, toolsets=["default", "extra"])] == [
        "core",
        "evaluate",
        "profile",
        "nccl",
        "docs",
        "extra",
    ]
    assert [t.id for t, _ in selected(available, toolsets=["all"])] == [*discover(), "extra"]


def test_instructions_never_outgrow_their_budget():
    long = Toolset(id="x", title="X", instructions="word " * 1000, tools=discover()["core"].tools)

    assert len(instructions_for([(long, long.tools)])) <= 2000


def test_starting_imports_nothing_heavy():
    heavy = "{'asyncssh', 'chromadb', 'docker', 'kernelguard', 'numpy', 'torch', 'aiosqlite', 'pynvml', 'msgpack'}"
    code = (
        "import sys; from gpu_mcp_server.server import server_from; from gpu_mcp_server.settings import load_settings; "
        f"import gpu_mcp_server.cli.app; server_from(load_settings()); print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdio_serves_both_eras(tmp_path: Path, mode: str):
    parameters = StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=environment(tmp_path))
    async with Client(parameters, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("no_such_tool", {})

    assert [tool.name for tool in tools] == OFFERED
    assert result.is_error


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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", ""])
def test_http_refuses_to_listen_beyond_this_machine(host: str):
    with pytest.raises(ConfigError, match="loopback"):
        checked_loopback(host)


def test_http_accepts_every_loopback_address():
    assert [checked_loopback(h) for h in ("127.0.0.1", "localhost", "::1", "127.0.0.9")] == [
        "127.0.0.1",
        "127.0.0.1",
        "::1",
        "127.0.0.9",
    ]


@pytest.fixture
def http_url(tmp_path: Path) -> Iterator[str]:
    app = http_app(build_server(Opener(tmp_path), discover(), local_files=False), "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    started = threading.Event()
    startup = server.startup

    async def announced(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = announced
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(30)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_http_serves_both_eras_and_reads_no_local_files(http_url: str, mode: str, tmp_path: Path):
    (tmp_path / "k.c").write_text("int a;\n")
    async with Client(f"{http_url}/mcp", mode=mode) as client:
        status = await client.call_tool("gpu_status", {})
        refused = await client.call_tool("compile_kernel", {"path": str(tmp_path / "k.c")})
        folder = await client.call_tool("write_files", {"local_path": str(tmp_path)})

    assert not status.is_error
    assert refused.is_error
    assert folder.is_error


async def test_http_answers_its_health_and_turns_foreign_names_away(http_url: str):
    def ask(path: str, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(http_url + path, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    status, body = await asyncio.to_thread(ask, "/healthz")
    evil_host, _ = await asyncio.to_thread(ask, "/mcp", Host="evil.example")
    evil_origin, _ = await asyncio.to_thread(ask, "/mcp", Origin="http://evil.example")

    assert (status, json.loads(body)["status"]) == (200, "ok")
    assert evil_host == 421
    assert evil_origin == 403
