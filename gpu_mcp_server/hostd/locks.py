"""A lock per GPU, on the GPU's own host, held by the job.

The truth is an flock on one file per UUID in a local folder that every user shares. The kernel frees it when the last
descriptor closes, so the death of any process frees the GPU. The file's text says who holds it, for people only.
"""

import fcntl
import json
import os
import re
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

FOLDER = "/run/lock/gpu-mcp-server"
POLL_S = 0.01


class GpuLocks:
    """Locks of this host's GPUs."""

    def __init__(self, folder: str = FOLDER) -> None:
        self.folder = folder

    def _path(self, uuid: str) -> str:
        if not os.path.isdir(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            try:
                os.chmod(self.folder, 0o1777)
            except PermissionError:
                pass
        return os.path.join(self.folder, re.sub(r"[^A-Za-z0-9-]", "_", uuid) + ".lock")

    def try_one(self, uuid: str, mode: str, owner: Dict[str, object]) -> Optional[int]:
        """Take one lock without waiting; return the descriptor that holds it, or None."""
        fd = os.open(self._path(uuid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(dict(owner, mode=mode)).encode(), 0)
        except OSError:
            pass
        return fd

    def acquire(
        self,
        uuids: Sequence[str],
        count: int,
        mode: str,
        owner: Dict[str, object],
        wait_s: float,
        stop: Callable[[], bool],
    ) -> List[Tuple[str, int]]:
        """Take `count` of `uuids`, all or none, so that two jobs can never wait for each other.

        Returns:
            Pairs of UUID and descriptor; empty when `wait_s` passed or `stop()` said so.
        """
        deadline = time.monotonic() + wait_s
        while True:
            held = []  # type: List[Tuple[str, int]]
            for uuid in sorted(uuids):
                fd = self.try_one(uuid, mode, owner)
                if fd is not None:
                    held.append((uuid, fd))
                    if len(held) == count:
                        return held
            for _, fd in held:
                os.close(fd)
            if time.monotonic() >= deadline or stop():
                return []
            time.sleep(POLL_S)

    def holder(self, uuid: str) -> Optional[str]:
        """Say who holds a GPU, or None when it is free."""
        path = self._path(uuid)
        if not os.path.exists(path):
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
            except OSError:
                text = os.pread(fd, 4096, 0).decode("utf-8", "replace")
        finally:
            os.close(fd)
        try:
            owner = json.loads(text)
            return "%s (%s)" % (owner.get("job"), owner.get("mode"))
        except ValueError:
            return "another process"
