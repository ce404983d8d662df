"""The SQLite database: one file, several processes, short transactions."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

import aiosqlite

from gpu_mcp_server.errors import ConfigError, DiskFull, GpuMcpError
from gpu_mcp_server.store.filesystem import NO_ROOM, is_disk_full, is_nearly_full, is_network_filesystem

DATABASE = "lab.db"
"""The database's name in the data folder."""

JournalMode = Literal["WAL", "TRUNCATE"]
Value = str | int | float | bytes | None

CHECKED_BYTES = 64 << 20
"""A database up to this size is read wholly when it is opened for work: a tenth of a second at most."""
CHECKED_BY_SERVER_BYTES = 1 << 30
"""The same for a server over HTTP, which runs for months; beyond that, `store check` reads it."""

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for the others; theirs are transactions of milliseconds."""


class Database:
    """A connection that runs in a thread of its own and takes one task at a time."""

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self.path = path
        self._connection: aiosqlite.Connection | None = connection
        self._thread = connection._thread
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[object] | None = None

    @classmethod
    async def open(cls, path: Path, *, journal_mode: JournalMode | None = None, check_up_to_bytes: int = 0) -> Self:
        """Open the database, making or migrating it if need be.

        Args:
            path: The file; its folder is made if it is missing.
            journal_mode: WAL, or TRUNCATE on a network filesystem, unless given.
            check_up_to_bytes: One that is not larger is looked through for damaged pages first.

        Raises:
            ConfigError: If the file cannot be opened, is damaged, or was made by a newer version.
            DiskFull: If there is no room for it.
        """
        opened: list[sqlite3.Connection] = []

        def connect() -> sqlite3.Connection:
            opened.append(_make_connection(path))
            if path.stat().st_size <= check_up_to_bytes:
                _check(opened[0], path, "quick_check")
            return _prepared(opened[0], path, journal_mode)

        connection = aiosqlite.Connection(connect, 64)
        connection._thread.daemon = True  # a process that forgets to close must still be able to end
        try:
            with translated(path):
                await connection
        except BaseException:
            await asyncio.to_thread(connection._thread.join)
            for left_open in opened:
                left_open.close()
            raise
        return cls(path, connection)

    async def close(self) -> None:
        """Close the file and end the thread; a second call does nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.close()
        finally:
            await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Run one statement and return the number of rows that it changed."""
        async with self._turn() as connection:
            with translated(self.path):
                cursor = await connection.execute(sql, parameters)
            return cursor.rowcount

    async def execute_all(self, statements: Sequence[tuple[str, Sequence[Value]]]) -> None:
        """Run several statements, all or none, at the cost of one turn of the thread."""

        def run(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, parameters in statements:
                    connection.execute(sql, parameters)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

        if self._is_mine():
            for sql, parameters in statements:
                await self.execute(sql, parameters)
            return
        async with self._turn() as connection:
            with translated(self.path):
                await connection._execute(run, connection._conn)  # pyright: ignore[reportUnknownMemberType]

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run one statement for each of the rows, all or none."""
        async with self.transaction(), self._turn() as connection:
            with translated(self.path):
                await connection.executemany(sql, rows)

    async def fetch_all(self, sql: str, parameters: Sequence[Value] = ()) -> list[sqlite3.Row]:
        """Run a query and return all its rows."""
        async with self._turn() as connection:
            with translated(self.path):
                return list(await connection.execute_fetchall(sql, parameters))

    async def fetch_one(self, sql: str, parameters: Sequence[Value] = ()) -> sqlite3.Row | None:
        """Run a query and return its first row, if there is one."""
        rows = await self.fetch_all(sql, parameters)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Self]:
        """Make what the block does happen wholly or not at all; a transaction inside another joins it."""
        if self._is_mine():
            yield self
            return
        async with self._turn() as connection:
            self._owner = asyncio.current_task()
            try:
                with translated(self.path):
                    await connection.execute("BEGIN IMMEDIATE")
                yield self
                with translated(self.path):
                    await connection.commit()
            except BaseException:
                # Queued behind what a cancelled statement left in the thread's queue, and without
                # effect if that was the commit.
                await connection.rollback()
                raise
            finally:
                self._owner = None

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[aiosqlite.Connection]:
        """Wait until no other task has a transaction open."""
        if self._is_mine():
            yield self._live()
            return
        async with self._lock:
            yield self._live()

    def _is_mine(self) -> bool:
        return self._owner is not None and self._owner is asyncio.current_task()

    def _live(self) -> aiosqlite.Connection:
        if self._connection is None:
            raise GpuMcpError("The database is closed.", hint="The server is ending; start it again.")
        return self._connection


