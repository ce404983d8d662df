"""Puts files of this machine into a workspace of the server: hashes first, then what the server lacks, in parts."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from gpu_mcp_server.bridge.project_files import ContentHashes, ProjectFile, Selection, open_file
from gpu_mcp_server.bridge.team_server import TeamServer
from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound, PathRefused

SMALL_BYTES = 256 << 10
"""Files up to this travel together."""
PACKED = 500
"""Files of one pack."""
AT_ONCE = 4
"""Requests that send at the same time."""
SAID_S = 1.0
"""Between two lines of progress."""
ROUNDS = 3
"""How often a push begins again as files change under it."""

Says = Callable[[str], Awaitable[None]]


class FileChanged(Exception):
    """A file is not what its hash said a moment ago."""


@dataclass(frozen=True)
class Pushed:
    """Workspace to which files were pushed, and how many bytes were sent."""

    workspace_id: str
    files: int
    total_bytes: int
    sent_bytes: int
    note: str
    """What stayed here."""


class FilePusher:
    """Sends files to one server; knows the hashes of what it has read."""

    def __init__(self, server: TeamServer) -> None:
        self._server, self._hashes = server, ContentHashes()

    async def push(
        self, chosen: Selection, says: Says, *, key: str | None = None, workspace_id: str | None = None
    ) -> Pushed:
        """Put files into a workspace.

        Args:
            chosen: The files.
            says: Told how far it is.
            key: Of a workspace of its own; without one the same files are the same workspace.
            workspace_id: To add to, instead.

        Raises:
            BadRequest: If the server refuses them, or a file changes whenever it is read.
            NotFound: If one vanishes.
            HostUnavailable: If the server is away; what it has got stays there, and a push goes on from that.
        """
        changed = ""
        for _ in range(ROUNDS):
            sending = _Sending(self._server, self._hashes, says)
            try:
                return await sending.place(chosen, key, workspace_id)
            except FileChanged as error:
                changed = str(error)
                self._hashes.forget(chosen.files)
        raise BadRequest(
            f"{changed!r} changes while it is read: {ROUNDS} times it was another file when it was sent.",
            hint="Wait until its writer is done, or name it in .gpumcpignore.",
        )


class _Sending:
    """One round of a push."""

    def __init__(self, server: TeamServer, hashes: ContentHashes, says: Says) -> None:
        self._server, self._hashes, self._says = server, hashes, says
        self._sent = self._to_send = 0
        self._said_at = 0.0
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def place(self, chosen: Selection, key: str | None, workspace_id: str | None) -> Pushed:
        listed = await asyncio.to_thread(self._listed, chosen)
        rows = [
            {"path": file.path, "sha256": sha256, "size": size, "executable": file.executable}
            for file, sha256, size in listed
        ]
        body = json.dumps({"files": rows, "workspace_id": workspace_id}).encode()
        key = key or hashlib.sha256(body).hexdigest()[:40]
        files = {sha256: file for file, sha256, _ in listed}
        sizes = {sha256: size for _, sha256, size in listed}
        for _ in range(ROUNDS):
            answer = await self._server.send("PUT", f"/workspaces/{key}", content=body)
            if answer["workspace_id"]:
                total = sum(size for _, _, size in listed)
                return Pushed(answer["workspace_id"], len(rows), total, self._sent, chosen.note())
            missing = [sha256 for sha256 in answer["missing"] if sha256 in files]
            await self._send(missing, files, sizes, answer["begun"], answer["part_bytes"])
        raise GpuMcpError(f"{self._server.address} keeps losing what it is sent.", hint="Tell its admin.")

    def _listed(self, chosen: Selection) -> list[tuple[ProjectFile, str, int]]:
        """Return the files with hash and size; one that is a private key stays here and is named."""
        listed = [(file, *self._hashes.hash_of(file)) for file in chosen.files]
        keys = [file for file, sha256, _ in listed if not sha256]
        for file in keys:
            chosen.files.remove(file)
            chosen.secrets.append(file.path)
        if len(keys) == len(listed):
            raise PathRefused(f"{keys[0].path!r} is a private key; it stays here.")
        return [row for row in listed if row[1]]

    async def _send(
        self,
        missing: Sequence[str],
        files: dict[str, ProjectFile],
        sizes: dict[str, int],
        begun: dict[str, int],
        part_bytes: int,
    ) -> None:
        self._to_send = self._sent + sum(sizes[s] - begun.get(s, 0) for s in missing)
        small = [s for s in missing if sizes[s] <= min(SMALL_BYTES, part_bytes) and s not in begun]
        large = [s for s in missing if s not in set(small)]
        failed: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for pack in _packs(small, sizes, part_bytes):
                    group.create_task(self._send_pack(pack, files))
                for s in large:
                    group.create_task(self._send_large(s, files[s], sizes[s], begun.get(s, 0), part_bytes))
        except* (GpuMcpError, FileChanged) as errors:
            failed = errors.exceptions[0]  # what is raised here comes out as a group again
        if failed is not None:
            raise failed

    async def _send_pack(self, pack: Sequence[str], files: dict[str, ProjectFile]) -> None:
        async with self._turn:
            contents = await asyncio.to_thread(lambda: [_content(files[sha256], sha256) for sha256 in pack])
            head = json.dumps([[s, len(data)] for s, data in zip(pack, contents, strict=True)]).encode()
            await self._server.send("POST", "/files", content=b"\n".join((head, b"".join(contents))))
            await self._count(sum(map(len, contents)))

    async def _send_large(self, sha256: str, file: ProjectFile, size: int, offset: int, part_bytes: int) -> None:
        stalls = 0
        async with self._turn:
            while offset < size:
                part = await asyncio.to_thread(_part, file, offset, min(part_bytes, size - offset))
                try:
                    answer = await self._server.send("PUT", f"/files/{sha256}", content=part, size=size, offset=offset)
                except BadRequest as error:
                    if "changed while it was sent" in str(error):
                        raise FileChanged(file.path) from error
                    raise
                received = int(answer["received"])
                await self._count(received - offset)
                stalls = stalls + 1 if received == offset else 0
                if stalls > 20:
                    raise GpuMcpError(f"{self._server.address} takes no more of {file.path!r}.", hint="Try again.")
                await asyncio.sleep(min(stalls, 4))
                offset = received

    async def _count(self, sent: int) -> None:
        self._sent += sent
        now = time.monotonic()
        if now - self._said_at > SAID_S:
            self._said_at = now
            await self._says(f"sent {self._sent / 1e6:.1f} of {self._to_send / 1e6:.1f} MB")


def _packs(small: Iterable[str], sizes: dict[str, int], part_bytes: int) -> list[list[str]]:
    packs: list[list[str]] = [[]]
    room = part_bytes
    for sha256 in small:
        if packs[-1] and (sizes[sha256] > room or len(packs[-1]) == PACKED):
            packs.append([])
            room = part_bytes
        packs[-1].append(sha256)
        room -= sizes[sha256]
    return [pack for pack in packs if pack]


def _content(file: ProjectFile, sha256: str) -> bytes:
    data = _part(file, 0, SMALL_BYTES + 1)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise FileChanged(file.path)
    return data


def _part(file: ProjectFile, offset: int, size: int) -> bytes:
    """Return bytes of a file.

    Raises:
        NotFound: If it has gone.
        FileChanged: If it has become shorter.
    """
    try:
        with open_file(file.source) as opened:
            opened.seek(offset)
            data = opened.read(size)
    except FileNotFoundError:
        raise NotFound("local file", file.path, hint="It vanished while it was sent; repeat the call.") from None
    except OSError as error:
        raise PathRefused(f"{file.path!r} cannot be read: {error.strerror}.") from error
    if offset and len(data) < size:
        raise FileChanged(file.path)
    return data
