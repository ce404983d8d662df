"""The door of a reservation: jobs that run under it come in here and get the locks of its GPUs.

A Unix socket in the folder of the reservation's job, which only its user can enter. What a visitor gets are descriptors
of the very locks that the reservation holds: a GPU stays held until the reservation and all its visitors are gone. The
connection lasts as long as the job, so the reservation knows whether it is in use.
"""

import json
import os
import select
import socket
from typing import Any, Dict, Iterable, List, Mapping, Optional, cast

from ..gpus.gpu_locks import GpuLocks
from ..sandbox import descriptors
from .job_folder import JobFolder
from .job_store import JobStore

NAME = "door"
ANSWER_S = 2.0
LOOK_S = 0.2
MESSAGE_BYTES = 16 << 10


class ReservationClient:
    """A job's stay in a reservation.

    Attributes:
        locks: Descriptor of each GPU's lock.
        turns: Locks by which the reservation's jobs take turns among themselves.
    """

    def __init__(self, end: socket.socket, locks: Dict[str, int], turns: GpuLocks) -> None:
        self._end, self.locks, self.turns = end, locks, turns

    @classmethod
    def connect(cls, folders: JobStore, lease: str) -> "Optional[ReservationClient]":
        """Come in; None when there is no such reservation any more."""
        folder = folders.get(lease)
        end = _connected(folder, ANSWER_S) if folder is not None else None
        if folder is None or end is None:
            return None
        try:
            end.send(b"use")
            message, fds = descriptors.receive_with(end, MESSAGE_BYTES, 64)
            names: List[str] = json.loads(message.decode("ascii"))["gpus"] if message else []
        except (OSError, ValueError, KeyError):
            names, fds = [], []
        if not names or len(names) != len(fds):
            end.close()
            return None
        return cls(end, dict(zip(names, fds)), GpuLocks(folder.path_of("turns")))

    def keep(self, chosen: Iterable[str]) -> None:
        """Close the locks of all other GPUs; those of the chosen belong to the caller from now on."""
        wanted = set(chosen)
        for uuid, fd in self.locks.items():
            if uuid not in wanted:
                os.close(fd)
        self.locks.clear()

    def close(self) -> None:
        """Leave."""
        self.keep(())
        self._end.close()


def reservation_status(folder: JobFolder) -> Dict[str, Any]:
    """Return how a reservation stands; nothing when it has ended or does not answer."""
    end = _connected(folder, LOOK_S)
    if end is None:
        return {}
    try:
        end.send(b"show")
        said: Any = json.loads(end.recv(MESSAGE_BYTES).decode("ascii"))
    except (OSError, ValueError):
        return {}
    finally:
        end.close()
    return cast("Dict[str, Any]", said) if isinstance(said, dict) else {}


def _connected(folder: JobFolder, timeout_s: float) -> Optional[socket.socket]:
    """Connect by way of the folder's descriptor: the name of a socket may have 107 bytes."""
    try:
        fd = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.settimeout(timeout_s)
        end.connect("/proc/self/fd/%d/%s" % (fd, NAME))
        return end
    except OSError:
        end.close()
        return None
    finally:
        os.close(fd)


class ReservationServer:
    """The reservation's side."""

    def __init__(self, folder: JobFolder, locks: Mapping[str, int]) -> None:
        self._folder, self._locks = folder, dict(locks)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        at = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listening.bind("/proc/self/fd/%d/%s" % (at, NAME))
        finally:
            os.close(at)
        self._listening.listen(64)
        self._ends: Dict[int, socket.socket] = {}
        self._users: Dict[int, socket.socket] = {}

    def fds(self) -> List[int]:
        """Return the descriptors to wait on."""
        return [self._listening.fileno(), *self._ends, *self._users]

    def count_active_jobs(self) -> int:
        """Return how many jobs are in."""
        return len(self._users)

    def serve(self, standing: Mapping[str, Any]) -> None:
        """Answer whoever has something to say."""
        for fd in select.select(self.fds(), [], [], 0)[0]:
            if fd == self._listening.fileno():
                end, _ = self._listening.accept()
                self._ends[end.fileno()] = end
            elif fd in self._users:
                self._users.pop(fd).close()  # a visitor says nothing but its end
            else:
                self._answer(fd, standing)

    def _answer(self, fd: int, standing: Mapping[str, Any]) -> None:
        end = self._ends.pop(fd)
        try:
            said = end.recv(64, socket.MSG_DONTWAIT)
            if said == b"use":
                message = json.dumps({"gpus": list(self._locks)}).encode("ascii")
                descriptors.send_with(end, message, list(self._locks.values()))
                self._users[fd] = end
                return
            if said == b"show":
                end.send(json.dumps(standing).encode("ascii"), socket.MSG_DONTWAIT)
        except OSError:
            pass
        end.close()

    def close(self) -> None:
        """Let nobody in any more; whoever is in stays."""
        for end in (self._listening, *self._ends.values(), *self._users.values()):
            end.close()
        try:
            os.unlink(self._folder.path_of(NAME))
        except OSError:
            pass
