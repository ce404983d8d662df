"""Authenticate a request: find the user who sent it."""

import math
import re
from http.cookies import CookieError, SimpleCookie

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_mcp_server.errors import HostUnavailable
from gpu_mcp_server.models.user import LOCAL, User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.team.rate_limit import RateLimiter, TooManyRequests
from gpu_mcp_server.team.token_verifier import TokenRefusal, Verifier
from gpu_mcp_server.web.limits import AGAIN_S, MCP_PATH, is_event_stream, refusal_response
from gpu_mcp_server.web.metrics import Metrics

SESSION_COOKIE = "gpu_mcp_session"
LOGIN_PATH = "/login"
OPEN = ("/healthz", "/readyz", LOGIN_PATH, "/static/", "/.well-known/")
"""Paths that nobody needs a token for; those that end with a slash with all below them."""

PLAIN_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")
REASONS = {
    "unknown": "The access token is not known here",
    "expired": "The access token has expired",
    "revoked": "The access token was revoked",
}


class Authentication:
    """Finds the user of a request; without one only open paths are answered.

    Handlers find the user as `request.state.user`, services as `identity.current_user()`.
    """

    def __init__(
        self, app: ASGIApp, verifier: Verifier | None, metadata_url: str, flow: RateLimiter, metrics: Metrics
    ) -> None:
        """Wrap an application.

        Args:
            app: What is protected.
            verifier: Whose a token is; None where whoever reaches the server may do everything.
            metadata_url: Where the protected resource's metadata is. Source: RFC 9728, section 5.1.
            flow: How many requests a user may send.
            metrics: Counts those that are refused.
        """
        self._app, self._verifier, self._metadata_url = app, verifier, metadata_url
        self._flow, self._metrics = flow, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or let the request through for its user."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            found = await self._found(scope)
        except HostUnavailable as error:  # an issuer's keys
            await refusal_response(scope, 503, str(error), AGAIN_S)(scope, receive, send)
            return
        if isinstance(found, User):
            scope.setdefault("state", {})["user"] = found
            if not found.is_local:
                held = AccessToken(token="", client_id=found.name, scopes=list(found.scopes), subject=found.name)
                scope["user"] = AuthenticatedUser(held)
            try:
                with self._flow.request(found, endless=is_event_stream(scope)), acting_as(found):
                    await self._app(scope, receive, send)
            except TooManyRequests as error:
                self._metrics.refused.labels("too many requests").inc()
                late = refusal_response(scope, 429, str(error), math.ceil(error.wait_s))
                await late(scope, receive, send)
            return
        if _is_open(scope["path"]):
            scope.setdefault("state", {})["user"] = None
            await self._app(scope, receive, send)
            return
        self._metrics.refused.labels("no valid token").inc()
        await self._refused(scope, found)(scope, receive, send)

    async def _found(self, scope: Scope) -> User | TokenRefusal | None:
        if self._verifier is None:
            return LOCAL
        secret = token_of_request(scope)
        return await self._verifier.verify(secret) if secret is not None else None

    def _refused(self, scope: Scope, why: TokenRefusal | None) -> Response:
        headers = Headers(scope=scope)
        if "text/html" in headers.get("accept", "") and scope["method"] == "GET" and scope["path"] != MCP_PATH:
            return RedirectResponse(LOGIN_PATH, status_code=303)
        # Source: RFC 6750, section 3: no error code where no token was shown
        if why is None:
            return challenge(401, None, "A bearer token is needed", absolute(self._metadata_url, scope))
        return challenge(401, "invalid_token", why.said or REASONS[why.reason], absolute(self._metadata_url, scope))


def absolute(metadata_url: str, scope: Scope) -> str:
    """Return where the metadata is as a whole URL: without a public one, at the address that was asked."""
    host = Headers(scope=scope).get("host", "")
    plain = metadata_url.startswith("/") and PLAIN_HOST.fullmatch(host)
    return f"{scope.get('scheme', 'http')}://{host}{metadata_url}" if plain else metadata_url


def challenge(status: int, error: str | None, said: str, metadata_url: str) -> Response:
    """Return a refusal that says how to do better. Source: RFC 6750, section 3; RFC 9728, section 5.1."""
    parts = ['realm="gpu-mcp-server"']
    if error is not None:
        parts += [f'error="{error}"', f'error_description="{said}"']
    parts.append(f'resource_metadata="{metadata_url}"')
    body = {"error": error or "unauthorized", "error_description": said}
    return JSONResponse(body, status, {"WWW-Authenticate": f"Bearer {', '.join(parts)}", "Cache-Control": "no-store"})


def token_of_request(scope: Scope) -> str | None:
    """Return the token of a request: the header's, or outside MCP that of a browser's session."""
    headers = Headers(scope=scope)
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return secret.strip()
    return None if scope["path"] == MCP_PATH else shown_session(scope)


def shown_session(scope: Scope) -> str | None:
    """Return the session that a request's cookie names."""
    try:
        morsel = SimpleCookie(Headers(scope=scope).get("cookie", "")).get(SESSION_COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None


def _is_open(path: str) -> bool:
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in OPEN)
