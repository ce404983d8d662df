"""Follows a job's client, and decides on the end of the job once the client is gone.

The caller is heard over a socket to the hostd that took the job. When that ends, a detached job goes on to its
deadline; an attached one ends, but not before its grace has passed without a request for it over another channel.
"""

import os
import socket
import time
from typing import Optional

from .job_folder import JobFolder

LEAVING = b"bye"
ASKED = "asked"


class ClientLiveness:
    """The caller as the job's supervisor hears it.

    Attributes:
        orphaned: Whether the channel has ended and the job goes on for a while.
    """

    def __init__(self, channel: Optional[socket.socket], folder: JobFolder, detached: bool, grace_s: float) -> None:
        self._channel, self._folder = channel, folder
        self._detached, self._grace_s = detached, grace_s
        self._since = 0.0
        self.orphaned = False

    def fileno(self) -> int:
        """Return the socket, -1 when it has ended."""
        return self._channel.fileno() if self._channel is not None else -1

    def notify(self, what: bytes) -> None:
        """Tell what happens; a caller that does not listen is not waited for."""
        if self._channel is not None:
            try:
                self._channel.send(what, socket.MSG_DONTWAIT)
            except OSError:
                pass

    def reason_to_end(self) -> str:
        """Say why the job must end now, or nothing."""
        if self.orphaned:
            return self._forsaken()
        if self._channel is None:
            return ""
        try:
            said = self._channel.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ""
        except OSError:
            said = b""
        if said and said != LEAVING:
            return ""
        if not said:
            self._channel.close()
            self._channel = None
        if self._detached:
            return ""
        if said == LEAVING or self._grace_s <= 0:
            return "the caller's channel ended and the job was not detached"
        self.orphaned, self._since = True, time.time()
        return ""

    def _forsaken(self) -> str:
        try:
            asked = os.stat(self._folder.path_of(ASKED)).st_mtime
        except OSError:
            asked = 0.0
        now = time.time()
        self._since = min(self._since, now)  # the clock may have been set back
        if now - max(self._since, min(asked, now)) < self._grace_s:
            return ""
        return "the caller's channel was lost and no request came for the job within %g s" % self._grace_s


def touch_client(folder: JobFolder) -> None:
    """Note that somebody asked for a job over another channel than that of its caller."""
    try:
        fd = os.open(folder.path_of(ASKED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.utime(fd)
        os.close(fd)
    except OSError:
        pass
