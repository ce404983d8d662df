"""Backup, restore and prune, on stores that are in use."""

import asyncio
import contextlib
import io
import os
import sqlite3
import subprocess
import sys
import tarfile
import textwrap
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
import structlog

from gpu_mcp_server.cli.doctor import local_checks
from gpu_mcp_server.errors import BadRequest, ConfigError
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.settings.server_settings import Settings
from gpu_mcp_server.store import backups, database, pruning
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import DATABASE, Database
from gpu_mcp_server.store.schema import migrations
from gpu_mcp_server.store.store_locks import SHARED_WORK, USE, hold_lock
from gpu_mcp_server.team.team_services import Team, chosen_user
from gpu_mcp_server.web.http_server import chosen_authentication

DAY_S = 86_400.0

BUSY = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
    from gpu_mcp_server.store.artifacts import Artifacts
    from gpu_mcp_server.store.database import DATABASE, Database
    from gpu_mcp_server.store.store_locks import USE, hold_lock

    async def main(folder):
        with hold_lock(folder, USE):
            async with await Database.open(folder / DATABASE) as db:
                artifacts = Artifacts(folder / "artifacts", db)
                workspaces = Workspaces(db, artifacts)
                for i in range(1_000_000):
                    await workspaces.write(None, {"a.txt": f"{i}" * 500, "b.txt": f"b{i}"})
                    await artifacts.put(f"log {i}".encode() * 300, name="log")
                    print(i, flush=True)

    asyncio.run(main(Path(sys.argv[1])))
    """
)


def told(folder: Path) -> dict[str, Any]:
    """All that a store answers: every row, and the content of every file that a row names."""
    with sqlite3.connect(folder / DATABASE) as db:
        tables = [r[0] for r in db.execute("SELECT name FROM sqlite_schema WHERE type='table' ORDER BY name")]
        answers: dict[str, Any] = {t: sorted(map(repr, db.execute(f"SELECT * FROM {t}"))) for t in tables}
        named = db.execute("SELECT sha256 FROM artifacts UNION SELECT sha256 FROM workspace_files").fetchall()
    db.close()
    blobs = folder / "artifacts" / "blobs"
    return {**answers, "contents": {sha: (blobs / sha[:2] / sha).read_bytes() for (sha,) in named}}


async def filled(folder: Path) -> None:
    async with await Database.open(folder / DATABASE) as db:
        artifacts = Artifacts(folder / "artifacts", db)
        await artifacts.put(b"a log", name="log")
        await Workspaces(db, artifacts).write(None, {"k.cu": "code"})
    (folder / "recipes").mkdir()
    (folder / "recipes" / "run.jsonl").write_text("{}")
    for left in ("hostd/j-1", "knowledge/index-1", "artifacts/tmp"):
        (folder / left).mkdir(parents=True, exist_ok=True)
        (folder / left / "big").write_text("made again")


def test_a_backup_under_load_is_one_moment_of_the_store_and_restores_to_the_same_answers(tmp_path: Path):
    folder, again = tmp_path / "data", tmp_path / "again"
    command = [sys.executable, "-W", "error", "-c", BUSY, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as busy:
        assert busy.stdout is not None
        for _ in range(20):
            busy.stdout.readline()
        made = backups.backup(folder, tmp_path / "one.tar")
        at_least = int(busy.stdout.readline())
        with pytest.raises(BadRequest, match="uses the store"):
            backups.restore(folder, tmp_path / "one.tar", replace=True)
        busy.kill()
    restored, old = backups.restore(again, tmp_path / "one.tar")

    assert (restored.files, restored.bytes, old) == (made.files, made.bytes, None)
    assert (tmp_path / "one.tar").stat().st_mode & 0o777 == 0o600
    answers = told(again)
    assert 20 <= len(answers["workspaces"]) <= at_least + 20
    whole, part = told(folder), answers
    assert all(set(part[table]) <= set(whole[table]) for table in part if table != "contents")
    assert len(part["workspace_files"]) == 2 * len(part["workspaces"])


@pytest.mark.parametrize("name", ["b.tar", "b.tar.gz"])
async def test_what_is_restored_over_another_store_answers_as_the_backup_and_keeps_the_old_database(
    tmp_path: Path, name: str
):
    folder = tmp_path / "data"
    await filled(folder)
    before = told(folder)
    backups.backup(folder, tmp_path / name)
    with pytest.raises(BadRequest, match="never overwritten"):
        backups.backup(folder, tmp_path / name)
    async with await Database.open(folder / DATABASE) as db:
        await Workspaces(db, Artifacts(folder / "artifacts", db)).write(None, {"later.cu": "later"})
    with pytest.raises(BadRequest, match="--replace"):
        backups.restore(folder, tmp_path / name)
    _, old = backups.restore(folder, tmp_path / name, replace=True)

    assert told(folder) == before
    assert old is not None
    assert sqlite3.connect(old).execute("SELECT count(*) FROM workspaces").fetchone() == (2,)
    with tarfile.open(tmp_path / name) as tar:
        assert [n for n in tar.getnames() if "big" in n or n.endswith(".lock")] == []
        assert "recipes/run.jsonl" in tar.getnames()


def one_file(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return out.getvalue()


async def test_a_backup_that_is_cut_changed_or_newer_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "data"
    await filled(folder)
    backups.backup(folder, tmp_path / "good.tar")
    before, data = told(folder), (tmp_path / "good.tar").read_bytes()
    bad = tmp_path / "bad.tar"
    for damaged, says in (
        (data.replace(b"a log", b"a lag"), "does not match its hash"),
        (data[: data.index(b"gpu-mcp-backup.json")], "cut off|damaged"),
        (b"no tar at all" * 100, "no backup"),
        (b"", "no backup"),
        (one_file("../outside"), "holds"),
        (one_file("use.lock"), "holds"),
    ):
        bad.write_bytes(damaged)
        with pytest.raises(BadRequest, match=says):
            backups.restore(folder, bad, replace=True)
    monkeypatch.setattr(backups, "migrations", lambda: migrations()[:-1])
    with pytest.raises(ConfigError, match="Upgrade gpu-mcp-server first"):
        backups.restore(folder, tmp_path / "good.tar", replace=True)
    assert told(folder) == before
    assert [path.name for path in folder.iterdir() if "restor" in path.name] == []


async def test_a_damaged_database_is_refused_with_the_commands_that_help(tmp_path: Path):
    await filled(tmp_path / "data")
    path = tmp_path / "data" / DATABASE
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    with pytest.raises(ConfigError, match=r"store backup FILE.*store restore FILE"):
        await Database.open(path)
    with pytest.raises(ConfigError, match="store restore"):
        backups.backup(tmp_path / "data", tmp_path / "b.tar")


async def test_a_damaged_page_deep_in_the_database_is_found_when_work_begins_not_when_it_is_read(tmp_path: Path):
    folder = tmp_path / "data"
    await filled(folder)
    path = folder / DATABASE
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'notes'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    async with Lab.open(Settings(data_dir=folder)):
        assert database.check(path) == path.stat().st_size
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    async with await Database.open(path) as db:
        await db.fetch_all("SELECT * FROM jobs")
    for opening in (Lab.open, Team.open):
        with pytest.raises(ConfigError, match=r"is damaged: .*store restore FILE"):
            async with opening(Settings(data_dir=folder)):
                raise AssertionError("it was opened")
    for quick in (True, False):
        with pytest.raises(ConfigError, match="store restore FILE"):
            database.check(path, quick=quick)
    found = {check.name: check for check in local_checks(Settings(data_dir=folder))}["store"]
    assert found.state == "fail" and "store restore" in found.todo


async def test_a_command_of_a_user_reads_no_more_of_the_store_than_one_of_nobody_and_a_server_for_many_does(
    tmp_path: Path,
):
    """A damaged page shows what was read."""
    folder = tmp_path / "data"
    async with Team.open(Settings(data_dir=folder)) as team:
        await team.users.put("ada")
        await team.db.execute(
            "CREATE TABLE ballast AS SELECT zeroblob(?) AS bytes", (database.CHECKED_BYTES + (1 << 20),)
        )
        await team.db.execute("CREATE TABLE unread AS SELECT 1 AS a")
    path = folder / DATABASE
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'unread'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    settings = Settings(data_dir=folder, user="ada")
    assert (await chosen_user(settings)).name == "ada"
    with structlog.testing.capture_logs() as logged:
        async with Team.open(settings):
            pass
    assert [(line["size_mib"] > line["limit_mib"], line["limit_mib"]) for line in logged] == [(True, 64)]
    assert "store check" in logged[0]["event"]
    async with Lab.open(settings):
        pass
    with pytest.raises(ConfigError, match=r"is damaged: .*store restore FILE"):
        await chosen_authentication(settings, "127.0.0.1", None)


class Aged:
    """A store with one of each kind, each used so many days ago."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs: dict[str, str] = {}

    async def fill(self) -> None:
        async with await Database.open(self.folder / DATABASE) as db:
            artifacts, workspaces = Artifacts(self.folder / "artifacts", db), None
            ids = {}
            for name in ("source", "verdict", "binary", "cached", "output", "log", "running"):
                ids[name] = await artifacts.put(name.encode() * 100, name=name)
                self.blobs[name] = (await artifacts.info(ids[name])).sha256
            workspaces = Workspaces(db, artifacts)
            for name in ("old", "new"):
                listing = await workspaces.write(None, {"f": name})
                self.blobs[f"workspace {name}"] = listing.files[0].sha256
                await db.execute(
                    "UPDATE workspaces SET created_at = ? WHERE workspace_id = ?",
                    (ago(40 if name == "old" else 0), listing.workspace_id),
                )
            value = msgpack.packb({"format": 3, "result": {"artifact_id": ids["cached"]}})
            await db.execute("INSERT INTO builds VALUES ('k', ?, datetime('now', '-40 days'))", (value,))
            add = "INSERT INTO attempts (attempt_id, kind, created_at, status, verdict, source_artifact_id, evidence) VALUES (?, ?, ?, ?, ?, ?, ?)"
            await db.execute(
                add, ("e", "evaluate", ago(400), "judged", "correct", ids["source"], f'{{"v": "{ids["verdict"]}"}}')
            )
            await db.execute(
                add, ("c", "compile", ago(40), "ok", None, ids["source"], f'{{"artifact_id": "{ids["binary"]}"}}')
            )
            await db.execute(add, ("r", "run", ago(40), "ok", None, None, "{}"))
            job = "INSERT INTO jobs (job_id, host, purpose, workspace_id, attempt_id, submitted_at, context, record) VALUES (?, 'local', 'run', NULL, ?, ?, ?, ?)"
            await db.execute(
                job, ("j-done", "r", ago(40), "{}", f'{{"outputs": [{{"sha256": "{self.blobs["output"]}"}}]}}')
            )
            await db.execute(job, ("j-runs", None, ago(40), f'"{ids["running"]}"', None))
            owned = [("j-done", "ada"), ("j-runs", "ada"), (ids["log"], "ada"), (ids["source"], "ada")]
            for days in (40, 1):
                line = "INSERT INTO audit_log (at, user, action, outcome) VALUES (?, 'ada', 'tools/call x', 'ok')"
                await db.execute(line, (ago(days),))
            await db.execute_many("INSERT INTO owners VALUES (?, ?)", owned)
        for name, sha in self.blobs.items():
            self.age(sha, 0 if name == "workspace new" else 39)

    def age(self, sha: str, days: float) -> None:
        used = time.time() - days * DAY_S
        os.utime(self.folder / "artifacts" / "blobs" / sha[:2] / sha, (used, used))

    def there(self) -> set[str]:
        found = {path.name for path in (self.folder / "artifacts" / "blobs").rglob("*") if path.is_file()}
        return {name for name, sha in self.blobs.items() if sha in found}

    def count(self, table: str) -> int:
        return sqlite3.connect(self.folder / DATABASE).execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


