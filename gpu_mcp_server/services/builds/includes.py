"""Headers of one's own: what a source includes from its workspace or folder, and what that includes again.

Only these files go with the source to its compiler, so a change of any other one leaves what was built valid.
"""

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_mcp_server.errors import GpuMcpError, LimitExceeded
from gpu_mcp_server.models.build import LANGUAGES
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.workspaces.local_files import read_local
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

MAX_HEADERS_BYTES = 32 << 20
"""Together; CUTLASS has 27 MiB, the largest of its headers 3."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]{1,300})[">]', re.MULTILINE)
Reader = Callable[[str], Awaitable[bytes | None]]
"""The content of a file by its path below the root; None where there is none."""


async def with_headers(
    source: CandidateSource,
    path: str | None,
    workspace_id: str | None,
    workspaces: Workspaces,
    flags: Sequence[str] = (),
) -> CandidateSource:
    """Return the source with the files that it includes, laid as they lie around it.

    Args:
        source: As `source_of` returned it.
        path: Where it lies, in the workspace or on this machine; without one nothing lies around it.
        workspace_id: The workspace of `path`. Its own folder and `-I` of folders below its root are searched.
        workspaces: To look there. A local file's headers lie in its own folder or below.
        flags: Of the compiler.

    Raises:
        LimitExceeded: If the files that are reached have more than 32 MiB.
    """
    if path is None or LANGUAGES[source.language].launcher not in ("c", "cuda"):
        return source
    folders = [f[2:] for f in flags if f.startswith("-I") and len(f) > 2]
    if workspace_id is None:
        root = Path(path).parent
        found = await _closure(source.text, source.name, _local(root), folders)
        return replace(source, beside=found) if found else source
    paths = frozenset(file.path for file in await workspaces.manifest(workspace_id))
    found = await _closure(source.text, path, _of_workspace(workspaces, workspace_id, paths), folders)
    return replace(source, beside=found, folder=posixpath.dirname(path)) if found else source


def _local(root: Path) -> Reader:
    async def read(path: str) -> bytes | None:
        try:
            return await asyncio.to_thread(read_local, root / path, MAX_HEADERS_BYTES)
        except (GpuMcpError, OSError):
            return None

    return read


def _of_workspace(workspaces: Workspaces, workspace_id: str, paths: frozenset[str]) -> Reader:
    async def read(path: str) -> bytes | None:
        if path not in paths:  # most names are the compiler's own headers
            return None
        try:
            return await workspaces.read_bytes(workspace_id, path, MAX_HEADERS_BYTES)
        except GpuMcpError:
            return None

    return read


async def _closure(text: str, path: str, read: Reader, folders: Sequence[str]) -> dict[str, str]:
    """Return the texts of all files that are reached, by path below the root.

    Raises:
        LimitExceeded: If they have more than 32 MiB: without the others the compiler would miss headers that are there.
    """
    found: dict[str, str] = {}
    room = MAX_HEADERS_BYTES
    open_ones = [(path, text)]
    while open_ones:
        including, text = open_ones.pop()
        for name in dict.fromkeys(_INCLUDE.findall(text)):
            for folder in (posixpath.dirname(including), *folders):
                at = posixpath.normpath(posixpath.join(folder, name))
                if at in found or at == path or at.startswith(("../", "/")) or "\0" in at:
                    continue
                data = await read(at)
                if data is not None and b"\0" not in data:
                    room -= len(data)
                    if room < 0:
                        raise LimitExceeded(
                            f"The headers that {path!r} includes are too large: {len(found)} files fit, "
                            f"{at!r} does not; the limit is {MAX_HEADERS_BYTES >> 20} MiB.",
                            hint="Compile it with build_project, or name the folder in include_paths of the host.",
                        )
                    found[at] = data.decode("utf-8", "replace")
                    open_ones.append((at, found[at]))
                    break
    return found
