"""Bearer tokens: made once, shown once, kept as a hash."""

import hashlib
import hmac
import re
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from gpu_mcp_server.errors import BadRequest, DiskFull, NotFound
from gpu_mcp_server.models.user import SCOPES, Scope, User
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.token_verifier import TokenRefusal
from gpu_mcp_server.team.users import user_of

PREFIX = "gpumcp"
FORM = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
"""Id and secret: 256 bits, urlsafe base64. A form of its own is found by scanners for leaked secrets."""
NOBODY = hashlib.sha256(b"").digest()
"""Compared with when there is no such token, so that this takes as long as a wrong secret."""
SESSION_S = 12 * 3600


@dataclass(frozen=True)
class Token:
    """Record of a token: everything but its secret."""

    token_id: str
    user: str
    scopes: tuple[Scope, ...]
    note: str | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None

    @property
    def state(self) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= _now() else "active"


class Tokens:
    """The tokens of this store; a Verifier."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(
        self,
        user: str,
        scopes: Sequence[Scope] = ("run",),
        *,
        expires_s: float | None = None,
        note: str | None = None,
        kind: Literal["token", "session"] = "token",
    ) -> tuple[str, str]:
        """Make a token for a user that exists, and return its id and the token itself, which is kept nowhere.

        Raises:
            BadRequest: If a scope is unknown, or it would have expired.
        """
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise BadRequest(f"There is no scope {', '.join(unknown) or 'given'}.", hint=f"Use {', '.join(SCOPES)}.")
        if expires_s is not None and expires_s <= 0:
            raise BadRequest(f"It would expire after {expires_s:g} s.", hint="Give more than 0.")
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        expires = (now + timedelta(seconds=expires_s)).isoformat() if expires_s is not None else None
        await self._db.execute(
            "INSERT INTO tokens (token_id, user, kind, secret_hash, scopes, note, created_at, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (token_id, user, kind, _hash(secret), " ".join(scopes), note, now.isoformat(), expires),
        )
        return token_id, f"{PREFIX}_{token_id}_{secret}"

    async def open_session(self, user: User) -> str:
        """Make a token for a browser, with what the user's own allows, and return it."""
        _, session = await self.create(user.name, user.scopes, expires_s=SESSION_S, note=user.token_id, kind="session")
        return session

    async def verify(self, secret: str) -> User | TokenRefusal:
        """Return whose a token is; a wrong one costs a lookup and a comparison, whether or not its id exists."""
        form = FORM.fullmatch(secret)
        if form is None:
            return TokenRefusal("unknown")
        row = await self._db.fetch_one(
            "SELECT * FROM (SELECT ? AS shown) LEFT JOIN tokens ON token_id = shown LEFT JOIN users ON name = user",
            (form[1],),
        )
        assert row is not None  # of NULLs where there is no such token
        right = hmac.compare_digest(_hash(form[2]), row["secret_hash"] or NOBODY)
        if row["token_id"] is None or not right:
            return TokenRefusal("unknown")
        now = _now()
        if row["revoked_at"] is not None:
            return TokenRefusal("revoked")
        if row["expires_at"] is not None and row["expires_at"] <= now:
            return TokenRefusal("expired")
        if row["last_used_at"] is None or row["last_used_at"][:16] != now[:16]:
            await self._note_use(form[1], now)
        expires_at = row["expires_at"] if row["kind"] == "token" else None  # browser sessions are renewed by logging in
        return user_of(row, row["scopes"].split(), form[1], expires_at)

    async def _note_use(self, token_id: str, now: str) -> None:
        with suppress(DiskFull):  # then nothing else can be noted either, and who only looks may
            await self._db.execute("UPDATE tokens SET last_used_at = ? WHERE token_id = ?", (now, token_id))

    async def list(self, *, sessions: bool = False) -> Sequence[Token]:
        """Return all tokens, oldest first; those of browsers only if asked."""
        rows = await self._db.fetch_all(
            "SELECT * FROM tokens WHERE kind = 'token' OR ? ORDER BY created_at, token_id", (int(sessions),)
        )
        return [_token(row) for row in rows]

    async def revoke(self, token_id: str) -> Token:
        """Let a token count no more, from the next request on; sessions opened with it end with it.

        Raises:
            NotFound: If there is no such token.
        """
        rows = await self._db.fetch_all("SELECT * FROM tokens WHERE token_id = ?", (token_id,))
        if not rows:
            raise NotFound("token", token_id, hint="gpu-mcp-server token list shows their ids.")
        await self._db.execute(
            "UPDATE tokens SET revoked_at = ? WHERE revoked_at IS NULL AND "
            "(token_id = ? OR (kind = 'session' AND note = ?))",
            (_now(), token_id, token_id),
        )
        (row,) = await self._db.fetch_all("SELECT * FROM tokens WHERE token_id = ?", (token_id,))
        return _token(row)

    async def has_tokens(self) -> bool:
        """Say whether there is a token at all."""
        return await self._db.fetch_one("SELECT 1 FROM tokens WHERE kind = 'token' LIMIT 1") is not None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _token(row: sqlite3.Row) -> Token:
    values: dict[str, Any] = {field.name: row[field.name] for field in fields(Token)}
    values["scopes"] = tuple(row["scopes"].split())
    return Token(**values)
