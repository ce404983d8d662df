"""Figures for Prometheus."""

from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.gpu_seconds import GPU_S

METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 240)

_JOBS = (
    "SELECT coalesce(record ->> 'status', 'unfinished') AS status, purpose, count(*) AS number, "  # noqa: S608
    f"coalesce(sum({GPU_S}), 0) AS gpu_s FROM jobs "
    "WHERE job_id >= ? "
    "GROUP BY 1, 2 ORDER BY 1, 2"
)


class Metrics:
    """Of one server; in a registry of its own, as a process may hold several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = self._counter("http_requests", "HTTP requests by status", "method", "status")
        self.refused = self._counter("refused", "Requests refused, by what for", "why")
        self.calls = self._counter("calls", "MCP requests by method, tool and outcome", "method", "tool", "outcome")
        self.running = self._gauge("calls_running", "MCP requests under way")
        self.seconds = Histogram(
            "gpu_mcp_call_seconds", "Time of MCP requests", ("method", "tool"), registry=self.registry, buckets=SECONDS
        )
        self.jobs = self._gauge("jobs", "Jobs since midnight, UTC", "purpose", "status")
        self.gpu_seconds = self._gauge("gpu_seconds", "GPU seconds of jobs since midnight, UTC", "purpose", "status")

    def _counter(self, name: str, said: str, *labels: str) -> Counter:
        return Counter(f"gpu_mcp_{name}", said, labels, registry=self.registry)

    def _gauge(self, name: str, said: str, *labels: str) -> Gauge:
        return Gauge(f"gpu_mcp_{name}", said, labels, registry=self.registry)

    async def page(self, request: Request) -> Response:
        """Return all figures as text."""
        await self._read_jobs(request.app.state.site.team.db)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def _read_jobs(self, db: Database) -> None:
        self.jobs.clear()
        self.gpu_seconds.clear()
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for row in await db.fetch_all(_JOBS, (f"j-{int(midnight.timestamp() * 1000):x}",)):
            self.jobs.labels(row["purpose"], row["status"]).set(row["number"])
            self.gpu_seconds.labels(row["purpose"], row["status"]).set(row["gpu_s"])


class CountRequestsMiddleware:
    """Counts requests by their answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "other"

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(method, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, seen)
