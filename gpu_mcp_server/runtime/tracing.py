"""OpenTelemetry spans: no work unless the process has a tracer provider, which `export_spans` gives it."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from opentelemetry import trace

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.hostd.protocol import JobRecord

P = ParamSpec("P")
T = TypeVar("T")

NAME = "gpu_mcp_server"


def trace_calls(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Return a decorator that makes each call of a coroutine function a span."""

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(function)
        async def spanned(*args: P.args, **kwargs: P.kwargs) -> T:
            with trace.get_tracer(NAME).start_as_current_span(name):
                return await function(*args, **kwargs)

        return spanned

    return decorate


def job_spans(record: JobRecord) -> None:
    """Make the spans of a job that has ended, by its host's clock: `queue`, and its purpose, such as `judge`."""
    tracer = trace.get_tracer(NAME)
    attributes = {
        "gpu_mcp.job": record.id,
        "gpu_mcp.status": record.status or "",
        "gpu_mcp.level": record.level or "",
        "gpu_mcp.gpus": list(record.gpus),
    }
    begun, ended = record.started_at or record.ended_at, record.ended_at
    if record.submitted_at and begun:
        queue = tracer.start_span("queue", attributes=attributes, start_time=_ns(record.submitted_at))
        queue.end(_ns(max(begun, record.submitted_at)))
    if record.started_at and ended:
        span = tracer.start_span(record.purpose, attributes=attributes, start_time=_ns(record.started_at))
        if record.status not in ("ok", "cancelled"):
            span.set_status(trace.StatusCode.ERROR, record.status or "")
        span.end(_ns(ended))


def export_spans() -> None:
    """Send spans by OTLP over gRPC, to where OTEL_EXPORTER_OTLP_ENDPOINT and its like say.

    Raises:
        ConfigError: If the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"team.trace is set, and {error.name} is not installed.", hint="pip install gpu-mcp-server[telemetry]"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "gpu-mcp-server"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
