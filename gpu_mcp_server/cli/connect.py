"""`connect`: a team's server as a server of this machine, with its files."""

import asyncio
import json
import queue
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from gpu_mcp_server.cli.output import Json
from gpu_mcp_server.errors import GpuMcpError


def connect(
    url: Annotated[str, typer.Argument(help="Address of the team's server; `login` has its token.")],
    as_json: Json = False,
) -> None:
    """Forward MCP over stdio to a team's server: tools run there, on files of this folder."""
    serve_at_once(url, as_json=as_json)


def serve_at_once(url: str, *, as_json: bool = False) -> None:
    """Serve until the client hangs up; what we foresee is an exit code and words on stderr, as stdout is MCP's."""
    from gpu_mcp_server.bridge.kept_tokens import address_of, kept_token
    from gpu_mcp_server.bridge.stdio_bridge import StdioBridge
    from gpu_mcp_server.bridge.team_server import TeamServer
    from gpu_mcp_server.settings.server_settings import load_settings

    try:
        local_files = load_settings().local_files
        address = address_of(url)
        kept_token(address)
    except GpuMcpError as error:
        sys.stderr.write(json.dumps({"error": str(error)}) + "\n" if as_json else f"{error}\n")
        sys.exit(2)
    written: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write_all, args=(written,), daemon=True)
    writer.start()
    server = TeamServer(address, lambda: kept_token(address))
    try:
        asyncio.run(StdioBridge(server, Path.cwd(), written.put, local_files=local_files).run(_lines()))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        written.put(None)
        writer.join(2.0)


async def _lines() -> AsyncIterator[bytes]:
    """Yield lines of stdin, read by a thread that may wait in it to the end."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        yield line


def _write_all(written: "queue.SimpleQueue[bytes | None]") -> None:
    """Write lines as they come; a client that does not read holds up this thread alone."""
    while (line := written.get()) is not None:
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError:
            return
