"""Bearer tokens of an OpenID Connect issuer: JSON Web Tokens whose signature, issuer, audience and times are checked.

Sources: OpenID Connect Core 1.0, section 3.1.3.7; OpenID Connect Discovery 1.0, section 4; RFC 7519, RFC 8725.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import structlog

from gpu_mcp_server.errors import HostUnavailable, NotFound
from gpu_mcp_server.models.user import LOCAL, NAME, User
from gpu_mcp_server.settings.team_settings import OpenIdSettings
from gpu_mcp_server.team.token_verifier import TokenRefusal
from gpu_mcp_server.team.tokens import FORM, Tokens
from gpu_mcp_server.team.users import Users

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Signatures that a key of each type may make: `none` and shared secrets never count. Source: RFC 8725, section 3.1."""
LEEWAY_S = 60
"""Between the issuer's clock and this one."""
KEPT_S = 3600.0
"""Keys are asked for anew after so long."""
STALE_S = 24 * 3600.0
"""So long keys count that cannot be asked for anew."""
PAUSE_S = 30.0
"""Between two requests to the issuer: tokens with invented keys cause no more."""
WAIT_S = 5.0
MOST_BYTES = 1 << 20
MOST_KEYS = 100
_ODD = re.compile(r"[^A-Za-z0-9 .,:/_@+'-]")
_log = structlog.get_logger(__name__)


