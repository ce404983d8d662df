"""Sandboxes made ahead of their jobs, so that a job does not wait for them.

Each is a supervisor with a place, and groups and sandboxes whose insides only wait, a program's with what it has
prepared. It takes one job and dies with it. What differs from job to job (files, limits, arguments, links) is given at
adoption; what cannot be given then is its shape. They end with the hostd that made them.
"""

import json
import os
import socket
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

from ..gpus.gpu_locks import PROCESSOR
from ..gpus.head_start import has_spare_cores
from ..jobs.host_resources import Host
from ..jobs.job_folder import JobFolder
from ..protocol import BOXED, JobSpec
from ..sandbox import descriptors
from .prewarmed_supervisor import PrewarmedSupervisor, adoption_message
from .sandbox_template import SandboxTemplate, rehearse_claim, template_for

SIZES: Mapping[str, int] = {"plain": 2, "program": 1, "several": 1}
"""How many wait, by the kind of their shape. What a program prepares takes memory: NVRTC about 80 MB."""
SHAPES: Mapping[str, int] = {"plain": 1, "program": 1, "several": 5}
"""Of how many shapes of a kind some wait: those that were asked for last. Three judges are that of problems, that of
libraries and that of Python files; two more are for who has torch compile extensions, to ask for them and to build
them. Each takes some hundred megabytes, with torch."""
QUIET_S: Mapping[str, float] = {"plain": 0.05, "program": 0.01, "several": 0.2}
"""How long no job must have begun or ended before one of a kind is made: making it must not be in a job's way.

One for plain commands takes no job before it is ready, so this is longer than the way to and fro of who calls one job
after the other, over a batch system's relay too: at 10 ms the next job came while one was made and waited for the
processor. A program that still prepares itself takes its job. Several import for a while: who calls again at once, or
leaves, has nothing of it.
"""
QUIET_WHILE_RUNNING_S = 0.2
"""The same while a job runs, which may be over in a moment."""
IDLE_S = 600.0
"""After that long without a job they are given up."""
IDLE = "GPU_MCP_HOSTD_IDLE_S"
"""Environment variable with another such time; for tests."""


