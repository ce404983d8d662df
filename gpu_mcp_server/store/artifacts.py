"""Files by content: written once, found by their hash or by a short id."""

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, DiskFull, NotFound
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.filesystem import NO_ROOM, is_disk_full
from gpu_mcp_server.store.ownership import claim, visibility_condition

CHUNK_BYTES = 1 << 20
ABANDONED_S = 3600.0
"""Age from which a temporary file is taken to be left by a process that died."""


@dataclass(frozen=True)
class ArtifactInfo:
    """Facts about an artifact besides its content."""

    artifact_id: str
    sha256: str
    name: str
    media_type: str | None
    size_bytes: int
    created_at: str


class Artifacts:
    """Content-addressed files in `ROOT/blobs/ab/SHA256`, with names in the database."""

    def __init__(self, root: Path, db: Database) -> None:
        self.root = root
        self._db = db

    async def put(self, data: bytes | Path, *, name: str, media_type: str | None = None) -> str:
        """Keep bytes, or the content of a file, and return the id; the same content keeps its first name.

        Raises:
            DiskFull: If there is no room; nothing is left behind.
        """
        sha256, size = await asyncio.to_thread(self._store, data)
        for length in range(16, 65, 8):
            artifact_id = f"b-{sha256[:length]}"
            made = await self._db.execute(
                "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (artifact_id, sha256, name, media_type, size, datetime.now(UTC).isoformat()),
            )
            sql = "SELECT artifact_id FROM artifacts WHERE sha256 = ?"
            row = {"artifact_id": artifact_id} if made else await self._db.fetch_one(sql, (sha256,))
            if row is not None:
                await claim(self._db, row["artifact_id"])
                return row["artifact_id"]
        raise AssertionError("two contents share a sha256")

    async def info(self, artifact_id: str) -> ArtifactInfo:
        """Return name, type and size.

        Raises:
            NotFound: If no artifact has this id.
        """
        seen, values = visibility_condition("artifact_id")
        sql = f"SELECT * FROM artifacts WHERE artifact_id = ? AND {seen}"  # noqa: S608
        row = await self._db.fetch_one(sql, (artifact_id, *values))
        if row is None:
            raise NotFound("artifact", artifact_id, hint="Artifact ids (b-...) come from the results of other tools.")
        return ArtifactInfo(**dict(row))

    async def adopt(self, artifact_ids: Iterable[str]) -> None:
        """Let artifacts belong to the current user too, who brought all that they were made from."""
        for artifact_id in artifact_ids:
            await claim(self._db, artifact_id)

    async def ids(self, prefix: str = "", limit: int = 50) -> list[str]:
        """Return the ids that begin with `prefix`, newest first."""
        seen, values = visibility_condition("artifact_id")
        rows = await self._db.fetch_all(
            f"SELECT artifact_id FROM artifacts WHERE substr(artifact_id, 1, length(?)) = ? AND {seen} "  # noqa: S608
            "ORDER BY created_at DESC LIMIT ?",
            (prefix, prefix, *values, limit),
        )
        return [row["artifact_id"] for row in rows]

    async def path(self, artifact_id: str) -> Path:
        """Return the file that holds the content; nobody may change it.

        Raises:
            NotFound: If no artifact has this id, or its file was deleted.
        """
        path = self.blob_path((await self.info(artifact_id)).sha256)
        if not await asyncio.to_thread(path.is_file):
            raise NotFound("content of artifact", artifact_id, hint="It was deleted; repeat the call that made it.")
        return path

    async def read(self, artifact_id: str) -> bytes:
        """Return the content.

        Raises:
            NotFound: If no artifact has this id, or its file was deleted.
        """
        path = await self.path(artifact_id)
        return await asyncio.to_thread(path.read_bytes)

    async def put_blob(self, data: bytes | Path) -> str:
        """Keep content without naming it, and return its sha256."""
        sha256, _ = await asyncio.to_thread(self._store, data)
        return sha256

    async def put_blobs(self, contents: Iterable[bytes | Path]) -> list[tuple[str, int]]:
        """Keep several, eight at a time, and return sha256 and size of each."""
        turn = asyncio.Semaphore(8)

        async def put(data: bytes | Path) -> tuple[str, int]:
            async with turn:
                return await asyncio.to_thread(self._store, data)

        return list(await asyncio.gather(*map(put, contents)))

    def adopt_file(self, path: Path, sha256: str) -> None:
        """Make a file of the artifacts' own `tmp` folder a content; where it is not what its hash says, delete it.

        Raises:
            BadRequest: If it has another hash.
        """
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if found != sha256:
            path.unlink(missing_ok=True)
            raise BadRequest(
                f"What came is {found}, not {sha256}.", hint="The file changed while it was sent: send it again."
            )
        self._move(path, self.blob_path(sha256))

    def touch_blobs(self, contents: Iterable[str]) -> dict[str, int]:
        """Return the sizes of those contents that are here, which now count as used just now."""
        found: dict[str, int] = {}
        for sha256 in contents:
            path = self.blob_path(sha256)
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)
                found[sha256] = path.stat().st_size
        return found

    def has(self, sha256: str) -> bool:
        """Tell whether the content is here."""
        return self.blob_path(sha256).is_file()

    def blob_path(self, sha256: str) -> Path:
        """Return where the content is, or would be.

        Raises:
            BadRequest: If this is no sha256.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise BadRequest(f"{sha256!r} is not a sha256.", hint="It has 64 lower-case hexadecimal digits.")
        return self.root / "blobs" / sha256[:2] / sha256

    async def clean(self) -> int:
        """Delete the temporary files of processes that died while they wrote, and return their number."""
        return await asyncio.to_thread(self._clean)

    def _clean(self) -> int:
        deleted = 0
        for path in (self.root / "tmp").glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()
                    deleted += 1
        return deleted

    def _store(self, data: bytes | Path) -> tuple[str, int]:
        if isinstance(data, bytes):
            sha256 = hashlib.sha256(data).hexdigest()
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.blob_path(sha256))  # in use again: `prune` leaves it alone
                return sha256, len(data)
        temporary = self.root / "tmp" / secrets.token_hex(8)
        try:
            temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sha256, size = _write(temporary, data)
            self._move(temporary, self.blob_path(sha256))
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(f"There is no room left in {self.root}.", hint=NO_ROOM) from error
            raise
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return sha256, size

    def _move(self, temporary: Path, target: Path) -> None:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write(path: Path, data: bytes | Path) -> tuple[str, int]:
    """Write and sync a new file, and return sha256 and size of what was written."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as out:
        for chunk in _chunks(data):
            digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[out.write(view) :]
            size += len(chunk)
        os.fsync(descriptor)
    return digest.hexdigest(), size


def _chunks(data: bytes | Path) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    with data.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
