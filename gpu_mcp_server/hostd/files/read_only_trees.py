"""Folders of files that jobs can read and not write, made once per content and shown to every job that names them.

hostd owns them, files 0444 and folders 0555. With namespaces a job sees one as a read-only mount, so that it cannot
write even where it has hostd's uid; at level landlock the kernel withholds the right. At level unconfined a hostd that
is no root has nothing to keep its jobs from writing them, but finds out before the next job.
"""

import fcntl
import hashlib
import json
import os
import stat
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..protocol import FileRef
from ..sandbox.mounts import Mounts
from . import file_trees
from .job_files import BlobStore, FilesError, make_parents, write_all, write_whole

INSIDE = "/trees"
"""Where they are shown to who has namespaces, each under its name."""
KEEP_S = 7 * 86400
_TREE, _STAMPS = "tree", "stamps.json"

Stamps = List[List[object]]
"""Path, inode, mode and size of each folder and file, and when its content (a file: anything) was changed, in ns."""


class Shown(NamedTuple):
    """Read-only trees as one job sees them."""

    pairs: List[Tuple[str, str]]
    """Folder of the host and the path that it has inside."""
    env: Dict[str, str]
    """Variables that say where they are: `TREE_` and the name in capitals."""
    locks: List[int]
    """Descriptors that keep them from being swept, to be held as long as the job lives."""


class ReadOnlyTrees:
    """Trees below a folder that jobs can enter and not list."""

    def __init__(self, root: str, blobs: BlobStore) -> None:
        self._root, self._blobs = root, blobs
        os.makedirs(root, mode=0o711, exist_ok=True)
        if os.geteuid() == 0:
            os.chmod(root, 0o711)

    def show(self, wanted: Mapping[str, Sequence[FileRef]], mounts: Mounts, uid: Optional[int], boxed: bool) -> Shown:
        """Make the trees of a job unless they are there, and say where it sees them.

        Args:
            wanted: Files by the tree's name.
            mounts: Ways to folders that the job's uids cannot reach.
            uid: One of them, None when hostd is no root.
            boxed: Whether the job has namespaces, and so sees them below `INSIDE`.

        Raises:
            FilesError: If a content is missing or is not what it should be.
        """
        shown = Shown([], {}, [])
        for name, refs in sorted(wanted.items()):
            path, lock = self.take(refs)
            shown.locks.append(lock)
            outside = mounts.make_reachable(path, uid)
            inside = os.path.join(INSIDE, name) if boxed else outside
            shown.pairs.append((outside, inside))
            shown.env["TREE_" + name.upper()] = inside
        return shown

    def take(self, refs: Sequence[FileRef]) -> Tuple[str, int]:
        """Return where a tree is, made now unless it is there as it was made, and the descriptor of its lock."""
        listed = json.dumps(sorted([ref.path, ref.sha256] for ref in refs))
        home = os.path.join(self._root, hashlib.sha256(listed.encode("ascii")).hexdigest())
        is_new = False
        while True:
            try:
                lock = os.open(home, file_trees.FLAGS)
            except FileNotFoundError:
                self._make(home, refs)
                is_new = True  # a file system whose inodes have other numbers each time must not keep us here
                continue
            fcntl.flock(lock, fcntl.LOCK_SH)
            is_there = os.path.isdir(home)  # the sweep may have taken it meanwhile
            if is_there and (is_new or _is_as_made(home)):
                os.utime(home)
                return os.path.join(home, _TREE), lock
            os.close(lock)
            if is_there:
                self._set_aside(home)

    def _make(self, home: str, refs: Sequence[FileRef]) -> None:
        """Make a tree under another name, and give it its own unless somebody was faster."""
        partial = self._other_name()
        tree = os.path.join(partial, _TREE)
        os.mkdir(partial, 0o711)
        try:
            os.mkdir(tree, 0o755)
            made = {tree}
            for ref in refs:
                self._copy(ref, make_parents(tree, ref.path, made, None))
            for folder in made:
                os.chmod(folder, 0o555)
            os.chmod(partial, 0o711)
            write_whole(os.path.join(partial, _STAMPS), json.dumps(_stamps(tree)).encode("ascii"))
            os.rename(partial, home)
        except FileExistsError:
            file_trees.remove(partial)
        except OSError as error:
            file_trees.remove(partial)
            if not os.path.isdir(home):
                raise FilesError("a read-only tree cannot be made in %s: %s" % (self._root, error)) from error
        except FilesError:
            file_trees.remove(partial)
            raise

    def _copy(self, ref: FileRef, target: str) -> None:
        try:
            with open(self._blobs.path(ref.sha256), "rb") as source:
                data = source.read()
        except FileNotFoundError:
            raise FilesError("content %s of %s is not on this host" % (ref.sha256[:12], ref.path)) from None
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise FilesError("content %s of %s is another on this host" % (ref.sha256[:12], ref.path))
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
        try:
            write_all(out, data)
            os.fchmod(out, 0o444)
        finally:
            os.close(out)

    def _set_aside(self, home: str) -> None:
        """Take its name from a tree that was changed; who has it keeps it until the sweep."""
        try:
            os.rename(home, self._other_name())
        except FileNotFoundError:
            pass  # somebody else did

    def _other_name(self) -> str:
        return os.path.join(self._root, "." + os.urandom(8).hex())

    def sweep(self, later_s: float = 0.0) -> None:
        """Drop what no job has named in a week and none holds; as if it were later, too."""
        oldest = time.time() + later_s - KEEP_S
        for name in os.listdir(self._root):
            path = os.path.join(self._root, name)
            try:
                fd = os.open(path, file_trees.FLAGS)
            except OSError:
                continue
            try:
                if os.fstat(fd).st_mtime < oldest:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file_trees.remove(path)
            except OSError:
                pass  # a job holds it
            finally:
                os.close(fd)


def _is_as_made(home: str) -> bool:
    try:
        with open(os.path.join(home, _STAMPS), "rb") as source:
            return bool(json.loads(source.read().decode("ascii")) == _stamps(os.path.join(home, _TREE)))
    except (OSError, ValueError):
        return False


def _stamps(tree: str) -> Stamps:
    """Return what shows that nothing in a tree was changed. A folder's own time changes with its name, so it is out."""
    found: Stamps = [_stamp("", os.stat(tree))]
    for relative, _, entries in file_trees.walk(tree, file_trees.MAX_NESTING):
        found += [_stamp(relative + entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return sorted(found, key=lambda each: str(each[0]))


def _stamp(path: str, info: os.stat_result) -> List[object]:
    changed = 0 if stat.S_ISDIR(info.st_mode) else info.st_ctime_ns
    return [path, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, changed]
