"""Backups: one tar file with a snapshot of the database and every file that it can name.

MANIFEST comes last, so a file without one is a backup that was not finished. What can be made again is left out: the
hosts' job folders, the index of the documentation, half-written files.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from gpu_mcp_server.errors import BadRequest, ConfigError, DiskFull
from gpu_mcp_server.store.database import DATABASE, check, connect, require_store, translate_errors
from gpu_mcp_server.store.filesystem import NO_ROOM, is_disk_full
from gpu_mcp_server.store.schema import migrations
from gpu_mcp_server.store.store_locks import SHARED_WORK, USE, hold_lock

MANIFEST = "gpu-mcp-backup.json"
FORMAT = 1
BLOBS = "artifacts/blobs"
LEFT_OUT = re.compile(r"hostd/|servers/|artifacts/tmp/|knowledge/(?!added\.json$)|restoring-|lab\.db|[\w.-]+\.lock$")
"""Of the data folder: made again, of a moment's meaning, or written from the snapshot."""
_BLOB = re.compile(rf"{BLOBS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})")


@dataclass(frozen=True)
class Backup:
    """One backup: its place, its schema and its size."""

    path: str
    created_at: str
    """ISO 8601, UTC."""
    schema: int
    """Version of the database."""
    files: int
    bytes: int


def backup(data_dir: Path, target: Path) -> Backup:
    """Write a backup of a store that may be in use.

    The database is copied in one read transaction. Contents are written before the row that names them and never
    change, so those of a later moment hold all that the snapshot names; nothing is pruned meanwhile.

    Args:
        data_dir: The data folder.
        target: The file to write, `.tar` or `.tar.gz`; it appears when it is complete, readable by its owner alone.

    Raises:
        BadRequest: If there is no store, or the file exists.
        ConfigError: If the database is damaged.
        DiskFull: If there is no room.
    """
    if not (data_dir / DATABASE).is_file():
        raise BadRequest(f"There is no store in {data_dir}.", hint="`gpu-mcp-server config show` names data_dir.")
    if target.exists():
        raise BadRequest(f"{target} exists.", hint="Give another name; a backup is never overwritten.")
    mode: Literal["w:gz", "w:"] = "w:gz" if target.name.endswith("gz") else "w:"
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with (
            _room(target.parent),
            hold_lock(data_dir, USE),
            hold_lock(data_dir, SHARED_WORK),
            os.fdopen(_private(aside), "wb") as file,
        ):
            with tarfile.open(fileobj=file, mode=mode) as tar:
                done = _write(data_dir, tar, target)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)
    return done


def restore(data_dir: Path, source: Path, *, replace: bool = False) -> tuple[Backup, Path | None]:
    """Put a backup in place of a store that nobody uses.

    Everything is unpacked aside and checked first. Contents then join those that are there; the database is replaced in
    one step, and the old one stays beside it.

    Returns:
        What was restored, and where the database lies that was there before.

    Raises:
        BadRequest: If a store is there and `replace` is not said, a server uses it, or the file is no whole backup.
        ConfigError: If the backup is of a newer program, or its database is damaged.
        DiskFull: If there is no room.
    """
    database = data_dir / DATABASE
    data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    if database.exists() and not replace:
        raise BadRequest(
            f"There is a store in {data_dir} already.",
            hint="Say --replace: its database is then kept beside the restored one.",
        )
    aside = data_dir / f"restoring-{secrets.token_hex(4)}"
    with hold_lock(data_dir, USE, alone=True), _room(data_dir):
        try:
            made = _unpack(source, aside)
            _check_database(aside / DATABASE)
            old = _set_aside(database)
            _move_into_place(aside, data_dir)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return made, old


def _write(data_dir: Path, tar: tarfile.TarFile, target: Path) -> Backup:
    snapshot = target.with_name(f".{target.name}.{secrets.token_hex(4)}.db")
    try:
        schema = _snapshot(data_dir / DATABASE, snapshot)
        files, size = 1, snapshot.stat().st_size
        tar.add(snapshot, DATABASE)
    finally:
        snapshot.unlink(missing_ok=True)
    for path, name in _files(data_dir):
        with contextlib.suppress(FileNotFoundError):  # a file aside that was renamed or tidied away meanwhile
            added = tar.gettarinfo(path, name)
            with path.open("rb") as content:
                tar.addfile(added, content)
            files, size = files + 1, size + added.size
    made = Backup(str(target), datetime.now(UTC).isoformat(timespec="seconds"), schema, files, size)
    text = json.dumps({"format": FORMAT, **asdict(made)}).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size, info.mode = len(text), 0o600
    tar.addfile(info, io.BytesIO(text))
    return made


