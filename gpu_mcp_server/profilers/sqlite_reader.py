"""A query of a database that a job made: in memory, bounded, and with nothing of it trusted."""

import sqlite3
from typing import Any

MAX_BYTES = 256 << 20
MAX_ROWS = 100_000
STEPS = 200_000_000
"""Of SQLite's virtual machine; a view may hide a query without an end."""
_EVERY = 100_000


def query(data: bytes, sql: str) -> list[dict[str, Any]]:
    """Return rows by column name; none when it is no such database, or too large, or the query takes too long."""
    if not data.startswith(b"SQLite format 3\0") or len(data) > MAX_BYTES:
        return []
    connection = sqlite3.connect(":memory:")
    left = STEPS // _EVERY

    def count() -> int:
        nonlocal left
        left -= 1
        return 1 if left <= 0 else 0

    try:
        connection.deserialize(data)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(count, _EVERY)
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchmany(MAX_ROWS)]
    except (sqlite3.Error, MemoryError, OverflowError, UnicodeDecodeError):
        return []
    finally:
        connection.close()
