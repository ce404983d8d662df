"""A real server over HTTP in this process: uvicorn, the SDK, the store; hosts only where a test runs a job."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gpu_mcp_server.mcp_api.server import server_from_settings
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.team.team_services import Team
from gpu_mcp_server.web.http_server import Server, server_for
from tests.laboratory import Folder, settings_for

PING: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@dataclass
class Served:
    """A server, its address and its users."""

    url: str
    team: Team
    settings: Settings
    server: Server
    lab: Any

    async def token(self, name: str, scope: Any = "run", **more: Any) -> str:
        """Make a user and return a token."""
        user = {k: more.pop(k) for k in ("weight", "project", "toolsets", "sharing", "quotas", "webhook") if k in more}
        await self.team.users.put(name, **user)
        return (await self.team.tokens.create(name, (scope,), **more))[1]

    @asynccontextmanager
    async def client(self, token: str | None, mode: Any = "auto") -> AsyncGenerator[Client]:
        """Open a client that shows a token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        http = httpx2.AsyncClient(headers=headers, timeout=60)
        transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
        async with http, Client(transport, mode=mode) as client:
            yield client

    async def session(self, token: str | None = None) -> dict[str, str]:
        """Begin a session of the older era, and return the header that names it."""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = await self.ask("POST", "/mcp", token, json={**PING, "method": "initialize", "params": hello})
        assert opened.status_code == 200, opened.text
        return {"Mcp-Session-Id": opened.headers["mcp-session-id"]}

    async def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx2.Response:
        """Send one request."""
        headers = {"Accept": "application/json, text/event-stream", **more.pop("headers", {})}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with httpx2.AsyncClient(timeout=60) as http:
            return await http.request(method, self.url + path, headers=headers, **more)


@asynccontextmanager
async def served(*, tokens: bool = True, verifier: Any = None, **more: Any) -> AsyncGenerator[Served]:
    """Serve on a free port of this machine until the block ends."""
    with Folder() as folder:
        settings = settings_for(folder, **more)
        async with Team.open(settings) as team:
            lab_server = server_from_settings(settings, local_files=False)
            server = server_for(lab_server, settings, team, "127.0.0.1", 0, tokens=tokens, verifier=verifier)
            running = asyncio.create_task(server.serve())
            await server.listens.wait()
            port = server.servers[0].sockets[0].getsockname()[1]
            try:
                yield Served(f"http://127.0.0.1:{port}", team, settings, server, lab_server.app.lab)
            finally:
                server.should_exit = True
                await running


async def lab_of(site: Served) -> Lab:
    """Return the laboratory behind a server."""
    return await site.lab()