def _snapshot(database: Path, copy: Path) -> int:
    """Copy the database as it is at one moment, and return its schema's version."""
    os.close(_private(copy))
    with (
        translate_errors(database),
        contextlib.closing(connect(database)) as source,
        contextlib.closing(sqlite3.connect(copy)) as into,
    ):
        require_store(source, database)
        source.backup(into)
        into.execute("PRAGMA journal_mode=DELETE")
        return into.execute("PRAGMA user_version").fetchone()[0]


def _files(data_dir: Path) -> Iterator[tuple[Path, str]]:
    """Return every regular file that a backup holds besides the database, with its name in it."""
    for folder, folders, names in os.walk(data_dir):
        here = Path(folder)
        prefix = "" if here == data_dir else f"{here.relative_to(data_dir).as_posix()}/"
        folders[:] = sorted(name for name in folders if not LEFT_OUT.match(f"{prefix}{name}/"))
        for name in sorted(names):
            path = here / name
            if not LEFT_OUT.match(prefix + name) and path.is_file() and not path.is_symlink():
                yield path, prefix + name


def _unpack(source: Path, aside: Path) -> Backup:
    """Unpack a backup and check every content against its name; says what it is."""
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                if member.name == MANIFEST:
                    content = tar.extractfile(member)
                    assert content is not None
                    manifest = cast("dict[str, Any]", json.loads(content.read(1 << 20)))
                elif member.isreg():
                    _take(tar, member, aside / _checked(member.name))
    except FileNotFoundError as error:
        raise BadRequest(f"There is no file {source}.") from error
    except (tarfile.TarError, EOFError, ValueError, AssertionError) as error:
        raise BadRequest(f"{source} is no backup, or damaged: {error}.", hint=MADE_BY) from error
    if manifest is None:
        raise BadRequest(f"{source} is cut off, or no backup: it has no {MANIFEST} at its end.", hint=MADE_BY)
    known = migrations()[-1][0]
    if manifest["format"] != FORMAT or manifest["schema"] > known:
        raise ConfigError(
            f"{source} has schema version {manifest['schema']} in format {manifest['format']}; this program knows "
            f"{known} in format {FORMAT}.",
            hint="Upgrade gpu-mcp-server first. Nothing was changed.",
        )
    return Backup(str(source), *(manifest[name] for name in ("created_at", "schema", "files", "bytes")))


def _checked(name: str) -> str:
    """Refuse names that leave the data folder, or that a backup never holds."""
    parts = PurePosixPath(name).parts
    if name != DATABASE and (name.startswith("/") or ".." in parts or not parts or LEFT_OUT.match(name)):
        raise tarfile.ReadError(f"it holds {name!r}")
    return name


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    blob = _BLOB.fullmatch(member.name)
    digest = hashlib.sha256()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name} has no content")
    with os.fdopen(_private(path, (member.mode or 0o600) & 0o700), "wb") as out:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if blob is not None and digest.hexdigest() != blob[2]:
        raise BadRequest(
            f"The content of {member.name} does not match its hash.", hint="The backup is damaged; take another."
        )


def _check_database(path: Path) -> None:
    """Refuse a database that is damaged or not ours."""
    if not path.is_file():
        raise BadRequest("The backup has no database.", hint=MADE_BY)
    try:
        check(path)
    except ConfigError as error:
        why = str(error.args[0]).replace(f"{path} is damaged", "it is damaged")
        raise ConfigError(
            f"The backup's database cannot be used: {why}", hint="Take another backup. Nothing was changed."
        ) from error


def _set_aside(database: Path) -> Path | None:
    """Rename the database that is there, with what its journal holds."""
    kept = database.with_name(f"{database.name}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    # The journal belongs to it: both are found under the new name. A database without its journal would be taken for
    # whole; a journal without its database is refused.
    for ending in ("", "-wal", "-shm", "-journal"):
        part = database.with_name(database.name + ending)
        if part.exists():
            part.rename(kept.with_name(kept.name + ending))
    return kept if kept.exists() else None


def _move_into_place(aside: Path, data_dir: Path) -> None:
    files = [path for path in sorted(aside.rglob("*")) if path.is_file() and path != aside / DATABASE]
    for path in [*files, aside / DATABASE]:  # last: with it the store is there, and whole
        target = data_dir / path.relative_to(aside)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.replace(target)


def _private(path: Path, mode: int = 0o600) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode | 0o600)


@contextlib.contextmanager
def _room(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"There is no room left in {folder}.", hint=NO_ROOM) from error
        if error.filename is None:
            raise
        raise BadRequest(f"{error.filename} cannot be used: {error.strerror}.") from error


MADE_BY = "Backups are made by `gpu-mcp-server store backup FILE`."
