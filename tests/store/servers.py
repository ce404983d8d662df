"""Real servers and commands on one store, and what they hold of its database."""

import asyncio
import itertools
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from gpu_mcp_server.store.database import DATABASE
from tests.commands import Started, shared_commands

PROGRAM = [sys.executable, "-m", "gpu_mcp_server"]
Transport = Literal["http", "stdio"]
COMMANDS_A_LIFE = 2
"""How many commands end, at least, before a server of a stress ends and another one begins."""


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    client: Client
    pid: int

    async def write(self, text: str) -> str:
        """Make a workspace and return its id, acknowledged."""
        result = await self.client.call_tool("write_files", {"files": {"a.txt": text}})
        assert not result.is_error, result
        assert result.structured_content is not None
        return str(result.structured_content["workspace_id"])


@dataclass(frozen=True)
class Store:
    """A folder with settings and data of its own."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "data" / DATABASE

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "GPU_MCP_DATA_DIR": str(self.folder / "data"),
            "GPU_MCP_INDEX_DOCUMENTATION": "false",
        }

    async def ask(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        return await asyncio.to_thread(shared_commands().run, *arguments, env=self.environment, cwd=self.folder)

    @asynccontextmanager
    async def serving(self, transport: Transport, end: signal.Signals = signal.SIGTERM) -> AsyncGenerator[Server]:
        """Start a server and a client of it; the server ends by a signal, over stdio with its stdin."""
        if transport == "stdio":
            there = self.holders()
            parameters = StdioServerParameters(
                command=PROGRAM[0], args=PROGRAM[1:], env=self.environment, cwd=self.folder
            )
            async with Client(parameters) as client:
                await client.call_tool("list_problems", {})
                yield Server(client, next(iter(self.holders() - there), 0))
            return
        with tempfile.NamedTemporaryFile() as file:
            words, log = ("serve", "--http", "127.0.0.1:0"), Path(file.name)
            process = shared_commands().start(*words, env=self.environment, cwd=self.folder, err=log)
            try:
                async with Client(f"{await _url(process, log)}/mcp") as client:
                    await client.call_tool("list_problems", {})
                    yield Server(client, process.pid)
                process.send_signal(end)
                await asyncio.to_thread(process.wait)
            finally:
                process.kill()
                await asyncio.to_thread(process.wait)

    def holders(self) -> set[int]:
        """Return the processes that have the database open."""
        return {int(path.name) for path in Path("/proc").glob("[0-9]*") if self.open_files(int(path.name))}

    def open_files(self, pid: int) -> list[str]:
        """Return which of the database's files a process has open, one entry each time."""
        with suppress(OSError):  # it ended meanwhile
            found = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
            return [path for path in found if path.startswith(str(self.database))]
        return []

    def remembered(self) -> set[str]:
        """Return the workspaces that are there; nobody may have the store open."""
        with closing(sqlite3.connect(self.database)) as connection:
            return {workspace_id for (workspace_id,) in connection.execute("SELECT workspace_id FROM workspaces")}


async def _url(process: Started, log: Path) -> str:
    while not (found := re.search(r"running on (http://[\d.:]+)\s", log.read_text())):
        assert process.poll() is None, log.read_text()
        await asyncio.sleep(0.05)
    return found[1]


def posix_locks(pid: int) -> set[int]:
    """Return the inodes on which a process holds POSIX locks. Source: proc_locks(5)."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(line[5].rsplit(":", 1)[1]) for line in lines if line[1] == "POSIX" and line[4] == str(pid)}


async def stress(store: Store, duration_s: float, at_least: int) -> set[str]:
    """Let six servers over HTTP and two commands live and die on a store for a while; return what was acknowledged.

    The while begins when all six answer, and lasts until as much is acknowledged as is asked for.
    """
    acknowledged, ended, barrier, until = set[str](), list[str](), asyncio.Barrier(8), 0.0

    def is_over() -> bool:
        return time.monotonic() > until and len(acknowledged) >= at_least

    async def together() -> None:
        nonlocal until
        await barrier.wait()
        until = until or time.monotonic() + duration_s

    async def server(number: int) -> None:
        for end in itertools.cycle((signal.SIGTERM, signal.SIGKILL)[number % 2 :]):
            async with store.serving("http", end) as one:
                if not until:
                    await together()
                born = len(ended)
                while not is_over() and len(ended) < born + COMMANDS_A_LIFE + number:
                    acknowledged.add(await one.write(f"{one.pid} {len(acknowledged)}"))
                assert [path for path in store.open_files(one.pid) if "deleted" in path] == []
            if is_over():
                break

    async def command(*arguments: str) -> None:
        await together()
        while not is_over():
            done = await store.ask(*arguments)
            assert done.returncode == 0, done.stderr
            ended.append(done.stdout)
            if "write_files" in arguments:
                made: dict[str, Any] = json.loads(done.stdout)
                acknowledged.add(made["workspace_id"])

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(server(number))
        group.create_task(command("call", "write_files", "--args", '{"files": {"c": "c"}}', "--json"))
        group.create_task(command("call", "list_problems"))
    return acknowledged
