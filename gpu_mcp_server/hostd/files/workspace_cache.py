"""Files of finished jobs that are as they were laid, set aside for the next job that wants the same ones.

A file system may take longer to make and to delete a thousand small files than a job takes (ext4 without a journal: up
to a second), so a job that comes again with its files takes over those of the last one. Nothing of a job may survive
it: only files move on whose inode, time of change, mode, content and attributes are those of the laying, into folders
made here, and only after the last process of the job has ended and where jobs had namespaces of their own.
"""

import json
import os
import stat
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..protocol import FileRef
from . import file_trees
from .job_files import Stamps, hash_of, make_parents, mode_of, open_beneath, write_whole

LEAST_FILES = 32
"""Fewer are laid faster than they are looked for."""
MOST_BYTES = 64 << 20
"""Of one copy; its content is read again to be sure of it."""
MOST_COPIES = 4
ROOM_BYTES = 2 << 30
"""With less left on the disk nothing is set aside."""
KEEP_S = 3600.0
STALE_S = 60.0
"""A copy that is being made or taken is done with long before."""

_TREE, _LIST = "tree", "list.json"


class CachedFiles(NamedTuple):
    """Files and folders that a job got from a cached copy."""

    stamps: Stamps
    folders: Set[str]
    """Absolute paths of the folders that are there now."""


