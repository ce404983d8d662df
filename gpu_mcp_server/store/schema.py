"""The database's schema: how it grows from version to version, and whether a file has it."""

import functools
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from gpu_mcp_server.errors import ConfigError

RESTORE = (
    "Stop the servers that use it and put a backup (`gpu-mcp-server store backup FILE`) back: `gpu-mcp-server store "
    "restore FILE --replace`. Without one move it away, with the -wal and -journal beside it; a new one is made."
)
Columns = frozenset[tuple[str, str]]
"""Table and column of each."""


@functools.cache
def migrations() -> list[tuple[int, str]]:
    """Return version and SQL of every migration, oldest first."""
    folder = files("gpu_mcp_server.store") / "migrations"
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), (folder / name).read_text(encoding="utf-8")) for name in scripts]


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up, one transaction a version; who comes second finds nothing left to do.

    Raises:
        ConfigError: If the database is not one of ours, or of a newer program; nothing is changed then.
    """
    if verify(connection, path) == migrations()[-1][0]:
        return
    for number, script in migrations():
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _pragma(connection, "user_version") < number:
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={number}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


def verify(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a database's schema; 0 for one in which there is nothing yet.

    Raises:
        ConfigError: If a newer or another program made it, or a table or column is missing.
    """
    connection.execute("BEGIN")
    try:
        version, found = _pragma(connection, "user_version"), _columns(connection)
        application = _pragma(connection, "application_id")
    finally:
        connection.rollback()
    known = migrations()[-1][0]
    if application or (found and version == 0):
        told = ", ".join(sorted({table for table, _ in found})[:5]) or "none"
        raise ConfigError(
            f"{path} is the database of another program (application_id {application}, tables {told}).",
            hint=f"Set data_dir to another folder. {RESTORE}",
        )
    if version > known:
        raise ConfigError(
            f"{path} has schema version {version}; this program knows {known}.",
            hint="Upgrade gpu-mcp-server, or set data_dir to another folder. A backup that this version made is put "
            "back by `gpu-mcp-server store restore FILE --replace`.",
        )
    if version < 0:
        raise ConfigError(f"{path} has schema version {version}; the least is 1.", hint=RESTORE)
    missing = _expected_columns(version) - found
    if missing:
        tables = {table for table, _ in missing} - {table for table, _ in found}
        names = sorted({table if table in tables else f"{table}.{column}" for table, column in missing})
        raise ConfigError(
            f"{path} is damaged: schema version {version} has {', '.join(names[:5])}, this file does not.", hint=RESTORE
        )
    return version


@functools.cache
def _expected_columns(version: int) -> Columns:
    connection = sqlite3.connect(":memory:")
    try:
        for number, script in migrations():
            if number <= version:
                connection.executescript(script)
        return _columns(connection)
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection) -> Columns:
    rows = connection.execute(
        "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return frozenset((table, column) for table, column in rows)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


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
