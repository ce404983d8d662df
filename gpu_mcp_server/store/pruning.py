"""Pruning: what may go by age and size, planned first, deleted when that is said.

What is remembered stays: problems, judged attempts with their sources and evidence, notes, prompts of runs, and what
unfinished jobs need. What goes, least recently used first: entries of the build cache, workspaces, finished commands,
and contents that nothing names any more: binaries of compilations that were not judged, reports of profiles, logs.
"""

import contextlib
import os
import re
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_mcp_server.store.database import DATABASE, open_for_maintenance
from gpu_mcp_server.store.store_locks import SHARED_WORK, USE, hold_lock

FRESH_S = 3600.0
"""What was used within this time stays whatever is asked for: a call that is under way may need it."""
KINDS = {
    "build": "entries of the build cache",
    "workspace": "workspaces",
    "command": "finished commands, their records and outputs",
    "file": "contents that nothing remembered names",
}
_NOT_MEMORY = (
    "tasks",
    "events",
    "artifacts",
    "builds",
    "workspaces",
    "workspace_files",
    "uploads",
    "keyed_calls",
    "jobs",
    "attempts",
    "owners",
    "shares",
    "audit_log",
)
"""Tables in which a name keeps nothing: what may go itself, looked at one by one, and who may see or did what."""
_ARTIFACT = re.compile(rb"\bb-[0-9a-f]{16,64}\b")
_SHA256 = re.compile(rb"\b[0-9a-f]{64}\b")
_OLD_LINES = "audit_log WHERE at < ?"
_JUDGED = "verdict IS NOT NULL OR status = 'running'"


@dataclass(frozen=True)
class Item:
    """Something that may go."""

    kind: str
    key: str
    used_at: float
    """Seconds since the epoch."""
    contents: frozenset[str]
    """The sha256 of each file that it needs."""


@dataclass(frozen=True)
class Plan:
    """Items that pruning removes, and the bytes that it frees."""

    items: tuple[Item, ...]
    blobs: tuple[str, ...]
    """The sha256 of the files that go with them."""
    freed_bytes: int
    kept_bytes: int
    """Of all files that stay."""
    audit_lines: int
    """Lines of the audit log that go: by age alone."""

    def by_kind(self) -> dict[str, dict[str, str | int]]:
        """Return number and age of what goes, by kind."""
        told: dict[str, dict[str, str | int]] = {}
        for kind in KINDS:
            times = [item.used_at for item in self.items if item.kind == kind]
            if times:
                told[kind] = {"number": len(times), "oldest": _day(min(times)), "newest": _day(max(times))}
        return told


def plan(data_dir: Path, *, older_than_s: float | None = None, max_bytes: int | None = None) -> Plan:
    """Say what would go.

    Args:
        data_dir: The data folder.
        older_than_s: What was last used before that goes.
        max_bytes: The least recently used goes until the files that stay take no more, as far as they may go.

    Raises:
        ConfigError: If the database is damaged.
    """
    with hold_lock(data_dir, USE), open_for_maintenance(data_dir / DATABASE) as db:
        return _planned(data_dir, db, older_than_s, max_bytes)


def prune(data_dir: Path, *, older_than_s: float | None = None, max_bytes: int | None = None) -> Plan:
    """Delete what `plan` says, as things stand now; servers may run meanwhile, backups not."""
    alone = hold_lock(data_dir, SHARED_WORK, alone=True)
    with hold_lock(data_dir, USE), alone, open_for_maintenance(data_dir / DATABASE) as db:
        made = _planned(data_dir, db, older_than_s, max_bytes)
        for start in range(0, len(made.items), 200):
            _forget(db, made.items[start : start + 200])
        db.execute(f"DELETE FROM {_OLD_LINES}", (_before(older_than_s),))  # noqa: S608 - our own words
        ids = dict(db.execute("SELECT sha256, artifact_id FROM artifacts"))
        for sha256 in made.blobs:
            _delete(data_dir, db, sha256, ids.get(sha256))
        return made


