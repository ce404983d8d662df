"""Workspaces: named sets of files, kept as manifests over files by content."""

import asyncio
import secrets
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, PathRefused
from gpu_mcp_server.hostd.protocol import FileRef, OutputFile
from gpu_mcp_server.models.workspace import FileContent, WorkspaceFile, WorkspaceListing
from gpu_mcp_server.services.workspaces.file_archive import MAX_TREE_BYTES, MAX_TREE_FILES
from gpu_mcp_server.services.workspaces.local_files import checked_path, collect
from gpu_mcp_server.services.workspaces.text_pages import file_content
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.ownership import claim, require_own, visibility_condition
from gpu_mcp_server.team.quotas import QuotaService

__all__ = ["MAX_FILES", "MAX_TEXT_BYTES", "Workspaces", "checked_path", "file_content"]

MAX_TEXT_BYTES = 1 << 20
"""A file that comes through a tool call."""
MAX_FILES = 20_000
"""Files of one workspace."""
LISTED = 200


@dataclass(frozen=True)
class _Written:
    path: str
    sha256: str
    size: int
    mode: int


class Workspaces:
    """Manifests in the database, contents in the artifacts."""

    def __init__(self, db: Database, artifacts: Artifacts, allowances: QuotaService | None = None) -> None:
        self._db = db
        self._artifacts = artifacts
        self._allowances = allowances or QuotaService(db)

    async def create(self) -> str:
        """Make an empty workspace and return its id."""
        workspace_id = f"w-{secrets.token_hex(6)}"
        now = datetime.now(UTC).isoformat()
        await self._db.execute("INSERT INTO workspaces (workspace_id, created_at) VALUES (?, ?)", (workspace_id, now))
        await claim(self._db, workspace_id)
        return workspace_id

    async def write(self, workspace_id: str | None, files: Mapping[str, str | bytes]) -> WorkspaceListing:
        """Write files into a workspace, or into a new one; all of them or none.

        Raises:
            PathRefused: If a path leaves the workspace, or is a file and a folder at once.
            LimitExceeded: If a file has more than 1 MiB, or the workspace more than 20,000 files.
            NotFound: If there is no such workspace.
        """
        if not files:
            raise BadRequest("There is no file to write.", hint="Give at least one path with its content.")
        contents: dict[str, bytes] = {}
        for path, content in files.items():
            data = _encoded(path, content)
            if len(data) > MAX_TEXT_BYTES:
                raise LimitExceeded(
                    f"{path!r} has {len(data)} bytes; the limit for a file in a call is {MAX_TEXT_BYTES}.",
                    hint="Over stdio, give a local path instead; otherwise let a job make the file.",
                )
            if contents.setdefault(checked_path(path), data) is not data:
                raise PathRefused(f"{path!r} is given twice.", hint="Give each file once.")
        await self._require(workspace_id, own=True)
        await self._allowances.check_disk(sum(map(len, contents.values())))
        stored = await self._artifacts.put_blobs(contents.values())
        written = [
            _Written(path, sha256, size, 0o755 if data.startswith(b"#!") else 0o644)
            for (path, data), (sha256, size) in zip(contents.items(), stored, strict=True)
        ]
        return await self._record(workspace_id, written)

    async def write_local(self, workspace_id: str | None, local_path: Path) -> WorkspaceListing:
        """Copy a file or folder of the server's own machine into a workspace, or into a new one.

        A folder's content keeps its paths relative to the folder; `LEFT_OUT` is left out. A link is followed
        when it stays inside the folder.

        Raises:
            NotFound: If there is no such file or workspace.
            PathRefused: If a link leaves the folder, or something is neither file nor folder.
            LimitExceeded: If there are more than 2,000 files or 64 MiB.
        """
        await self._require(workspace_id, own=True)
        found = await asyncio.to_thread(collect, local_path)
        try:
            stored = await self._artifacts.put_blobs(file.source for file in found)
        except FileNotFoundError as error:
            raise NotFound(
                "local file", str(error.filename), hint="It vanished while it was read; repeat the call."
            ) from error
        written = [
            _Written(file.path, sha256, size, 0o755 if file.executable else 0o644)
            for file, (sha256, size) in zip(found, stored, strict=True)
        ]
        return await self._record(workspace_id, written)

    async def place(self, workspace_id: str | None, named: str, files: Sequence[FileRef]) -> str:
        """Put files whose contents are here into a workspace of the current user, and return its id.

        Args:
            workspace_id: A workspace that there is; None: the one that is `named`, made if it is not there.
            named: Id of a new workspace.
            files: By path; their modes say only whether they can be executed.

        Raises:
            NotFound: If there is no such workspace.
            PathRefused: If a path leaves the workspace, is given twice, or is a file and a folder at once.
            LimitExceeded: If the workspace would have more than 20,000 files.
        """
        written = [_Written(checked_path(f.path), f.sha256, f.size, 0o755 if f.mode & 0o111 else 0o644) for f in files]
        if not written or len({file.path for file in written}) < len(written):
            raise PathRefused("A path is given twice, or none.", hint="Give each file once.")
        async with self._db.transaction():
            if workspace_id is None:
                workspace_id, now = named, datetime.now(UTC).isoformat()
                sql = "INSERT INTO workspaces (workspace_id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING"
                if await self._db.execute(sql, (workspace_id, now)):
                    await claim(self._db, workspace_id)
            await self._require(workspace_id, own=True)
            rows = await self._db.fetch_all("SELECT path FROM workspace_files WHERE workspace_id = ?", (workspace_id,))
            _check_folders({row["path"] for row in rows} | {file.path for file in written})
            await self._insert(workspace_id, written)
        return workspace_id

    async def listing(self, workspace_id: str, prefix: str = "", limit: int = LISTED) -> WorkspaceListing:
        """List the files whose path starts with `prefix`, by path.

        Raises:
            NotFound: If there is no such workspace.
        """
        await self._require(workspace_id)
        rows = await self._db.fetch_all(
            "SELECT * FROM workspace_files WHERE workspace_id = ? AND substr(path, 1, length(?)) = ? ORDER BY path",
            (workspace_id, prefix, prefix),
        )
        return WorkspaceListing(
            workspace_id=workspace_id,
            files=[_file(row) for row in rows[:limit]],
            files_left_out=len(rows) - limit if len(rows) > limit else None,
        )

    async def read(self, workspace_id: str, path: str, first_line: int = 1, max_lines: int = 200) -> FileContent:
        """Return lines of a file, or its bytes as hexadecimal lines when it is not text.

        Raises:
            NotFound: If there is no such workspace or file, or its content stayed on a host.
        """
        data = await self.read_bytes(workspace_id, path)
        return await asyncio.to_thread(
            file_content, data, checked_path(path), first_line, max_lines, workspace_id=workspace_id
        )

    async def read_bytes(self, workspace_id: str, path: str, limit_bytes: int | None = None) -> bytes:
        """Return the whole of a file.

        Raises:
            NotFound: If there is no such workspace or file, or its content stayed on a host.
            LimitExceeded: If it has more than `limit_bytes`.
        """
        ref = await self.file_ref(workspace_id, path)
        if limit_bytes is not None and ref.size > limit_bytes:
            raise LimitExceeded(
                f"{ref.path!r} has {ref.size} bytes; the limit is {limit_bytes}.", hint="Use a smaller file."
            )
        try:
            return await asyncio.to_thread(self._artifacts.blob_path(ref.sha256).read_bytes)
        except FileNotFoundError as error:
            raise NotFound(
                "content here of", path, hint="It was too large to bring back; read it with run_command on its host."
            ) from error

    async def file_ref(self, workspace_id: str, path: str) -> FileRef:
        """Return which content stands at a path.

        Raises:
            NotFound: If there is no such workspace or file.
        """
        path = checked_path(path)
        await self._require(workspace_id)
        row = await self._db.fetch_one(
            "SELECT * FROM workspace_files WHERE workspace_id = ? AND path = ?", (workspace_id, path)
        )
        if row is None:
            raise NotFound(f"file in workspace {workspace_id}", path, hint="list_files shows its files.")
        return FileRef(row["path"], row["sha256"], row["size_bytes"], row["mode"])

    async def manifest(self, workspace_id: str) -> list[FileRef]:
        """Return the files as a job gets them, by path.

        Raises:
            NotFound: If there is no such workspace.
        """
        await self._require(workspace_id)
        rows = await self._db.fetch_all(
            "SELECT * FROM workspace_files WHERE workspace_id = ? ORDER BY path", (workspace_id,)
        )
        return [FileRef(row["path"], row["sha256"], row["size_bytes"], row["mode"]) for row in rows]

    @asynccontextmanager
    async def laid_out(self, workspace_id: str) -> AsyncGenerator[Path]:
        """Give a folder of this machine with copies of all files, for as long as the block.

        Raises:
            NotFound: If there is no such workspace, or a content stayed on a host.
            LimitExceeded: If it has more than 2,000 files or 64 MiB.
        """
        refs = await self.manifest(workspace_id)
        if len(refs) > MAX_TREE_FILES or sum(ref.size for ref in refs) > MAX_TREE_BYTES:
            raise LimitExceeded(
                f"Workspace {workspace_id} has more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES >> 20} MiB.",
                hint="Put the needed files into a workspace of its own.",
            )
        with tempfile.TemporaryDirectory(prefix="gpu-mcp-") as name:
            # A problem may share files of two folders above it (`text_near`): these lie in the temporary folder, too.
            folder = Path(name) / "above" / "workspace"
            folder.mkdir(parents=True)
            for ref in refs:
                data = await self.read_bytes(workspace_id, ref.path)
                await asyncio.to_thread(_lay, folder / ref.path, data, ref.mode)
            yield folder

    async def adopt(self, workspace_id: str, outputs: Sequence[OutputFile]) -> list[str]:
        """Make the files that a job changed part of the manifest, in place of what they displaced.

        Returns:
            `PATH: why` of each file whose name a workspace cannot hold.

        Raises:
            NotFound: If there is no such workspace.
            LimitExceeded: If the workspace would have more than 20,000 files.
        """
        written: list[_Written] = []
        refused: list[str] = []
        for output in outputs:
            try:
                path = checked_path(output.path)
            except PathRefused as error:
                refused.append(f"{output.path!r}: {error}")
                continue
            written.append(_Written(path, output.sha256, output.size, 0o755 if output.mode & 0o111 else 0o644))
        await self._require(workspace_id, own=True)
        async with self._db.transaction():
            await self._displace(workspace_id, written)
            await self._insert(workspace_id, written)
        return refused

    async def _require(self, workspace_id: str | None, *, own: bool = False) -> None:
        if workspace_id is None:
            return
        seen, values = visibility_condition("workspace_id")
        sql = f"SELECT 1 FROM workspaces WHERE workspace_id = ? AND {seen}"  # noqa: S608
        row = await self._db.fetch_one(sql, (workspace_id, *values))
        if row is None:
            raise NotFound("workspace", workspace_id, hint="write_files without workspace_id makes a new one.")
        if own:
            await require_own(self._db, "workspace", workspace_id)

    async def _record(self, workspace_id: str | None, written: Sequence[_Written]) -> WorkspaceListing:
        async with self._db.transaction():
            workspace_id = workspace_id or await self.create()
            rows = await self._db.fetch_all("SELECT path FROM workspace_files WHERE workspace_id = ?", (workspace_id,))
            _check_folders({row["path"] for row in rows} | {file.path for file in written})
            await self._insert(workspace_id, written)
        listing = await self.listing(workspace_id)
        return listing.model_copy(update={"written": [file.path for file in written]})

    async def _displace(self, workspace_id: str, written: Sequence[_Written]) -> None:
        """Drop files where a job made a folder, and folders where it made a file."""
        rows = await self._db.fetch_all("SELECT path FROM workspace_files WHERE workspace_id = ?", (workspace_id,))
        new = {file.path for file in written}
        new_folders = {folder for path in new for folder in _folders(path)}
        gone = [
            row["path"]
            for row in rows
            if row["path"] in new_folders or any(folder in new for folder in _folders(row["path"]))
        ]
        await self._db.execute_many(
            "DELETE FROM workspace_files WHERE workspace_id = ? AND path = ?", [(workspace_id, path) for path in gone]
        )

    async def _insert(self, workspace_id: str, written: Sequence[_Written]) -> None:
        await self._db.execute_many(
            "INSERT OR REPLACE INTO workspace_files VALUES (?, ?, ?, ?, ?)",
            [(workspace_id, file.path, file.sha256, file.size, file.mode) for file in written],
        )
        row = await self._db.fetch_one(
            "SELECT count(*) AS files FROM workspace_files WHERE workspace_id = ?", (workspace_id,)
        )
        if row is not None and row["files"] > MAX_FILES:
            raise LimitExceeded(
                f"The workspace would have {row['files']} files; the limit is {MAX_FILES}.",
                hint="Use another workspace, or pack files into an archive.",
            )


def _lay(target: Path, data: bytes, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(mode & 0o777)


def _encoded(path: str, content: str | bytes) -> bytes:
    try:
        return content if isinstance(content, bytes) else content.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"The content of {path!r} is not text: {error}.", hint="Send valid Unicode.") from error


def _file(row: sqlite3.Row) -> WorkspaceFile:
    return WorkspaceFile(
        path=row["path"], size_bytes=row["size_bytes"], sha256=row["sha256"], executable=bool(row["mode"] & 0o111)
    )


def _folders(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:n]) for n in range(1, len(parts)))


def _check_folders(paths: set[str]) -> None:
    for path in paths:
        for folder in _folders(path):
            if folder in paths:
                raise PathRefused(
                    f"{folder!r} would be a file and, for {path!r}, a folder.", hint="Choose another name for one."
                )
