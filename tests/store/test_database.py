import asyncio
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gpu_mcp_server.errors import ConfigError, DiskFull, GpuMcpError
from gpu_mcp_server.store.database import Database, JournalMode, journal_mode_for
from gpu_mcp_server.store.filesystem import filesystem_type
from gpu_mcp_server.store.schema import migrations

ADD = "INSERT INTO builds VALUES (?, ?, '')"
COUNT = "SELECT count(*) AS n FROM builds"

WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from gpu_mcp_server.store.database import Database

    async def main(path, mode, name, pairs):
        async with await Database.open(Path(path), journal_mode=mode) as db:
            print("open", flush=True)
            sys.stdin.readline()
            for i in range(int(pairs)):
                async with db.transaction():
                    for half in "ab":
                        await db.execute("INSERT INTO builds VALUES (?, ?, '')", (f"{name}-{i}-{half}", b"x" * 500))
                print(i, flush=True)

    asyncio.run(main(*sys.argv[1:]))
    """
)


def start_writer(path: Path, mode: JournalMode, name: str, pairs: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(path), mode, name, str(pairs)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)


async def count(db: Database) -> int:
    row = await db.fetch_one(COUNT)
    assert row is not None
    return row["n"]


def database_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "_connection_worker_thread" in t.name]


async def test_a_new_database_is_private_and_in_wal_mode(tmp_path: Path):
    path = tmp_path / "new" / "folder" / "lab.sqlite3"
    async with await Database.open(path) as db:
        assert (await db.fetch_all("PRAGMA journal_mode"))[0][0] == "wal"
        assert (await db.fetch_all("PRAGMA user_version"))[0][0] == migrations()[-1][0]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_closing_ends_the_thread_and_may_be_repeated(tmp_path: Path):
    before = database_threads()
    db = await Database.open(tmp_path / "lab.sqlite3")
    assert len(database_threads()) == len(before) + 1
    await db.close()
    await db.close()
    assert database_threads() == before
    with pytest.raises(GpuMcpError, match="closed"):
        await db.fetch_one(COUNT)


async def test_an_opening_that_fails_or_is_cancelled_leaves_no_thread(tmp_path: Path):
    before = database_threads()
    (tmp_path / "junk").write_bytes(b"this is no database, however long one looks at it" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        await Database.open(tmp_path / "junk")
    opening = asyncio.create_task(Database.open(tmp_path / "lab.sqlite3"))
    asyncio.get_running_loop().call_soon(opening.cancel)
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert database_threads() == before


@pytest.mark.parametrize("version", range(migrations()[-1][0]))
async def test_every_older_version_is_brought_up(tmp_path: Path, version: int):
    path = tmp_path / "lab.sqlite3"
    with sqlite3.connect(path) as old:
        for number, script in migrations():
            if number <= version:
                old.executescript(script)
        old.execute(f"PRAGMA user_version={version}")
    old.close()
    async with await Database.open(path) as db:
        assert await db.execute(ADD, ("k", b"v")) == 1
        assert (await db.fetch_all("PRAGMA user_version"))[0][0] == migrations()[-1][0]


def test_migrations_are_numbered_without_gaps():
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


async def test_a_database_of_a_newer_program_is_left_alone(tmp_path: Path):
    path = tmp_path / "lab.sqlite3"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version=999")
    newer.close()
    with pytest.raises(ConfigError, match="version 999"):
        await Database.open(path)


async def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="data_dir"):
        await Database.open(tmp_path / "file" / "lab.sqlite3")


async def test_a_transaction_happens_wholly_or_not_at_all(db: Database):
    with pytest.raises(ZeroDivisionError):
        async with db.transaction():
            await db.execute(ADD, ("a", b""))
            async with db.transaction():
                await db.execute(ADD, ("b", b""))
            1 / 0  # noqa: B018
    assert await count(db) == 0
    async with db.transaction():
        await db.execute_many(ADD, [("a", b""), ("b", b"")])
    assert await count(db) == 2


async def test_errors_of_the_block_pass_unchanged(db: Database):
    with pytest.raises(FileNotFoundError):
        async with db.transaction():
            db.path.with_name("gone").read_bytes()


async def test_a_cancelled_transaction_leaves_nothing_and_frees_the_database(db: Database):
    inside = asyncio.Event()

    async def write_forever() -> None:
        async with db.transaction():
            for i in range(1_000_000):
                await db.execute(ADD, (f"{i}", b""))
                if i == 10:
                    inside.set()

    task = asyncio.create_task(write_forever())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(db) == 0
    assert await db.execute(ADD, ("after", b"")) == 1


async def test_tasks_take_turns_and_see_no_half_of_a_transaction(db: Database):
    async def pair(name: str) -> None:
        async with db.transaction():
            await db.execute(ADD, (f"{name}a", b""))
            await db.execute(ADD, (f"{name}b", b""))

    async def look() -> int:
        return await count(db)

    results = await asyncio.gather(*(call for i in range(20) for call in (pair(str(i)), look())))
    assert all(n % 2 == 0 for n in results if n is not None)
    assert await count(db) == 40


@pytest.mark.parametrize("mode", ["WAL", "TRUNCATE"])
async def test_eight_processes_create_and_write_one_database_at_once(tmp_path: Path, mode: JournalMode):
    path = tmp_path / "lab.sqlite3"
    writers = [start_writer(path, mode, f"p{i}", 10) for i in range(8)]
    for writer in writers:
        assert writer.stdout is not None
        assert await asyncio.to_thread(writer.stdout.readline) == "open\n"
    for writer in writers:
        await asyncio.to_thread(writer.communicate, "\n")
    assert [writer.returncode for writer in writers] == [0] * 8
    async with await Database.open(path, journal_mode=mode) as db:
        assert await count(db) == 8 * 10 * 2
        assert (await db.fetch_all("PRAGMA integrity_check"))[0][0] == "ok"


@pytest.mark.parametrize("mode", ["WAL", "TRUNCATE"])
@pytest.mark.parametrize("after", [0, 3, 20])
async def test_killing_a_writer_leaves_whole_transactions_only(tmp_path: Path, mode: JournalMode, after: int):
    path = tmp_path / "lab.sqlite3"
    with start_writer(path, mode, "w", 1_000_000) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        print(file=writer.stdin, flush=True)
        for _ in range(after):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.stdin.close()
    async with await Database.open(path, journal_mode=mode) as db:
        n = await count(db)
        assert n % 2 == 0
        assert n >= after * 2
        assert (await db.fetch_all("PRAGMA integrity_check"))[0][0] == "ok"


async def test_a_full_disk_is_said_and_what_was_there_stays(small_disk: Path):
    async with await Database.open(small_disk / "lab.sqlite3") as db:
        await db.execute(ADD, ("first", b"kept"))
        with pytest.raises(DiskFull, match="data_dir"):
            for i in range(100):
                await db.execute(ADD, (f"{i}", b"x" * 50_000))
        row = await db.fetch_one("SELECT value FROM builds WHERE key = 'first'")
        assert row is not None
        assert row["value"] == b"kept"
        assert (await db.fetch_all("PRAGMA integrity_check"))[0][0] == "ok"


async def test_no_room_for_a_new_database_is_said(small_disk: Path):
    with pytest.raises(OSError, match="No space"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(DiskFull):
        await Database.open(small_disk / "lab.sqlite3")


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:27 / /home rw - nfs4 server:/home rw
31 30 0:28 / /home/with\\040space rw - tmpfs tmpfs rw
32 22 0:29 / /scratch rw - lustre mds:/scratch rw
33 22 0:30 / /box rw - fuse.sshfs box: rw
34 32 0:31 / /scratch rw - ext4 /dev/sdb rw
"""


def test_the_innermost_and_latest_mount_says_the_type():
    types = {path: filesystem_type(Path(path), MOUNTS) for path in ("/var", "/home/a/b", "/home/with space/x")}
    assert types == {"/var": "ext4", "/home/a/b": "nfs4", "/home/with space/x": "tmpfs"}
    assert filesystem_type(Path("/scratch/x"), MOUNTS) == "ext4"
    assert filesystem_type(Path("/homely"), MOUNTS) == "ext4"
    assert filesystem_type(Path("/box/x"), MOUNTS) == "fuse.sshfs"


def test_a_local_disk_takes_wal(tmp_path: Path):
    assert journal_mode_for(tmp_path / "lab.sqlite3") == "WAL"
