"""Trees of files that a job made: walking, measuring and deleting them, whatever it planted there.

Every folder is opened from its parent's descriptor and never through a link, so that a job that swaps a folder for a
link while we look leads nowhere.
"""

import errno
import fcntl
import os
import subprocess
from typing import Iterator, List, NamedTuple, Optional, Tuple

MAX_NESTING = 200
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Usage(NamedTuple):
    """Bytes and entries of a tree."""

    bytes: int
    entries: int
    too_deep: bool
    """Whether folders are nested deeper than was looked."""


def walk(folder: str, depth: int, mend: bool = False) -> Iterator[Tuple[str, int, List["os.DirEntry[str]"]]]:
    """Yield each folder's path (with a final `/`, empty for the top), level and entries, without recursion.

    Args:
        folder: The top.
        depth: Folders below this level are left out.
        mend: Make folders readable that are not; only when no process of the job lives.
    """
    # A stack instead of recursion: a job can nest folders deeper than Python's recursion limit.
    todo = [(0, folder, "")]
    line: List[int] = []
    try:
        while todo:
            level, name, relative = todo.pop()
            # Only the ancestors of the current folder stay open, so depth bounds the descriptors.
            while len(line) > level:
                os.close(line.pop())
            fd = _open(name, line[-1] if line else None, mend)
            if fd is None:
                continue
            line.append(fd)
            try:
                with os.scandir(fd) as found:
                    entries = list(found)
            except OSError:
                continue
            yield relative, level, entries
            if level < depth:
                todo += [(level + 1, e.name, relative + e.name + "/") for e in entries if is_folder(e)]
    finally:
        for fd in line:
            os.close(fd)


def _open(name: str, parent: Optional[int], mend: bool) -> Optional[int]:
    try:
        return os.open(name, FLAGS, dir_fd=parent)
    except OSError as error:
        if not mend or error.errno != errno.EACCES:
            return None
    try:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, FLAGS, dir_fd=parent)
    except OSError:
        return None


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Say whether an entry is a folder, not a link to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def is_locked(folder: str) -> bool:
    """Say whether somebody holds a folder's lock; one that is not there is held by nobody."""
    try:
        fd = os.open(folder, FLAGS)
    except OSError:
        return False
    try:
        # A shared lock suffices to find an exclusive one, and lets several lookers pass at once.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def usage(folder: str, stop_entries: int, mend: bool = False) -> Usage:
    """Measure a tree; counting ends soon after `stop_entries`."""
    total = 0
    count = 0
    too_deep = False
    for _, level, entries in walk(folder, MAX_NESTING, mend):
        count += len(entries)
        for entry in entries:
            try:
                # Blocks, not sizes: a sparse file occupies less, and st_blocks counts 512-byte units on Linux.
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
        too_deep = too_deep or (level == MAX_NESTING and any(is_folder(e) for e in entries))
        if count > stop_entries or too_deep:
            break
    return Usage(total, count, too_deep)


def remove(path: str) -> None:
    """Delete a tree of any depth, whatever modes its folders have."""
    if _remove_flat(path):
        return
    if os.geteuid() != 0:
        # A folder without write permission keeps rm from emptying it; root ignores the modes.
        _quietly(["chmod", "-R", "u+rwX", "--", path])
    _quietly(["rm", "-rf", "--one-file-system", "--", path])


def _remove_flat(path: str) -> bool:
    """Delete a folder of plain files without starting a program; False when it is more than that."""
    try:
        fd = os.open(path, FLAGS)
    except OSError:
        return not os.path.lexists(path)
    try:
        with os.scandir(fd) as found:
            entries = list(found)
        # Most workspaces are small and flat, and starting rm takes longer than removing them here.
        if len(entries) > 100 or any(is_folder(e) for e in entries):
            return False
        for entry in entries:
            os.unlink(entry.name, dir_fd=fd)
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _quietly(argv: List[str]) -> None:
    try:
        subprocess.run(
            argv,
            env={"PATH": PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        pass
