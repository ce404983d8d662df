"""Properties of the filesystem under the store."""

import errno
import os
import re
from pathlib import Path

NO_ROOM = "Free some space, or set data_dir to a folder on a larger disk, then repeat the call."

NETWORK_FILESYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
    }
)


def is_network_filesystem(path: Path) -> bool:
    """Tell whether processes that use `path` may not share memory and locks; FUSE counts as such."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    kind = filesystem_type(path.resolve(), mounts)
    return kind in NETWORK_FILESYSTEMS or kind.startswith("fuse")


def filesystem_type(path: Path, mountinfo: str) -> str:
    """Return the type of the filesystem that holds an absolute path, or "" if no mount does.

    Source: proc_pid_mountinfo(5): the mount point is field 5, with octal escapes; the type follows ` - `.
    """
    found, depth = "", -1
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
        if len(point.parts) >= depth and path.is_relative_to(point):
            found, depth = after.split(" ")[0], len(point.parts)
    return found


def is_disk_full(error: OSError) -> bool:
    """Tell whether a call failed for want of room or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def free_bytes(folder: Path) -> int | None:
    """Return the room that is left on a folder's disk; None where that cannot be told."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def is_nearly_full(path: Path) -> bool:
    """Tell whether less than 256 KiB are free, where SQLite reports an input/output error."""
    free = free_bytes(path.parent)
    return free is not None and free < 256 << 10
