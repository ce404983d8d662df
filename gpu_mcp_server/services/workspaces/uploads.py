"""Files that come by content: what the server lacks is sent once, in parts, and then put into a workspace by its hash.

A hash alone opens nothing: who names a content that they have neither sent nor got in a workspace or artifact of their
own has to send it, also where another user's copy is here. So no one learns what others have.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.runtime.current_user import current_user
from gpu_mcp_server.services.workspaces.workspace_store import MAX_FILES, Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.team.quotas import QuotaService

MAX_UPLOAD_BYTES = 2 << 30
"""Of one file, and of all files that are put into a workspace at once."""
PART_BYTES = 4 << 20
"""Of one request, unless the server's limit of a body is less."""
MAX_PACKED = 1000
"""Small files of one request."""
UNUSED = timedelta(days=1)
"""What was sent and put nowhere counts so long."""
SHA256 = re.compile(r"[0-9a-f]{64}")

_OWN = (
    "SELECT sha256 FROM uploads WHERE owner = ?1 AND sha256 IN (SELECT value FROM json_each(?2)) "
    "UNION SELECT sha256 FROM workspace_files JOIN owners ON handle = workspace_id "
    "WHERE owner = ?1 AND sha256 IN (SELECT value FROM json_each(?2)) "
    "UNION SELECT sha256 FROM artifacts JOIN owners ON handle = artifact_id "
    "WHERE owner = ?1 AND sha256 IN (SELECT value FROM json_each(?2))"
)


@dataclass(frozen=True)
class Placed:
    """Result of putting files into a workspace: its id, or the files to send first."""

    workspace_id: str | None
    missing: list[str]
    """Hashes; nothing was put anywhere while there are any."""
    begun: dict[str, int]
    """Bytes that are here of those that were begun."""


