"""People who use a server together, as the rest of the program knows them."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model
from gpu_mcp_server.time_format import format_elapsed

Scope = Literal["read", "run", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "run", "admin")
"""Each includes those before it."""

WARNED_FOR = timedelta(days=7)
"""Before a token ends."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
"""What users and projects may be called."""


class Quotas(Model):
    """Limits of what a user may take; absent means without limit."""

    gpu_s_per_day: float | None = Field(default=None, ge=0)
    """Seconds times GPUs that jobs held between two midnights, UTC."""
    concurrent_jobs: int | None = Field(default=None, ge=0)
    """Jobs that are queued or run."""
    disk_bytes: int | None = Field(default=None, ge=0)
    """Workspaces and artifacts in the store."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests over HTTP."""


class User(Model):
    """The user a call is made for."""

    name: str
    scopes: tuple[Scope, ...] = SCOPES
    weight: float = Field(default=1.0, gt=0)
    """Share of the pool, against the weights of others."""
    toolsets: tuple[str, ...] | None = None
    """Ids of the toolsets that may be used; absent means all that the server offers."""
    project: str | None = None
    """Whose members see what is shared with it."""
    quotas: Quotas = Quotas()
    token_id: str | None = None
    """The token that was shown; never its secret."""
    expires_at: str | None = None
    """When that token ends: ISO 8601, UTC; absent if never."""

    @property
    def is_local(self) -> bool:
        """Return whether this user started the program, instead of coming over the network."""
        return self is LOCAL

    @property
    def sees_all(self) -> bool:
        """Return whether nothing is hidden from them."""
        return self is LOCAL or "admin" in self.scopes

    def may(self, scope: Scope) -> bool:
        """Say whether they hold a scope, or one that includes it."""
        return any(SCOPES.index(held) >= SCOPES.index(scope) for held in self.scopes)

    def expiry_warning(self, now: datetime) -> str:
        """Say that the token ends within a week, and who makes the next one; empty otherwise, and of an issuer's."""
        ours = self.token_id is not None and self.expires_at is not None
        left = datetime.fromisoformat(str(self.expires_at)) - now if ours else None
        if left is None or left > WARNED_FOR:
            return ""
        return (
            f"your token ends in {format_elapsed(left.total_seconds())}, at {self.expires_at}: an admin makes the next "
            f"one with `gpu-mcp-server token create {self.name}`, and `gpu-mcp-server login` takes it"
        )


LOCAL = User(name="local")
"""Who started the program: over stdio and on the command line nobody else is there. The server's own work counts as
theirs too."""
