"""A laptop on a team's server: what the bridge costs a call, what a push sends and takes, what random kills cost.

Starts `serve --http` as a process, with a line to it that delays and breaks, and bridges as processes (`connect`) or,
for files, in this one.

    python benchmarks/team/bridge.py                       # all parts
    python benchmarks/team/bridge.py kills --calls 200
"""

import argparse
import asyncio
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.bridge.bridged import Bridged  # noqa: E402
from tests.bridge.lines import line_to  # noqa: E402
from tests.bridge.server_process import ServerProcess  # noqa: E402
from tests.laboratory import Folder  # noqa: E402


async def overhead(server: ServerProcess, token: str, calls: int) -> None:
    """Compare calls over HTTP directly with calls through a bridge, in turns."""
    url = f"http://127.0.0.1:{server.port}"
    with tempfile.TemporaryDirectory() as name:
        login = {**server.environment, "HOME": name, "XDG_CONFIG_HOME": name}
        await asyncio.to_thread(_log_in, server, url, token, login)
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "gpu_mcp_server", "connect", url], env=login, cwd=name
        )
        headers = {"Authorization": f"Bearer {token}"}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
            transport = streamable_http_client(f"{url}/mcp", http_client=http)
            direct = await stack.enter_async_context(Client(transport, mode="auto"))
            bridged = await stack.enter_async_context(Client(stdio_client(command), mode="auto"))
            made = await direct.call_tool("write_files", {"files": {"k.c": "int a;\n"}})
            reads = {"workspace_id": (made.structured_content or {})["workspace_id"], "path": "k.c"}
            for tool, arguments in (("read_file", reads), ("write_files", {"files": {"k.c": "int a;\n"}})):
                times: tuple[list[float], list[float]] = ([], [])
                for _ in range(calls):
                    for kept, client in zip(times, (direct, bridged), strict=True):
                        began = time.perf_counter()
                        answer = await client.call_tool(tool, arguments)
                        kept.append(1e3 * (time.perf_counter() - began))
                        assert not answer.is_error
                one, other = map(statistics.median, times)
                more = [b - a for a, b in zip(*times, strict=True)]
                low, high = (sorted(more)[int(calls * q)] for q in (0.1, 0.9))
                print(
                    f"{tool}, {calls} calls each: direct {one:.1f} ms, through the bridge {other:.1f} ms; a pair's "
                    f"difference {statistics.median(more):.1f} ms (10 % {low:.1f}, 90 % {high:.1f})"
                )


async def files(server: ServerProcess, token: str) -> None:
    """Push 300 files with a tensor of 200 MB twice, and 1,000 new files over a line of 50 ms."""
    url = f"http://127.0.0.1:{server.port}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(300):
            (folder / f"{i}.cu").write_bytes(os.urandom(4096))
        with (folder / "tensor.bin").open("wb") as file:
            for _ in range(200):
                file.write(os.urandom(1_000_000))
        async with line_to(url) as line, Bridged(line.url, token, folder).running() as client:
            for what in ("300 files and 200 MB, new", "the same again"):
                sent, began = line.sent_bytes, time.perf_counter()
                await client.call("write_files", local_path=".")
                print(f"{what}: {time.perf_counter() - began:.2f} s, {(line.sent_bytes - sent) / 1e3:.0f} kB sent")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(1000):
            (folder / f"{i}.cu").write_bytes(os.urandom(4096))
        async with line_to(url) as line:
            line.delay_s = 0.05
            async with Bridged(line.url, token, folder).running() as client:
                requests, began = line.requests, time.perf_counter()
                await client.call("write_files", local_path=".")
                took = time.perf_counter() - began
                print(f"1,000 new files of 4 KiB, 50 ms each way: {took:.2f} s, {line.requests - requests} requests")


