"""Context of each MCP request that came over HTTP."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.types import CallToolResult, TextContent

from gpu_mcp_server.mcp_api.server import ToolVisibility
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.team.audit import AuditLog
from gpu_mcp_server.web.metrics import Metrics

NOBODY = User(name="nobody", scopes=())
HANDLES = ("job_id", "lease_id", "workspace_id", "attempt_id", "problem_id", "artifact_id", "subject", "run_id")
"""What a call was about, the most telling first."""
AUDITED = ("tools/call", "resources/read")
METHODS = frozenset(
    (
        *("initialize", "ping", "server/discover", "tools/list", "tools/call", "resources/list", "resources/read"),
        *("resources/templates/list", "prompts/list", "prompts/get", "completion/complete", "subscriptions/listen"),
        *("tasks/get", "tasks/update", "tasks/cancel", "notifications/initialized", "notifications/cancelled"),
    )
)
"""Of which figures are kept one by one: what clients make up must not fill the memory."""


@dataclass(frozen=True)
class RequestContextMiddleware:
    """Does each request for the user who sent it, notes it, counts it."""

    audit: AuditLog
    metrics: Metrics
    offers: Mapping[str, ToolVisibility]
    room: Callable[[], str]
    """Why nothing new can be taken, in words; empty while there is room."""

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Do a request. A session's own task began with an earlier one, so its user is not relied on."""
        metrics = self.metrics
        name = str((ctx.params or {}).get("name", "")) if ctx.method == "tools/call" else ""
        labels = (ctx.method if ctx.method in METHODS else "other", name if name in self.offers else "")
        began, outcome, handle, user = time.monotonic(), "error", None, user_of(ctx)
        metrics.running.inc()
        try:
            with acting_as(user):
                result = self._no_room(name) or await call_next(ctx)
            handle, outcome = _handle(ctx, result), _outcome(result)
            return result
        except BaseException as error:
            outcome = "cancelled" if type(error).__name__ == "CancelledError" else "error"
            raise
        finally:
            metrics.running.dec()
            metrics.calls.labels(*labels, outcome).inc()
            if ctx.method != "subscriptions/listen":
                metrics.seconds.labels(*labels).observe(time.monotonic() - began)
            if ctx.method in AUDITED:
                what = name[:64] if name else str((ctx.params or {}).get("uri", ""))[:200]
                self.audit.note(user, f"{ctx.method} {what}", handle or _handle(ctx, None), outcome, address_of(ctx))

    def _no_room(self, name: str) -> CallToolResult | None:
        """Refuse what would need room where there is none; what ends or frees something is done."""
        offer = self.offers.get(name)
        if offer is None or offer.effect != "runs":
            return None
        said = self.room()
        return CallToolResult(is_error=True, content=[TextContent(text=said)]) if said else None


def user_of(context: ServerRequestContext[Any, Any]) -> User:
    """Return who sent a request, as the HTTP layer found out; what no request carries may do nothing."""
    user = context.request.scope.get("state", {}).get("user") if context.request is not None else None
    return user if isinstance(user, User) else NOBODY


def address_of(context: ServerRequestContext[Any, Any]) -> str | None:
    """Return where a request came from."""
    client = context.request.scope.get("client") if context.request is not None else None
    return str(client[0]) if client else None


def _outcome(result: HandlerResult) -> str:
    if isinstance(result, CallToolResult):
        return "refused" if result.is_error else "ok"
    return "refused" if isinstance(result, dict) and result.get("isError") else "ok"


def _handle(context: ServerRequestContext[Any, Any], result: HandlerResult) -> str | None:
    """Return the handle that a call was about: of its result, or else of its arguments."""
    data: Any = result.structured_content if isinstance(result, CallToolResult) else None
    if isinstance(result, dict):
        data = result.get("structuredContent")
    given: Any = (context.params or {}).get("arguments")
    for source in (data, given):
        if isinstance(source, dict):
            found = cast("dict[str, Any]", source)
            handle = next((found[key] for key in HANDLES if isinstance(found.get(key), str)), None)
            if handle is not None:
                return handle[:80]
    return None
