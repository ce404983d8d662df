"""Sandboxes made ahead of their jobs, so that a plain command does not wait for one.

Each is a supervisor with a place, a group and a sandbox whose inside only waits. It takes one job and dies with it.
What differs from job to job (files, limits, arguments, environment) is given at adoption; what cannot be given then
(roots, GPUs, network, several processes, sizes of /tmp) makes a job start cold. They end with the hostd that made them.
"""

import json
import os
import select
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from . import descriptors, keeper, launch, launcher, sandbox, trees, undertaker
from .host import Host
from .jobs import JobFolder
from .mounts import Mounts
from .place import Place, Premade
from .protocol import JobSpec, Limits, ProcessSpec, job_spec_from_json, to_json
from .role import Role
from .sandbox import Confinement, Sandbox
from .supervisor import Supervisor

SIZE = 2
SIZE_WITH_PROGRAM = 1
"""What a program prepares takes memory: NVRTC about 80 MB."""
QUIET_S = 0.01
"""How long no job must have begun or ended before one is made: making it must not be in a job's way."""
QUIET_WHILE_RUNNING_S = 0.2
"""The same while a job runs, which may be over in a moment."""
IDLE_S = 600.0
"""After that long without a job they are given up."""
LEAST_MEMORY_BYTES = 64 << 20
UNLIMITED = Limits(file_bytes=1 << 60, processes=1 << 20)
"""What the sandbox starts with; the launcher lowers it to the job's own."""


class Waiting:
    """One that waits for a job, as hostd sees it.

    Attributes:
        end: Our end of its socket.
        about: What must be cleared away should it be killed; it says so when it is ready.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.about: Dict[str, Any] = {}


class Shape:
    """Sandboxes that are alike: the same roots shown, the same program prepared.

    Attributes:
        waiting: Those that there are, by the descriptor over which they speak.
        useless: Whether one died while it was prepared, so that no other is made.
    """

    def __init__(self, roots: List[str], program: str) -> None:
        self.roots, self.program = roots, program
        self.size = SIZE_WITH_PROGRAM if program else SIZE
        self.waiting: Dict[int, Waiting] = {}
        self.useless = False


class Pool:
    """The few that wait: for plain commands, and for a program, each of the shape that was asked for last."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._shapes: List[Shape] = []
        self._used_at = time.monotonic()
        self._able = host.level in ("full", "namespaces") and os.path.realpath(host.python).startswith("/usr/")

    def fits(self, spec: JobSpec) -> bool:
        """Say whether a job can be run in one of them, roots aside."""
        first = spec.processes[0]
        plain = len(spec.processes) == 1 and not first.trusted and not first.profiled
        apart = not spec.gpus.count and not spec.network and not spec.links
        limits, usual = spec.limits, Limits()
        sizes = (limits.tmp_bytes, limits.shm_bytes) == (usual.tmp_bytes, usual.shm_bytes)
        return self._able and plain and apart and sizes and limits.memory_bytes >= LEAST_MEMORY_BYTES

    def adopt(self, folder: JobFolder, spec: JobSpec) -> Optional[socket.socket]:
        """Hand a claimed job to one that waits; return our end of its socket, or None when there is none that fits."""
        if not self.fits(spec):
            return None
        shape = self._shape(launch.roots_of(spec), spec.processes[0].program)
        for fd, waiting in list(shape.waiting.items()):
            if not waiting.about:
                continue
            del shape.waiting[fd]
            folder.note(dict(waiting.about, leader=spec.processes[0].role))
            try:
                descriptors.send_with(waiting.end, spec.id.encode("ascii"), [folder.life])
            except OSError:
                waiting.end.close()
                continue
            folder.leave_life()
            return waiting.end
        return None

    def _shape(self, roots: List[str], program: str) -> Shape:
        """Return the shape; one of plain commands and one with a program are kept, a new one displaces its like."""
        found = next((s for s in self._shapes if s.roots == roots and s.program == program), None)
        if found is None:
            found = Shape(roots, program)
            for old in [s for s in self._shapes if bool(s.program) == bool(program)]:
                self._end(old)
            self._shapes.append(found)
        return found

    def ends(self) -> List[int]:
        """Return the descriptors over which those that wait speak."""
        return [fd for shape in self._shapes for fd in shape.waiting]

    def ready(self) -> int:
        """Return how many a job could take now."""
        return sum(1 for shape in self._shapes for waiting in shape.waiting.values() if waiting.about)

    def hear(self, fd: int) -> bool:
        """Note that one is ready, or is gone; False when it is gone."""
        shape = next(s for s in self._shapes if fd in s.waiting)
        waiting = shape.waiting[fd]
        try:
            said = waiting.end.recv(4096, socket.MSG_DONTWAIT)
        except OSError:
            said = b""
        if said:
            waiting.about = json.loads(said.decode("ascii"))
        else:
            shape.useless = shape.useless or (bool(shape.program) and not waiting.about)
            waiting.end.close()
            del shape.waiting[fd]
        return bool(said)

    def give_up(self) -> None:
        """Let all that wait end."""
        for shape in list(self._shapes):
            self._end(shape)

    def _end(self, shape: Shape) -> None:
        for waiting in shape.waiting.values():
            waiting.end.close()
        self._shapes.remove(shape)

    def busy(self) -> None:
        """Note that a job has just begun or ended."""
        self._used_at = time.monotonic()

    def _wanted(self) -> Optional[Shape]:
        return next((s for s in self._shapes if len(s.waiting) < s.size and not s.useless), None)

    def due_in(self, running: bool) -> Optional[float]:
        """Return in how many seconds one should be made, None when there are enough; `running`: whether a job runs."""
        if self._shapes and time.monotonic() - self._used_at > IDLE_S:
            self.give_up()
        if self._wanted() is None:
            return None
        quiet_s = QUIET_WHILE_RUNNING_S if running else QUIET_S
        return max(0.0, self._used_at + quiet_s - time.monotonic())

    def make(self) -> None:
        """Make one."""
        shape = self._wanted()
        if shape is None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            shape.waiting[ours.fileno()] = Waiting(ours)
            return
        try:
            os.setsid()
            self._host.after_fork({theirs.fileno()})
            _Nest(self._host, shape, theirs).main()
        finally:
            os._exit(0)


