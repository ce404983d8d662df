"""Sandboxes made ahead of their jobs, so that a job does not wait for them.

Each is a supervisor with a place, and groups and sandboxes whose insides only wait, a program's with what it has
prepared. It takes one job and dies with it. What differs from job to job (files, limits, arguments, links) is given at
adoption; what cannot be given then is its shape. They end with the hostd that made them.
"""

import json
import os
import socket
import time
from typing import Any, Dict, List, Mapping, Optional

from . import descriptors
from .host import Host
from .jobs import JobFolder
from .locks import PROCESSOR
from .nest import Nest, handed
from .protocol import JobSpec
from .shape import Shape, shape_of

SIZES: Mapping[str, int] = {"plain": 2, "program": 1, "several": 1}
"""How many wait, by the kind of their shape. What a program prepares takes memory: NVRTC about 80 MB."""
SHAPES: Mapping[str, int] = {"plain": 1, "program": 1, "several": 2}
"""Of how many shapes of a kind some wait: those that were asked for last."""
QUIET_S = 0.01
"""How long no job must have begun or ended before one is made: making it must not be in a job's way."""
QUIET_WHILE_RUNNING_S = 0.2
"""The same while a job runs, which may be over in a moment; and for several programs, which import for a while: who
calls again at once, or leaves, has nothing of it."""
IDLE_S = 600.0
"""After that long without a job they are given up."""
SPARE_CORES = 8
"""With so many one is made while something is timed on a GPU; while the processor is timed none ever is."""


class Waiting:
    """One that waits for a job, as hostd sees it.

    Attributes:
        end: Our end of its socket.
        about: What must be cleared away should it be killed; it says so when it is ready.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.about: Dict[str, Any] = {}


class Shelf:
    """Those of one shape.

    Attributes:
        gpus: The host's GPUs when it was made, if jobs of this shape want any.
        waiting: Those that there are, by the descriptor over which they speak.
        useless: Whether one died while it was prepared, so that no other is made.
        proven: Whether one was ever ready.
    """

    def __init__(self, shape: Shape, gpus: List[Dict[str, Any]]) -> None:
        self.shape, self.gpus = shape, gpus
        self.size = SIZES[shape.kind]
        self.waiting: Dict[int, Waiting] = {}
        self.useless = self.proven = False


class Pool:
    """The few that wait, of the shapes that were asked for last."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._shelves: List[Shelf] = []
        """The one that was asked for last comes last."""
        self._used_at = time.monotonic()
        self._able = host.level in ("full", "namespaces") and os.path.realpath(host.python).startswith("/usr/")

    def adopt(self, folder: JobFolder, spec: JobSpec, gpus: List[Dict[str, Any]]) -> Optional[socket.socket]:
        """Hand a claimed job to one that waits; return our end of its socket, or None when there is none that fits.

        One that still prepares a program is further than one that would be begun now, so it does as well.

        Args:
            folder: The job's, claimed.
            spec: The job.
            gpus: All that the host has, if the job wants any.
        """
        shape = shape_of(spec, gpus) if self._able else None
        if shape is None:
            return None
        shelf = self._shelf(shape, gpus)
        may_wait = shelf.proven and shape.kind != "plain"
        usable = [fd for fd, waiting in shelf.waiting.items() if waiting.about or may_wait]
        for fd in sorted(usable, key=lambda each: not shelf.waiting[each].about):
            waiting = shelf.waiting.pop(fd)
            if waiting.about:
                folder.note(dict(waiting.about, leader=spec.processes[0].role))
            try:
                descriptors.send_with(waiting.end, handed(spec.id, gpus), [folder.life])
            except OSError:
                waiting.end.close()
                continue
            folder.leave_life()
            return waiting.end
        return None

    def _shelf(self, shape: Shape, gpus: List[Dict[str, Any]]) -> Shelf:
        """Return the shelf of a shape; a new one displaces the one of its kind that was not asked for longest."""
        found = next((s for s in self._shelves if s.shape == shape), None)
        if found is not None:
            self._shelves.remove(found)
        else:
            found = Shelf(shape, gpus)
            alike = [s for s in self._shelves if s.shape.kind == shape.kind]
            for old in alike[: len(alike) + 1 - SHAPES[shape.kind]]:
                self._end(old)
        self._shelves.append(found)
        return found

    def ends(self) -> List[int]:
        """Return the descriptors over which those that wait speak."""
        return [fd for shelf in self._shelves for fd in shelf.waiting]

    def ready(self) -> int:
        """Return how many a job could take now."""
        return sum(1 for shelf in self._shelves for waiting in shelf.waiting.values() if waiting.about)

    def hear(self, fd: int) -> bool:
        """Note that one is ready, or is gone; False when it is gone."""
        shelf = next(s for s in self._shelves if fd in s.waiting)
        waiting = shelf.waiting[fd]
        try:
            said = waiting.end.recv(16384, socket.MSG_DONTWAIT)
        except OSError:
            said = b""
        if said:
            waiting.about, shelf.proven = json.loads(said.decode("ascii")), True
        else:
            shelf.useless = shelf.useless or (shelf.shape.kind != "plain" and not waiting.about)
            waiting.end.close()
            del shelf.waiting[fd]
        return bool(said)

    def give_up(self) -> None:
        """Let all that wait end."""
        for shelf in list(self._shelves):
            self._end(shelf)

    def _end(self, shelf: Shelf) -> None:
        for waiting in shelf.waiting.values():
            waiting.end.close()
        self._shelves.remove(shelf)

    def busy(self) -> None:
        """Note that a job has just begun or ended."""
        self._used_at = time.monotonic()

    def _wanted(self) -> Optional[Shelf]:
        """Return what lacks one: cheap ones first, and of those what was asked for last."""
        lacking = [s for s in reversed(self._shelves) if len(s.waiting) < s.size and not s.useless]
        return min(lacking, key=lambda shelf: shelf.shape.kind == "several", default=None)

    def due_in(self, running: bool, timed: bool) -> Optional[float]:
        """Return in how many seconds one should be made, None when there are enough, or it must not be.

        Args:
            running: Whether a job runs.
            timed: Whether something is timed that would be disturbed.
        """
        if self._shelves and time.monotonic() - self._used_at > IDLE_S:
            self.give_up()
        wanted = self._wanted()
        if timed or wanted is None:
            return None
        quiet_s = QUIET_WHILE_RUNNING_S if running or wanted.shape.kind == "several" else QUIET_S
        return max(0.0, self._used_at + quiet_s - time.monotonic())

    def make(self) -> None:
        """Make one."""
        shelf = self._wanted()
        if shelf is None:
            return
        if shelf.shape.kind == "several" and self._host.locks.is_taken(PROCESSOR):
            self.busy()  # another hostd times something; imports would show
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            shelf.waiting[ours.fileno()] = Waiting(ours)
            return
        try:
            os.setsid()
            self._host.after_fork({theirs.fileno()})
            Nest(self._host, shelf.shape, shelf.gpus, theirs).main()
        finally:
            os._exit(0)


def is_disturbed(spec: JobSpec) -> bool:
    """Say whether a job times something that the making of a sandbox would disturb."""
    alone = spec.gpus.mode == "exclusive" and spec.purpose != "reserve"
    return alone and (not spec.gpus.count or (os.cpu_count() or 1) < SPARE_CORES)
