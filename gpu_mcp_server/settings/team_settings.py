"""Settings of a server that many use over HTTP."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class TeamSettings(BaseModel):
    """Settings of `serve --http` and its users."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    public_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """Where clients reach the server, such as https://gpu.example.org, when that is not the address it listens on."""
    allowed_hosts: list[str] = []
    """More names, with port if one is given, that requests may be addressed to; `public_url`'s is among them."""
    tls_cert: Path | None = None
    """PEM file with the certificate and its chain; without it a proxy has to do the encryption."""
    tls_key: Path | None = None
    """PEM file with its key."""
    authorization_servers: list[str] = []
    """Told to clients in the protected resource's metadata (RFC 9728); our own tokens need none."""
    max_body_mib: int = Field(default=16, ge=1, le=1024)
    """Largest request."""
    max_connections: int = Field(default=2000, ge=10)
    """Connections at once; further ones get 503."""
    trace: bool = False
    """Send OpenTelemetry spans to where OTEL_EXPORTER_OTLP_ENDPOINT says; needs the extra `telemetry`."""
    free_disk_mib: int = Field(default=256, ge=0)
    """Below so much free room in the data folder the server only answers what reads, and says so."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds that running calls have to end after SIGTERM; detached jobs go on in any case."""