def check(path: Path, *, quick: bool = False) -> int:
    """Read a whole database, `quick` without comparing indexes with their tables; return its bytes.

    Raises:
        ConfigError: If it cannot be opened, or is damaged.
    """
    with translated(path), contextlib.closing(_make_connection(path)) as connection:
        _check(connection, path, "quick_check" if quick else "integrity_check")
    return path.stat().st_size


def _check(connection: sqlite3.Connection, path: Path, pragma: str) -> None:
    """Source: https://www.sqlite.org/pragma.html#pragma_quick_check."""
    said = connection.execute(f"PRAGMA {pragma}(1)").fetchone()[0]
    if said != "ok":
        raise _damaged(path, " ".join(said.split()))


def _damaged(path: Path, why: object) -> ConfigError:
    return ConfigError(
        f"{path} is damaged: {why}.",
        hint="Stop the servers that use it and put a backup (`gpu-mcp-server store backup FILE`) back: "
        "`gpu-mcp-server store restore FILE --replace`. Without one move it away; a new one is made.",
    )


@contextlib.contextmanager
def connected(path: Path) -> Generator[sqlite3.Connection]:
    """Open the database for upkeep, outside of an event loop; its failures are said as `Database` says them."""
    with translated(path), contextlib.closing(_make_connection(path)) as connection:
        yield _prepared(connection, path, None)


def _prepared(connection: sqlite3.Connection, path: Path, journal_mode: JournalMode | None) -> sqlite3.Connection:
    _set_journal_mode(connection, journal_mode or journal_mode_for(path))
    _migrate(connection, path)
    return connection


def journal_mode_for(path: Path) -> JournalMode:
    """Choose how the database keeps itself consistent.

    Source: https://www.sqlite.org/wal.html: WAL needs memory that all processes share, which network
    filesystems do not give.
    """
    return "TRUNCATE" if is_network_filesystem(path) else "WAL"


def migrations() -> list[tuple[int, str]]:
    """Return version and SQL of every migration, oldest first."""
    folder = files("gpu_mcp_server.store") / "migrations"
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), (folder / name).read_text(encoding="utf-8")) for name in scripts]


def _make_connection(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def _set_journal_mode(connection: sqlite3.Connection, mode: JournalMode) -> None:
    """Change the mode if it is another; SQLite does not wait by itself when processes do so at once."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
    connection.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'WAL' else 'FULL'}")
    connection.execute("PRAGMA foreign_keys=ON")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up, one transaction a version; who comes second finds nothing left to do."""
    steps = migrations()
    known = steps[-1][0]
    version = _version(connection)
    if version > known:
        raise ConfigError(
            f"{path} has schema version {version}; this program knows {known}.",
            hint="Upgrade gpu-mcp-server, or set data_dir to another folder.",
        )
    if version == known:
        return
    for number, script in steps:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection) < number:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={number}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _statements(script: str) -> Iterator[str]:
    """Cut a script, so that it can run inside a transaction, which `executescript` would commit."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


@contextlib.contextmanager
def translated(path: Path) -> Generator[None]:
    """Say SQLite's and the filesystem's failures in our words."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_nearly_full(path)):
            raise DiskFull(f"There is no room left for {path}.", hint=NO_ROOM) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise GpuMcpError(
                f"{path} was locked by other processes for {BUSY_TIMEOUT_S:g} s.", hint="Try again.", retryable=True
            ) from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise _damaged(path, error) from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise ConfigError(
                f"{path} cannot be written: {error}.", hint="Set data_dir to a folder of your own."
            ) from error
        raise
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"There is no room left for {path}.", hint=NO_ROOM) from error
        if error.filename is None:
            raise
        raise ConfigError(
            f"{error.filename} cannot be used: {error.strerror}.", hint="Set data_dir to a folder of your own."
        ) from error
