"""All that is known of the users of a server, opened together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from gpu_mcp_server.models.user import LOCAL, User
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store.database import CHECKED_BYTES, DATABASE, Database
from gpu_mcp_server.store.store_locks import USE, hold_lock
from gpu_mcp_server.team.audit import AuditLog
from gpu_mcp_server.team.quotas import QuotaService
from gpu_mcp_server.team.rate_limit import RateLimiter
from gpu_mcp_server.team.tokens import Tokens
from gpu_mcp_server.team.users import Users

_log = structlog.get_logger(__name__)


async def chosen_user(settings: Settings) -> User:
    """Return for whom the settings say that work without a token is done.

    Raises:
        NotFound: If there is no such user.
    """
    if settings.user is None:
        return LOCAL
    async with Team.open(settings) as team:
        return await team.users.worker(settings.user)


@dataclass(frozen=True)
class Team:
    """Over a connection of its own: who is refused does not wait for who works."""

    db: Database
    users: Users
    tokens: Tokens
    allowances: QuotaService
    flow: RateLimiter
    audit: AuditLog

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, *, check_up_to_bytes: int = CHECKED_BYTES) -> "AsyncGenerator[Team]":
        """Open what the store knows of users.

        Args:
            settings: Where the store is.
            check_up_to_bytes: A database that is not larger is read for damaged pages first; a larger one is not, and
                the log says so. A command does with little, a server that runs for months takes more; 0: it was read.

        Raises:
            ConfigError, DiskFull: If the data folder cannot be used.
        """
        with hold_lock(settings.data_dir, USE):
            path = settings.data_dir / DATABASE
            async with await Database.open(path, check_up_to_bytes=check_up_to_bytes) as db:
                size_bytes = path.stat().st_size
                if 0 < check_up_to_bytes < size_bytes:
                    _log.info(
                        "the store is too large to be read for damage at the start: gpu-mcp-server store check does it",
                        size_mib=size_bytes >> 20,
                        limit_mib=check_up_to_bytes >> 20,
                    )
                audit = AuditLog(db)
                async with audit.run_writer():
                    yield cls(db, Users(db), Tokens(db), QuotaService(db), RateLimiter(), audit)
