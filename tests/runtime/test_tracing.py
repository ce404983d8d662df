"""A job as OpenTelemetry sees it."""

import sys
from collections.abc import Iterator

import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.runtime.tracing import export_spans
from gpu_mcp_server.services.lab import Lab

pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is an extra")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, before = InMemorySpanExporter(), trace._TRACER_PROVIDER
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace._TRACER_PROVIDER = provider
    yield exporter
    trace._TRACER_PROVIDER = before


async def test_a_job_is_pushed_queued_and_run(lab: Lab, spans: InMemorySpanExporter):
    done = await lab.commands.run(["true"])
    of_job = [s for s in spans.get_finished_spans() if (s.attributes or {}).get("gpu_mcp.job") == done.job_id]

    assert [s.name for s in spans.get_finished_spans()][:1] == ["push"]
    assert [s.name for s in of_job] == ["queue", "run"]
    assert all(s.end_time is not None and s.start_time is not None and s.end_time >= s.start_time for s in of_job)


def test_sending_spans_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"telemetry\]"):
        export_spans()