class Uploads:
    """Takes contents of the current user, and makes workspaces of them."""

    def __init__(self, db: Database, artifacts: Artifacts, workspaces: Workspaces) -> None:
        self._db, self._artifacts, self._workspaces = db, artifacts, workspaces
        self._allowances = QuotaService(db)
        self._receiving: set[Path] = set()
        self._reserved: Counter[str] = Counter()
        """Bytes that are being written, by user: requests at once must not pass a quota together."""

    async def place(self, key: str, workspace_id: str | None, files: Sequence[FileRef]) -> Placed:
        """Put files into a workspace if all their contents are here, otherwise say which are not.

        Args:
            key: Names the workspace where no id is given: the same key of a user is the same workspace.
            workspace_id: A workspace of theirs.
            files: All that are put there; files of the same paths are replaced.

        Raises:
            PathRefused, LimitExceeded, QuotaExceeded: If they cannot be put there; before anything is sent.
            NotFound: If there is no such workspace.
        """
        total = sum(file.size for file in files)
        if total > MAX_UPLOAD_BYTES or len(files) > MAX_FILES:
            raise LimitExceeded(
                f"{len(files)} files of {total} bytes are more than a push may have: {MAX_FILES} files, "
                f"{MAX_UPLOAD_BYTES >> 20} MiB.",
                hint="Name a folder below, or leave files out by .gpumcpignore.",
            )
        old = (datetime.now(UTC) - UNUSED).isoformat()
        await self._db.execute("DELETE FROM uploads WHERE owner = ? AND created_at < ?", (current_user().name, old))
        sizes = {file.sha256: file.size for file in files}
        missing = await self._missing(sizes)
        await self._allowances.check_disk(total - await self._unplaced(sizes.keys() - missing))
        if missing:
            begun = await asyncio.to_thread(lambda: {s: _size(self._partial(s)) for s in missing})
            return Placed(None, sorted(missing), {s: size for s, size in begun.items() if size})
        placed = await self._workspaces.place(workspace_id, f"w-{self._named(key)[:12]}", files)
        await self._db.execute(
            "DELETE FROM uploads WHERE owner = ? AND sha256 IN (SELECT value FROM json_each(?))",
            (current_user().name, json.dumps(list(sizes))),
        )
        return Placed(placed, [], {})

    async def take_pack(self, body: bytes) -> int:
        """Keep small files that came together, and return their number.

        Args:
            body: A line of JSON, `[[sha256, size], ...]`, and behind it the contents in that order.

        Raises:
            BadRequest: If it is no such thing, or a content is another one than its hash says; none is kept then.
            QuotaExceeded: If they are more than the user may keep.
        """
        head, _, rest = body.partition(b"\n")
        contents: dict[str, bytes] = {}
        at = 0
        for sha256, size in _listed(head):
            contents[sha256] = rest[at : at + size]
            at += size
        if at != len(rest):
            raise BadRequest(f"The list says {at} bytes, and {len(rest)} follow it.", hint="Send it again.")
        wrong = [sha256 for sha256, data in contents.items() if hashlib.sha256(data).hexdigest() != sha256]
        if wrong:
            raise BadRequest(f"{len(wrong)} contents are not what their hash says, such as {wrong[0]}.")
        async with self._room_for(at):
            await self._artifacts.put_blobs(contents.values())
            await self._note((sha256, len(data)) for sha256, data in contents.items())
        return len(contents)

    async def take_part(self, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Add a part to a large file and return how many of its bytes are here now.

        A part from another offset than where the file ends is not taken: the answer says where to go on.

        Raises:
            BadRequest: If the whole is not what its hash says; it is forgotten then.
            LimitExceeded, QuotaExceeded: If it is larger than a file may be, or than the user may keep.
        """
        if not SHA256.fullmatch(sha256):
            raise BadRequest(f"{sha256!r} is not a sha256.", hint="It has 64 lower-case hexadecimal digits.")
        if not 0 < size <= MAX_UPLOAD_BYTES or offset + len(data) > size:
            raise LimitExceeded(
                f"A part ends at byte {offset + len(data)} of a file of {size} bytes; the limit is {MAX_UPLOAD_BYTES}."
            )
        path = self._partial(sha256)
        received = await asyncio.to_thread(_size, path)
        if path in self._receiving or (received != offset and received < size):
            return received
        self._receiving.add(path)
        try:
            if received < size:
                async with self._room_for(size + await asyncio.to_thread(self._other_partials, path)):
                    received = await asyncio.to_thread(_append, path, data)
            if received >= size:
                await asyncio.to_thread(self._artifacts.adopt_file, path, sha256)
                await self._note([(sha256, size)])
        finally:
            self._receiving.discard(path)
        return received

    @asynccontextmanager
    async def _room_for(self, more_bytes: int) -> AsyncGenerator[None]:
        user = current_user().name
        self._reserved[user] += more_bytes
        try:
            await self._allowances.check_disk(self._reserved[user])
            yield
        finally:
            self._reserved[user] -= more_bytes
            if not self._reserved[user]:
                del self._reserved[user]

    async def _missing(self, sizes: dict[str, int]) -> set[str]:
        """Return what the current user has not given here, or what is not here any more."""
        user, own = current_user(), set(sizes)
        if not user.is_local:
            rows = await self._db.fetch_all(_OWN, (user.name, json.dumps(list(sizes))))
            own = {row["sha256"] for row in rows}
        there = await asyncio.to_thread(self._artifacts.touch_blobs, own)
        for sha256, size in sizes.items():
            if there.get(sha256, size) != size:
                raise BadRequest(f"{sha256} has {there[sha256]} bytes, not {size}.", hint="Look at the file again.")
        return sizes.keys() - there.keys()

    async def _unplaced(self, contents: Iterable[str]) -> int:
        """Return the bytes of some contents that count as sent already."""
        sql = (
            "SELECT coalesce(sum(size_bytes), 0) AS kept FROM uploads "
            "WHERE owner = ? AND sha256 IN (SELECT value FROM json_each(?))"
        )
        (row,) = await self._db.fetch_all(sql, (current_user().name, json.dumps(list(contents))))
        return row["kept"]

    async def _note(self, contents: Iterable[tuple[str, int]]) -> None:
        user, now = current_user().name, datetime.now(UTC).isoformat()
        await self._db.execute_many(
            "INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?)",
            [(user, sha256, size, now) for sha256, size in contents],
        )

    def _named(self, key: str) -> str:
        return hashlib.sha256(f"{current_user().name}\0{key}".encode()).hexdigest()

    def _partial(self, sha256: str) -> Path:
        """Return where a content grows: among what is deleted after an hour without use, when the server starts."""
        return self._artifacts.root / "tmp" / f"{self._named('')[:16]}-{sha256}"

    def _other_partials(self, path: Path) -> int:
        others = path.parent.glob(f"{self._named('')[:16]}-*")
        return sum(_size(other) for other in others if other != path)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _append(path: Path, data: bytes) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as out:
        view = memoryview(data)
        while view:
            view = view[out.write(view) :]
        return out.tell()


def _listed(head: bytes) -> list[tuple[str, int]]:
    """Return the hashes and sizes of a pack."""
    listed: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        listed = json.loads(head)
    found: list[tuple[str, int]] = []
    for pair in cast("list[Any]", listed) if isinstance(listed, list) else [None]:
        match pair:
            case [str(sha256), int(size)] if SHA256.fullmatch(sha256) and size >= 0 and not isinstance(size, bool):
                found.append((sha256, size))
            case _:
                raise BadRequest("The first line is no list of hashes and sizes.", hint="[[sha256, size], ...]")
    if len(found) > MAX_PACKED:
        raise LimitExceeded(f"{len(found)} files in one request; the limit is {MAX_PACKED}.", hint="Send fewer.")
    return found
