"""Locks of the data folder against simultaneous use: locks on files in it, freed with the process."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.store.database import translate_errors

USE = "use.lock"
"""Held together by all who have the store open; alone by whoever replaces it."""
TEAM = "team.lock"
"""Held alone by the server that users reach over HTTP with their tokens."""
SHARED_WORK = "upkeep.lock"
"""Held together by backups; alone by whoever deletes contents."""

_BUSY = {
    (USE, True): ("A server or a command uses the store in {folder}.", "Stop them, then repeat the command."),
    (TEAM, True): (
        "Another server already gives the store in {folder} to a team; a store has one such server.",
        "Stop that one, or set GPU_MCP_DATA_DIR to a folder of this server's own.",
    ),
    (USE, False): ("The store in {folder} is being restored.", "Start again when that has ended."),
    (SHARED_WORK, True): ("A backup of {folder} is being written.", "Repeat the command when it has ended."),
    (SHARED_WORK, False): ("{folder} is being pruned.", "Repeat the command when that has ended."),
}


@contextmanager
def hold_lock(folder: Path, name: str, *, alone: bool = False) -> Generator[None]:
    """Hold one of the locks of a data folder, together with others or alone.

    A filesystem without locks lets several in together; alone nobody gets in there.

    Raises:
        BadRequest: If others hold it so that this is not possible now.
        ConfigError, DiskFull: If the folder cannot be written.
    """
    with translate_errors(folder / name):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message, hint = _BUSY[name, alone]
            raise BadRequest(message.format(folder=folder), hint=hint) from error
        except OSError as error:
            if alone:
                raise BadRequest(f"{folder} cannot be locked: {error.strerror}.", hint="Use a local disk.") from error
        yield
    finally:
        os.close(descriptor)