async def kills(server: ServerProcess, token: str, calls: int) -> None:
    """Call while the line is cut, the server killed and the bridge killed at random."""
    dice = random.Random(37)
    counts = {"lines cut": 0, "servers killed": 0, "bridges killed": 0}
    answered = named = 0
    async with line_to(f"http://127.0.0.1:{server.port}") as line:

        async def disturb() -> None:
            while True:
                await asyncio.sleep(dice.uniform(0.3, 3.0))
                line.cut()
                counts["lines cut"] += 1
                if dice.random() < 0.3:
                    server.kill()
                    counts["servers killed"] += 1
                    server.start()
                    await server.answers()

        with tempfile.TemporaryDirectory() as name:
            login = {**server.environment, "HOME": name, "XDG_CONFIG_HOME": name}
            await asyncio.to_thread(_log_in, server, line.url, token, login)
            disturbing = asyncio.create_task(disturb())
            at = 0
            while at < calls:
                end = min(calls, at + dice.randrange(10, 40))
                process = await asyncio.create_subprocess_exec(
                    *server.command("connect", line.url), env=login, cwd=name,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                for outcome in await _calls(process, range(at, end), dice, killed=end < calls):
                    answered += outcome == "answered"
                    named += outcome == "named"
                counts["bridges killed"] += end < calls
                at = end
            disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        await server.answers()
        folder = Path(server.environment["HOME"])
        async with Bridged(line.url, token, folder).running() as client:
            await asyncio.sleep(65)  # calls whose bridge was killed end after a minute
            await client.call("list_attempts", view="recent")
    runs = [server.runs_of(f"mark-{i}-") for i in range(calls)]
    print(f"{calls} calls; {', '.join(f'{n} {what}' for what, n in counts.items())}")
    print(
        f"answered {answered}, ended with their bridge or by a named error {named}, neither {calls - answered - named}"
    )
    print(f"ran once {runs.count(1)}, not {runs.count(0)}, more than once {sum(n > 1 for n in runs)}")


def _log_in(server: ServerProcess, url: str, token: str, environment: dict[str, str]) -> None:
    command = server.command("login", url, "--no-clients")
    subprocess.run(command, env=environment, input=token, text=True, check=True, stdout=subprocess.DEVNULL)


async def _calls(process: Any, marks: range, dice: random.Random, *, killed: bool) -> list[str]:
    """Make calls one after the other through a bridge; the last one's bridge is killed while it runs."""
    import json

    async def ask(at: int, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        line = json.dumps({"jsonrpc": "2.0", "id": at, "method": method, "params": params}) + "\n"
        process.stdin.write(line.encode())
        while read := await process.stdout.readline():
            message = json.loads(read)
            if message.get("id") == at:
                return message
        return None

    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
    while "result" not in (await ask(-1, "initialize", hello) or {}):  # noqa: ASYNC110 - the server may be away
        await asyncio.sleep(0.5)
    outcomes: list[str] = []
    for i in marks:
        script = f"sleep 0.{dice.randrange(10)}; echo mark-{i}-"
        call = {"name": "run_command", "arguments": {"command": ["sh", "-c", script]}}
        if killed and i == marks[-1]:
            asyncio.get_running_loop().call_later(
                dice.uniform(0.0, 1.0), lambda: process.returncode is None and process.kill()
            )
        answer = await ask(i, "tools/call", call)
        result = (answer or {}).get("result") or {}
        right = (result.get("structuredContent") or {}).get("stdout") == f"mark-{i}-\n"
        outcomes.append("answered" if right else "named" if answer is None or result.get("isError") else str(answer))
    if process.returncode is None:
        process.stdin.close()
    await process.wait()
    return outcomes


async def main() -> None:
    """Run the parts that were asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", default=["overhead", "files", "kills"])
    options.add_argument("--calls", type=int, default=200)
    given = options.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}")
    with Folder() as folder:
        server = ServerProcess(folder)
        token = server.token()
        server.start()
        try:
            await server.answers()
            for part in given.parts:
                match part:
                    case "overhead":
                        await overhead(server, token, given.calls)
                    case "files":
                        await files(server, token)
                    case _:
                        await kills(server, token, given.calls)
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(main())
