"""Limits for clients: none may address another host, send or read forever, or go on while the server ends."""

import asyncio
from collections.abc import Collection
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_mcp_server.mcp_api.malformed_messages import refusal
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.filesystem import free_bytes

MCP_PATH = "/mcp"
REFUSED_CODE = -32000
"""Of what the server refuses before it reads a message. Source: JSON-RPC 2.0, section 5.1: -32000 to -32099."""
BODY_S = 30.0
"""Between two parts of a request's body."""
SEND_S = 120.0
"""For a client to take what was sent to it; one that does not is cut off, and its attached jobs end."""
AGAIN_S = 10
"""When who was sent away may come again: after a restart."""
EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - addresses to listen on, which no request is sent to
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def security_of(address: str, public_url: str | None, allowed_hosts: Collection[str]) -> TransportSecuritySettings:
    """Return which Host and Origin headers are accepted: this machine's, the public ones, those allowed besides."""
    public = urlsplit(public_url).netloc if public_url else ""
    shown = f"[{address}]" if ":" in address else address
    names = {*LOCAL_NAMES, shown, *allowed_hosts, public} - {"", *EVERYWHERE}
    hosts = sorted({*names, *(f"{name}:*" for name in names if not name.rpartition(":")[2].isdigit())})
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


class HostHeaderMiddleware:
    """Answers only requests that were meant for this server. Source: the MCP specification on DNS rebinding."""

    def __init__(self, app: ASGIApp, security: TransportSecuritySettings) -> None:
        self._app, self._checks = app, TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 421 for another Host, 403 for another Origin, or let the request through."""
        if scope["type"] == "http":
            refusal = await self._checks.validate_request(Request(scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SlowClientMiddleware:
    """Cuts off who sends or reads too slowly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, with a limit on each wait for the client."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        whole, begun = False, False

        async def timely() -> Message:
            nonlocal whole
            if whole:
                return await receive()  # which waits for the client to hang up
            async with asyncio.timeout(BODY_S):
                message = await receive()
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def taken(message: Message) -> None:
            nonlocal begun
            begun = True
            async with asyncio.timeout(SEND_S):
                await send(message)

        try:
            await self._app(scope, timely, taken)
        except TimeoutError:
            if not whole and not begun:
                answer = JSONResponse({"error": f"no more of the body came for {BODY_S:g} s"}, 408)
                answer.headers["Connection"] = "close"
                await answer(scope, receive, send)


class WellFormed:
    """Answers what is no message of JSON-RPC, whichever of MCP's versions it is for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400, or let the request through."""
        if scope["type"] != "http" or scope["path"] != MCP_PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        message = await receive()  # all of the body: what limits it has put it together
        refused = refusal(message["body"]) if message["type"] == "http.request" else None
        if refused is not None:
            await Response(refused.model_dump_json(), 400, media_type="application/json")(scope, receive, send)
            return
        first = [message]

        async def again() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, again, send)


def refuse_when_full(settings: Settings) -> str:
    """Say why nothing new can be taken; nothing while there is room."""
    free, least = free_bytes(settings.data_dir), settings.team.free_disk_mib << 20
    if free is None or free >= least:
        return ""
    return (
        f"The server's disk has {free >> 20} MiB left of the {least >> 20} that it needs: it is read-only, and answers "
        "only what reads or ends something, until an admin makes room (gpu-mcp-server store prune)."
    )


def refusal_response(scope: Scope, status: int, said: str, again_s: int) -> Response:
    """Return the refusal of a request that may come again; MCP clients show its words only as an error of JSON-RPC.

    The id is null, as the body was not read. Source: JSON-RPC 2.0, section 5; RFC 9110, section 10.2.3.

    Args:
        scope: The request.
        status: HTTP status.
        said: What a person reads.
        again_s: Seconds until it may come again.
    """
    error: object = {"code": REFUSED_CODE, "message": said}
    body = {"jsonrpc": "2.0", "id": None, "error": error} if scope["path"] == MCP_PATH else {"error": said}
    return JSONResponse(body, status, {"Retry-After": str(again_s), "Connection": "close"})


class ShutdownMiddleware:
    """Tells who comes while the server ends to come again; what runs already may end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.ending, self.idle = asyncio.Event(), asyncio.Event()
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503, or let the request through."""
        if scope["type"] != "http" or scope["path"] in ("/healthz", "/readyz"):
            await self._app(scope, receive, send)
            return
        if self.ending.is_set():
            away = refusal_response(scope, 503, "the server is being restarted; try again", AGAIN_S)
            await away(scope, receive, send)
            return
        if is_event_stream(scope):
            await self._app(scope, receive, send)
            return
        self.running += 1
        self.idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()


def is_event_stream(scope: Scope) -> bool:
    """Say whether a request only listens for what happens, in the way of either era."""
    listens = (b"mcp-method", b"subscriptions/listen") in scope["headers"]
    return listens or (scope["method"] == "GET" and scope["path"] == MCP_PATH)
