"""Descriptors of this process: closing what a child must not have, and keeping others open beyond one's own life."""

import array
import os
import socket
from typing import Iterable, Sequence

FALLBACK_LIMIT = 4096
MOST = 253
"""A message carries no more. Source: unix(7), SCM_MAX_FD."""


def close_except(keep: Iterable[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`."""
    wanted = set(keep)
    try:
        # The list of open ones is short; the limit on descriptors may be a million, each a system call.
        found = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        found = list(range(FALLBACK_LIMIT))
    for fd in found:
        if fd > 2 and fd not in wanted:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own


class DescriptorHolder:
    """One socket that holds several descriptors open: they are on their way through it and never arrive.

    So a job's keepers hold locks that are taken after they were forked. No process of a sandbox may have it: who can
    receive from it has what it holds.
    """

    def __init__(self) -> None:
        self._way_in, self._held = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def add(self, fds: Sequence[int]) -> None:
        """Have it hold descriptors; ours may be closed then."""
        if fds:
            send_with(self._way_in, b"x", fds)

    def fileno(self) -> int:
        """Return the descriptor that holds the others."""
        return self._held.fileno()

    def close(self) -> None:
        """Leave the holding to the processes that have it."""
        self._way_in.close()
        self._held.close()


def memory_file(name: str, content: bytes) -> int:
    """Return a descriptor from which bytes can be read; it is closed on exec."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
    # A child shares the file offset, so it would read from the end of what was written.
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def send_with(end: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send a message and descriptors."""
    end.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def receive_with(end: socket.socket, size: int, most: int) -> "tuple[bytes, list[int]]":
    """Receive a message and up to `most` descriptors, closed on exec."""
    room = socket.CMSG_SPACE(most * array.array("i").itemsize)
    message, ancillary, _, _ = end.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # Truncated ancillary data may end within a number; only whole ones are descriptors.
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def drain(fd: int) -> None:
    """Read all that a non-blocking descriptor has to give."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