class WorkspaceCache:
    """Copies below a folder that no job can enter."""

    def __init__(self, root: str) -> None:
        self.root = root
        os.makedirs(root, mode=0o700, exist_ok=True)

    def keep(self, workdir: str, refs: Sequence[FileRef], stamps: Stamps) -> None:
        """Set aside the files of a workspace that are as they were laid, if they are worth it.

        Args:
            workdir: The workspace. No process of its job lives any more.
            refs: What was laid there.
            stamps: How it looked then.
        """
        aside = os.path.join(self.root, "." + os.urandom(8).hex())
        try:
            if len(refs) < LEAST_FILES or sum(ref.size for ref in refs) > MOST_BYTES or self._scarce():
                return
            os.makedirs(os.path.join(aside, _TREE), mode=0o700)
            kept = self._move(workdir, refs, stamps, os.path.join(aside, _TREE))
            if len(kept) >= LEAST_FILES:
                listed = [[ref.path, ref.sha256, ref.size, ref.mode] for ref in kept]
                write_whole(os.path.join(aside, _LIST), json.dumps(listed).encode("ascii"))
                os.rename(aside, os.path.join(self.root, os.urandom(8).hex()))
                self._drop_beyond(MOST_COPIES)
        except OSError:
            pass  # a full disk, say: the next job lays its files
        file_trees.remove(aside)

    def _scarce(self) -> bool:
        """Say whether the disk has better uses for its room."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize < ROOM_BYTES

    def _move(self, workdir: str, refs: Iterable[FileRef], stamps: Stamps, tree: str) -> List[FileRef]:
        """Move what is untouched into another folder; return what that was."""
        kept: List[FileRef] = []
        made = {tree}
        top = os.open(workdir, file_trees.FLAGS)
        try:
            for ref in refs:
                if _untouched(top, ref, stamps.get(ref.path)):
                    target = make_parents(tree, ref.path, made, None)
                    os.rename(ref.path, target, src_dir_fd=top)
                    kept.append(ref)
        finally:
            os.close(top)
        return kept

    def take(self, workdir: str, refs: Sequence[FileRef], uid: Optional[int]) -> CachedFiles:
        """Move the copy that has most of the files wanted into an empty workspace, and out of it what is not wanted.

        Args:
            workdir: The workspace, which only the trusted part of a job can reach yet.
            refs: What the job wants.
            uid: Whose it becomes; None leaves it ours.

        Returns:
            What is there now; all else must be laid.
        """
        nothing = CachedFiles({}, set())
        if len(refs) < LEAST_FILES:
            return nothing
        wanted = {ref.path: _key(ref) for ref in refs}
        found = [(self._fit(name, wanted), name) for name in os.listdir(self.root) if not name.startswith(".")]
        for fit, name in sorted(found, reverse=True):
            ours = os.path.join(self.root, "." + name)
            if fit * 3 < len(refs):
                break  # laying is not much slower then
            try:
                os.rename(os.path.join(self.root, name), ours)  # of two who want it one has it
            except OSError:
                continue
            try:
                return _move_in(ours, workdir, wanted, uid)
            except FileNotFoundError:  # somebody cleaned up here: what came along goes as well, and all is laid
                for name in os.listdir(workdir):
                    file_trees.remove(os.path.join(workdir, name))
            finally:
                file_trees.remove(ours)
        return nothing

    def _fit(self, name: str, wanted: Dict[str, Tuple[str, int]]) -> int:
        """Return how many files a copy has that are wanted, less those that are not."""
        listed = _listed(os.path.join(self.root, name))
        same = sum(1 for path, key in listed.items() if wanted.get(path) == key)
        return same - (len(listed) - same)

    def sweep(self, later_s: float = 0.0) -> None:
        """Drop what nobody has wanted for long, and what a killed process left half done; as if it were later, too."""
        now = time.time() + later_s
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            try:
                age = now - os.stat(path).st_ctime
            except OSError:
                continue
            if age > (STALE_S if name.startswith(".") else KEEP_S):
                file_trees.remove(path)

    def _drop_beyond(self, most: int) -> None:
        whole: List[Tuple[float, str]] = []
        for name in os.listdir(self.root):
            if not name.startswith("."):
                try:
                    whole.append((os.stat(os.path.join(self.root, name)).st_ctime, name))
                except OSError:
                    continue  # somebody took it
        for _, name in sorted(whole)[: max(0, len(whole) - most)]:
            ours = os.path.join(self.root, "." + name)
            try:
                os.rename(os.path.join(self.root, name), ours)
            except OSError:
                continue
            file_trees.remove(ours)


def _key(ref: FileRef) -> Tuple[str, int]:
    return ref.sha256, mode_of(ref)


def _listed(copy: str) -> Dict[str, Tuple[str, int]]:
    """Return content and mode by path of what lies in a copy; nothing when it cannot be read."""
    try:
        with open(os.path.join(copy, _LIST), "rb") as source:
            refs = [FileRef(*each) for each in json.loads(source.read().decode("ascii"))]
        return {ref.path: _key(ref) for ref in refs}
    except (OSError, ValueError, TypeError):
        return {}


def _untouched(top: int, ref: FileRef, stamp: Optional[Tuple[int, int]]) -> bool:
    """Say whether a file is as it was laid. Times alone would not do: a file system may not note each change."""
    try:
        fd = open_beneath(top, ref.path)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if (info.st_ino, info.st_ctime_ns) != stamp or info.st_nlink != 1 or info.st_size != ref.size:
            return False
        if stat.S_IMODE(info.st_mode) != mode_of(ref) or os.listxattr(fd):
            return False
        os.utime(fd)
        return hash_of(fd) == ref.sha256
    except OSError:
        return False
    finally:
        os.close(fd)


def _move_in(copy: str, workdir: str, wanted: Dict[str, Tuple[str, int]], uid: Optional[int]) -> CachedFiles:
    """Move the wanted files of a copy, with their folders, into a workspace."""
    tree = os.path.join(copy, _TREE)
    listed = _listed(copy)
    same = [path for path, key in listed.items() if wanted.get(path) == key]
    folders, others = _folders_of(same), set(listed) - set(same)
    for path in others:
        os.unlink(os.path.join(tree, path))
    for path in sorted(_folders_of(others) - folders, reverse=True):
        os.rmdir(os.path.join(tree, path))
    for top in sorted({path.partition("/")[0] for path in same}):
        os.rename(os.path.join(tree, top), os.path.join(workdir, top))
    taken = CachedFiles({}, {os.path.join(workdir, path) for path in folders})
    for path in taken.folders if uid is not None else ():
        os.chown(path, uid, uid)  # type: ignore[arg-type]  # it is not None here
    for path in same:
        target = os.path.join(workdir, path)
        try:
            if uid is not None:
                os.chown(target, uid, uid)
            info = os.stat(target)
        except FileNotFoundError:
            continue  # somebody cleaned up here; it is laid
        taken.stamps[path] = (info.st_ino, info.st_ctime_ns)
    return taken


def _folders_of(paths: Iterable[str]) -> Set[str]:
    """Return all folders on the way to files."""
    found: Set[str] = set()
    for path in paths:
        parts = path.split("/")
        found.update("/".join(parts[:number]) for number in range(1, len(parts)))
    return found
