"""The web application: MCP under /mcp, health, the protected resource's metadata, the pages."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server import __version__
from gpu_mcp_server.mcp_api.server import LabServer
from gpu_mcp_server.models.user import SCOPES
from gpu_mcp_server.runtime.current_user import as_server
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.team.team_services import Team
from gpu_mcp_server.team.token_verifier import Verifier
from gpu_mcp_server.web.admin_routes import admin_routes
from gpu_mcp_server.web.authentication import Authentication
from gpu_mcp_server.web.call_retries import RetriedCalls
from gpu_mcp_server.web.dashboard.routes import routes as dashboard_routes
from gpu_mcp_server.web.download_routes import download_routes
from gpu_mcp_server.web.limits import (
    AGAIN_S,
    MCP_PATH,
    HostHeaderMiddleware,
    ShutdownMiddleware,
    SlowClientMiddleware,
    WellFormed,
    refuse_when_full,
    security_of,
)
from gpu_mcp_server.web.merge_routes import merging_routes
from gpu_mcp_server.web.metrics import CountRequestsMiddleware, Metrics
from gpu_mcp_server.web.recipe_routes import RecipeRoutes
from gpu_mcp_server.web.request_context import RequestContextMiddleware
from gpu_mcp_server.web.upload_routes import upload_routes
from gpu_mcp_server.web.webhooks import Webhooks

if TYPE_CHECKING:
    from gpu_mcp_server.services.lab import Lab

METADATA = f"/.well-known/oauth-protected-resource{MCP_PATH}"


@dataclass(frozen=True)
class SiteState:
    """State that the pages' handlers find as `request.app.state.site`."""

    settings: Settings
    team: Team
    server: LabServer
    draining: ShutdownMiddleware
    authenticated: bool
    """Whether users log in; otherwise everybody is the local user."""

    async def lab(self) -> "Lab":
        """Return the laboratory."""
        return await self.server.app.lab()


def web_app(server: LabServer, settings: Settings, team: Team, address: str, *, verifier: Verifier | None) -> Starlette:
    """Return the ASGI application.

    Args:
        server: What speaks MCP.
        settings: Limits, names, addresses.
        team: Users, tokens, quotas; open as long as the application lives.
        address: What it listens on.
        verifier: Whose a token is; None where whoever reaches the server may do everything.
    """
    own = settings.team
    security = security_of(address, own.public_url, own.allowed_hosts)
    metrics = Metrics()
    server.middleware.append(
        RequestContextMiddleware(team.audit, metrics, server.offers, partial(refuse_when_full, settings))
    )
    calls, recipes = RetriedCalls(server.app, server.offers), RecipeRoutes(server.app)
    server.middleware.append(calls)
    mcp = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        host=address,
        transport_security=security,
        max_request_body_size=own.max_body_mib << 20,
    )
    metadata_url = (own.public_url or "").rstrip("/") + METADATA
    limit = own.max_body_mib << 20
    middleware = [
        Middleware(CountRequestsMiddleware, metrics=metrics),
        Middleware(SlowClientMiddleware),
        Middleware(HostHeaderMiddleware, security=security),
        Middleware(Authentication, verifier=verifier, metadata_url=metadata_url, flow=team.flow, metrics=metrics),
        Middleware(RequestBodyLimitMiddleware, max_body_size=limit),
        Middleware(WellFormed),
    ]

    async def settled() -> None:
        with as_server():
            await (await server.app.lab()).commands.refresh_running_jobs()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        telling = asyncio.create_task(Webhooks(team.db).run(settled), name="webhooks")
        try:
            async with mcp.router.lifespan_context(mcp):
                try:
                    yield
                finally:
                    await recipes.close()
                    await calls.close()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    figures = Route("/metrics", metrics.page)
    files = [*merging_routes(), *upload_routes(), *download_routes(), *admin_routes(), *recipes.routes()]
    paths = [*_health(), figures, *_metadata(settings), *mcp.routes, *files, calls.route(), *dashboard_routes()]
    app = Starlette(routes=paths, middleware=middleware, lifespan=lifespan)
    draining = ShutdownMiddleware(app)
    app.state.site = SiteState(settings, team, server, draining, verifier is not None)
    return app


def _health() -> list[BaseRoute]:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def readyz(request: Request) -> Response:
        site: SiteState = request.app.state.site
        if site.draining.ending.is_set():
            return JSONResponse({"status": "draining"}, 503, {"Retry-After": str(AGAIN_S)})
        await site.team.db.fetch_one("SELECT 1")
        full = refuse_when_full(site.settings)
        return JSONResponse({"status": "read-only", "why": full} if full else {"status": "ready"})

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _metadata(settings: Settings) -> list[BaseRoute]:
    """Return the route that tells clients how to come by a token. Source: RFC 9728, sections 2 and 3."""

    async def metadata(request: Request) -> Response:
        base = settings.team.public_url or str(request.base_url)
        said: dict[str, Any] = {
            "resource": f"{base.rstrip('/')}{MCP_PATH}",
            "resource_name": "GPU laboratory",
            "scopes_supported": list(SCOPES),
            "bearer_methods_supported": ["header"],
        }
        issuers = [settings.team.openid.issuer] if settings.team.openid is not None else []
        if servers := [*dict.fromkeys([*settings.team.authorization_servers, *issuers])]:
            said["authorization_servers"] = servers
        return JSONResponse(said, headers={"Access-Control-Allow-Origin": "*"})

    return [Route(METADATA, metadata), Route(METADATA.removesuffix(MCP_PATH), metadata)]
