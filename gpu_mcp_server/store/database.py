"""The SQLite database: one file, several processes, short transactions."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self

import aiosqlite

from gpu_mcp_server.errors import ConfigError, DiskFull, GpuMcpError
from gpu_mcp_server.store.filesystem import NO_ROOM, is_disk_full, is_nearly_full, is_network_filesystem
from gpu_mcp_server.store.schema import RESTORE, migrate, verify

DATABASE = "lab.db"
"""The database's name in the data folder."""

JournalMode = Literal["WAL", "TRUNCATE"]
Value = str | int | float | bytes | None
LARGEST_INTEGER = (1 << 63) - 1
"""Of SQLite; a larger one cannot be asked for."""

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

        def connect_in_thread() -> sqlite3.Connection:
            opened.append(_connect_or_create(path))
            if path.stat().st_size <= check_up_to_bytes:
                _check(opened[0], path, "quick_check")
            return _prepared(opened[0], path, journal_mode)

        connection = aiosqlite.Connection(connect_in_thread, 64)
        connection._thread.daemon = True  # a process that forgets to close must still be able to end
        try:
            with translate_errors(path):
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
            with translate_errors(self.path):
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
            with translate_errors(self.path):
                await connection._execute(run, connection._conn)  # pyright: ignore[reportUnknownMemberType]

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run one statement for each of the rows, all or none."""
        async with self.transaction(), self._turn() as connection:
            with translate_errors(self.path):
                await connection.executemany(sql, rows)

    async def fetch_all(self, sql: str, parameters: Sequence[Value] = ()) -> list[sqlite3.Row]:
        """Run a query and return all its rows."""
        async with self._turn() as connection:
            with translate_errors(self.path):
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
                with translate_errors(self.path):
                    await connection.execute("BEGIN IMMEDIATE")
                yield self
                with translate_errors(self.path):
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

    SQLite keeps no checksums: it sees a page that is no page, and an index that differs from its table. It does not see
    changed bytes inside a value, rows that are gone with all that points to them, or pages that nothing uses.

    Raises:
        ConfigError: If it cannot be opened, is damaged, not ours, or empty where a store was.
    """
    with translate_errors(path), contextlib.closing(connect(path)) as connection:
        _check(connection, path, "quick_check" if quick else "integrity_check")
        require_store(connection, path)
    return path.stat().st_size


def _check(connection: sqlite3.Connection, path: Path, pragma: str) -> None:
    """Source: https://www.sqlite.org/pragma.html#pragma_integrity_check."""
    try:
        said = connection.execute(f"PRAGMA {pragma}(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        raise _damage_error(path, f"the list of its tables, from page 1 on, cannot be read: {error}") from error
    if said != "ok":
        listed = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        damaged = [name for (name,) in listed if not _is_whole(connection, f'{pragma}("{name}")')]
        where = f" (table {', '.join(damaged[:5])})" if damaged else ""
        raise _damage_error(path, " ".join(said.removeprefix("*** in database main ***").split()) + where)


def _is_whole(connection: sqlite3.Connection, pragma: str) -> bool:
    try:
        return connection.execute(f"PRAGMA {pragma}").fetchone()[0] == "ok"
    except sqlite3.DatabaseError:
        return False


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def _damage_error(path: Path, why: object) -> ConfigError:
    return ConfigError(f"{path} is damaged: {why}.", hint=RESTORE)


@contextlib.contextmanager
def open_for_maintenance(path: Path) -> Generator[sqlite3.Connection]:
    """Open the database for upkeep, outside of an event loop; its failures are said as `Database` says them."""
    with translate_errors(path), contextlib.closing(_connect_or_create(path)) as connection:
        yield _prepared(connection, path, None)


def _prepared(connection: sqlite3.Connection, path: Path, journal_mode: JournalMode | None) -> sqlite3.Connection:
    require_store(connection, path)
    _set_journal_mode(connection, journal_mode or journal_mode_for(path))
    migrate(connection, path)
    return connection


def _connect_or_create(path: Path) -> sqlite3.Connection:
    if not path.exists():
        _create(path)
    return connect(path)


def journal_mode_for(path: Path) -> JournalMode:
    """Choose how the database keeps itself consistent.

    Source: https://www.sqlite.org/wal.html: WAL needs memory that all processes share, which network
    filesystems do not give.
    """
    return "TRUNCATE" if is_network_filesystem(path) else "WAL"


def connect(path: Path) -> sqlite3.Connection:
    """Open a database that is there, unless it cannot be written or was emptied."""
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"{path} cannot be written.", hint="Set data_dir to a folder of your own.")
    if path.exists() and not path.stat().st_size:
        _refuse_loss(path)  # SQLite deletes the journal of an empty file
    return _connection(path)


def _connection(path: Path) -> sqlite3.Connection:
    """Open a database by SQLite alone: nothing else may open one that is in use, or a file beside it.

    Closing a descriptor of a file drops every lock that the process holds on it, SQLite's too: another process that
    ends then deletes the journal that this one goes on writing to.
    Source: https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"  # never makes the file: `_create` does
    connection = sqlite3.connect(uri, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _create(path: Path) -> None:
    """Make a database aside, unless there is one; it gets its name when it is whole, so nobody meets an empty one."""
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        _refuse_loss(path)
        aside = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connection(aside)) as connection:
            migrate(connection, aside)
        aside.rename(path)
    finally:
        for left in path.parent.glob(f"{path.name}.new-*"):  # of those who were killed, too: we hold the lock
            left.unlink(missing_ok=True)
        os.close(lock)


def require_store(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not ours, lacks something, or was emptied.

    Raises:
        ConfigError: If it is so.
    """
    if verify(connection, path) == 0:
        _refuse_loss(path)


def _refuse_loss(path: Path) -> None:
    """Begin no new store in place of one that was emptied or whose journal was left behind."""
    there = path.exists()
    state = f"empty ({path.stat().st_size} bytes)" if there else "missing"
    for journal in (path.with_name(path.name + ending) for ending in (("-wal",) if there else ("-wal", "-journal"))):
        if journal.exists() and journal.stat().st_size and not (there and path.stat().st_size):
            raise ConfigError(
                f"{path} is {state}, though {journal} holds what was written to it last.",
                hint=f"Move back the database that belongs to it. {RESTORE}",
            )
    if there and any((path.parent / "artifacts" / "blobs").glob("*/*")):
        raise ConfigError(
            f"{path} is {state}, though {path.parent / 'artifacts'} holds what a store remembered.",
            hint=RESTORE,
        )


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


@contextlib.contextmanager
def translate_errors(path: Path) -> Generator[None]:
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
        if _is_damage(error):
            raise _damage_error(path, error) from error
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
