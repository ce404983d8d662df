"""Listens on an address, until SIGINT or SIGTERM."""

import asyncio
import ipaddress
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.mcp_api.server import LabServer
from gpu_mcp_server.runtime.tracing import export_spans
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import CHECKED_BY_SERVER_BYTES
from gpu_mcp_server.team.team_services import Team
from gpu_mcp_server.team.token_verifier import Verifier
from gpu_mcp_server.web.app import SiteState, web_app
from gpu_mcp_server.web.http1 import StrictConnection

SILENT_S = 20.0
"""For a client that has connected to send a whole request head."""
KEEP_ALIVE_S = 75
"""Between two requests of a connection."""
CLOSING_S = 5
"""For what is left after the drain."""

Authentication = Literal["tokens", "none"]


def checked_address(text: str) -> tuple[str, int]:
    """Return address and port of `HOST:PORT`, `[HOST]:PORT`, `HOST` or `:PORT`; the port is 8765 unless given.

    Raises:
        ConfigError: If it is no such thing, or a name other than localhost.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, "8765"
    host = host.strip("[]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise ConfigError(f"{text!r} is no address to listen on.", hint="Say 127.0.0.1:8765 or [::1]:8765.")
    return host, number


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    return ipaddress.ip_address(host).is_loopback


async def chosen_authentication(settings: Settings, host: str, asked: Authentication | None) -> Authentication:
    """Return how users are told apart: by tokens as soon as there is one, and always beyond this machine.

    Raises:
        ConfigError: If none was asked for where others reach the server, or there is no token to come in with.
    """
    async with Team.open(settings, check_up_to_bytes=CHECKED_BY_SERVER_BYTES) as team:
        there_are = settings.team.openid is not None or await team.tokens.has_tokens()
    beyond = not is_loopback(host)
    if beyond and asked == "none":
        raise ConfigError(
            f"serve --http does not listen on {host} without authentication: any machine could run code here.",
            hint="Leave out --auth none, or listen on loopback and reach it through `ssh -L 8765:127.0.0.1:8765 HOST`.",
        )
    chosen = asked or ("tokens" if beyond or there_are else "none")
    if chosen == "tokens" and not there_are:
        raise ConfigError(
            f"Beyond loopback, on {host}, users show tokens, and there is none yet."
            if beyond
            else "Users show tokens, and there is none yet.",
            hint="Make the first one: gpu-mcp-server token create NAME --scope admin.",
        )
    return chosen


class IdleTimeoutProtocol(H11Protocol):
    """Hangs up on who connects and says nothing, or not all of it, or something that two could read in two ways."""

    _silence: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn: StrictConnection = StrictConnection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._silence = self.loop.call_later(SILENT_S, self._said_nothing)

    def data_received(self, data: bytes) -> None:
        """Take what came; a head that is not whole yet has as long as one that has not begun."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._heard()
        elif self._silence is None:
            self._silence = self.loop.call_later(SILENT_S, self._said_nothing)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._heard()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say that nothing more of this connection is read, unless an answer has begun, and hang up."""
        del msg
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison] - None before the first request
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            said = b"Invalid HTTP request received."
            headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(said)))]
            answer = h11.Response(
                status_code=self.conn.refusal,
                headers=[*headers, ("connection", "close")],
                reason=HTTPStatus(self.conn.refusal).phrase,
            )
            for event in (answer, h11.Data(data=said), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _heard(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _said_nothing(self) -> None:
        self.transport.abort()


class Server(uvicorn.Server):
    """Lets running calls end, and tells new ones to come again, before it ends."""

    def __init__(self, config: uvicorn.Config, site: SiteState) -> None:
        super().__init__(config)
        self.site = site
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain, then end; a second SIGINT ends at once."""
        draining = self.site.draining
        draining.ending.set()
        deadline = time.monotonic() + self.site.settings.team.drain_s
        while draining.running and time.monotonic() < deadline and not self.force_exit:
            with suppress(TimeoutError):
                await asyncio.wait_for(draining.idle.wait(), 0.25)
        await super().shutdown(sockets)


def _tls(settings: Settings) -> dict[str, Any]:
    own = settings.team
    if own.tls_cert is None and own.tls_key is None:
        return {}
    if own.tls_cert is None or own.tls_key is None:
        raise ConfigError("TLS takes both team.tls_cert and team.tls_key.", hint="Set the other one too.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(own.tls_cert, own.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{own.tls_cert} and {own.tls_key} cannot be used: {error}.", hint="Give a PEM certificate and its key."
        ) from error
    return {"ssl_certfile": str(own.tls_cert), "ssl_keyfile": str(own.tls_key)}


def server_for(
    server: LabServer,
    settings: Settings,
    team: Team,
    host: str,
    port: int,
    *,
    tokens: bool,
    verifier: Verifier | None = None,
) -> Server:
    """Return what will serve many clients over HTTP, with users told apart by their tokens, or not at all.

    Raises:
        ConfigError: If the certificate cannot be used.
    """
    if verifier is None and settings.team.openid is not None:
        from gpu_mcp_server.team.openid_tokens import OpenIdVerifier

        verifier = OpenIdVerifier(settings.team.openid, team.tokens, team.users)
    app = web_app(server, settings, team, host, verifier=(verifier or team.tokens) if tokens else None)
    site: SiteState = app.state.site
    # h11: httptools keeps the white space behind a header's value, against RFC 9110, section 5.5. Nothing here speaks
    # WebSocket, whose own parser would read the request once more
    config = uvicorn.Config(
        site.draining,
        host=host,
        port=port,
        http=IdleTimeoutProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        limit_concurrency=settings.team.max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSING_S,
        server_header=False,
        **_tls(settings),
    )
    return Server(config, site)


def serve_http(server: LabServer, settings: Settings, host: str, port: int, *, tokens: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigError: If the store or the certificate cannot be used.
    """
    if settings.team.trace:
        export_spans()

    async def work() -> None:
        async with Team.open(settings, check_up_to_bytes=0) as team:  # `chosen_authentication` has read it
            await server_for(server, settings, team, host, port, tokens=tokens).serve()

    asyncio.run(work())


def scheme_of(cert: Path | None) -> str:
    """Return the scheme of the server's addresses."""
    return "https" if cert is not None else "http"
