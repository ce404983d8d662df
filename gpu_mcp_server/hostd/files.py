"""Files by content, workspaces on disk, and what may be taken out of them.

A job owns its workspace and may plant links, pipes and odd names in it. Nothing here follows a link out of it.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import stat
import subprocess
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from .protocol import FileRef, OutputFile

MAX_OUTPUT_BYTES = 64 << 20
MAX_OUTPUTS = 500
MAX_DEPTH = 32
CHUNK = 1 << 20

_OPENAT2 = 437  # same number on x86_64 and aarch64
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8


class FilesError(Exception):
    """A file could not be laid or taken; the text says why."""


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(folder: int, path: str) -> int:
    """Open a regular file below the folder descriptor for reading; links are never followed.

    Raises:
        OSError: ELOOP or EXDEV when a link is in the way or the path leaves, EINVAL when it is no regular file.
    """
    how = _OpenHow(os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0, 0)
    how.resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS
    name = os.fsencode(path)
    fd = _libc.syscall(_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        code = ctypes.get_errno()
        if code != errno.ENOSYS:
            raise OSError(code, os.strerror(code), path)
        fd = _open_each_part(folder, path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return int(fd)


def _open_each_part(folder: int, path: str) -> int:
    """Do the same on kernels before 5.6, one part after the other."""
    parts = path.split("/")
    if any(p in ("", ".", "..") for p in parts):
        raise OSError(errno.EXDEV, "leaves the workspace", path)
    at = os.dup(folder)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


class Blobs:
    """Files of this host by sha256, below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        os.makedirs(root, mode=0o700, exist_ok=True)

    def path(self, sha256: str) -> str:
        """Return where a blob lies or would lie."""
        if len(sha256) != 64 or not all(c in "0123456789abcdef" for c in sha256):
            raise FilesError("not a sha256: %r" % sha256[:80])
        return os.path.join(self.root, sha256[:2], sha256)

    def has(self, sha256: str) -> bool:
        """Say whether the blob is here."""
        return os.path.exists(self.path(sha256))

    def put(self, data: bytes, sha256: Optional[str] = None) -> str:
        """Store bytes; an announced hash must be theirs."""
        actual = hashlib.sha256(data).hexdigest()
        if sha256 is not None and sha256 != actual:
            raise FilesError("content does not have the hash %s" % sha256)
        if not self.has(actual):
            with self._new(actual) as out:
                out.write(data)
        return actual

    def take(self, fd: int) -> Tuple[str, int]:
        """Copy an open file in; return its hash and size."""
        digest = hashlib.sha256()
        size = 0
        partial = os.path.join(self.root, "partial-%d-%d" % (os.getpid(), fd))
        try:
            with open(partial, "wb") as out:
                while True:
                    chunk = os.read(fd, CHUNK)
                    if not chunk:
                        break
                    digest.update(chunk)
                    size += len(chunk)
                    out.write(chunk)
            final = self.path(digest.hexdigest())
            os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
            os.rename(partial, final)
        except OSError:
            _unlink_quietly(partial)
            raise
        return digest.hexdigest(), size

    def _new(self, sha256: str) -> "_Atomic":
        final = self.path(sha256)
        os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
        return _Atomic(final)


class _Atomic:
    """A file that appears under its name only when it is whole."""

    def __init__(self, final: str) -> None:
        self._final = final
        self._partial = "%s.%d" % (final, os.getpid())

    def __enter__(self) -> "_Atomic":
        self._file = open(self._partial, "wb")
        return self

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if kind is None:
            os.rename(self._partial, self._final)
        else:
            _unlink_quietly(self._partial)


