"""A command's connection to a team's server: tools with the files of this machine, files back, output as it comes."""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from gpu_mcp_server.bridge.file_arguments import FileArguments
from gpu_mcp_server.bridge.file_push import FilePusher, Pushed
from gpu_mcp_server.bridge.kept_tokens import kept_token
from gpu_mcp_server.bridge.project_files import Folders, Selection, select_files
from gpu_mcp_server.bridge.team_server import TeamServer
from gpu_mcp_server.bridge.tool_calls import call_tool
from gpu_mcp_server.errors import NotFound, PathRefused
from gpu_mcp_server.services.workspaces.local_files import checked_path

NAMED_S = 10.0
"""Between the moment a job is named and the one it is known, at most."""

Says = Callable[[str], Awaitable[None]]
OnOutput = Callable[[str, bytes], Awaitable[None]]


class CommandSession:
    """One command's calls."""

    def __init__(self, server: TeamServer) -> None:
        self.server = server
        self._pusher = FilePusher(server)
        self._files = FileArguments(Folders(Path.cwd()), self._pusher)

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str) -> "AsyncGenerator[CommandSession]":
        """Connect for the block to the server that a token is kept for."""
        async with TeamServer(address, lambda: kept_token(address)).hold_connections() as server:
            yield cls(server)

    async def call(self, tool: str, arguments: dict[str, Any], says: Says) -> dict[str, Any]:
        """Call a tool and return its result, or the protocol's error as one.

        Raises:
            GpuMcpError: If the server is away or refuses it, or a file may not travel.
        """
        key = uuid4().hex
        prepared = await self._files.prepare(tool, arguments, key, says)
        return await call_tool(self.server, prepared.tool, prepared.arguments, key, says)

    async def push(self, path: Path, workspace_id: str | None, says: Says) -> Pushed:
        """Put a file or folder that the user named into a workspace, wherever it lies on this machine."""
        chosen = await asyncio.to_thread(_select_named, path)
        return await self._pusher.push(chosen, says, key=uuid4().hex, workspace_id=workspace_id)

    async def push_named(self, tool: str, path: Path, says: Says) -> tuple[str, str]:
        """Send a file that the user named with what a tool would need of its folder.

        Returns:
            The workspace, and the file's path in it; empty for a whole folder.
        """
        return await FileArguments(Folders(path.parent), self._pusher).push_named(tool, str(path), says)

    async def whole(self, artifact_id: str) -> bytes:
        """Return the content of an artifact."""
        return await self.server.fetch(f"/data/artifacts/{quote(artifact_id, safe='')}")

    async def save(self, artifact_id: str, target: Path, says: Says) -> int:
        """Write an artifact to a file and return its size."""
        return await self.server.download(f"/data/artifacts/{quote(artifact_id, safe='')}", target, says)

    async def files_of(self, workspace_id: str) -> list[dict[str, Any]]:
        """Return path, hash, size and mode of a workspace's files."""
        answer = await self.server.send("GET", f"/data/workspaces/{quote(workspace_id, safe='')}")
        return answer["files"]

    async def pull(self, workspace_id: str, path: str, target: Path, says: Says) -> int:
        """Write a workspace's file to a file and return its size."""
        where = f"/data/workspaces/{quote(workspace_id, safe='')}/files/{quote(path)}"
        return await self.server.download(where, target, says)

    async def jobs(self, limit: int, *, internal: bool) -> list[dict[str, Any]]:
        """Return the latest jobs."""
        answer = await self.server.send("GET", "/data/jobs", limit=limit, internal=int(internal))
        return answer["jobs"]

    async def history(self, problem_id: str, device: str | None) -> dict[str, Any]:
        """Return the course of the work on a problem."""
        path = f"/data/problems/{quote(problem_id, safe='')}/history"
        return await self.server.send("GET", path, device=device or "")

    async def follow(self, job_id: str, on_output: OnOutput) -> dict[str, Any]:
        """Give a job's output as it comes, and return how it ended."""
        at, note, path = {"stdout": 0, "stderr": 0}, "", f"/data/jobs/{quote(job_id, safe='')}/output"
        begun = time.monotonic()
        while True:
            try:
                seen = await self.server.send("GET", path, stdout=at["stdout"], stderr=at["stderr"], note=note)
            except NotFound:  # it is named before its host has it
                if time.monotonic() > begun + NAMED_S:
                    raise
                await asyncio.sleep(0.1)
                continue
            if seen["state"] == "queued" and seen["note"] != note:
                await on_output("queue", seen["note"].encode())
            note = seen["note"]
            for name in at:
                fresh = base64.b64decode(seen[name])
                at[name] += len(fresh)
                if fresh:
                    await on_output(name, fresh)
            if seen["state"] == "finished" and all(at[name] >= seen[f"{name}_kept"] for name in at):
                return seen


def _select_named(path: Path) -> Selection:
    path = path.resolve()
    return select_files(Folders(path.parent).locate(str(path)))


def target_in(folder: Path, path: str) -> Path:
    """Return where a workspace's file would lie in a folder of this machine.

    Raises:
        PathRefused: If it would lie outside, by its name or by a link that is in the folder.
    """
    target = folder / checked_path(path)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise PathRefused(f"{str(target)!r} would lie outside of {str(folder)!r}: a link leads there.")
    return target
