"""hostd inside an allocation of a batch system: it lets callers in, and ends when nothing has run for a while.

The batch script becomes the gate. What comes over a step of the scheduler is only a relay to the gate's socket, so
jobs belong to the batch script and live as long as the allocation, whatever becomes of the steps. The end of the gate
releases the allocation, also when the server that asked for it is no more.
"""

import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from typing import List, Set

from ..files import file_trees
from ..jobs.host_resources import Host
from .channel_server import ChannelServer

SOCKET = "gate"
LOOK_S = 1.0
ARRIVAL_S = 20.0
"""How long a relay waits for a gate that is being started."""
ENDING_S = 1.5
"""Shorter than the two seconds that some schedulers leave between SIGTERM and SIGKILL."""
CHUNK = 1 << 18


def folder_of_allocation() -> str:
    """Return the state folder of an allocation on its node: of our own, and gone with it."""
    number = os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") or "none"
    return "/tmp/gpu-mcp-%d-%s" % (os.getuid(), number)


def ensure_own_folder(path: str) -> str:
    """Make a folder below /tmp, or see that it is ours.

    Raises:
        OSError: If somebody else has made it.
    """
    try:
        os.mkdir(path, 0o711)
    except FileExistsError:
        # /tmp is everybody's: lstat, so that a link planted under this name is not followed.
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise OSError("%s belongs to another user" % path) from None
    return path


class AllocationServer:
    """Listens for callers of our own uid and forks a channel for each."""

    def __init__(self, host: Host, idle_s: float) -> None:
        self._host, self._idle_s = host, idle_s
        self._children: Set[int] = set()
        self._path = os.path.join(host.state, SOCKET)
        self._used_at = time.time()
        self._listener = socket.socket(socket.AF_UNIX)
        if os.path.exists(self._path):
            os.unlink(self._path)
        # Closed to others from its first moment: a chmod after the bind would come too late.
        before = os.umask(0o177)
        self._listener.bind(self._path)
        os.umask(before)
        self._listener.listen(16)
        self._told_to_end = False
        signal.signal(signal.SIGTERM, self._told)

    def _told(self, number: int, frame: object) -> None:
        """Note that the scheduler takes the allocation away; jobs are told by the scheduler itself, and write why."""
        del number, frame
        self._told_to_end = True

    def run(self) -> int:
        """Serve until idle; returns the exit status."""
        while not self._told_to_end and not self._idle():
            if select.select([self._listener], [], [], LOOK_S)[0]:
                end, _ = self._listener.accept()
                if _uid_of(end) == os.getuid():
                    self._let_in(end)
                end.close()
            self._reap()
        os.unlink(self._path)
        self._wait_for_records()
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)
        return 0

    def _wait_for_records(self) -> None:
        """Tell the jobs that are left, and wait for their records."""
        limit = time.monotonic() + ENDING_S
        for folder in self._host.folders.unfinished_jobs():
            folder.signal(signal.SIGTERM)
        while self._host.folders.unfinished_jobs() and time.monotonic() < limit:
            time.sleep(0.02)

    def _let_in(self, end: socket.socket) -> None:
        pid = os.fork()
        if pid:
            self._children.add(pid)
            return
        try:
            # The gate's handler would only set a flag here, and the channel would not end.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listener.close()
            log = os.open(os.path.join(self._host.state, "gate.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(end.fileno(), 0)
            os.dup2(end.fileno(), 1)
            os.dup2(log, 2)
            end.close()
            ChannelServer(self._host).run()
        finally:
            os._exit(0)

    def _reap(self) -> None:
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)

    def _idle(self) -> bool:
        """Say whether no job has run for long enough; a claim shows in the folder's time."""
        now = time.time()
        if self._host.folders.unfinished_jobs():
            self._used_at = now
        # Capped at now: a clock that was set back must not keep the allocation for long.
        self._used_at = min(now, max(self._used_at, os.stat(self._host.folders.root).st_mtime))
        return now - self._used_at >= self._idle_s


def _uid_of(end: socket.socket) -> int:
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def serve_allocation(state: str, idle_s: float) -> int:
    """Be the gate of an allocation until it is idle."""
    own = not state
    path = ensure_own_folder(folder_of_allocation()) if own else state
    status = AllocationServer(Host(path), idle_s).run()
    if own:
        file_trees.remove(path)
    return status


def relay_stdio(state: str) -> int:
    """Carry bytes between stdio and the gate of this allocation until either ends."""
    path = os.path.join(state or ensure_own_folder(folder_of_allocation()), SOCKET)
    end = socket.socket(socket.AF_UNIX)
    limit = time.monotonic() + ARRIVAL_S
    while True:
        try:
            end.connect(path)
            break
        except OSError as error:
            if time.monotonic() > limit:
                sys.stderr.write("the gate of this allocation does not answer: %s\n" % error)
                return 5
            time.sleep(0.05)
    sources: List[int] = [0, end.fileno()]
    while True:
        for fd in select.select(sources, [], [])[0]:
            data = os.read(fd, CHUNK)
            if not data:
                return 0
            view = memoryview(data)
            while view:
                view = view[os.write(1 if fd else end.fileno(), view) :]
