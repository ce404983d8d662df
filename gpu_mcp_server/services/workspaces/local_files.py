"""Paths from outside, and files of the server's own machine."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.errors import LimitExceeded, NotFound, PathRefused

MAX_PATH_BYTES = 512
MAX_PART_BYTES = 255
MAX_LOCAL_FILES = 2000
MAX_LOCAL_BYTES = 64 << 20
LEFT_OUT = (".git", "__pycache__")
"""Folders that no workspace gets: git's history, and bytecode, which Python makes again."""
IN_WORKSPACE = "workspace:"
"""Begins the path of a problem that lies in a workspace: workspace:ID/PATH."""


@dataclass(frozen=True)
class LocalFile:
    """A file to be copied into a workspace."""

    path: str
    """In the workspace."""
    source: Path
    size: int
    executable: bool


def checked_path(path: str) -> str:
    """Return a workspace path in its plain form, or refuse it.

    Raises:
        PathRefused: If it is absolute, empty, leaves the workspace, ends in `/`, holds control characters
            or is longer than 512 bytes (255 for a part).
    """
    parts = path.split("/")
    try:
        too_long = len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts)
    except UnicodeEncodeError as error:
        raise PathRefused(f"{path!r} is not Unicode text.", hint="Rename the file.") from error
    plain = "/".join(part for part in parts if part not in ("", "."))
    why = ""
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in path):
        why = "holds control characters"
    elif too_long:
        why = f"is longer than {MAX_PATH_BYTES} bytes, or a part of it than {MAX_PART_BYTES}"
    elif path.startswith("/"):
        why = "is absolute"
    elif ".." in parts:
        why = "holds `..`"
    elif not plain or path.endswith(("/", "/.")):
        why = "names no file"
    if why:
        raise PathRefused(f"{path[:200]!r} {why}.", hint="Paths are relative to the workspace, such as src/kernel.cu.")
    return plain


def read_local(path: Path, limit_bytes: int) -> bytes:
    """Return a regular file's content; never waits for a pipe.

    Raises:
        NotFound: If it is not there.
        PathRefused: If it is no regular file, or may not be read.
        LimitExceeded: If it has more than `limit_bytes`.
    """
    path = _expanded(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PathRefused(f"{str(path)!r} is not a regular file.", hint="Give the path of a file.")
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _refused(path, error) from error
    if len(data) > limit_bytes:
        raise LimitExceeded(f"{str(path)!r} has more than {limit_bytes} bytes.", hint="Use a smaller file.")
    return data


def is_folder(path: str) -> bool:
    """Say whether a path is a folder of this machine."""
    try:
        return _expanded(Path(path)).is_dir()
    except (PathRefused, OSError, ValueError):
        return False


def collect(path: Path) -> list[LocalFile]:
    """Return what a file or folder would become in a workspace, by path.

    Raises:
        NotFound: If it is not there.
        PathRefused: If a link leaves the folder, or something is neither file nor folder.
        LimitExceeded: If there are more than 2,000 files or 64 MiB.
    """
    path = _expanded(path).absolute()
    found: list[LocalFile] = []
    total = 0
    try:
        root = path.resolve(strict=True)
        walk = _walk(root, "", root, (root,)) if root.is_dir() else iter([_local_file(root, path.name)])
        for file in walk:
            found.append(file)
            total += file.size
            if len(found) > MAX_LOCAL_FILES or total > MAX_LOCAL_BYTES:
                raise LimitExceeded(
                    f"{str(path)!r} has more than {MAX_LOCAL_FILES} files or {MAX_LOCAL_BYTES >> 20} MiB.",
                    hint="Give a smaller folder, or single files.",
                )
    except OSError as error:
        raise _refused(Path(error.filename or path), error) from error
    except RuntimeError as error:
        raise PathRefused(f"{str(path)!r} is a circle of links.", hint="Give the path of a file or folder.") from error
    if not found:
        raise NotFound("file in folder", str(path), hint="Give a folder that has files.")
    return sorted(found, key=lambda file: file.path)


def _walk(folder: Path, prefix: str, root: Path, above: tuple[Path, ...]) -> Iterator[LocalFile]:
    """Yield the files below `folder`; `above` are the folders that it lies in, so that circles are seen."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            name, source = prefix + entry.name, Path(entry.path)
            if entry.name in LEFT_OUT:
                continue
            if entry.is_symlink():
                source = source.resolve(strict=True)
                if not source.is_relative_to(root):
                    raise PathRefused(
                        f"{entry.path!r} is a link that leaves the folder.", hint="Replace it by the file itself."
                    )
            if source.is_dir():
                if source in above:
                    raise PathRefused(f"{entry.path!r} is a link to a folder that it lies in.", hint="Remove it.")
                yield from _walk(source, name + "/", root, (*above, source))
            else:
                yield _local_file(source, name)


def _local_file(source: Path, path: str) -> LocalFile:
    state = source.stat()
    if not stat.S_ISREG(state.st_mode):
        raise PathRefused(f"{str(source)!r} is neither file nor folder.", hint="Remove it from the folder.")
    return LocalFile(checked_path(path), source, state.st_size, bool(state.st_mode & 0o111))


def _expanded(path: Path) -> Path:
    try:
        if "\0" in str(path):
            raise RuntimeError("NUL in the path")
        return path.expanduser()
    except RuntimeError as error:
        raise PathRefused(f"{str(path)!r} cannot be a path: {error}.", hint="Give an absolute path.") from error


def _refused(path: Path, error: OSError) -> NotFound | PathRefused:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        sought = "" if path.is_absolute() else f"The server looked in {str(Path.cwd())!r}, its working folder. "
        return NotFound("local file", str(path), hint=f"{sought}Check the path: the server reads its own machine.")
    return PathRefused(f"{str(path)!r} cannot be read: {error.strerror}.", hint="Check its permissions.")
