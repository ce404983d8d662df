"""A client's calls through the bridge: files travel by hash, secrets stay, what is outside of its folder is not read."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from starlette.responses import JSONResponse, Response

from tests.bridge.bridged import Bridged
from tests.laboratory import HONEST, called
from tests.web.site import Served, served


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served() as site:
        yield site


def project(folder: Path) -> Path:
    """Write a project with everything that may not travel, and return its folder."""
    root = folder / "project"
    files = {
        "src/k.c": '#include "k.h"\nint two(void) { return TWO; }\n',
        "src/k.h": "#define TWO 2\n",
        "run.sh": "#!/bin/sh\ncat data/x.txt\n",
        "data/x.txt": "exes\n",
        ".env": "TOKEN=1\n",
        "certs/server.pem": "pem\n",
        "notes": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
        ".gitignore": "*.o\nbuild/\n",
        "src/k.o": "object\n",
        "build/out": "built\n",
        "big/.gitignore": "*\n!keep.txt\n",
        "big/keep.txt": "kept\n",
        "big/drop.txt": "dropped\n",
        ".gpumcpignore": "docs/\n!src/special.o\n",
        "src/special.o": "special\n",
        "docs/d.md": "d\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "run.sh").chmod(0o755)
    (root / "inner").symlink_to("data/x.txt")
    (root / "outer").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    return root


async def test_a_folder_travels_without_secrets_ignored_files_and_links_that_leave_it(site: Served, tmp_path: Path):
    async with Bridged(site.url, await site.token("ada"), project(tmp_path)).running() as client:
        first = await client.call("write_files", local_path=".")
        second = await client.call("write_files", local_path=".")
        ran = await client.call("run_command", command=["./run.sh"], workspace_id=first["workspace_id"])

    names = {file["path"] for file in first["files"]}
    assert names == {
        *("src/k.c", "src/k.h", "run.sh", "data/x.txt", ".gitignore", "big/keep.txt", ".gpumcpignore"),
        *("src/special.o", "inner"),
    }
    assert ran["stdout"] == "exes\n"
    assert "secrets: .env, certs/server.pem, notes" in first["upload"] and "outer" in first["upload"]
    assert "pipe" in first["upload"] and "0.0 MB were new" in second["upload"]
    assert second["workspace_id"] != first["workspace_id"]


async def test_a_source_takes_its_headers_along(site: Served, tmp_path: Path):
    root = project(tmp_path)
    async with Bridged(site.url, await site.token("ada"), root).running() as client:
        built = await client.call("compile_kernel", path="src/k.c")
        again = await client.call("compile_kernel", path=str(root / "src/k.c"))

    assert built["status"] == "ok" and again["status"] == "ok", built


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "outside of the folders"),
        ("../elsewhere.c", "outside of the folders"),
        ("outer", "outside of the folders"),
        (".env", "secret's name"),
        ("certs/server.pem", "secret's name"),
        ("notes", "private key"),
        ("gone.c", "There is no local file"),
        ("pipe", "no regular file"),
        ("a\0b", "cannot be read"),
    ],
)
async def test_what_is_not_to_be_read_is_refused_by_name(site: Served, tmp_path: Path, path: str, why: str):
    (tmp_path / "elsewhere.c").write_text("int a;\n")
    async with Bridged(site.url, await site.token("ada"), project(tmp_path)).running() as client:
        words = [
            await client.refused("compile_kernel", path=path, language="c"),
            await client.refused("write_files", local_path=path),
        ]

    assert all(why in said for said in words), words


async def test_a_client_opens_other_folders_as_roots(site: Served, tmp_path: Path):
    other = tmp_path / "with space"
    other.mkdir()
    (other / "k.c").write_text("int a;\n")
    bridge = Bridged(site.url, await site.token("ada"), project(tmp_path))
    async with bridge.running(capabilities={"roots": {"listChanged": True}}) as client:
        while not any(message.get("method") == "roots/list" for message in client.heard):
            await asyncio.sleep(0.01)
        before = await client.refused("compile_kernel", path=str(other / "k.c"))
        client.tell(
            {"id": "gpu-mcp-server/roots", "result": {"roots": [{"uri": other.as_uri()}, {"uri": "http://x/"}]}}
        )
        built = await client.call("compile_kernel", path=str(other / "k.c"))

    assert "outside" in before and built["status"] == "ok"


async def test_a_reference_and_a_problem_folder_travel(site: Served, tmp_path: Path):
    root = Path(__file__).parents[2] / "examples"
    (tmp_path / "r.py").write_text("def reference(x):\n    return x[\n")
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "problem.toml").write_text("name = 1\n")
    (folder / ".env").write_text("A=1\n")
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        shape = {"inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}], "shapes": [{"n": 8}]}
        shape |= {"outputs": [{"name": "y", "dtype": "float32", "shape": ["n"]}], "rtol": 0, "atol": 0}
        reference = await client.refused("register_problem", name="r", reference_path="r.py", **shape)
        problem = await client.refused("import_problem", path="p")
        same = await client.refused("import_problem", path="p/problem.toml")

    assert root.is_dir() and ("SyntaxError" in reference or "was never closed" in reference), reference
    assert problem == same and "problem.toml" in problem, (problem, same)


async def test_candidates_of_a_batch_travel(site: Served, tmp_path: Path):
    (tmp_path / "one.c").write_text(HONEST)
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        unknown = await client.refused(
            "evaluate_kernels", problem_id="p-1", candidates=[{"name": "one", "path": "one.c"}]
        )
        gone = await client.refused("evaluate_kernels", problem_id="p-1", candidates=[{"name": "two", "path": "two.c"}])

    assert "no problem" in unknown and "two.c" in gone and "'two'" in gone


async def test_progress_cancellation_and_resources_go_through(site: Served, tmp_path: Path):
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        arguments = {"command": ["sh", "-c", "echo begun; sleep 60"]}
        at, answer = client.begin("tools/call", name="run_command", arguments=arguments, _meta={"progressToken": "p"})
        while not any("begun" in str(message.get("params")) for message in client.heard):
            await asyncio.sleep(0.05)
        client.tell({"method": "notifications/cancelled", "params": {"requestId": at}})
        lab = await site.lab()
        while any(job.state != "finished" for job in await lab.commands.recent(1)):
            await asyncio.sleep(0.1)
        listed = await client.ask("resources/list")
        pinged = await client.ask("ping")
        unknown = await client.ask("no/such")
    said = [m["params"]["progress"] for m in client.heard if m.get("method") == "notifications/progress"]

    assert [job.status for job in await lab.commands.recent(1)] == ["cancelled"]
    assert not answer.done() and said == sorted(set(said)) and len(said) > 1
    assert "resources" in listed["result"] and "ttlMs" not in listed["result"]
    assert pinged["result"] == {} and unknown["error"]["code"] == -32601


async def test_lines_that_are_no_requests_are_answered(site: Served, tmp_path: Path):
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        for line in (b"{\n", b"[1]\n", b'{"id": true, "method": "ping"}\n', b"\xff\n"):
            client.tell(line)
        await client.ask("ping")

    assert [message["error"]["code"] for message in client.heard] == [-32700, -32600, -32600, -32700]


async def test_a_revoked_token_is_named_and_a_new_one_is_taken_at_once(site: Served, tmp_path: Path):
    token = await site.token("ada")
    async with Bridged(site.url, token, tmp_path).running() as client:
        await client.call("write_files", files={"a": "a"})
        await site.team.tokens.revoke(token.split("_")[1])
        told = await client.refused("write_files", files={"a": "a"})
        listed = await client.ask("tools/list")
        client.token = await site.token("ada")
        after = await client.call("write_files", files={"a": "a"})

    assert "The access token was revoked" in told and "gpu-mcp-server login" in told
    assert "revoked" in listed["error"]["message"] and after["workspace_id"]


async def test_a_full_quota_is_named_before_anything_is_sent(site: Served, tmp_path: Path):
    (tmp_path / "t.bin").write_bytes(os.urandom(5000))
    async with Bridged(site.url, await site.token("joe", quotas={"disk_bytes": 1000}), tmp_path).running() as client:
        told = await client.refused("write_files", local_path="t.bin")

    assert "disk_bytes" in told and (await site.team.allowances.usage_of("joe")).disk_bytes == 0


async def test_a_folder_of_ten_gigabytes_is_refused_with_its_largest_parts(site: Served, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    for i in range(10):
        with (tmp_path / "runs" / f"{i}.bin").open("wb") as file:
            file.truncate(1 << 30)
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        told = await client.refused("write_files", local_path=".")

    assert "runs (" in told and ".gpumcpignore" in told and "Nothing was sent" in told


async def test_a_file_that_changes_while_it_travels_is_named(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from gpu_mcp_server.bridge import file_push

    log, real = tmp_path / "log.txt", file_push._part
    log.write_text("0")

    def growing(*given: Any) -> bytes:
        with log.open("a") as file:
            file.write("x")
        return real(*given)

    monkeypatch.setattr(file_push, "_part", growing)
    async with Bridged(site.url, await site.token("ada"), tmp_path).running() as client:
        told = await client.refused("write_files", local_path=".")
        monkeypatch.setattr(file_push, "_part", lambda *given: (log.unlink(), real(*given))[1])
        gone = await client.refused("write_files", local_path=".")

    assert "'log.txt' changes while it is read" in told and "vanished" in gone


@asynccontextmanager
async def other_version(answers: dict[str, tuple[int, Any]]) -> AsyncGenerator[str]:
    """Serve what a server of another version would answer, by path; 404 elsewhere."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        status, body = answers.get(scope["path"], (404, None))
        await JSONResponse(body, status)(scope, receive, send) if body else await Response(status_code=status)(
            scope, receive, send
        )

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def test_a_server_of_another_version_is_named_with_what_it_lacks(tmp_path: Path):
    (tmp_path / "a.c").write_text("int a;")
    refusal = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32022, "message": "Unsupported protocol version"}}
    welcome = {"jsonrpc": "2.0", "id": 1, "result": {"capabilities": {}, "supportedVersions": ["2026-07-28"]}}
    older = {"/mcp": (400, refusal), "/healthz": (200, {"version": "0.0.9"})}
    async with other_version(older) as url:
        task = Bridged(url, "t", tmp_path)
        with pytest.raises(AssertionError, match=r"gpu-mcp-server 0\.0\.9 and does not speak MCP 2026-07-28"):
            async with task.running():
                pass
    async with other_version({"/mcp": (200, welcome)}) as url, Bridged(url, "t", tmp_path).running() as client:
        told = await client.refused("write_files", local_path="a.c")

    assert "older gpu-mcp-server" in told and "uploads" in told


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_of_either_era_works_through_the_command(site: Served, tmp_path: Path, mode: Any):
    (tmp_path / "k.c").write_text("int a;\n")
    token = await site.token("ada")
    (tmp_path / "config").mkdir()
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": os.environ["PATH"]}
    from gpu_mcp_server.bridge import kept_tokens

    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        kept_tokens.keep_token(site.url, token)
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "gpu_mcp_server", "connect", site.url], env=env, cwd=tmp_path
    )
    async with Client(stdio_client(command), mode=mode) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        built = await called(client, "compile_kernel", path="k.c")
        ran = await called(client, "run_command", command=["echo", "hello"])

    assert "run_command" in tools and built["status"] == "ok" and ran["stdout"] == "hello\n"
