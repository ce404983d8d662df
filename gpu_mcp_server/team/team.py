"""All that is known of the users of a server, opened together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpu_mcp_server.models.user import LOCAL, User
from gpu_mcp_server.settings import Settings
from gpu_mcp_server.store.database import CHECKED_BY_SERVER_BYTES, DATABASE, Database
from gpu_mcp_server.store.locks import USE, held
from gpu_mcp_server.team.allowances import Allowances
from gpu_mcp_server.team.audit import AuditLog
from gpu_mcp_server.team.flow import Flow
from gpu_mcp_server.team.tokens import Tokens
from gpu_mcp_server.team.users import Users


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
    allowances: Allowances
    flow: Flow
    audit: AuditLog

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> "AsyncGenerator[Team]":
        """Open what the store knows of users.

        Raises:
            ConfigError, DiskFull: If the data folder cannot be used.
        """
        with held(settings.data_dir, USE):
            path = settings.data_dir / DATABASE
            async with await Database.open(path, check_up_to_bytes=CHECKED_BY_SERVER_BYTES) as db:
                audit = AuditLog(db)
                async with audit.kept():
                    yield cls(db, Users(db), Tokens(db), Allowances(db), Flow(), audit)