class PrewarmedHandle:
    """One that waits for a job, as hostd sees it.

    Attributes:
        end: Our end of its socket.
        about: What must be cleared away should it be killed; it says so when it is ready.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.about: Dict[str, Any] = {}


class TemplatePool:
    """Prewarmed sandboxes of one shape.

    Attributes:
        gpus: The host's GPUs when it was made, if jobs of this shape want any.
        waiting: Those that there are, by the descriptor over which they speak.
        useless: Whether one died while it was prepared, so that no other is made.
        proven: Whether one was ever ready.
        expected: Whether a job of this shape was announced and none was made for it yet.
        announced: Whether one ever was: its caller answers for it that its programs live through their preparation.
    """

    def __init__(self, shape: SandboxTemplate, gpus: List[Dict[str, Any]]) -> None:
        self.shape, self.gpus = shape, gpus
        self.size = SIZES[shape.kind]
        self.waiting: Dict[int, PrewarmedHandle] = {}
        self.useless = self.proven = self.expected = self.announced = False

    @property
    def may_be_waited_for(self) -> bool:
        """Return whether a job may be given to one that still prepares its programs."""
        return (self.proven or self.announced) and self.shape.kind != "plain"


class PrewarmPool:
    """The few that wait, of the shapes that were asked for last, or announced."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._shelves: List[TemplatePool] = []
        """The one that was asked for last comes last."""
        self._due: Optional[TemplatePool] = None
        """What `due_in` found lacking last."""
        self._used_at = time.monotonic()
        self._idle_s = float(os.environ.get(IDLE, IDLE_S))
        self._able = host.level in BOXED and os.path.realpath(host.python).startswith("/usr/")

    def adopt(self, folder: JobFolder, spec: JobSpec, gpus: List[Dict[str, Any]]) -> Optional[socket.socket]:
        """Hand a claimed job to one that waits; return our end of its socket, or None when there is none that fits.

        One that still prepares a program is further than one that would be begun now, so it does as well.

        Args:
            folder: The job's, claimed.
            spec: The job.
            gpus: All that the host has, if the job wants any.
        """
        # A background job imports by itself, as no caller waits for it: the next call gets the prewarmed processes.
        foreground = spec.gpus.priority != "background"
        shape = template_for(spec, gpus) if self._able and foreground else None
        if shape is None:
            return None
        shelf = self._shelf(shape, gpus)
        shelf.expected = False  # it has come
        usable = [fd for fd, waiting in shelf.waiting.items() if waiting.about or shelf.may_be_waited_for]
        for fd in sorted(usable, key=lambda each: not shelf.waiting[each].about):
            waiting = shelf.waiting.pop(fd)
            if waiting.about:
                folder.update_notes(dict(waiting.about, leader=spec.processes[0].role))
            try:
                descriptors.send_with(waiting.end, adoption_message(spec.id, gpus), [folder.life])
            except OSError:
                waiting.end.close()
                continue
            folder.hand_over_lock()
            return waiting.end
        return None

    def prewarm(self, spec: JobSpec, gpus: List[Dict[str, Any]]) -> None:
        """Have one made at once for a job that is about to come, unless one is there or under way.

        It counts like a job of its shape: the shape that was not asked for longest makes room, and where no job comes
        it is given up like the others.

        Args:
            spec: What the job will be, as far as that decides its shape; the rest may still be unknown.
            gpus: All that the host has, if the job wants any.
        """
        shape = template_for(spec, gpus) if self._able else None
        if shape is None:
            return
        shelf = self._shelf(shape, gpus)
        shelf.announced = True
        shelf.expected = not shelf.waiting and not shelf.useless
        self.note_activity()

    def _shelf(self, shape: SandboxTemplate, gpus: List[Dict[str, Any]]) -> TemplatePool:
        """Return the shelf of a shape; a new one displaces the one of its kind that was not asked for longest."""
        found = next((s for s in self._shelves if s.shape == shape), None)
        if found is not None:
            self._shelves.remove(found)
        else:
            found = TemplatePool(shape, gpus)
            alike = [s for s in self._shelves if s.shape.kind == shape.kind]
            for old in alike[: max(0, len(alike) + 1 - SHAPES[shape.kind])]:
                self._end(old)
        self._shelves.append(found)
        return found

    def ends(self) -> List[int]:
        """Return the descriptors over which those that wait speak."""
        return [fd for shelf in self._shelves for fd in shelf.waiting]

    def count_ready(self) -> int:
        """Return how many a job could take now."""
        return sum(1 for shelf in self._shelves for waiting in shelf.waiting.values() if waiting.about)

    def receive(self, fd: int) -> bool:
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

    def stop_importing(self) -> None:
        """Let those end that still import: something is timed from now on, and they would be in its way."""
        for shelf in self._shelves:
            importing = [fd for fd, each in shelf.waiting.items() if not each.about and shelf.shape.kind == "several"]
            for fd in importing:
                shelf.waiting.pop(fd).end.close()

    def close_all(self) -> None:
        """Let all that wait end."""
        for shelf in list(self._shelves):
            self._end(shelf)

    def _end(self, shelf: TemplatePool) -> None:
        for waiting in shelf.waiting.values():
            waiting.end.close()
        self._shelves.remove(shelf)

    def note_activity(self) -> None:
        """Note that a job has just begun or ended."""
        self._used_at = time.monotonic()

    def _wanted(self, lined_up: bool) -> Optional[TemplatePool]:
        """Return what lacks one: cheap ones first, and of those what was asked for last."""
        lacking = [s for s in reversed(self._shelves) if len(s.waiting) < s.size and not s.useless]
        lacking = [s for s in lacking if not (lined_up and s.shape.gpus)]
        return min(lacking, key=lambda s: (not s.expected, s.shape.kind == "several"), default=None)

    def due_in(self, running: bool, timed: bool, lined_up: bool) -> Optional[float]:
        """Return in how many seconds one should be made, None when there are enough, or it must not be.

        Args:
            running: Whether a job runs.
            timed: Whether something is timed that would be disturbed.
            lined_up: Whether jobs line up for a GPU and import there, as many at once as the cores allow. So would the
                next one, and those that are made here come on top.
        """
        if self._shelves and time.monotonic() - self._used_at > self._idle_s:
            self.close_all()
        self._due = wanted = self._wanted(lined_up)
        if timed or wanted is None:
            return None
        if wanted.expected:
            return 0.0
        quiet_s = QUIET_WHILE_RUNNING_S if running else QUIET_S[wanted.shape.kind]
        return max(0.0, self._used_at + quiet_s - time.monotonic())

    def make(self) -> None:
        """Make the one that `due_in` spoke of."""
        shelf = self._due
        if shelf is None:
            return
        shelf.expected = False  # from now on it is one that is lacking like others, should this one come to nothing
        if shelf.shape.kind == "several" and self._host.locks.is_taken(PROCESSOR):
            self.note_activity()  # another hostd times something; imports would show
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            shelf.waiting[ours.fileno()] = PrewarmedHandle(ours)
            rehearse_claim()
            return
        try:
            os.setsid()
            self._host.after_fork({theirs.fileno()})
            PrewarmedSupervisor(self._host, shelf.shape, shelf.gpus, theirs).main()
        except Exception as error:  # the log has it; a job that waits sees only that hostd made none
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(0)


def needs_quiet(spec: JobSpec) -> bool:
    """Say whether a job times something that the making of a sandbox would disturb, as the processor always is."""
    alone = spec.gpus.mode in ("exclusive", "windowed") and spec.purpose != "reserve"
    return alone and (not spec.gpus.count or not has_spare_cores())


def imports_in_line(spec: JobSpec) -> bool:
    """Say whether a job imports while it waits for its GPU, unless another one could be its too."""
    return spec.gpus.ahead and spec.gpus.count > 0 and not spec.gpus.lease and has_spare_cores()
