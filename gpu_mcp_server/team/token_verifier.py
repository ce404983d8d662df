"""Verify the bearer token of a request, and name its user."""

from dataclasses import dataclass
from typing import Literal, Protocol

from gpu_mcp_server.models.user import User


@dataclass(frozen=True)
class TokenRefusal:
    """Reason for which a bearer token is refused, as far as its bearer may know it."""

    reason: Literal["unknown", "expired", "revoked"]
    """`expired` and `revoked` only to who knows the whole token: others learn nothing about what there is."""
    said: str = ""
    """More exactly, in characters that a quoted string of a header may have."""


class Verifier(Protocol):
    """Says whose a bearer token is: our own tokens, or an identity provider's."""

    async def verify(self, secret: str) -> User | TokenRefusal:
        """Return the user with the scopes that the token carries, or why it is refused."""
        ...