def _planned(data_dir: Path, db: sqlite3.Connection, older_than_s: float | None, max_bytes: int | None) -> Plan:
    blobs = _blobs(data_dir)
    ids = {row[0].encode(): row[1] for row in db.execute("SELECT artifact_id, sha256 FROM artifacts")}
    kept = set(_named(_remembered(db, data_dir), ids))
    items = list(_items(db, ids, blobs))
    named = kept.union(*(item.contents for item in items))
    items += [Item("file", s, state.st_mtime, frozenset({s})) for s, state in blobs.items() if s not in named]
    now, left = time.time(), sum(state.st_size for state in blobs.values())
    users = Counter(sha256 for item in items for sha256 in item.contents)
    going: list[Item] = []
    gone: list[str] = []
    total = left
    for item in sorted(items, key=lambda each: each.used_at):
        age_s = now - item.used_at
        alone = [s for s in item.contents if s in blobs and users[s] == 1 and s not in kept]
        old = older_than_s is not None and age_s > older_than_s
        large = max_bytes is not None and left > max_bytes and bool(item.contents & blobs.keys() - kept)
        if age_s < FRESH_S or not (old or large):
            continue
        going.append(item)
        users.subtract(item.contents)
        fresh = {s for s in alone if now - blobs[s].st_mtime < FRESH_S}
        gone += [s for s in alone if s not in fresh]
        left -= sum(blobs[s].st_size for s in alone if s not in fresh)
    lines = db.execute(f"SELECT count(*) FROM {_OLD_LINES}", (_before(older_than_s),)).fetchone()[0]  # noqa: S608
    return Plan(tuple(going), tuple(gone), total - left, left, lines)


def _before(older_than_s: float | None) -> str:
    """Return the time before which lines of the audit log go, as they have it; the beginning of time for none."""
    return datetime.fromtimestamp(time.time() - older_than_s, UTC).isoformat() if older_than_s is not None else ""


def _blobs(data_dir: Path) -> dict[str, os.stat_result]:
    found: dict[str, os.stat_result] = {}
    for path in (data_dir / "artifacts" / "blobs").glob("??/*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat()
    return found


def _remembered(db: sqlite3.Connection, data_dir: Path) -> Iterator[bytes]:
    """Return everything that may name contents which stay: any table but those of what may go."""
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        if table in _NOT_MEMORY:
            continue
        for row in db.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - a name from SQLite's own catalogue
            yield from _texts(row)
    for row in db.execute("SELECT source_artifact_id FROM attempts WHERE source_artifact_id IS NOT NULL"):
        yield from _texts(row)
    for row in db.execute(f"SELECT * FROM attempts WHERE {_JUDGED}"):  # noqa: S608 - our own words
        yield from _texts(row)
    for row in db.execute("SELECT context FROM jobs WHERE record IS NULL"):
        yield from _texts(row)
    unfinished = "SELECT workspace_id FROM jobs WHERE record IS NULL"
    for row in db.execute(f"SELECT sha256 FROM workspace_files WHERE workspace_id IN ({unfinished})"):  # noqa: S608
        yield from _texts(row)
    for path in (data_dir / "recipes").rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".toml", ".md"):
            yield path.read_bytes()


