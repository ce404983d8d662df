"""Files by content, workspaces on disk, and what may be taken out of them.

A job owns its workspace and may plant links, pipes and odd names in it. Nothing here follows a link out of it.
"""

import ctypes
import errno
import hashlib
import os
import stat
import time
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

from ..protocol import FileRef, OutputFile
from . import file_trees

MAX_OUTPUT_BYTES = 64 << 20
MAX_OUTPUTS = 500
MAX_LEFT_OUT = 50
MAX_DEPTH = 32
CHUNK = 1 << 20
KEEP_BLOBS_S = 7 * 86400
CLOCK_TICK_NS = 20_000_000
"""Coarser than any kernel's time stamps of files: 10 ms at 100 Hz."""

Stamps = Dict[str, Tuple[int, int]]
"""Inode and time of change (ns) of files as they were laid, by path."""

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
    # O_NONBLOCK: opening a pipe that has no writer would never return; fstat refuses it below.
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


class BlobStore:
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
        """Say whether the blob is here; if so it is kept for another week."""
        try:
            os.utime(self.path(sha256))
        except OSError:
            return False
        return True

    def put(self, data: Union[bytes, memoryview], sha256: Optional[str] = None) -> str:
        """Store bytes; an announced hash must be theirs."""
        actual = hashlib.sha256(data).hexdigest()
        if sha256 is not None and sha256 != actual:
            raise FilesError("content does not have the hash %s" % sha256)
        if not self.has(actual):
            final = self.path(actual)
            os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
            write_whole(final, data)
        return actual

    def take(self, fd: int) -> Tuple[str, int]:
        """Copy an open file in; return its hash and size."""
        digest = hashlib.sha256()
        size = 0
        partial = os.path.join(self.root, "partial-%d-%d" % (os.getpid(), fd))
        try:
            with open(partial, "wb") as out:
                while size <= MAX_OUTPUT_BYTES:
                    chunk = os.read(fd, CHUNK)
                    if not chunk:
                        break
                    digest.update(chunk)
                    size += len(chunk)
                    out.write(chunk)
            if size > MAX_OUTPUT_BYTES:
                raise OSError(errno.EFBIG, "it grows while it is read", partial)
            final = self.path(digest.hexdigest())
            os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
            os.rename(partial, final)
        except OSError:
            _unlink_quietly(partial)
            raise
        return digest.hexdigest(), size

    def sweep(self) -> None:
        """Drop contents without a request in a week."""
        oldest = time.time() - KEEP_BLOBS_S
        for relative, _, entries in file_trees.walk(self.root, 1):
            for entry in entries:
                try:
                    if _is_file(entry) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(os.path.join(self.root, relative + entry.name))
                except OSError:
                    continue


def write_whole(path: str, data: Union[bytes, memoryview], partial: str = "") -> None:
    """Write a file so that a reader sees all of it or nothing; `partial` is its name until then."""
    partial = partial or "%s.%d" % (path, os.getpid())
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            if os.fstat(fd).st_size:  # ext4 waits for the disk when a file is closed that was truncated
                os.ftruncate(fd, 0)
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(partial, path)
    except OSError:
        _unlink_quietly(partial)
        raise


def write_all(fd: int, data: Union[bytes, memoryview]) -> None:
    """Write every byte."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def checked_path(path: str) -> List[str]:
    """Split a relative path into its parts.

    Raises:
        FilesError: If it is absolute, empty, too long, or has a part that is empty, `.` or `..`.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(p in ("", ".", "..") for p in parts) or len(path) > 1024:
        raise FilesError("path %r is not inside the workspace" % path[:200])
    try:
        if max(len(os.fsencode(p)) for p in parts) > 255 or len(parts) > MAX_DEPTH:
            raise FilesError("path %r has a part over 255 bytes or over %d parts" % (path[:200], MAX_DEPTH))
    except UnicodeEncodeError:
        raise FilesError("path %s is no text" % ascii(path)[:200]) from None
    return parts


def mode_of(ref: FileRef) -> int:
    """Return the mode with which a file is laid."""
    return (ref.mode & 0o755) | 0o600


def make_parents(top: str, path: str, made: Set[str], uid: Optional[int]) -> str:
    """Make the folders of a path below `top` that are not among `made`; return the whole path.

    Raises:
        FilesError: If the path is not inside.
    """
    parts = checked_path(path)
    at = top
    for part in parts[:-1]:
        at = os.path.join(at, part)
        if at not in made:
            os.mkdir(at, 0o755)
            if uid is not None:
                os.chown(at, uid, uid)
            made.add(at)
    return os.path.join(at, parts[-1])


def materialize_files(
    folder: str, files: Iterable[FileRef], blobs: BlobStore, uid: Optional[int], made: Optional[Set[str]] = None
) -> Stamps:
    """Copy blobs into a fresh folder that no other user can write to yet, and give all of it to a job's uid.

    Args:
        folder: Where.
        files: What.
        blobs: Where the contents are.
        uid: The job's; None leaves it ours.
        made: Folders below it that are there already.

    Returns:
        What the files look like now, to know later which were changed.
    """
    stamps: Stamps = {}
    made = {folder} if made is None else {folder, *made}
    for ref in files:
        info = _copy(blobs, ref, make_parents(folder, ref.path, made, uid), uid)
        stamps[ref.path] = (info.st_ino, info.st_ctime_ns)
    return stamps


