"""Turns the local files that a call names into files of a workspace, and tells in the answer what stayed here."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.bridge.file_push import FilePusher, Pushed
from gpu_mcp_server.bridge.project_files import Folders, Selection, file_at, is_secret, open_file, select_files
from gpu_mcp_server.errors import BadRequest, GpuMcpError, LimitExceeded

REFERENCE_BYTES = 1 << 20
MAX_HEADERS = 500
"""As the server has it for the files that a source includes."""
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".hip", ".inl", ".inc")
MAX_BESIDE = 200
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]{1,300})[">]', re.MULTILINE)

Says = Callable[[str], Awaitable[None]]
Arguments = dict[str, Any]


@dataclass(frozen=True)
class PreparedCall:
    """A call as the server takes it."""

    tool: str
    arguments: Arguments
    note: str = ""
    """For the answer: what was sent and what stayed here."""


class FileArguments:
    """Prepares calls of one client."""

    def __init__(self, folders: Folders, pusher: FilePusher) -> None:
        self.folders, self._pusher = folders, pusher

    async def prepare(self, tool: str, arguments: Arguments, key: str, says: Says) -> PreparedCall:
        """Return a call without paths of this machine, with its files at the server.

        Args:
            tool: Its name.
            arguments: As the client gave them.
            key: Of the call, and of the workspace that write_files makes.
            says: Told how far an upload is.

        Raises:
            GpuMcpError: If a file may not be read, is not there, or is not taken.
        """
        given = dict(arguments)
        match tool:
            case "write_files" if isinstance(given.get("local_path"), str) and not given.get("files"):
                chosen = select_files(self.folders.locate(given["local_path"]))
                pushed = await self._pusher.push(chosen, says, key=key, workspace_id=given.get("workspace_id"))
                return PreparedCall("list_files", {"workspace_id": pushed.workspace_id}, _told(pushed))
            case "register_problem" if isinstance(given.get("reference_path"), str):
                given["reference"] = self._text(given.pop("reference_path"))
                return PreparedCall(tool, given)
            case "evaluate_kernels":
                return await self._many(tool, given, says)
            case _ if isinstance(given.get("path"), str) and not given.get("workspace_id") and not given.get("source"):
                return PreparedCall(tool, *await self._one(tool, given, says))
            case _:
                return PreparedCall(tool, given)

    async def push_named(self, tool: str, path: str, says: Says) -> tuple[str, str]:
        """Send what a path of a tool's call stands for; return the workspace, and the path in it."""
        chosen, below = self._chosen(tool, {"path": path})
        return (await self._pusher.push(chosen, says)).workspace_id, below

    async def _one(self, tool: str, given: Arguments, says: Says) -> tuple[Arguments, str]:
        chosen, path = self._chosen(tool, given)
        pushed = await self._pusher.push(chosen, says)
        if tool == "import_problem":
            return {**given, "path": f"workspace:{pushed.workspace_id}/{path}"}, pushed.note
        rest = {name: value for name, value in given.items() if name != "path"}
        more = {"workspace_id": pushed.workspace_id} | ({"path": path} if path else {})
        return {**rest, **more}, pushed.note

    async def _many(self, tool: str, given: Arguments, says: Says) -> PreparedCall:
        listed: Any = given.get("candidates")
        if isinstance(listed, str):  # as some clients send lists
            try:
                listed = json.loads(listed)
            except ValueError:
                return PreparedCall(tool, given)
        if not isinstance(listed, list):
            return PreparedCall(tool, given)
        made: list[Any] = []
        notes: list[str] = []
        for each in cast("list[Any]", listed):
            if isinstance(each, dict) and isinstance(cast("Arguments", each).get("path"), str):
                candidate = cast("Arguments", each)
                if not candidate.get("workspace_id") and not candidate.get("source"):
                    try:
                        each, note = await self._one(tool, candidate, says)
                    except GpuMcpError as error:
                        raise error.prefix_with(f"None was judged, as of candidate {candidate.get('name')!r}") from None
                    notes.append(note)
            made.append(each)
        return PreparedCall(tool, {**given, "candidates": made}, "; ".join(dict.fromkeys(filter(None, notes))))

    def _chosen(self, tool: str, given: Arguments) -> tuple[Selection, str]:
        """Return which files go with a path, and where among them it is; empty for a whole folder."""
        said, part = _parted(self.folders, given["path"]) if tool == "import_problem" else (given["path"], "")
        path = self.folders.locate(said)
        if path.is_dir():
            return select_files(path), ""
        if tool == "import_problem" and path.suffix != ".py":  # it names files of its folder
            return select_files(path.parent), path.name + part
        if path.suffix.lower() not in SOURCES:
            return Selection([file_at(path, path.name)]), path.name + part
        flags: Any = given.get("flags")
        words = map(str, cast("list[Any]", flags)) if isinstance(flags, list) else ()
        included = [word[2:] for word in words if word.startswith("-I")]
        return _with_headers(path, included, beside=tool.endswith("_nccl")), path.name

    def _text(self, said: str) -> str:
        with open_file(self.folders.locate(said)) as file:
            data = file.read(REFERENCE_BYTES + 1)
        if len(data) > REFERENCE_BYTES:
            raise LimitExceeded(f"{said!r} has more than {REFERENCE_BYTES} bytes.", hint="Use a smaller file.")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadRequest(f"{said!r} is binary junk, not text.", hint="Give Python source in UTF-8.") from None


def _parted(folders: Folders, said: str) -> tuple[str, str]:
    """Return the path of a file, and with its sign what stands behind `#` in it."""
    name, sign, part = said.rpartition("#")
    return (name, f"#{part}") if sign and not (folders.started_in / said).exists() else (said, "")


def _with_headers(path: Path, folders: list[str], *, beside: bool) -> Selection:
    """Return a source with what it includes from its own folder and below, and what those include again."""
    root, found = path.parent, Selection()
    waiting = [path]
    if beside:
        waiting += [p for p in sorted(root.iterdir())[:MAX_BESIDE] if p != path and p.suffix.lower() in SOURCES]
    seen: set[Path] = set()
    while waiting:
        source = waiting.pop(0)
        below = source.relative_to(root)
        if source in seen or source.is_symlink() or not source.is_file() or is_secret(below.as_posix()):
            continue
        seen.add(source)
        if len(seen) > MAX_HEADERS + 1:
            raise LimitExceeded(
                f"{path.name!r} includes more than {MAX_HEADERS} files.",
                hint="Send the folder by write_files, and give its workspace_id to build_project.",
            )
        found.files.append(file_at(source, below.as_posix()))
        for name in _INCLUDE.findall(_start(source)):
            waiting += _candidates(root, below.parent, folders, name.decode("utf-8", "replace"))
    return found


def _candidates(root: Path, beside: Path, folders: list[str], name: str) -> list[Path]:
    found: list[Path] = []
    for folder in (beside, *map(Path, folders)):
        target = (root / folder / name).resolve()
        if target.is_relative_to(root) and target.is_file():
            found.append(target)
    return found[:1]


def _start(source: Path) -> bytes:
    with open_file(source) as file:
        return file.read(REFERENCE_BYTES)


def _told(pushed: Pushed) -> str:
    said = f"{pushed.files} files, {pushed.total_bytes / 1e6:.1f} MB; {pushed.sent_bytes / 1e6:.1f} MB were new here"
    return "; ".join(filter(None, (said, pushed.note)))