class OpenIdVerifier:
    """Tokens of this store, and beside them those of an issuer; a Verifier."""

    def __init__(self, settings: OpenIdSettings, tokens: Tokens, users: Users) -> None:
        """Keep what counts.

        Args:
            settings: The issuer, the audience, groups.
            tokens: Of this store.
            users: Where a user of the issuer gets a row at the first request.
        """
        self._settings, self._tokens, self._users = settings, tokens, users
        self._keys = IssuerKeys(settings.issuer)

    async def verify(self, secret: str) -> User | TokenRefusal:
        """Return the user with the scopes that the token carries, or why it is refused.

        Raises:
            HostUnavailable: If the issuer's keys are not known, and it does not answer.
        """
        if FORM.fullmatch(secret):
            return await self._tokens.verify(secret)
        claims = await self._claims(secret)
        return claims if isinstance(claims, TokenRefusal) else await self._user(claims)

    async def _claims(self, secret: str) -> Mapping[str, Any] | TokenRefusal:
        import jwt

        try:
            header = jwt.get_unverified_header(secret)
        except jwt.InvalidTokenError:
            return TokenRefusal("unknown")
        algorithm, kid = str(header.get("alg")), header.get("kid")
        if not any(algorithm in names for names in ALGORITHMS.values()):
            return _refused(f"The access token is signed by {algorithm!r}; a signature by the issuer's key is needed")
        foreign = _refused(f"The access token is signed by a key that {self._settings.issuer} does not have")
        key = await self._keys.find(kid if isinstance(kid, str) else None)
        if key is None or algorithm not in ALGORITHMS.get(key.key_type or "", ()):
            return foreign
        try:
            return jwt.decode(
                secret, key.key, algorithms=[algorithm], audience=self._settings.audience,
                issuer=self._settings.issuer, leeway=LEEWAY_S, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.InvalidSignatureError:
            return foreign
        except jwt.ExpiredSignatureError:
            return TokenRefusal("expired")
        except jwt.InvalidAudienceError:
            return _refused(f"The access token is for another audience than {self._settings.audience}")
        except jwt.InvalidIssuerError:
            return _refused(f"The access token is of another issuer than {self._settings.issuer}")
        except jwt.MissingRequiredClaimError as error:
            return _refused(f"The access token has no {error.claim}")
        except (jwt.ImmatureSignatureError, jwt.InvalidIssuedAtError):
            return _refused("The access token counts from a later time on: compare the clocks")
        except jwt.InvalidTokenError:
            return TokenRefusal("unknown")

    async def _user(self, claims: Mapping[str, Any]) -> User | TokenRefusal:
        own = self._settings
        name = claims.get(own.user_claim)
        if not isinstance(name, str) or not re.fullmatch(NAME, name) or name == LOCAL.name:
            return _refused(
                f"The access token's {own.user_claim} can be no user's name: letters, digits and ._@- up to 64"
            )
        if own.user_claim == "email" and claims.get("email_verified") is not True:
            return _refused("The issuer has not verified the access token's email")
        listed = claims.get(own.groups_claim)
        groups = {str(each) for each in cast("list[Any]", listed)} if isinstance(listed, list) else set[str]()
        project = next((project for group, project in own.projects.items() if group in groups), None)
        if own.projects and project is None:
            return _refused(f"The user is in none of the groups that may use this server: {', '.join(own.projects)}")
        try:
            known = await self._users.get(name)
        except NotFound:
            known = None
        if known is None or (project is not None and known.project != project):
            await self._users.put(name, project=project)
            known = await self._users.get(name)
        ends = datetime.fromtimestamp(float(claims["exp"]), UTC).isoformat()
        return known.model_copy(update={"scopes": ("run",), "expires_at": ends})


def _refused(said: str) -> TokenRefusal:
    """Return a refusal in words that can stand in a header."""
    return TokenRefusal("unknown", _ODD.sub("", said)[:300])


@dataclass
class IssuerKeys:
    """The public keys of an issuer, asked for when they are needed and kept."""

    issuer: str
    _keys: "dict[str | None, PyJWK]" = field(default_factory=dict[str | None, Any])
    _had_at: float = float("-inf")
    _asked_at: float = float("-inf")
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self, kid: str | None) -> "PyJWK | None":
        """Return the key of a name, or the only key where a token names none; None if the issuer has none such.

        Raises:
            HostUnavailable: If no keys are known, and the issuer does not answer.
        """
        if (key := self._of(kid)) is not None and time.monotonic() - self._had_at <= KEPT_S:
            return key
        async with self._asking:
            now = time.monotonic()
            old = now - self._had_at > KEPT_S or self._of(kid) is None
            if old and now - self._asked_at > PAUSE_S:
                self._asked_at = now
                await self._ask()
            if time.monotonic() - self._had_at > STALE_S:
                raise HostUnavailable(
                    f"The keys of {self.issuer} are not known, as it does not answer.", hint="Try again in a minute."
                )
        return self._of(kid)

    def _of(self, kid: str | None) -> "PyJWK | None":
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    async def _ask(self) -> None:
        import httpx2
        import jwt

        try:
            async with asyncio.timeout(WAIT_S), httpx2.AsyncClient(timeout=WAIT_S) as http:
                about = await _read(http, f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
                if about.get("issuer") != self.issuer:
                    raise ValueError(f"it calls itself {str(about.get('issuer'))[:200]!r}")
                listed = (await _read(http, _checked_url(str(about.get("jwks_uri"))))).get("keys")
            found: dict[str | None, PyJWK] = {}
            for each in cast("list[Any]", listed)[:MOST_KEYS] if isinstance(listed, list) else []:
                known = isinstance(each, dict) and cast("dict[str, Any]", each).get("kty") in ALGORITHMS
                if known and cast("dict[str, Any]", each).get("use", "sig") == "sig":
                    with suppress(jwt.PyJWTError):  # of a kind that is not known here
                        key = jwt.PyJWK(cast("dict[str, Any]", each))
                        found[key.key_id] = key
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            _log.warning(
                "the issuer's keys cannot be read", issuer=self.issuer, error=str(error) or type(error).__name__
            )
            return
        self._keys, self._had_at = found, time.monotonic()


async def _read(http: Any, url: str) -> dict[str, Any]:
    async with http.stream("GET", url) as answer:
        answer.raise_for_status()
        content = b""
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                raise ValueError(f"{url} gives more than {MOST_BYTES} bytes")
    read = json.loads(content)
    if not isinstance(read, dict):
        raise ValueError(f"{url} gives no JSON object")
    return cast("dict[str, Any]", read)


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")):
        return url
    raise ValueError(f"its keys are at {url[:200]!r}, which is not https")
