"""Folders of the host as a job's uid can reach them: a closed folder on the way is got around with a bind mount.

Only a hostd that is root needs that, and only it can. The mounts are in the supervisor's own mount namespace.
"""

import contextlib
import ctypes
import os
import stat
import tempfile
from typing import List, Optional, Sequence, Tuple

_MS_BIND, _MS_REC, _MS_PRIVATE, _CLONE_NEWNS = 4096, 16384, 1 << 18, 0x00020000
RUN = "/run/gpu-mcp-server"
LAST = "/tmp/gpu-mcp-server-mounts"
"""Where neither hostd's state nor /run will do: both closed to jobs, or read-only."""
_libc = ctypes.CDLL(None, use_errno=True)


def can_access(path: str, uid: int, need: int) -> bool:
    """Say whether a uid without groups has the rights `need` (5: list and enter) on a folder and can get there."""
    at: str = os.path.realpath(path)
    while True:
        info = os.stat(at)
        mode = info.st_mode >> (6 if info.st_uid == uid else 0)
        if mode & need != need:
            return False
        if at == "/":
            return True
        at, need = os.path.dirname(at), 0o1


class Mounts:
    """Mounts of one supervisor.

    Args:
        state: hostd's state folder.

    Attributes:
        namespace: Descriptor of the mount namespace in which the paths are, None as long as it is hostd's.
    """

    def __init__(self, state: str) -> None:
        self.namespace: Optional[int] = None
        self._state = state
        self._base = ""
        self._count = 0

    def make_reachable(self, path: str, uid: Optional[int], need: int = 0o5) -> str:
        """Return a path under which a job's uid, None when hostd is no root, reaches a folder.

        Raises:
            OSError: If it would have to be mounted and the kernel refuses.
        """
        if uid is None or can_access(path, uid, need):
            return path
        place = os.path.join(self._private_base(uid), "%d" % self._count)
        self._count += 1
        os.makedirs(place, exist_ok=True)
        _mount(os.path.realpath(path), place)
        return place

    def visible_paths(self, roots: Sequence[str], uid: Optional[int]) -> List[Tuple[str, str]]:
        """Pair each root with a path that a job's uid can reach."""
        return [(self.make_reachable(root, uid), root) for root in roots]

    def _private_base(self, uid: int) -> str:
        if not self._base:
            base = self._find_base(uid)
            _check(_libc.unshare(_CLONE_NEWNS), "unshare")
            # A new namespace still shares mount events with hostd's: unless made private, our mounts would show on the
            # host.
            _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
            self.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            self._base = base
        return self._base

    def _find_base(self, uid: int) -> str:
        for base in (os.path.join(self._state, "mounts"), os.path.join(RUN, "mounts")):
            try:
                os.makedirs(base, mode=0o711, exist_ok=True)
                if can_access(base, uid, 0o1):
                    return base
            except OSError:
                continue
        return _shared(LAST)


def _shared(base: str) -> str:
    """Return a folder below one where everybody may write: the same for all supervisors, so that they do not pile up.

    A name that somebody else took there is left alone.
    """
    with contextlib.suppress(OSError):
        os.mkdir(base, 0o711)
    info = os.lstat(base)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        base = tempfile.mkdtemp(prefix=os.path.basename(base) + "-", dir=os.path.dirname(base))
    os.chmod(base, 0o711)
    return base


def enter(namespace: int) -> None:
    """Move this process, which has one thread, into a mount namespace.

    Raises:
        OSError: If the kernel refuses.
    """
    _check(_libc.setns(namespace, _CLONE_NEWNS), "setns")


def _mount(source: str, place: str) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(place), None, _MS_BIND | _MS_REC, None), source)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, "%s: %s" % (what, os.strerror(code)))
