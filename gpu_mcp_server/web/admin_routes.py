"""Users, tokens and hosts for admins who are not on the server's machine: POST /admin/team, as the commands ask it.

Admin tokens and webhooks are made on the machine alone: who steals an admin's token makes no other, and reaches no
address behind the server.
"""

from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.models.user import User
from gpu_mcp_server.web.upload_routes import refusal_of

if TYPE_CHECKING:
    from gpu_mcp_server.services.hosts.host_connections import DrainState, Hosts

MOST_WHY = 300
"""Characters of a reason that everybody is shown."""
CALLS: dict[str, frozenset[str]] = {
    "users.put": frozenset(("weight", "project", "sharing", "toolsets", "quotas")),
    "users.get": frozenset(),
    "users.names": frozenset(),
    "tokens.create": frozenset(("expires_s", "note")),
    "tokens.list": frozenset(),
    "tokens.revoke": frozenset(),
    "allowances.usage_of": frozenset(),
    "audit.recent": frozenset(),
    "hosts.drain": frozenset(),
    "hosts.resume": frozenset(),
}
"""What may be asked from elsewhere, with the arguments that may be given by name."""


class TeamCall(BaseModel):
    """One call of what the team's users are kept in."""

    model_config = ConfigDict(extra="forbid")

    call: str
    args: list[str | int | list[str] | None] = Field(default=[], max_length=2)
    named: dict[str, Any] = Field(default={}, max_length=10)


def admin_routes() -> list[BaseRoute]:
    """Return the routes."""
    return [Route("/admin/team", _team, methods=["POST"]), Route("/whoami", _whoami, methods=["GET"])]


async def _whoami(request: Request) -> Response:
    """Say as whom a request counts, by the token that it shows; of everybody's own, no admin is needed."""
    user: User = request.state.user
    usage = await request.app.state.site.team.allowances.usage_of(user.name)
    known = user.model_dump(mode="json", include={"name", "scopes", "project", "toolsets", "quotas", "expires_at"})
    return JSONResponse({**known, "warning": user.expiry_warning(datetime.now(UTC)), "usage": asdict(usage)})


async def _team(request: Request) -> Response:
    site, body = request.app.state.site, await request.body()
    user: User = request.state.user
    try:
        asked = TeamCall.model_validate_json(body)
        _check(user, asked)
        part, _, method = asked.call.partition(".")
        of = _HostDraining((await site.lab()).hosts, user.name) if part == "hosts" else getattr(site.team, part)
        result = await getattr(of, method)(*asked.args, **asked.named)
    except GpuMcpError as error:
        return refusal_of(error)
    except (ValidationError, TypeError, ValueError) as error:
        return JSONResponse({"error": f"This is no call of a team's users: {type(error).__name__}."}, 400)
    address = request.client.host if request.client else None
    site.team.audit.note(user, asked.call, str(asked.args[0])[:80] if asked.args else None, "ok", address)
    return JSONResponse({"result": _plain(result)})


@dataclass(frozen=True)
class _HostDraining:
    """Draining and resuming of hosts, in the name of an admin."""

    hosts: "Hosts"
    by: str

    async def drain(self, host: str, why: str) -> "DrainState":
        """Begin nothing new on a host."""
        from gpu_mcp_server.services.hosts import host_connections

        return await host_connections.drain(self.hosts, host, str(why)[:MOST_WHY], self.by)

    async def resume(self, host: str) -> "DrainState":
        """Let new jobs in again."""
        from gpu_mcp_server.services.hosts import host_connections

        return await host_connections.resume(self.hosts, host)


def _check(user: User, asked: TeamCall) -> None:
    """Let admins go on, with what may be asked from elsewhere.

    Raises:
        BadRequest: If it is something else.
    """
    if not user.may("admin"):
        raise BadRequest("It takes the scope 'admin'.", hint="Ask an admin, or say --local on the server's machine.")
    if asked.call not in CALLS:
        raise BadRequest(f"{asked.call[:80]!r} cannot be asked from elsewhere.")
    local = asked.named.keys() - CALLS[asked.call]
    scopes = asked.args[1] if asked.call == "tokens.create" and len(asked.args) > 1 else []
    if local or not isinstance(scopes, list) or "admin" in scopes:
        raise BadRequest(
            f"{', '.join(sorted(local)) or 'A token with the scope admin'} is given on the server's machine alone.",
            hint="Log in there.",
        )


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(each) for each in cast("list[Any]", value)] if isinstance(value, list | tuple) else value
