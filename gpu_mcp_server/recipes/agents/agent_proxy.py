"""Proxy for an agent in its sandbox: it reaches its model's one address, and our tools; nothing else."""

import asyncio
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.recipes.agents.tool_call_meter import Line, Meter, ToolCall
from gpu_mcp_server.recipes.inside.sandbox_proxy import MODEL, PORT_INSIDE, TOOLS
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.settings.server_settings import PREFIX, Settings

OnCall = Callable[[ToolCall], Awaitable[None]]

LINE_BYTES = 32 << 20
"""Of one message between agent and tools."""
PIECE_BYTES = 1 << 16
CLOSING_S = 5.0
CLOSED = "gpu-mcp-door-"
"""What the folders around doors are called; they lie where paths are short, as those of sockets must be."""
_log = structlog.get_logger()


@dataclass(frozen=True)
class Address:
    """Address of a model's server."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL.

        Raises:
            BadRequest: If it is none of http or https with a host.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        except (ValueError, KeyError):
            parts, port = urlsplit(""), 0
        if not parts.hostname or not port or parts.username or parts.query:
            raise BadRequest(f"{url!r} is no address of a model.", hint="Such as http://127.0.0.1:8000/v1.")
        return cls(parts.scheme, parts.hostname, port, parts.path)

    @property
    def inside(self) -> str:
        """The URL by which an agent reaches it: of https its own, by way of a proxy."""
        if self.scheme == "https":
            return f"https://{self.host}{'' if self.port == 443 else f':{self.port}'}{self.path}"
        return f"http://127.0.0.1:{PORT_INSIDE}{self.path}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment that points an agent to the proxy."""
        proxy = f"http://127.0.0.1:{PORT_INSIDE}"
        return dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy) if self.scheme == "https" else {}

    def __str__(self) -> str:
        """As the gate takes it."""
        return f"{self.scheme}:{self.host}:{self.port}"


@dataclass(frozen=True)
class Tools:
    """Our tools as a confined agent gets them: no files of this machine, no network."""

    settings: Settings
    toolsets: Sequence[str]
    meter: Meter
    on_call: OnCall
    server: str = ""
    """Address of the team's server whose tools they are; empty for those of this machine."""

    def command(self) -> list[str]:
        """Return what serves one connection."""
        if self.server:
            return [sys.executable, "-m", "gpu_mcp_server", "connect", self.server]
        return [sys.executable, "-m", "gpu_mcp_server", "--toolsets", ",".join(self.toolsets)]

    def environment(self) -> Mapping[str, str]:
        """Return its environment: ours, with the settings that matter here."""
        return {
            **os.environ,
            f"{PREFIX}DATA_DIR": str(self.settings.data_dir),
            **({} if current_user().is_local else {f"{PREFIX}USER": current_user().name}),
            f"{PREFIX}LOCAL_FILES": "false",
            f"{PREFIX}ALLOW_FETCH": "false",
            f"{PREFIX}INDEX_DOCUMENTATION": str(self.settings.index_documentation).lower(),
        }


@asynccontextmanager
async def door(address: Address | None, tools: Tools | None) -> AsyncGenerator[Path]:
    """Open the sockets; yields the folder to show to the sandbox. Only that job and this user get through to it."""
    clear_away()
    closed, lock = _closed()
    folder, servers = closed / "door", list[asyncio.Server]()
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    handlers: set[asyncio.Task[None]] = set()

    def serve(work: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Callable[..., None]:
        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await work(reader, writer)
            except (OSError, ValueError) as error:
                _log.info("a connection of an agent ended", error=str(error))
            finally:
                writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(guarded(reader, writer))
            handlers.add(task)
            task.add_done_callback(handlers.discard)

        return accept

    try:
        wanted = {MODEL: address and _to_model(address), TOOLS: tools and _to_tools(tools)}
        for name, work in wanted.items():
            if work is not None:
                path = folder / name
                servers.append(await asyncio.start_unix_server(serve(work), path, limit=LINE_BYTES))
                path.chmod(0o666)
        yield folder
    finally:
        for server in servers:
            server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        shutil.rmtree(closed, ignore_errors=True)
        os.close(lock)


def _closed() -> tuple[Path, int]:
    """Make a folder for this user alone; it is locked while somebody lives behind it."""
    folder = Path(tempfile.mkdtemp(prefix=CLOSED))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # a filesystem without locks: nobody else gets one there either
        fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def clear_away() -> None:
    """Remove the doors of those who were killed: this user's, with nobody behind them."""
    for closed in Path(tempfile.gettempdir()).glob(CLOSED + "*"):
        with suppress(OSError):
            lock = os.open(closed, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # One without a door is being made, and not locked yet.
                if os.fstat(lock).st_uid == os.geteuid() and (closed / "door").is_dir():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(closed, ignore_errors=True)
            finally:
                os.close(lock)


def _to_model(address: Address) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(address.host, address.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pumped(reader, back))
                both.create_task(_pumped(there, writer))
        except* OSError as errors:
            _log.info("a connection to a model broke", errors=str(errors.exceptions))
        finally:
            back.close()

    return relay


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(PIECE_BYTES):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def _to_tools(tools: Tools) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.create_subprocess_exec(
            *tools.command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=tools.environment(),
            limit=LINE_BYTES,
        )
        assert server.stdin is not None and server.stdout is not None
        line = Line(tools.meter)
        asking = asyncio.create_task(_asked(reader, server.stdin, writer, line))
        try:
            async for said in server.stdout:
                call = line.answer(said)
                if call is not None:
                    await tools.on_call(call)
                writer.write(said)
                await writer.drain()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await _ended(server)

    return relay


async def _asked(
    reader: asyncio.StreamReader, server: asyncio.StreamWriter, agent: asyncio.StreamWriter, line: Line
) -> None:
    """Pass on what the agent asks; its end, or too many calls, end the tools."""
    try:
        async for said in reader:
            own = line.ask(said)
            if line.meter.over:
                break
            if own is None:
                server.write(said)
                await server.drain()
            else:
                agent.write(own)
                await agent.drain()
    finally:
        server.close()


async def _ended(server: asyncio.subprocess.Process) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        async with asyncio.timeout(CLOSING_S):
            await server.wait()
    except (TimeoutError, asyncio.CancelledError):
        with suppress(ProcessLookupError):
            server.kill()
        await server.wait()
