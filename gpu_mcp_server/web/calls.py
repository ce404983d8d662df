"""What happens around each MCP request that came over HTTP."""

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from gpu_mcp_server.identity import acting_as
from gpu_mcp_server.models.user import User

NOBODY = User(name="nobody", scopes=())


async def as_its_user(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Do what a request asks for the user who sent it: a session's own task began with an earlier one."""
    with acting_as(user_of(ctx)):
        return await call_next(ctx)


def user_of(context: ServerRequestContext[Any, Any]) -> User:
    """Return who sent a request, as the HTTP layer found out; what no request carries may do nothing."""
    user = context.request.scope.get("state", {}).get("user") if context.request is not None else None
    return user if isinstance(user, User) else NOBODY
