"""A lock per GPU, on the GPU's own host, held by the job.

The truth is an flock on one file per UUID in a local folder that every user shares. The kernel frees it when the last
descriptor closes, so the death of any process frees the GPU. The file's text says who holds it, and names the control
groups and process 1 of each sandbox: the next one waits until those are gone, should a job and all its keepers be
killed at once.

Plain locks starve who wants a GPU alone: sharers overlap without end. So each GPU has a second lock, the turn: nobody
takes the GPU without its turn, and who finds the GPU taken keeps the turn while waiting. Those who hold a GPU never
wait for a turn, and turns are taken all or none, so nobody can wait in a circle.

A lock is worth what its file is: who may remove the file while it is locked makes a second lock beside the first. So
root takes the folder over wherever it finds another's, makes it sticky, and owns the files that it locks; a lock
counts only while its file is the one at its path.
"""

import fcntl
import os
import re
import stat
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..sandbox.processes import Identity
from .lock_folder import fault_of_folder, is_root, make_folder, take_folder
from .lock_text import STILL_THERE, as_list, left_over, read_text, write_text

DYING_S = 10.0
"""After that, the broker grants the GPU although processes of the last job still live; the grant says so."""
PROCESSOR = "processor"
"""The lock of those who time on the processor alone: two at once would time each other."""
POLL_S = 0.004
LEAST_WAIT_S = 0.02
"""Who only asks for the holder of a GPU has its lock for a moment."""
NAMING_TRIES = 20
TRIES = 10

Held = List[Tuple[str, int]]


