"""Settings of a server that many use over HTTP."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class OpenIdSettings(BaseModel):
    """An issuer whose users come in beside those with tokens of this server; all of them have the scope `run`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str = Field(pattern=r"^(https://\S+|http://(localhost|127\.0\.0\.1)(:\d+)?(/\S*)?)$")
    """Its identifier, as in the tokens' `iss`; its keys are found from there (OpenID Connect Discovery)."""
    audience: str = Field(min_length=1)
    """What the tokens' `aud` has to name."""
    user_claim: str = "sub"
    """Claim with the user's name: one that no user can choose. `email` counts only if the issuer verified it."""
    groups_claim: str = "groups"
    """Claim with the list of a user's groups."""
    projects: dict[str, str] = {}
    """Project of each group; the first counts. If there are any, users of no such group are refused."""


class TeamSettings(BaseModel):
    """Settings of `serve --http` and its users."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    public_url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """Address at which clients reach the server, such as https://gpu.example.org; unset: the one that it listens on."""
    allowed_hosts: list[str] = []
    """Further names, with or without port, that a request's Host header may have; `public_url`'s is always allowed."""
    tls_cert: Path | None = None
    """PEM file with the certificate and its chain; without it a proxy must encrypt."""
    tls_key: Path | None = None
    """PEM file with the certificate's key."""
    authorization_servers: list[str] = []
    """Authorization servers in the protected resource's metadata (RFC 9728); the server's own tokens need none."""
    openid: OpenIdSettings | None = None
    """OpenID Connect issuer whose tokens the server also takes."""
    max_body_mib: int = Field(default=16, ge=1, le=1024)
    """Largest request, in MiB."""
    max_connections: int = Field(default=2000, ge=10)
    """Connections at once; the server answers further ones with 503."""
    trace: bool = False
    """Send OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra `telemetry`."""
    free_disk_mib: int = Field(default=256, ge=0)
    """Free space, in MiB, below which the server answers reading calls alone; the data folder's disk counts."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds that running calls have to end after SIGTERM; detached jobs keep running."""