def write_whole(path: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    with _Atomic(path) as out:
        out.write(data)


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def checked_path(path: str) -> List[str]:
    """Split a relative path into its parts.

    Raises:
        FilesError: If it is absolute, empty, or has a part that is empty, `.` or `..`.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(p in ("", ".", "..") for p in parts) or len(path) > 1024:
        raise FilesError("path %r is not inside the workspace" % path[:200])
    return parts


def lay(folder: str, files: Iterable[FileRef], blobs: Blobs) -> None:
    """Copy blobs into a fresh folder that nobody else can write to yet."""
    made = set()
    for ref in files:
        parts = checked_path(ref.path)
        target = os.path.join(folder, *parts)
        parent = os.path.dirname(target)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        source = blobs.path(ref.sha256)
        if not os.path.exists(source):
            raise FilesError("content %s of %s is not on this host" % (ref.sha256[:12], ref.path))
        shutil.copyfile(source, target)
        os.chmod(target, (ref.mode & 0o755) | 0o600)


def own(folder: str, uid: int, gid: int) -> None:
    """Give a folder and all below it to a job's uid."""
    for at, folders, names in os.walk(folder):
        os.chown(at, uid, gid)
        for name in names:
            os.chown(os.path.join(at, name), uid, gid, follow_symlinks=False)
        del folders


def usage(folder: str, stop_files: int) -> Tuple[int, int]:
    """Return bytes on disk and number of entries below a folder; counting stops soon after `stop_files`."""
    total = 0
    count = 0
    for at, _, entries in _walk(folder, MAX_DEPTH * 200):
        del at
        for entry in entries:
            count += 1
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
        if count > stop_files:
            break
    return total, count


def _walk(folder: str, depth: int) -> Iterator[Tuple[str, int, List["os.DirEntry[str]"]]]:
    """Walk without recursion and without following links; deeper than `depth` is left out."""
    todo = [(folder, "", 0)]
    while todo:
        path, relative, level = todo.pop()
        try:
            with os.scandir(path) as found:
                entries = list(found)
        except OSError:
            continue
        yield relative, level, entries
        if level < depth:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, relative + entry.name + "/", level + 1))
                except OSError:
                    continue


def collect(
    folder: str, wanted: Sequence[str], laid: Dict[str, str], blobs: Blobs
) -> Tuple[List[OutputFile], List[str]]:
    """Take a job's outputs: the paths asked for, or with `*` all that is new or changed since `laid` (path to sha256).

    Returns:
        The files, and `PATH: why` for each that was left out.
    """
    taken = []  # type: List[OutputFile]
    left = []  # type: List[str]
    names, skipped = _candidates(folder, wanted)
    left += skipped
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            try:
                source = open_beneath(fd, name)
            except OSError as error:
                if name not in wanted or error.errno != errno.ENOENT:
                    left.append("%s: %s" % (printable(name), error.strerror))
                continue
            try:
                info = os.fstat(source)
                if info.st_size > MAX_OUTPUT_BYTES:
                    left.append("%s: %d bytes, more than %d MiB" % (printable(name), info.st_size, MAX_OUTPUT_BYTES >> 20))
                    continue
                sha256, size = blobs.take(source)
            finally:
                os.close(source)
            if "*" not in wanted or laid.get(name) != sha256:
                taken.append(OutputFile(name, sha256, size, 0o755 if info.st_mode & 0o100 else 0o644))
    finally:
        os.close(fd)
    return taken, left


def _candidates(folder: str, wanted: Sequence[str]) -> Tuple[List[str], List[str]]:
    names = [w for w in wanted if w != "*"]
    left = []  # type: List[str]
    if "*" in wanted:
        for relative, level, entries in _walk(folder, MAX_DEPTH):
            for entry in entries:
                name = relative + entry.name
                if entry.is_symlink():
                    left.append("%s: a link" % printable(name))
                elif entry.is_dir(follow_symlinks=False):
                    if level == MAX_DEPTH:
                        left.append("%s: deeper than %d folders" % (printable(name)[:80], MAX_DEPTH))
                elif not entry.is_file(follow_symlinks=False):
                    left.append("%s: not a regular file" % printable(name))
                elif not _is_text(name):
                    left.append("%s: its name is not UTF-8 text" % printable(name))
                else:
                    names.append(name)
    names.sort()
    if len(names) > MAX_OUTPUTS:
        left.append("%d more files: only %d are taken" % (len(names) - MAX_OUTPUTS, MAX_OUTPUTS))
    return names[:MAX_OUTPUTS], left[:50]


def _is_text(name: str) -> bool:
    return name.isprintable()


def printable(name: str) -> str:
    """Return a name that is safe to show: odd characters escaped, undecodable bytes as \\xNN."""
    raw = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw)


def remove_tree(path: str) -> None:
    """Delete a tree of any depth, whatever modes its folders have."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "--", "u+rwX", path], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["rm", "-rf", "--one-file-system", "--", path], stderr=subprocess.DEVNULL, check=False)
