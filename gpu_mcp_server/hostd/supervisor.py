"""The process that runs one job, parents its sandboxes and outlives the channel.

Forked from hostd without exec. Everything the job may do is bounded here; how it ended is written once, at the end.
"""

import ctypes
import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from . import files, processes
from .control import ControlLink
from .host import Host, HostRefuses
from .jobs import JobFolder
from .protocol import JobRecord, JobSpec, ProcessRecord
from .role import Role
from .sandbox import Confinement, Sandbox, shown

WATCH_S = 0.2
DRAIN_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """Runs one job from claim to record."""

    def __init__(
        self, host: Host, folder: JobFolder, spec: JobSpec, channel: Optional[socket.socket], gpus: List[Dict[str, Any]]
    ) -> None:
        self.host, self.folder, self.spec = host, folder, spec
        self.gpus = {g["uuid"]: g for g in gpus if not spec.gpus.uuids or g["uuid"] in spec.gpus.uuids}
        self.channel = channel
        self.roles = []  # type: List[Role]
        self.links = []  # type: List[ControlLink]
        self.locks = []  # type: List[Tuple[str, int]]
        self.status = None  # type: Optional[str]
        self.notes = []  # type: List[str]
        self.submitted_at = time.time()
        self.started_at = None  # type: Optional[float]
        self.workdirs = {}  # type: Dict[str, str]
        self.roots = []  # type: List[Tuple[str, str]]
        self.devices = []  # type: List[str]
        self.gpu_env = {"CUDA_VISIBLE_DEVICES": ""}
        self.clock = time.monotonic()
        self.sandbox = Sandbox(host.level, host.bwrap)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def main(self) -> None:
        """Run the job; never raises: what goes wrong ends in the record."""
        try:
            self._settle()
            self._prepare()
            self._start()
            self._watch()
        except HostRefuses as refused:
            self._end(refused.status, str(refused))
        except Exception as error:  # the record must be written whatever happened
            self._end("broken", "%s: %s" % (type(error).__name__, error))
        try:
            record = self._conclude()
        except Exception as error:  # the same
            record = self._record("broken", "while ending: %s: %s" % (type(error).__name__, error))
        self.folder.finish(record)
        self._tell(b"end")
        for workdir in self.workdirs.values():
            files.remove_tree(workdir)

    def _settle(self) -> None:
        self.life = self.folder.claim_life()
        self.folder.write_json("pid.json", {"pid": os.getpid()})
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end("cancelled", ""))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._live("queued")

    def _live(self, state: str) -> None:
        live = {
            "id": self.spec.id, "state": state, "purpose": self.spec.purpose, "level": self.host.level,
            "weaker_because": self.host.weaker_because, "submitted_at": self.submitted_at,
            "started_at": self.started_at, "gpus": [u for u, _ in self.locks],
        }  # type: Dict[str, Any]
        self.folder.write_json("live.json", live)
        private = {"workdirs": list(self.workdirs.values()), "leader": self.spec.processes[0].role}
        self.folder.write_json("private.json", private)

    def _prepare(self) -> None:
        self.host.require(self.spec)
        self.slot = self.host.slot()
        names = sorted({p.workspace for p in self.spec.processes})
        for name in names:
            workdir = os.path.join(self.host.folders.work, os.urandom(8).hex())
            os.mkdir(workdir, 0o700)
            self.workdirs[name] = workdir
        self._live("queued")
        for name in names:
            files.lay(self.workdirs[name], self.spec.files.get(name, ()), self.host.blobs)
            if self.slot.uid is not None:
                files.own(self.workdirs[name], self.slot.uid, self.slot.uid)
        self._lease()
        mounts = os.path.join(self.host.state, "mounts")
        os.makedirs(mounts, mode=0o711, exist_ok=True)
        roots = [r for r in self.spec.roots if os.path.isdir(r) and not r.startswith("/usr/")]
        if not self.sandbox.namespaces():
            self.roots = [(r, r) for r in roots]
        else:
            self.roots = shown(roots, self.slot.uid, mounts)

    def _lease(self) -> None:
        want = self.spec.gpus
        if want.count == 0:
            return
        gpus = self.gpus
        if len(gpus) < want.count:
            raise HostRefuses("no_gpu", "%d GPUs wanted, %d fit" % (want.count, len(gpus)))
        owner = {"job": self.spec.id, "pid": os.getpid()}  # type: Dict[str, object]
        self.locks = self.host.locks.acquire(
            sorted(gpus), want.count, want.mode, owner, want.wait_s, lambda: self._poll_channel() or self.status is not None
        )
        if not self.locks:
            holders = ", ".join("%s by %s" % (u, self.host.locks.holder(u)) for u in sorted(gpus))
            raise HostRefuses("no_gpu", "not free within %g s: %s" % (want.wait_s, holders))
        self.devices, self.gpu_env = self.host.gpu_view([gpus[u] for u, _ in self.locks])
        foreign = [p for u, _ in self.locks for p in gpus[u]["pids"] if os.path.exists("/proc/%d" % p) and not self.host.is_ours(p)]
        if foreign and want.mode == "exclusive":
            self.notes.append("foreign processes on the GPU, timings may suffer: pids %s" % foreign)

    def _start(self) -> None:
        if self.status is not None:
            raise HostRefuses(self.status, "before it started")
        ends = self._links()
        stdin = self._stdin()
        for number, process in enumerate(self.spec.processes):
            role = Role(process, self.folder, self.spec.limits.output_bytes if number == 0 else 65536)
            role.group = self.host.group("%s.%s" % (self.spec.id, process.role), self.spec.limits)
            env = dict(process.env)
            env.update(self.gpu_env if process.gpu else {"CUDA_VISIBLE_DEVICES": ""})
            held = ends.get(process.role, [])
            env.update({name: str(end.fileno()) for name, end in held})
            box = Confinement(
                workdir=self.workdirs[process.workspace],
                roots=self.roots,
                devices=self.devices if process.gpu else [],
                limits=self.spec.limits,
                network=self.spec.network,
                uid=self.slot.uid,
                groups=self.host.groups(self.devices if process.gpu else []),
                join=role.group.procs_paths() if role.group else (),
                pids_by_cgroup=role.group is not None,
                sync_fd=self.locks[0][1] if self.locks and process.gpu else None,
            )
            argv = [self.host.python if a == "{python}" else a for a in process.argv]
            fds = (stdin if number == 0 else self.host.null, role.out_write, role.err_write)
            role.started(self.sandbox.spawn(argv, env, box, fds, [end.fileno() for _, end in held]))
            self.roles.append(role)
        os.close(stdin)
        for held in ends.values():
            for _, end in held:
                end.close()
        self.started_at = time.time()
        self.clock = time.monotonic()
        self._live("running")
        self._tell(b"start")

    def _stdin(self) -> int:
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
        os.write(fd, self.spec.stdin.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _links(self) -> Dict[str, List[Tuple[str, socket.socket]]]:
        ends = {}  # type: Dict[str, List[Tuple[str, socket.socket]]]
        for one, other in self.spec.links:
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends.setdefault(one, []).append(("LINK_" + other.upper(), a))
            ends.setdefault(other, []).append(("LINK_" + one.upper(), b))
        for process in self.spec.processes:
            if process.trusted:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ends.setdefault(process.role, []).append(("LINK_SUPERVISOR", theirs))
                self.links.append(ControlLink(ours, self.roles))
        return ends

    def _watch(self) -> None:
        """Serve pipes, links, the channel and limits until the leader has ended or something struck."""
        deadline = self.clock + self.spec.limits.wall_s
        next_look = self.clock + WATCH_S
        leader = self.roles[0]
        while self.status is None:
            now = time.monotonic()
            if now >= deadline:
                self._end("timeout", "wall limit of %g s" % self.spec.limits.wall_s)
                break
            if now >= next_look:
                self._look()
                next_look = time.monotonic() + WATCH_S
            self._pump(max(0.0, min(deadline, next_look) - time.monotonic()))
            self._reap()
            if leader.ended:
                break

    def _pump(self, timeout: float) -> None:
        """Wait for whatever happens first and handle it."""
        poll = select.poll()
        owners = {}  # type: Dict[int, Any]
        for role in self.roles:
            for fd in role.pipes():
                poll.register(fd, select.POLLIN)
                owners[fd] = role
        for link in self.links:
            if link.open:
                poll.register(link.fileno(), select.POLLIN)
                owners[link.fileno()] = link
        poll.register(self._wake_read, select.POLLIN)
        if self.channel is not None:
            poll.register(self.channel.fileno(), select.POLLIN)
        for fd, _ in poll.poll(timeout * 1000):
            owner = owners.get(fd)
            if isinstance(owner, Role):
                if owner.read(fd) and owner is self.roles[0]:
                    self._tell(b"output")
            elif isinstance(owner, ControlLink):
                owner.serve()
            elif fd == self._wake_read:
                _drain(fd)
            else:
                self._poll_channel()

    def _poll_channel(self) -> bool:
        """Read what the channel's hostd says; its end ends an attached job."""
        if self.channel is None:
            return self.status is not None
        try:
            said = self.channel.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        if said == b"cancel":
            self._end("cancelled", "")
        elif not said:
            self.channel.close()
            self.channel = None
            if not self.spec.detached:
                self._end("caller_lost", "the caller's channel ended and the job was not detached")
        return self.status is not None

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for role in self.roles:
                if role.pid == pid and not role.ended:
                    role.end(wait_status)
                    for link in self.links:
                        link.say_exit(role)

    def _look(self) -> None:
        """Check what no kernel limit checks here."""
        limits = self.spec.limits
        for name, workdir in self.workdirs.items():
            total, count = files.usage(workdir, limits.disk_files)
            if total > limits.disk_bytes:
                self._end("disk_quota", "workspace %s holds more than %d bytes" % (name, limits.disk_bytes))
            elif count > limits.disk_files:
                self._end("disk_quota", "workspace %s holds more than %d files" % (name, limits.disk_files))
        for role in self.roles:
            if role.group is not None and "memory" in self.host.limits_by_cgroup:
                if role.group.stats().get("oom_kills"):
                    self._end("oom", "role %s went over %d bytes of memory" % (role.name, limits.memory_bytes))
            elif not role.ended:
                memory, threads = processes.memory_and_threads(role.pid)
                if memory > limits.memory_bytes:
                    self._end("oom", "role %s went over %d bytes of memory" % (role.name, limits.memory_bytes))
                elif threads > limits.processes:
                    self._end("failed", "role %s went over %d processes and threads" % (role.name, limits.processes))

    def _end(self, status: str, note: str) -> None:
        if self.status is None:
            self.status = status
            if note:
                self.notes.append(note)

    def _conclude(self) -> JobRecord:
        """Kill all that is left, wait until nobody lives, take the outputs, return the record."""
        ended = time.monotonic()
        wall = ended - self.clock if self.started_at is not None else None
        self._kill_all()
        drained = time.monotonic() + DRAIN_S
        while any(r.pipes() for r in self.roles) and time.monotonic() < drained:
            self._pump(0.05)
        stats = [r.close() for r in self.roles]
        for (_, fd) in self.locks:
            os.close(fd)
        if not self.roles:
            return self._record(self.status or "broken", "; ".join(self.notes))
        leader = self.roles[0]
        if any(s.oom_kills for s in stats) and self.status in (None, "failed"):
            self.status = "oom"
            self.notes.append("a process was killed at the memory limit of %d bytes" % self.spec.limits.memory_bytes)
        if self.status is None and leader.signal == signal.SIGXCPU:
            self._end("timeout", "CPU limit of %s s" % self.spec.limits.cpu_s)
        if self.status is None:
            self.status = "ok" if leader.exit_code == 0 else "failed"
        self.notes += leader.notes(self.spec.limits)
        outputs, left = self._outputs()
        return self._record(self.status, "; ".join(self.notes), wall, stats, outputs, left)

    def _outputs(self) -> Tuple[List[Any], List[str]]:
        if not self.spec.outputs:
            return [], []
        name = self.spec.processes[0].workspace
        laid = {f.path: f.sha256 for f in self.spec.files.get(name, ())}
        try:
            return files.collect(self.workdirs[name], self.spec.outputs, laid, self.host.blobs)
        except OSError as error:
            return [], ["all outputs: %s" % error]

    def _kill_all(self) -> None:
        for role in self.roles:
            role.kill()
        limit = time.monotonic() + 5.0
        while time.monotonic() < limit:
            processes.kill_below(os.getpid())
            self._reap()
            if len(processes.descendants(os.getpid())) == 1:
                break
            select.select([self._wake_read], [], [], 0.005)
            _drain(self._wake_read)
        self._reap()

    def _record(self, status: str, note: str, wall: Optional[float] = None, stats: Any = (),
                outputs: Any = (), left: Any = ()) -> JobRecord:
        leader = self.roles[0] if self.roles else None
        return JobRecord(
            id=self.spec.id, state="finished", purpose=self.spec.purpose, status=status, note=note,
            level=self.host.level, weaker_because=self.host.weaker_because,
            processes=tuple(stats) or tuple(ProcessRecord(r.name) for r in self.roles),
            gpus=tuple(u for u, _ in self.locks), submitted_at=self.submitted_at, started_at=self.started_at,
            ended_at=time.time(), wall_s=wall,
            stdout_bytes=leader.seen("stdout") if leader else 0, stderr_bytes=leader.seen("stderr") if leader else 0,
            stdout_kept=leader.kept("stdout") if leader else 0, stderr_kept=leader.kept("stderr") if leader else 0,
            outputs=tuple(outputs), outputs_left_out=tuple(left),
        )

    def _tell(self, what: bytes) -> None:
        if self.channel is not None:
            try:
                self.channel.send(what, socket.MSG_DONTWAIT)
            except OSError:
                pass


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def fork_supervisor(host: Host, folder: JobFolder, spec: JobSpec, gpus: List[Dict[str, Any]]) -> Tuple[int, socket.socket]:
    """Fork a supervisor for a claimed job.

    Args:
        host: The host that the job runs on.
        folder: The claimed folder.
        spec: What to run.
        gpus: This host's GPUs, asked before the fork: NVML does not survive one.

    Returns:
        Its pid and our end of the socket over which it tells what happens.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        os.setsid()
        host.after_fork({theirs.fileno()})
        Supervisor(host, folder, spec, theirs, gpus).main()
    finally:
        os._exit(0)
