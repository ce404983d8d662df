"""Calls of tools at a team's server, each under a key of its own: one that comes again, its line lost, runs once."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from gpu_mcp_server.bridge.eras import CAPABILITIES_KEY, INFO_KEY, VERSION_KEY
from gpu_mcp_server.bridge.team_server import PROTOCOL, TeamServer

ABOUT = {"name": "gpu-mcp-server", "version": "1"}


async def call_tool(
    server: TeamServer,
    tool: str,
    arguments: Mapping[str, Any],
    key: str,
    says: Callable[[str], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Call a tool and return its result, or the protocol's error as one; a caller that gives up ends the call.

    Raises:
        GpuMcpError: If the server is away or refuses it.
    """

    async def hear(message: dict[str, Any]) -> None:
        if says is not None and message["method"] == "notifications/progress":
            await says(str(message["params"].get("message") or ""))

    meta = {VERSION_KEY: PROTOCOL, INFO_KEY: ABOUT, CAPABILITIES_KEY: {}, "progressToken": key}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    try:
        answer = await server.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, hear, key=key)
    except BaseException:
        await server.try_once("DELETE", f"/calls/{key}")
        raise
    if "result" in answer:
        return cast("dict[str, Any]", answer["result"])
    said = answer["error"].get("message", "The server answers with an error.")
    return {"isError": True, "content": [{"type": "text", "text": said}]}
