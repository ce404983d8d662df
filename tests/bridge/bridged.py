"""A bridge in this process between a client's lines and a real server over HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpu_mcp_server.bridge.stdio_bridge import StdioBridge
from gpu_mcp_server.bridge.team_server import TeamServer

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Bridged:
    """The client's end."""

    def __init__(self, url: str, token: str, folder: Path, patience_s: float = 20.0) -> None:
        self.token = token
        self.heard: list[dict[str, Any]] = []
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._at = 0
        server = TeamServer(url, lambda: self.token, patience_s=patience_s)
        self._bridge = StdioBridge(server, folder, self._written)

    def _written(self, line: bytes) -> None:
        message = json.loads(line)
        waiting = self._answers.get(message.get("id")) if "method" not in message else None
        if waiting is None or waiting.done():
            self.heard.append(message)
        else:
            waiting.set_result(message)

    async def _come(self) -> AsyncIterator[bytes]:
        while line := await self._lines.get():
            yield line

    def tell(self, message: dict[str, Any] | bytes) -> None:
        """Write a line."""
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self._lines.put_nowait(line)

    def begin(self, method: str, **params: Any) -> "tuple[int, asyncio.Future[dict[str, Any]]]":
        """Send a request and return its id and what will be its answer."""
        self._at += 1
        self._answers[self._at] = asyncio.get_running_loop().create_future()
        self.tell({"id": self._at, "method": method, "params": params})
        return self._at, self._answers[self._at]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        async with asyncio.timeout(90):
            return await self.begin(method, **params)[1]

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool that must succeed; return its data."""
        answer = await self.ask("tools/call", name=tool, arguments=arguments)
        assert "result" in answer and not answer["result"].get("isError"), answer
        return answer["result"]["structuredContent"]

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must fail; return its words."""
        answer = await self.ask("tools/call", name=tool, arguments=arguments)
        assert answer["result"]["isError"], answer
        return "\n".join(block["text"] for block in answer["result"]["content"])

    @asynccontextmanager
    async def running(self, **hello: Any) -> "AsyncGenerator[Bridged]":
        """Run, with the handshake done."""
        task = asyncio.create_task(self._bridge.run(self._come()))
        try:
            answer = await self.ask("initialize", **{**HELLO, **hello})
            assert "result" in answer, answer
            self.tell({"method": "notifications/initialized"})
            yield self
        finally:
            self._lines.put_nowait(b"")
            await task
