"""The tools of a server as plain Python functions, for searches and training loops that do not speak MCP.

    from gpu_mcp_server.client import connect
    with connect("http://lab:8000", token) as gpu:
        verdict = gpu.evaluate_kernel(problem_id="p-0123456789ab", source=text, language="cuda")

Every tool of the server is a method: arguments by name, the structured result as a dictionary. The calls are made over
the server's own HTTP address with the user's token, so rights and quotas are those of any other client. Threads may
share one connection, and their calls run side by side.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from gpu_mcp_server.errors import ToolCallFailed

TIMEOUT_S = 600.0
"""For one answer; a tool's own wait_s is 240 s at most."""


class ToolClient:
    """One connection to a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: Any) -> None:
        self._loop, self._session = loop, session

    def __getattr__(self, tool: str) -> Callable[..., dict[str, Any]]:
        """Return a tool as a function."""
        if tool.startswith("_"):
            raise AttributeError(tool)

        def call(**arguments: Any) -> dict[str, Any]:
            return self.call_tool(tool, **arguments)

        return call

    def call_tool(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its structured result.

        Raises:
            ToolCallFailed: If the server refuses the call, or the tool fails.
        """
        made = asyncio.run_coroutine_threadsafe(self._session.call_tool(tool, arguments), self._loop)
        result = made.result(TIMEOUT_S)
        if result.is_error:
            said = "\n".join(getattr(block, "text", "") for block in result.content)
            raise ToolCallFailed(said, hint="The message says what to change.")
        return dict(result.structured_content or {})


@contextmanager
def connect(url: str, token: str | None = None) -> Generator[ToolClient]:
    """Connect to a server, such as http://lab:8000, with a user's token; the connection ends with the block.

    Raises:
        ToolCallFailed: If no session is opened.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gpu-mcp-client", daemon=True)
    thread.start()
    ready: Any = None
    try:
        try:
            ready = asyncio.run_coroutine_threadsafe(_opened(url, token), loop).result(TIMEOUT_S)
        except Exception as error:
            raise ToolCallFailed(
                f"{url} opens no session: {error}", hint="Check the address, and that the token is a user's there."
            ) from error
        yield ToolClient(loop, ready[0])
    finally:
        if ready is not None:
            loop.call_soon_threadsafe(ready[1].set)
            asyncio.run_coroutine_threadsafe(_ended(ready[2]), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _opened(url: str, token: str | None) -> tuple[Any, asyncio.Event, "asyncio.Task[None]"]:
    """Return an open session, what ends it, and the task that holds it: one task must open and close it."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    end = asyncio.Event()

    async def hold() -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
                transport = streamable_http_client(f"{url.rstrip('/')}/mcp", http_client=http)
                async with Client(transport) as session:
                    opened.set_result(session)
                    await end.wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)
                return
            raise

    task = asyncio.create_task(hold())
    return await opened, end, task


async def _ended(task: "asyncio.Task[None]") -> None:
    await asyncio.gather(task, return_exceptions=True)