class GpuLocks:
    """Locks of this host's GPUs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def fault(self) -> str:
        """Say why the folder's path cannot hold locks and what mends it, or nothing."""
        return fault_of_folder(self.folder)

    def note(self) -> str:
        """Say whose folder it is, and what mends that, where it is neither root's nor the user's own; else nothing."""
        try:
            owner = os.lstat(self.folder).st_uid
        except OSError:
            return ""
        if owner in (0, os.geteuid()) or is_root():
            return ""
        return "%s belongs to uid %d, which can remove the locks in it; as root, run: %s" % (
            self.folder, owner, "chown root %s && chmod 1777 %s" % (self.folder, self.folder),
        )  # fmt: skip

    def _path(self, uuid: str, kind: str) -> str:
        return os.path.join(self.folder, re.sub(r"[^A-Za-z0-9-]", "_", uuid) + "." + kind)

    def _lock(self, uuid: str, kind: str, how: int) -> Optional[int]:
        """Lock without waiting the file that is at its path; return the descriptor, or None when it is taken.

        Raises:
            OSError: If there is no such file that can be locked.
        """
        path = self._path(uuid, kind)
        for _ in range(TRIES):
            fd = self._open(uuid, kind)
            if stat.S_ISREG(os.fstat(fd).st_mode) and not _locked(fd, how):
                return None
            if _is_at(path, fd):
                return fd
            os.close(fd)  # somebody has replaced the file between the two
        raise OSError("the lock %s is replaced again and again, or is no plain file; as root: rm %s" % (path, path))

    def is_in_place(self, uuid: str, fd: int) -> bool:
        """Say whether a lock that is held still is the GPU's: its file has not been removed or replaced."""
        return _is_at(self._path(uuid, "lock"), fd)

    def _open(self, uuid: str, kind: str) -> int:
        """Open a lock's file, made for all users when it is not there."""
        path = self._path(uuid, kind)
        fault = self.fault()
        if fault:
            raise OSError(fault)
        if is_root():
            take_folder(self.folder)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        for _ in range(3):
            # flock needs no right to write; only the text does.
            for access in (os.O_RDWR, os.O_RDONLY):
                try:
                    return _owned(os.open(path, flags | access))
                except FileNotFoundError:
                    break
                except PermissionError:
                    continue
            # O_CREAT on a file of another user is refused in a sticky folder: fs.protected_regular in proc(5).
            try:
                make_folder(self.folder)
                fd = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)
                return fd
            except FileExistsError:
                continue
        raise OSError("the lock %s cannot be opened" % path)

    def try_one(self, uuid: str, mode: str, owner: Dict[str, object]) -> Optional[int]:
        """Take one lock without waiting; return the descriptor that holds it, or None."""
        fd = self._lock(uuid, "lock", fcntl.LOCK_EX)
        alone = fd is not None
        if fd is None and mode != "exclusive":
            fd = self._lock(uuid, "lock", fcntl.LOCK_SH)
        if fd is None:
            return None
        if not alone:
            self._lock_text(fd)
        before = read_text(fd)
        if not (alone or _allows(before, mode)):
            os.close(fd)
            return None
        left = {name: still_there(before) for name, still_there in STILL_THERE.items()}
        text = dict(owner, mode=mode, jobs=[*([] if alone else as_list(before.get("jobs"))), owner.get("job")])
        if alone:
            # Found free: the holders that the text names came before us. Their processes that still live are left over.
            text["left"] = {name: [*left[name], *STILL_THERE[name](left_over(before))] for name in left}
            if mode != "exclusive" and not _is_locked(fd, fcntl.LOCK_SH):  # under the turn nobody comes in between
                os.close(fd)
                return None
        else:
            # Shared: the present holders wrote the text. They stay in it, and we are added.
            text["left"] = left_over(before)
            text.update({name: [*left[name], *as_list(owner.get(name))] for name in left})
        write_text(fd, text)
        _unlock_text(fd)
        return fd

    def _lock_text(self, fd: int) -> None:
        """Lock the text of a shared lock for a moment at most: each sharer rewrites it."""
        for _ in range(NAMING_TRIES):
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(POLL_S / NAMING_TRIES)

    def name(self, fd: int, sandboxes: Sequence[Identity]) -> None:
        """Write process 1 of each sandbox of ours into the text of a lock that we hold."""
        self._lock_text(fd)
        text = read_text(fd)
        known = as_list(text.get("sandboxes"))
        write_text(fd, dict(text, sandboxes=[*known, *(list(each) for each in sandboxes if list(each) not in known)]))
        _unlock_text(fd)

    def is_beside(self, fd: int, job: str) -> bool:
        """Say whether other jobs have been on a GPU, of those since it was last found free."""
        self._lock_text(fd)
        jobs = as_list(read_text(fd).get("jobs"))
        _unlock_text(fd)
        return not jobs or any(each != job for each in jobs)  # who they were may be lost

    def is_free(self, uuid: str, mode: str) -> bool:
        """Say whether a lock could be taken, and nobody without a broker waits for its turn."""
        turn = self._turn(uuid)
        if turn is None:
            return False
        os.close(turn)
        fd = self._lock(uuid, "lock", fcntl.LOCK_EX)
        if fd is None and mode != "exclusive":
            fd = self._lock(uuid, "lock", fcntl.LOCK_SH)
            if fd is not None and not _allows(read_text(fd), mode):
                os.close(fd)
                fd = None
        if fd is None:
            return False
        os.close(fd)
        return True

    def living(self, uuid: str) -> bool:
        """Say whether anything is still there of those who had a GPU last: of their groups or of their sandboxes."""
        return self._is_named_alive(uuid, lambda text: [text, left_over(text)])

    def left_living(self, uuid: str) -> bool:
        """Say the same of those who had it before it was last taken by somebody who found it free."""
        return self._is_named_alive(uuid, lambda text: [left_over(text)])

    def _is_named_alive(self, uuid: str, parts: Callable[[Dict[str, Any]], List[Dict[str, Any]]]) -> bool:
        fd = self._open(uuid, "lock")
        try:
            named = parts(read_text(fd))
        finally:
            os.close(fd)
        return any(still_there(part) for part in named for still_there in STILL_THERE.values())

    def try_lock(self, name: str, *, shared: bool = False) -> Optional[int]:
        """Try to be the only one with a lock that is no GPU's, or one of several; return what holds it."""
        return self._lock(name, "lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def is_taken(self, name: str) -> bool:
        """Say whether somebody has such a lock."""
        try:
            fd = os.open(os.path.join(self.folder, name + ".lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        if not _locked(fd, fcntl.LOCK_SH):
            return True
        os.close(fd)
        return False

    def acquire(
        self,
        uuids: Sequence[str],
        count: int,
        mode: str,
        owner: Dict[str, object],
        wait_s: float,
        stop: Callable[[], bool],
    ) -> Held:
        """Take `count` of `uuids`, all or none.

        Returns:
            Pairs of UUID and descriptor; empty when `wait_s` passed or `stop()` said so.
        """
        deadline = time.monotonic() + max(wait_s, LEAST_WAIT_S)
        turns: Held = []
        try:
            while True:
                held = self._try_all(uuids, count, mode, owner, turns)
                if held:
                    return held
                if time.monotonic() >= deadline or stop():
                    return []
                # Looked at again and again: flock can wait for one file alone, and not until a deadline.
                if not turns:
                    turns = self._take_turns(uuids, count)
                time.sleep(POLL_S)
        finally:
            _close(turns)

    def _try_all(self, uuids: Sequence[str], count: int, mode: str, owner: Dict[str, object], turns: Held) -> Held:
        ours = {uuid for uuid, _ in turns}
        held: Held = []
        for uuid in sorted(uuids, key=lambda u: (u not in ours, u)):
            turn = -1 if uuid in ours else self._turn(uuid)
            if turn is None:
                continue
            try:
                fd = self.try_one(uuid, mode, owner)
            except OSError:
                _close(held)
                raise
            finally:
                if turn >= 0:
                    os.close(turn)
            if fd is not None:
                held.append((uuid, fd))
                if len(held) == count:
                    return held
        _close(held)
        return []

    def _turn(self, uuid: str) -> Optional[int]:
        return self._lock(uuid, "turn", fcntl.LOCK_EX)

    def _take_turns(self, uuids: Sequence[str], count: int) -> Held:
        turns: Held = []
        for uuid in sorted(uuids):
            fd = self._turn(uuid)
            if fd is not None:
                turns.append((uuid, fd))
                if len(turns) == count:
                    return turns
        _close(turns)
        return []

    def holder(self, uuid: str) -> Optional[str]:
        """Say who holds a GPU, or None when it is free."""
        try:
            fd = self._open(uuid, "lock")
        except OSError:
            return None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
            except OSError:
                text = read_text(fd)
        finally:
            os.close(fd)
        if "job" not in text:
            return "another process"
        words = "%s (%s)" % (text["job"], text.get("mode"))
        return "".join(c if c.isprintable() else "?" for c in words)[:120]


def _unlock_text(fd: int) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_UN)
    except OSError:
        pass


def _allows(text: Dict[str, Any], mode: str) -> bool:
    """Say whether a job may come beside those that a lock's text is of: windows keep out only who has them too."""
    return (text.get("mode") or "shared") == mode


def _owned(fd: int) -> int:
    """Make a lock's file root's where root opens it, so that whoever made it cannot remove it any more."""
    if is_root():
        info = os.fstat(fd)
        if info.st_uid != 0 and stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
            os.fchown(fd, 0, 0)
    return fd


def _is_at(path: str, fd: int) -> bool:
    """Say whether a descriptor is of the file at a path, which has no other name."""
    held = os.fstat(fd)
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    same = (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)
    return same and stat.S_ISREG(held.st_mode) and held.st_nlink == 1


def _is_locked(fd: int, how: int) -> bool:
    """Lock a descriptor without waiting, and say whether that was possible."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _locked(fd: int, how: int) -> bool:
    """Do the same; when it fails the descriptor is closed."""
    if _is_locked(fd, how):
        return True
    os.close(fd)
    return False


def _close(held: Held) -> None:
    for _, fd in held:
        os.close(fd)
    held.clear()
