"""Folders of indexes: one a build, never changed afterwards; `current` names the one that readers open.

DATA/knowledge/added.json       folders that the user added
DATA/knowledge/editions/        what was read of each library and version, by fingerprint
DATA/knowledge/index-<time>/    docs.sqlite
DATA/knowledge/vectors-<time>/  Chroma's folder for the index of the same name, when there is one
DATA/knowledge/current          name of the folder in use, replaced in one step
DATA/knowledge/lock             held by the one process that builds
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # it has none

from gpu_mcp_server.errors import BadRequest, ConfigError, DiskFull
from gpu_mcp_server.knowledge.readers.entries import Entry
from gpu_mcp_server.store.filesystem import NO_ROOM, is_disk_full

DATABASE = "docs.sqlite"
_SAID_FULL = re.compile("disk is full|No space left on device")
"""How SQLite says it, within Chroma, too."""
KEPT_S = 600.0
"""Age from which an index that is no longer current is removed: readers have opened the new one by then."""


class Storage:
    """The folder of the knowledge base's data."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "knowledge"

    def current(self) -> Path | None:
        """Return the folder of the index in use, `None` if there is none."""
        try:
            name = (self.root / "current").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        folder = self.root / name
        return folder if name.startswith("index-") and (folder / DATABASE).is_file() else None

    @contextmanager
    def building(self, *, wait: bool = True) -> Generator[bool]:
        """Hold the lock of those who build; yields whether it was had. It ends with the process."""
        with translate_disk_full(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / "lock").open("a")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def new_index(self) -> Generator[Path]:
        """Give a folder to build in; it becomes current at the end, or is removed if the building failed."""
        folder = self.root / f"building-{secrets.token_hex(4)}"
        with translate_disk_full(self.root):
            folder.mkdir(parents=True)
            try:
                yield folder
                final = self.root / f"index-{time.time_ns():x}"
                folder.rename(final)
                self._point(final.name)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        self.tidy()

    def _point(self, name: str) -> None:
        aside = self.root / f"current-{secrets.token_hex(4)}"
        with aside.open("w", encoding="utf-8") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.root / "current")

    def tidy(self) -> None:
        """Remove indexes that are no longer current, and what builders that died left; needs the lock."""
        current = self.current()
        kept = {current.name, current.name.replace("index-", "vectors-")} if current is not None else set[str]()
        for folder in self.root.iterdir() if self.root.is_dir() else ():
            half_built = folder.name.startswith("building-")
            if not (half_built or re.match(r"(?:index|vectors)-[0-9a-f]+$", folder.name)) or folder.name in kept:
                continue
            with contextlib.suppress(OSError):
                if half_built or time.time() - folder.stat().st_mtime > KEPT_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def read_edition(self, fingerprint: str) -> list[Entry] | None:
        """Return what was read of a place before, `None` if it was not or the file is damaged."""
        try:
            raw = (self.root / "editions" / f"{fingerprint}.msgpack").read_bytes()
            rows = cast("list[dict[str, Any]]", cast("Any", msgpack).unpackb(raw))
            return [_entry(row) for row in rows]
        except (OSError, ValueError, TypeError):
            return None

    def write_edition(self, fingerprint: str, entries: list[Entry]) -> None:
        """Keep what was read of a place."""
        with translate_disk_full(self.root):
            folder = self.root / "editions"
            folder.mkdir(parents=True, exist_ok=True)
            aside = folder / f".{secrets.token_hex(4)}"
            try:
                aside.write_bytes(cast("Any", msgpack).packb([asdict(entry) for entry in entries]))
                aside.replace(folder / f"{fingerprint}.msgpack")
            finally:
                aside.unlink(missing_ok=True)

    def forget_editions(self, kept: set[str]) -> None:
        """Remove what was read of places that are no longer there."""
        for path in (self.root / "editions").glob("*.msgpack"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    def added_folders(self) -> list[dict[str, str]]:
        """Return the folders that the user added: path, library, version, source.

        Raises:
            ConfigError: If the list is damaged.
        """
        path = self.root / "added.json"
        try:
            return cast("list[dict[str, str]]", json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}.", hint="Remove it and add the folders again."
            ) from error

    def add(self, path: Path, **what: str) -> None:
        """Add a folder to the list, or replace what was said of it; hold the lock.

        Raises:
            BadRequest: If there is no such file or folder.
            DiskFull: If there is no room.
        """
        if not path.exists():
            raise BadRequest(f"There is no file or folder {path}.")
        rest = [
            each
            for each in self.added_folders()
            if each["path"] != str(path) or each.get("source") != what.get("source")
        ]
        self._write_added([*rest, {"path": str(path), **what}])

    def remove(self, path: Path) -> bool:
        """Remove a folder from the list; return whether it was there."""
        rest = [each for each in self.added_folders() if each["path"] != str(path)]
        if len(rest) == len(self.added_folders()):
            return False
        self._write_added(rest)
        return True

    @contextmanager
    def host_folder(self, host: str) -> Generator[Path]:
        """Give a folder for a host's headers; it takes the place of the old one at the end. Hold the lock.

        Raises:
            DiskFull: If there is no room.
        """
        aside = self.root / f"building-{secrets.token_hex(4)}"
        with translate_disk_full(self.root):
            aside.mkdir(parents=True)
            try:
                yield aside
                self.forget_host(host)
                (self.root / "hosts").mkdir(exist_ok=True)
                aside.rename(self.root / "hosts" / host)
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def forget_host(self, host: str) -> bool:
        """Remove what was fetched from a host; return whether there was anything. Hold the lock."""
        folder = self.root / "hosts" / host
        there = folder.name == host and folder.is_dir()  # a name, no path
        if there:
            shutil.rmtree(folder, ignore_errors=True)
        return there

    def of_hosts(self) -> list[tuple[str, str, Path]]:
        """Return what was fetched from hosts, the latest host first: host, source, folder."""
        found: list[tuple[str, str, Path]] = []
        hosts = self.root / "hosts"
        folders = [each for each in (hosts.iterdir() if hosts.is_dir() else ()) if (each / "places.json").is_file()]
        for folder in sorted(folders, key=lambda each: each.stat().st_mtime_ns, reverse=True):
            listed = cast("list[dict[str, str]]", json.loads((folder / "places.json").read_text(encoding="utf-8")))
            found += [(folder.name, each["source"], folder / each["folder"]) for each in listed]
        return found

    def _write_added(self, listed: list[dict[str, str]]) -> None:
        with translate_disk_full(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            aside = self.root / f"added-{secrets.token_hex(4)}"
            aside.write_text(json.dumps(listed, indent=1), encoding="utf-8")
            aside.replace(self.root / "added.json")


def _entry(row: dict[str, Any]) -> Entry:
    given: dict[str, Any] = {k: tuple(cast("list[str]", v)) if isinstance(v, list) else v for k, v in row.items()}
    return Entry(**given)


@contextmanager
def translate_disk_full(root: Path) -> Generator[None]:
    """Turn what fails for want of room below `root` into the error that says so.

    Raises:
        DiskFull: If there is no room.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        full = is_disk_full(error) if isinstance(error, OSError) else _SAID_FULL.search(str(error))
        if full:
            raise DiskFull(f"There is no room for the documentation's index in {root}.", hint=NO_ROOM) from error
        raise
