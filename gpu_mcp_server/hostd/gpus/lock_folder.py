"""The folder of this host's locks, which every user shares: where it is, and whose."""

import os
import stat
import threading
from typing import Sequence

PLACES = ("/run/lock", "/dev/shm", "/tmp")
"""Where the folder can be. systemd's tmpfiles.d/legacy.conf gives /run/lock to root alone, as Fedora and RHEL have it;
Debian gives it to everybody."""
NAME = "gpu-mcp-server"
MODES = 0o1777
"""Everybody makes locks, nobody removes another's."""


def find_folder(places: Sequence[str] = PLACES) -> str:
    """Return the path of the machine's folder of locks: in the first place that every user can write.

    A place where only root can write counts if root made the folder in it for everybody. The answer depends on the
    machine alone, never on the user who asks: two folders would be two locks for one GPU.
    """
    for place in places:
        folder = os.path.join(place, NAME)
        if _is_for_all(place) or _is_for_all(folder):
            return folder
    return os.path.join(places[0], NAME)


def _is_for_all(folder: str) -> bool:
    """Say whether every user can make files in a folder, and nobody can remove another's."""
    try:
        info = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) & MODES == MODES


def make_folder(folder: str) -> None:
    """Make a folder for locks where there is none; nobody sees it before it has its modes."""
    if os.path.isdir(folder):
        return
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    made = "%s.%d.%d" % (folder, os.getpid(), threading.get_ident())
    os.mkdir(made, 0o700)
    try:
        os.chmod(made, MODES)
        # rename fails on a folder that is not empty, so a folder with locks in it is never replaced.
        os.rename(made, folder)
    except OSError:
        os.rmdir(made)  # another was faster
        if not os.path.isdir(folder):
            raise


def take_folder(folder: str) -> None:
    """Make a folder of locks root's, and sticky, where an ordinary user made it or its modes were changed.

    The locks of running jobs stay what they are: their files are neither moved nor opened.

    Raises:
        OSError: If there is a link or no folder at the path.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        info = os.fstat(fd)
        if info.st_uid != 0:
            os.fchown(fd, 0, 0)
        if info.st_uid != 0 or stat.S_IMODE(info.st_mode) != MODES:
            os.fchmod(fd, MODES)
    finally:
        os.close(fd)


def fault_of_folder(folder: str) -> str:
    """Say why a path can be no folder of locks, and what mends that; nothing where there is none."""
    mend = "install -d -m 1777 -o root -g root %s" % folder
    try:
        info = os.lstat(folder)
    except FileNotFoundError:
        parent = os.path.dirname(folder)
        if not os.path.isdir(parent) or os.access(parent, os.W_OK):
            return ""
        return "this user cannot make %s, so no GPU can be locked; as root: %s" % (folder, mend)
    if stat.S_ISDIR(info.st_mode):
        return ""
    what = "a link" if stat.S_ISLNK(info.st_mode) else "no folder"
    return "%s is %s, so no GPU can be locked; as root, while no job runs: rm -f %s && %s" % (
        folder,
        what,
        folder,
        mend,
    )


def is_root() -> bool:
    """Say whether this is root of the machine; root of a user namespace sees the machine's root as nobody."""
    if os.geteuid() != 0:
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as maps:
            return maps.read().split()[:2] == ["0", "0"]
    except OSError:
        return True
