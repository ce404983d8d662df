"""Users, tokens and hosts of a team's server, as commands ask for them on the server's own machine."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_mcp_server.bridge.team_server import TeamServer
from gpu_mcp_server.models.user import User
from gpu_mcp_server.services.hosts.host_connections import DrainState
from gpu_mcp_server.team.audit import AuditEntry
from gpu_mcp_server.team.quotas import QuotaUsage
from gpu_mcp_server.team.tokens import Token


def _token(row: dict[str, Any]) -> Token:
    known: dict[str, Any] = {**row, "scopes": tuple(row["scopes"])}
    return Token(**known)


READ: dict[str, Callable[[Any], Any]] = {
    "users.get": User.model_validate,
    "tokens.list": lambda rows: [_token(row) for row in rows],
    "tokens.revoke": _token,
    "allowances.usage_of": lambda row: QuotaUsage(**row),
    "audit.recent": lambda rows: [AuditEntry(**row) for row in rows],
    "hosts.drain": lambda row: DrainState(**row),
    "hosts.resume": lambda row: DrainState(**row),
}
"""What comes of a call, from JSON."""


class RemoteTeam:
    """Looks as `Team` does to the commands `token` and `user`; its hosts can be drained."""

    def __init__(self, server: TeamServer) -> None:
        self.users, self.tokens = RemotePart(server, "users"), RemotePart(server, "tokens")
        self.allowances, self.audit = RemotePart(server, "allowances"), RemotePart(server, "audit")
        self.hosts = RemotePart(server, "hosts")


class RemotePart:
    """One part of it; each method is a request."""

    def __init__(self, server: TeamServer, part: str) -> None:
        self._server, self._part = server, part

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        """Return what asks the server."""
        call = f"{self._part}.{method}"

        async def ask(*args: Any, **named: Any) -> Any:
            given = {name: value for name, value in named.items() if value is not None}
            body = json.dumps({"call": call, "args": args, "named": given}).encode()
            answer = await self._server.send_once("POST", "/admin/team", content=body)
            return READ.get(call, lambda result: result)(answer["result"])

        return ask
