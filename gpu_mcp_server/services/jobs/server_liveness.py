"""Servers that share a store: which of them still lives, so that what a dead one held can be taken over."""

import fcntl
import os
import secrets
from pathlib import Path


class ServerLiveness:
    """This server, alive for the others as long as it holds the lock on a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._fd = -1

    def register(self) -> str:
        """Return this server's name, from now on locked.

        Raises:
            OSError: If the file cannot be made.
        """
        if self._fd < 0:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._folder / self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        return self._name

    def is_alive(self, name: str) -> bool:
        """Say whether the server of a name lives; what a dead one left is removed."""
        path = self._folder / Path(name).name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    def close(self) -> None:
        """Be alive no longer."""
        if self._fd >= 0:
            (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1