class _Nest(Premade):
    """The process that holds one: from its making to its job, or to the end of hostd."""

    def __init__(self, host: Host, shape: Shape, channel: socket.socket) -> None:
        self._host, self._shape, self._channel = host, shape, channel
        self.place = Place(host, ["main"])
        self.role = Role("main")
        self.group_name = "%s%s.main" % (undertaker.WARM, os.urandom(8).hex())
        self.held = descriptors.Bundle()
        self._nest: Optional[JobFolder] = None
        self._link, self._inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def main(self) -> None:
        """Make the sandbox, wait for a job, run it."""
        keeper.adopt()
        self._nest = self._host.folders.new_nest(self.about())
        adopted = False
        try:
            self._make()
            self._rehearse()
            job = self._wait()
            if job is not None:
                adopted = True
                self._run(*job)
        finally:
            if not adopted:
                self._remove()
            self._drop_nest()

    def _drop_nest(self) -> None:
        """From now on the job's folder alone says what must be cleared away; it has said so since it was adopted."""
        if self._nest is not None:
            self._host.folders.drop_nest(self._nest)
            self._nest = None

    def _make(self) -> None:
        host, uid = self._host, self.place.slot.uid
        self.place.make()
        self.held.add(self.place.locks)
        self.role.group = host.group(self.group_name)
        if uid is not None:
            self.role.belong_to(uid)
        mounts = Mounts(uid, host.state)
        box = Confinement(
            workdir=self.place.reach(mounts)["main"],
            roots=mounts.shown(self._shape.roots),
            limits=UNLIMITED,
            uid=uid,
            join=self.role.group.procs_paths() if self.role.group else (),
            pids_by_cgroup=self._pids_by_group(),
            sync_fd=self.held.fileno(),
        )
        inside = self._inside.fileno()
        argv = [host.python, "-I", "-S", "-E", "-c", launcher.SOURCE, str(inside)]
        argv += [self._shape.program] if self._shape.program else []
        fds = (host.null, self.role.out_write, self.role.err_write)
        self.role.started(Sandbox(host.level, host.bwrap).spawn(argv, {}, box, fds, [inside]))
        self._inside.close()

    def _pids_by_group(self) -> bool:
        return self.role.group is not None and "pids" in self._host.limits_by_cgroup

    def _wait(self) -> Optional[Tuple[str, int]]:
        """Return the job's id and the descriptor of its lock; None when hostd or the sandbox has ended."""
        poll = select.poll()
        for end in (self._channel, self._link):
            poll.register(end.fileno(), select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._link.fileno():
                    if not self._link.recv(8):
                        return None
                    self._channel.send(json.dumps(self.about()).encode())
                    continue
                message, fds = descriptors.receive_with(self._channel, 64, 1)
                return (message.decode("ascii"), fds[0]) if message and fds else None

    def about(self) -> Dict[str, Any]:
        """Return what must be cleared away should this process be killed."""
        return self.place.about(self._host, self.held, [self.group_name])

    def _run(self, job_id: str, life: int) -> None:
        folder = JobFolder(os.path.join(self._host.folders.root, job_id))
        folder.life = life
        spec = folder.spec()
        assert spec is not None
        Supervisor(self._host, folder, spec, self._channel, [], self).main()

    def _rehearse(self) -> None:
        """Do once for nothing what a job will wait for: memory shared with hostd is copied when it is first touched."""
        process = ProcessSpec(argv=("true",), program=self._shape.program)
        spec = job_spec_from_json(json.loads(json.dumps(to_json(JobSpec(id="rehearsal", processes=(process,))))))
        for fd in self._command(spec):
            os.close(fd)
        if self.role.group is not None:
            self.role.group.stats()

    def start(self, spec: JobSpec) -> None:
        """Give the command to what waits inside."""
        fds = self._command(spec)
        descriptors.send_with(self._link, b"go", fds)
        for fd in fds:
            os.close(fd)
        self._link.close()
        self._drop_nest()

    def _command(self, spec: JobSpec) -> List[int]:
        """Return descriptors of the command and of its stdin, which the job's uid can read."""
        process = spec.processes[0]
        uid = self.place.slot.uid
        box = Confinement("", limits=spec.limits, uid=uid, pids_by_cgroup=self._pids_by_group())
        env = dict(sandbox.environment(process.env), PWD="/job", CUDA_VISIBLE_DEVICES="")
        argv = list(process.argv) if process.program else launch.argv_of(process, self._host)
        command = {"argv": argv, "env": env, "rlimits": sandbox.rlimits(box)}
        fds = [descriptors.memory_file("command", json.dumps(command).encode()), launch.stdin_of(spec)]
        for fd in fds if uid is not None else ():
            os.fchown(fd, uid, uid)  # type: ignore[arg-type]
        return fds

    def _remove(self) -> None:
        self.role.kill()
        keeper.kill_below()  # bubblewrap's inner half outlives an outer one that is killed soon after it has forked
        self.role.close(UNLIMITED)
        for workdir in self.place.paths():
            trees.remove(workdir)
