"""A store of every earlier version opens with all that was in it; what is no store of ours is refused and left alone."""

import asyncio
import functools
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.services.jobs.job_table import JobTable
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store import backups, database
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import DATABASE, Database
from gpu_mcp_server.store.schema import migrations
from tests.commands import Commands, Done

FIRST = Path(__file__).with_name("first_version.sql").read_text()
"""A dump of a store that the program wrote on the day it first had one: every table of version 1 has rows."""
KNOWN = migrations()[-1][0]
Rows = dict[str, list[dict[str, Any]]]


def make_old(path: Path, version: int) -> Rows:
    """Make a store of a version with rows in every table; return them."""
    with closing(sqlite3.connect(path)) as old:
        old.executescript(FIRST)
        for number, script in migrations():
            if 1 < number <= version:
                old.executescript(script)
        for table in rows_of(old):
            columns = old.execute(f"SELECT name, type FROM pragma_table_info('{table}')").fetchall()
            values = [{"INTEGER": 1, "REAL": 0.5, "BLOB": b"b"}.get(kind, f"a {name}") for name, kind in columns]
            if table == "tokens":
                values[1] = "a name"
            if not old.execute(f"SELECT 1 FROM {table}").fetchone():
                old.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        old.commit()
        old.execute(f"PRAGMA user_version={version}")
        return rows_of(old)


def rows_of(connection: sqlite3.Connection) -> Rows:
    connection.row_factory = sqlite3.Row
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in tables}
    connection.row_factory = None
    return found


@pytest.mark.parametrize("version", range(1, KNOWN + 1))
async def test_a_store_of_every_version_opens_with_all_its_rows(tmp_path: Path, version: int):
    path = tmp_path / DATABASE
    before = make_old(path, version)
    async with await Database.open(path) as db:
        artifacts = Artifacts(tmp_path / "artifacts", db)
        problem = await Problems(db).get("p-a528cffac2e7")
        best = (await AttemptStore(db).list("best", problem_id=problem.problem_id)).attempts
        job = await JobTable(db).get("j-1-aa")
        files = (await Workspaces(db, artifacts).listing("w-a41b930f9159")).files
    with closing(sqlite3.connect(path)) as now:
        after = rows_of(now)

    assert (problem.name, problem.shapes) == ("twice", [{"n": 1000}])
    assert [(a.verdict, a.median_us, a.speedup) for a in best] == [("correct", 12.5, 1.5)]
    assert job.record is not None and job.record.status == "ok"
    assert [file.path for file in files] == ["k.c"]
    assert all(rows for rows in before.values())
    for table, rows in before.items():
        assert [{name: row[name] for name in rows[0]} for row in after[table]] == rows
    assert database.check(path) > 0


def empty(path: Path) -> str:
    path.write_bytes(b"")
    return "is empty (0 bytes), though "