def _copy(blobs: BlobStore, ref: FileRef, target: str, uid: Optional[int]) -> os.stat_result:
    try:
        source = os.open(blobs.path(ref.sha256), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FilesError("content %s of %s is not on this host" % (ref.sha256[:12], ref.path)) from None
    try:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while os.sendfile(out, source, None, 1 << 30):  # type: ignore[arg-type]  # None is the file's own position
                pass
            os.fchmod(out, mode_of(ref))
            if uid is not None:
                os.fchown(out, uid, uid)
            return os.fstat(out)
        finally:
            os.close(out)
    finally:
        os.close(source)


def hash_of(fd: int) -> str:
    """Return the sha256 of an open file, from where it stands."""
    digest = hashlib.sha256()
    while True:
        chunk = os.read(fd, CHUNK)
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)


class Collector:
    """Takes a job's outputs out of its workspace.

    Args:
        folder: The workspace.
        laid: Path to sha256 of what was laid there.
        stamps: How those files looked when they were laid.
        started_ns: When the job could first write, ns since the epoch.
        blobs: Where contents go.
    """

    def __init__(self, folder: str, laid: Dict[str, str], stamps: Stamps, started_ns: int, blobs: BlobStore) -> None:
        self._folder, self._laid, self._stamps, self._blobs = folder, laid, stamps, blobs
        self._trusted_before_ns = started_ns - CLOCK_TICK_NS
        self.left: List[str] = []
        self.lost = ""
        """Why the host could not keep an output, if so."""

    def collect(self, wanted: Sequence[str], mend: bool = True) -> Tuple[List[OutputFile], List[str]]:
        """Take the paths asked for, or with `*` all that is new or changed.

        Args:
            wanted: Paths, or `*`.
            mend: Make unreadable folders readable; only when no process of the job lives.

        Returns:
            The files, and `PATH: why` for each that was left out.
        """
        taken: List[OutputFile] = []
        names = self._everything(mend) if "*" in wanted else list(wanted)
        try:
            fd = os.open(self._folder, file_trees.FLAGS)
        except OSError as error:
            return [], ["all outputs: %s" % error]
        try:
            for number, name in enumerate(names):
                if len(taken) == MAX_OUTPUTS:
                    self.left.insert(0, "%d more files: only %d are taken" % (len(names) - number, MAX_OUTPUTS))
                    break
                output = self._take(fd, name, name in wanted)
                if output is not None and ("*" not in wanted or self._laid.get(name) != output.sha256):
                    taken.append(output)
        finally:
            os.close(fd)
        if len(self.left) > MAX_LEFT_OUT:
            self.left[MAX_LEFT_OUT:] = ["%d more were left out" % (len(self.left) - MAX_LEFT_OUT)]
        return taken, self.left

    def _take(self, folder: int, name: str, asked: bool) -> Optional[OutputFile]:
        try:
            source = open_beneath(folder, name)
        except OSError as error:
            if not asked or error.errno != errno.ENOENT:
                self.left.append("%s: %s" % (printable(name), error.strerror))
            return None
        try:
            info = os.fstat(source)
            if info.st_size > MAX_OUTPUT_BYTES:
                self.left.append(
                    "%s: %d bytes, more than %d MiB" % (printable(name), info.st_size, MAX_OUTPUT_BYTES >> 20)
                )
                return None
            if not asked and (self._unchanged(name, info) or self._same_content(name, source)):
                return None
            sha256, size = self._blobs.take(source)  # the file that was checked, wherever its path leads by now
        except OSError as error:
            self.lost = self.lost or disk_full_message(error)
            self.left.append("%s: %s" % (printable(name), disk_full_message(error) or error.strerror))
            return None
        finally:
            os.close(source)
        return OutputFile(name, sha256, size, 0o755 if info.st_mode & 0o100 else 0o644)

    def _unchanged(self, name: str, info: os.stat_result) -> bool:
        """Say whether a laid file surely is as it was; a change in the clock tick of the laying would not show."""
        stamp = (info.st_ino, info.st_ctime_ns)
        return self._stamps.get(name) == stamp and info.st_ctime_ns < self._trusted_before_ns

    def _same_content(self, name: str, source: int) -> bool:
        """Say whether a laid file has its old content: reading it costs less than storing it once more."""
        laid = self._laid.get(name)
        if laid is None:
            return False
        same = hash_of(source) == laid
        os.lseek(source, 0, os.SEEK_SET)
        return same

    def _everything(self, mend: bool) -> List[str]:
        names: List[str] = []
        for relative, level, entries in file_trees.walk(self._folder, MAX_DEPTH, mend):
            for entry in entries:
                name = relative + entry.name
                if entry.is_symlink():
                    self.left.append("%s: a link" % printable(name))
                elif file_trees.is_folder(entry):
                    if level == MAX_DEPTH:
                        self.left.append("%s: deeper than %d folders" % (printable(name)[:80], MAX_DEPTH))
                elif not _is_file(entry):
                    self.left.append("%s: not a regular file" % printable(name))
                elif not name.isprintable():
                    self.left.append("%s: its name is not plain UTF-8 text" % printable(name))
                else:
                    names.append(name)
        return sorted(names)


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def printable(name: str) -> str:
    r"""Return a name that is safe to show: odd characters escaped, undecodable bytes as \\xNN."""
    raw = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw)


def disk_full_message(error: BaseException) -> str:
    """Say that a disk is full, when that is what an error means."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full: the host's disk has no room left (%s)" % os.strerror(error.errno)
    return ""