def _items(db: sqlite3.Connection, ids: dict[bytes, str], blobs: dict[str, os.stat_result]) -> Iterator[Item]:
    for row in db.execute("SELECT key, value, created_at FROM builds"):
        yield Item("build", row["key"], _seconds(row["created_at"]), frozenset(_named([row["value"]], ids)))
    used = dict(db.execute("SELECT workspace_id, max(submitted_at) FROM jobs GROUP BY workspace_id"))
    files: dict[str, set[str]] = {}
    for row in db.execute("SELECT workspace_id, sha256 FROM workspace_files"):
        files.setdefault(row[0], set()).add(row[1])
    for row in db.execute(
        "SELECT * FROM workspaces WHERE workspace_id NOT IN "
        "(SELECT workspace_id FROM jobs WHERE record IS NULL AND workspace_id IS NOT NULL)"
    ):
        contents = files.get(row["workspace_id"], set())
        times = [row["created_at"], used.get(row["workspace_id"]) or ""]
        touched = [blobs[s].st_mtime for s in contents if s in blobs]
        last = max([*(_seconds(t) for t in times if t), *touched])
        yield Item("workspace", row["workspace_id"], last, frozenset(contents))
    for row in db.execute(
        "SELECT job_id, submitted_at, record FROM jobs WHERE record IS NOT NULL AND (attempt_id IS NULL OR "
        "attempt_id IN (SELECT attempt_id FROM attempts WHERE kind = 'run' AND status <> 'running'))"
    ):
        made = frozenset(_named([row["record"].encode()], ids))
        yield Item("command", row["job_id"], _seconds(row["submitted_at"]), made)


def _texts(row: Iterable[object]) -> Iterator[bytes]:
    for value in row:
        if isinstance(value, bytes):
            yield value
        elif isinstance(value, str):
            yield value.encode()


def _named(texts: Iterable[bytes], ids: dict[bytes, str]) -> Iterator[str]:
    """Return the sha256 of every content that is named in one of the texts, by id or itself."""
    for text in texts:
        for artifact_id in _ARTIFACT.findall(text):
            if artifact_id in ids:
                yield ids[artifact_id]
        yield from (found.decode() for found in _SHA256.findall(text))


def _forget(db: sqlite3.Connection, items: Iterable[Item]) -> None:
    """Delete the rows of some items in one short transaction."""
    db.execute("BEGIN IMMEDIATE")
    for item in items:
        match item.kind:
            case "build":
                db.execute("DELETE FROM builds WHERE key = ?", (item.key,))
            case "workspace":
                db.execute(
                    "DELETE FROM workspaces WHERE workspace_id = ? AND workspace_id NOT IN "
                    "(SELECT workspace_id FROM jobs WHERE record IS NULL AND workspace_id IS NOT NULL)",
                    (item.key,),
                )
            case "command":
                db.execute(
                    "DELETE FROM attempts WHERE kind = 'run' AND attempt_id = "
                    "(SELECT attempt_id FROM jobs WHERE job_id = ?)",
                    (item.key,),
                )
                db.execute("DELETE FROM tasks WHERE task_id = ? AND status <> 'working'", (item.key,))
                db.execute("DELETE FROM jobs WHERE job_id = ? AND record IS NOT NULL", (item.key,))
            case _:
                continue
        _disown(db, item.key)
    db.commit()


def _disown(db: sqlite3.Connection, handle: str) -> None:
    """Forget whose it was, unless it is still there."""
    for table, key in (("workspaces", "workspace_id"), ("jobs", "job_id"), ("artifacts", "artifact_id")):
        if db.execute(f"SELECT 1 FROM {table} WHERE {key} = ?", (handle,)).fetchone():  # noqa: S608 - our own words
            return
    db.execute("DELETE FROM owners WHERE handle = ?", (handle,))
    db.execute("DELETE FROM shares WHERE handle = ?", (handle,))


def _delete(data_dir: Path, db: sqlite3.Connection, sha256: str, artifact_id: str | None) -> None:
    """Delete one content, unless somebody put it again since: that renews its time, and writes it where it is gone."""
    root = data_dir / "artifacts"
    path, aside = root / "blobs" / sha256[:2] / sha256, root / "tmp" / secrets.token_hex(8)
    aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if time.time() - aside.stat().st_mtime < FRESH_S:
        aside.rename(path)
        return
    db.execute("BEGIN IMMEDIATE")
    if artifact_id is not None and not path.exists():
        db.execute("DELETE FROM artifacts WHERE artifact_id = ?", (artifact_id,))
        _disown(db, artifact_id)
    db.commit()
    aside.unlink(missing_ok=True)


def _seconds(text: str) -> float:
    """Return a time of the database in seconds since the epoch: ISO 8601, or SQLite's own form; both UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