KEPT = {"source", "verdict", "running", "workspace new"}


async def test_pruning_by_age_says_what_goes_and_keeps_what_is_remembered(tmp_path: Path):
    store = Aged(tmp_path / "data")
    await store.fill()
    everything = store.there()
    planned = pruning.plan(store.folder, older_than_s=30 * DAY_S)

    assert store.there() == everything
    assert {kind: row["number"] for kind, row in planned.by_kind().items()} == {
        "build": 1,
        "workspace": 1,
        "command": 1,
        "file": 2,
    }
    assert pruning.plan(store.folder, older_than_s=100 * DAY_S).items == ()
    done = pruning.prune(store.folder, older_than_s=30 * DAY_S)
    assert done == planned
    assert store.there() == KEPT
    assert done.freed_bytes == sum(len(n) * 100 for n in ("binary", "cached", "output", "log")) + len("old")
    assert [store.count(t) for t in ("builds", "workspaces", "jobs", "attempts", "artifacts")] == [0, 1, 1, 2, 3]
    assert (store.count("owners"), store.count("audit_log"), done.audit_lines) == (2, 1, 1)
    assert pruning.prune(store.folder, older_than_s=30 * DAY_S).items == ()


async def test_pruning_by_size_takes_the_least_recently_used_and_no_more_than_it_must(tmp_path: Path):
    store = Aged(tmp_path / "data")
    await store.fill()
    store.age(store.blobs["log"], 200)
    total = pruning.plan(store.folder, max_bytes=1 << 40).kept_bytes
    done = pruning.prune(store.folder, max_bytes=total - 1)

    assert (len(done.items), done.freed_bytes) == (1, len("log") * 100)
    pruning.prune(store.folder, max_bytes=0)
    assert store.there() == KEPT
    with hold_lock(store.folder, SHARED_WORK), pytest.raises(BadRequest, match="backup"):
        pruning.prune(store.folder, max_bytes=0)


async def test_what_is_put_again_while_it_is_pruned_is_there_afterwards(tmp_path: Path):
    folder = tmp_path / "data"
    async with await Database.open(folder / DATABASE) as db:
        artifacts = Artifacts(folder / "artifacts", db)
        for _ in range(15):
            artifact_id = await artifacts.put(b"wanted again", name="w")
            sha = (await artifacts.info(artifact_id)).sha256
            os.utime(artifacts.blob_path(sha), (0, 0))
            putting = asyncio.create_task(artifacts.put(b"wanted again", name="w"))
            await asyncio.to_thread(pruning.prune, folder, older_than_s=DAY_S)
            assert await artifacts.read(await putting) == b"wanted again"


def test_the_locks_say_who_is_in_the_way(tmp_path: Path):
    with (
        hold_lock(tmp_path, USE, alone=True),
        pytest.raises(BadRequest, match="being restored"),
        hold_lock(tmp_path, USE),
    ):
        pass
    with hold_lock(tmp_path, USE), hold_lock(tmp_path, USE), pytest.raises(BadRequest, match="Stop them"):  # noqa: SIM117
        with hold_lock(tmp_path, USE, alone=True):
            pass
