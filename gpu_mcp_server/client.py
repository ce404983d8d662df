"""The tools of a server as plain Python functions, for searches and training loops that do not speak MCP.

    from gpu_mcp_server.client import Client
    gpu = Client("http://lab:8000", token)
    verdict = gpu.evaluate(problem_id, source, language="cuda")

`AsyncClient` is the same with `await`. Every tool of the server is a method too: arguments by name, the structured
result as a dictionary. Calls go to the server's own HTTP address with the user's token, so rights and quotas are those
of any other client. A call whose line was lost is sent again, and runs once.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

from gpu_mcp_server.bridge.team_server import TeamServer
from gpu_mcp_server.bridge.tool_calls import call_tool
from gpu_mcp_server.errors import BadRequest, GpuMcpError, ToolCallFailed

AT_ONCE = 16
"""Evaluations of one `evaluate_many` that are under way; a server runs 64 calls of a user at most."""
WAIT_S = 240
"""The longest that one call of a tool waits for a job."""
AWAY_S = 30.0
"""So long a server may be away before a call is given up."""
ENDED = ("judged", "compile_failed", "refused")
"""How an evaluation ends; one that another server of ours took over answers with its job."""
NOTHING = {"verdict": None, "speedup": None}
"""For evaluations that have none: answers leave out what is nothing."""
T = TypeVar("T")


class AsyncClient:
    """Tools of one server, each a coroutine; connections are kept for the block of `async with`."""

    def __init__(self, url: str, token: str | None = None, *, away_s: float = AWAY_S) -> None:
        """Name the server.

        Args:
            url: Its address, such as http://lab:8000.
            token: A user's; none where the server wants none.
            away_s: How long the server may be away before a call is given up.
        """
        self._server = TeamServer(url.rstrip("/").removesuffix("/mcp"), lambda: token or "", patience_s=away_s)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "AsyncClient":
        await self._open.enter_async_context(self._server.hold_connections())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def call_tool(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its structured result.

        Raises:
            ToolCallFailed: If the server refuses the call or its token, or the tool fails; its words say what to do.
            HostUnavailable: If there was no answer for too long; the same call may be repeated.
            QuotaExceeded: If for so long the user had as many requests as they may; likewise.
        """
        try:
            result = await call_tool(self._server, tool, arguments, uuid4().hex)
        except BadRequest as refused:
            hint = "Give a user's token." if "the token" in refused.args[0] else refused.hint
            raise ToolCallFailed(refused.args[0], hint=hint) from None
        if result.get("isError"):
            raise ToolCallFailed("\n".join(str(block.get("text", "")) for block in result["content"]))
        return cast("dict[str, Any]", result.get("structuredContent") or {})

    async def evaluate(self, problem_id: str, source: str, **more: Any) -> dict[str, Any]:
        """Judge a candidate and return its evaluation: `verdict`, `speedup`, `trust`, `reason` and all else.

        It waits until there is a verdict. One that took longer than a call of `evaluate_kernel` may wait is returned
        as the row of its attempt (`list_attempts`), whose fields have the same names.

        Args:
            problem_id: Of `register_problem` or `import_problem`.
            source: Text of the candidate.
            more: Further arguments of `evaluate_kernel`, such as `language`, `timing`, `parent`, `note`.

        Raises:
            ToolCallFailed: As `call_tool`; a candidate that is wrong or does not compile is no error.
            HostUnavailable, QuotaExceeded: Likewise.
        """
        found = await self.call_tool("evaluate_kernel", problem_id=problem_id, source=source, **more)
        if found.get("status") in ENDED:
            return {**NOTHING, **found}
        job_id = found["job_id"]
        while (await self.call_tool("job_status", job_id=job_id, wait_s=WAIT_S))["state"] != "finished":
            pass
        listed = await self.call_tool("list_attempts", attempt_id=found["attempt_id"])
        return {**NOTHING, **listed["attempts"][0], "job_id": job_id}

    async def evaluate_many(
        self, problem_id: str, sources: Sequence[str], *, at_once: int = AT_ONCE, **more: Any
    ) -> list[dict[str, Any] | GpuMcpError]:
        """Judge candidates side by side; return evaluations in their order, or why one could not be judged."""
        turn = asyncio.Semaphore(at_once)

        async def one(source: str) -> dict[str, Any] | GpuMcpError:
            async with turn:
                try:
                    return await self.evaluate(problem_id, source, **more)
                except GpuMcpError as error:
                    return error

        return await asyncio.gather(*map(one, sources))

    def __getattr__(self, tool: str) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
        """Return a tool as a coroutine function."""
        if tool.startswith("_"):
            raise AttributeError(tool)
        return partial(self.call_tool, tool)


class Client:
    """The same for programs without an event loop: threads may share one, and their calls run side by side."""

    def __init__(self, url: str, token: str | None = None, *, away_s: float = AWAY_S) -> None:
        """Name the server, as to `AsyncClient`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gpu-mcp-client", daemon=True)
        self._thread.start()
        self._client = AsyncClient(url, token, away_s=away_s)
        self._run(self._client.__aenter__())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; calls that are under way are lost."""
        if self._loop.is_closed():
            return
        self._run(self._client.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call_tool(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its structured result; see `AsyncClient.call_tool`."""
        return self._run(self._client.call_tool(tool, **arguments))

    def evaluate(self, problem_id: str, source: str, **more: Any) -> dict[str, Any]:
        """Judge a candidate and return its evaluation; see `AsyncClient.evaluate`."""
        return self._run(self._client.evaluate(problem_id, source, **more))

    def evaluate_many(
        self, problem_id: str, sources: Sequence[str], *, at_once: int = AT_ONCE, **more: Any
    ) -> list[dict[str, Any] | GpuMcpError]:
        """Judge candidates side by side; see `AsyncClient.evaluate_many`."""
        return self._run(self._client.evaluate_many(problem_id, sources, at_once=at_once, **more))

    def __getattr__(self, tool: str) -> Callable[..., dict[str, Any]]:
        """Return a tool as a function."""
        if tool.startswith("_"):
            raise AttributeError(tool)
        return partial(self.call_tool, tool)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        made = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return made.result()
        except BaseException:  # of Ctrl-C: the server ends the call's job then
            made.cancel()
            raise