def without_tables(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA user_version=0")
        for table in rows_of(connection):
            connection.execute(f"DROP TABLE {table}")
    return "though "


def a_table_less(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE jobs")
    return f"is damaged: schema version {KNOWN} has jobs, this file does not"


def a_column_less(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE attempts DROP COLUMN voided")
    return f"is damaged: schema version {KNOWN} has attempts.voided, this file does not"


def an_old_table_less(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE attempts; PRAGMA user_version=3")
    return "is damaged: schema version 3 has attempts, this file does not"


def newer(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={KNOWN + 1}")
    return f"has schema version {KNOWN + 1}; this program knows {KNOWN}."


def negative(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=-4")
    return "has schema version -4; the least is 1."


def anothers(path: Path) -> str:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE moz_places (id INTEGER); INSERT INTO moz_places VALUES (1)")
    return "is the database of another program (application_id 0, tables moz_places)."


def anothers_by_its_id(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id=1196437808")
    return "is the database of another program (application_id 1196437808, tables "


def no_database(path: Path) -> str:
    path.write_bytes(b"no database at all, but long enough to be one" * 100)
    return "is damaged: the list of its tables, from page 1 on, cannot be read: file is not a database."


MISFORTUNES = [
    empty, without_tables, a_table_less, a_column_less, an_old_table_less, newer, negative, anothers,
    anothers_by_its_id, no_database,
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a store and contents, and a backup of it beside the folder."""
    folder = tmp_path / "data"

    async def fill() -> None:
        async with await Database.open(folder / DATABASE) as db:
            await Workspaces(db, Artifacts(folder / "artifacts", db)).write(None, {"k.c": "int x;"})

    asyncio.run(fill())
    backups.backup(folder, tmp_path / "b.tar")
    return folder


@pytest.fixture
def run(commands: Commands, folder: Path) -> Callable[..., Done]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder.parent), "GPU_MCP_DATA_DIR": str(folder)}
    return functools.partial(commands.run, env=environment, cwd=folder.parent)


@pytest.mark.parametrize("misfortune", MISFORTUNES)
def test_what_is_no_store_of_ours_is_refused_and_left_as_it_is(
    folder: Path, misfortune: Callable[[Path], str], tmp_path: Path
):
    path = folder / DATABASE
    said = misfortune(path)
    before = path.read_bytes()
    openings: list[Callable[[], object]] = [
        lambda: asyncio.run(Database.open(path)),
        lambda: asyncio.run(Database.open(path, check_up_to_bytes=1 << 30)),
        lambda: database.check(path),
        lambda: database.check(path, quick=True),
        lambda: backups.backup(folder, tmp_path / "c.tar"),
        lambda: database.open_for_maintenance(path).__enter__(),
    ]
    for opening in openings:
        with pytest.raises(ConfigError) as refused:
            opening()
        assert "store restore FILE --replace" in str(refused.value)
        if misfortune is not no_database:
            assert said in str(refused.value.args[0])
    assert path.read_bytes() == before
    assert not path.with_name("lab.db-wal").exists()
    assert sorted(p.name for p in tmp_path.glob("*.tar*")) == ["b.tar"]

    backups.restore(folder, tmp_path / "b.tar", replace=True)
    assert database.check(path) > 0


@pytest.mark.parametrize("misfortune", [empty, a_table_less, anothers])
def test_every_command_refuses_in_plain_words(
    run: Callable[..., Done], folder: Path, misfortune: Callable[[Path], str]
):
    said = misfortune(folder / DATABASE)
    before = (folder / DATABASE).read_bytes()
    for arguments in (
        ("serve", "--http", "127.0.0.1:0"),
        ("call", "list_problems"),
        ("history",),
        ("token", "list"),
        ("store", "check"),
        ("store", "gc"),
        ("store", "backup", "c.tar"),
        ("store", "prune", "--older-than", "1d"),
        ("doctor",),
    ):
        done = run(*arguments)
        text = done.stdout + done.stderr
        assert done.returncode != 0 and " ".join(said.split()) in " ".join(text.split()), (arguments, text)
        assert "store restore FILE --replace" in " ".join(text.split()) and "Traceback" not in text, (arguments, text)
    assert (folder / DATABASE).read_bytes() == before

    restored = run("store", "restore", "b.tar", "--replace")
    listed = run("store", "check", "--json")
    assert restored.returncode == 0, restored.stderr
    assert json.loads(listed.stdout)["bytes"] > 0


def test_a_journal_without_its_database_is_no_reason_for_a_new_store(folder: Path, tmp_path: Path):
    path = folder / DATABASE
    journal = path.with_name("lab.db-wal")
    for state in ("is missing", "is empty (0 bytes)"):
        path.unlink()
        journal.write_bytes(b"what a killed server wrote last")
        if "empty" in state:
            path.touch()
        with pytest.raises(ConfigError, match=rf"{state.split(' (')[0]}.*lab\.db-wal holds what was written"):
            asyncio.run(Database.open(path))
        assert journal.read_bytes() == b"what a killed server wrote last"
        backups.restore(folder, tmp_path / "b.tar", replace=True)
        assert not journal.exists() and database.check(path) > 0


async def test_an_empty_file_in_an_empty_folder_becomes_a_store(tmp_path: Path):
    (tmp_path / DATABASE).touch()
    async with await Database.open(tmp_path / DATABASE) as db:
        assert (await db.fetch_all("PRAGMA user_version"))[0][0] == KNOWN


async def test_a_junk_page_is_found_wherever_it_lies_and_said(tmp_path: Path):
    """Every page in turn; quick_check alone would pass over none of these, but over an index that lacks a row."""
    path, junk = tmp_path / DATABASE, tmp_path / "junk.db"
    async with await Database.open(path) as db:
        rows = [(f"n{i}", "2026", None, None, f"text {i} " * 30) for i in range(100)]
        await db.execute_many("INSERT INTO notes VALUES (NULL, ?, ?, ?, ?, ?)", rows)
        await db.execute("INSERT INTO builds VALUES ('k', ?, '2026')", (b"large" * 4000,))
    whole, chance = path.read_bytes(), random.Random(7)
    with closing(sqlite3.connect(path)) as connection:
        kinds = dict(connection.execute("SELECT pageno, pagetype FROM dbstat").fetchall())
        owners = dict(connection.execute("SELECT pageno, name FROM dbstat").fetchall())
    assert set(kinds.values()) == {"leaf", "internal", "overflow"} and len(kinds) * 4096 == len(whole)
    for page, kind in kinds.items():
        at = (page - 1) * 4096
        junk.write_bytes(whole[:at] + chance.randbytes(4096) + whole[at + 4096 :])
        with pytest.raises(ConfigError, match="store restore FILE --replace") as found:
            database.check(junk)
        said = str(found.value.args[0])
        if owners[page] == "sqlite_schema":
            assert "the list of its tables, from page 1 on, cannot be read" in said
        elif kind == "overflow":
            assert "(table builds)" in said
        else:
            assert f"age {page}" in said and "(table " in said, said


async def test_an_index_that_lacks_a_row_is_found_and_changed_bytes_inside_a_value_are_not(tmp_path: Path):
    """SQLite cannot see changed bytes inside a value, as docs/how-to/deployment.md says."""
    path = tmp_path / DATABASE
    async with await Database.open(path) as db:
        for i in range(3):
            await db.execute("INSERT INTO notes VALUES (NULL, ?, '2026', NULL, NULL, 'the text')", (f"n{i}",))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"the text", b"the lext", 1))
    assert database.check(path) == len(whole)
    path.write_bytes(whole.replace(b"n1", b"n7", 1))
    assert database.check(path, quick=True) == len(whole)
    with pytest.raises(ConfigError, match=r"missing from index .*\(table notes\)"):
        database.check(path)
