"""The process that runs one job within its bounds and outlives the channel: forked from hostd without exec."""

import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..files import job_files
from ..gpus.gpu_window import POLL_S
from ..gpus.head_start import has_spare_cores
from ..protocol import JobRecord, JobSpec, ProcessRecord
from ..sandbox import descriptors, keeper, processes
from . import launch, orphan_cleanup
from .child_reaping import Children
from .client_liveness import ClientLiveness
from .host_resources import Host, JobRefused
from .job_folder import JobFolder
from .job_workdir import JobWorkdir, PrewarmedParts
from .lease import Lease
from .limit_watcher import LimitWatcher, cpu_limit_note, oom_by_others
from .owner_control import ControlLink
from .role_process import RoleProcess, identities
from .turn_ahead import AheadOfTurn

DRAIN_S = 1.0
OTHER_ROLES_KEEP = 65536


class Supervisor:
    """Runs one job from claim to record."""

    def __init__(
        self,
        host: Host,
        folder: JobFolder,
        spec: JobSpec,
        channel: Optional[socket.socket],
        gpus: List[Dict[str, Any]],
        premade: Optional[PrewarmedParts] = None,
    ) -> None:
        self.host, self.folder, self.spec = host, folder, spec
        self.lease = Lease(host, spec, gpus)
        self.caller = ClientLiveness(channel, folder, spec.detached, spec.grace_s)
        self.roles: List[RoleProcess] = []
        self.links: List[ControlLink] = []
        self.children = Children(self.roles, self.links)
        self.status: Optional[str] = None
        self.notes: List[str] = []
        self.submitted_at = time.time()
        self.started_at: Optional[float] = None
        self.ended_at: Optional[float] = None
        self.place: Optional[JobWorkdir] = None
        self.stamps: Dict[str, job_files.Stamps] = {}
        self.clock = time.monotonic()
        self.groups: List[str] = []
        self.held = premade.held if premade is not None else descriptors.DescriptorHolder()
        self.premade = premade
        self.ahead = AheadOfTurn(self.links, self._start_ahead, premade.preparing if premade is not None else None)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def main(self) -> None:
        """Run the job; never raises: what goes wrong ends in the record."""
        try:
            self._settle()
            self._prepare()
            self._start()
            self._watch()
        except JobRefused as refused:
            self._end(refused.status, str(refused))
        except Exception as error:  # the record must be written whatever happened
            self._end("broken", _explained(error))
        try:
            record = self._conclude()
        except Exception as error:  # the same
            record = self._record("broken", "; ".join([*self.notes, "while ending: " + _explained(error)]))
        self.folder.finish(record)  # first: if this process is killed below, hostd still has a record and clears up
        self.caller.notify(b"end")
        self.folder.keep()
        for role in self.roles:
            role.clear()
        if self.place is not None and self.children.are_gone():
            self.place.vacate()
            self.place.keep(self.spec.files, self.stamps)
        orphan_cleanup.remove_workdirs(self.folder.path, self.folder.read_notes())

    def _settle(self) -> None:
        keeper.set_subreaper()  # orphans of the job become children of this process, which ends them
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, processes.ignore_but_wake)
        signal.signal(signal.SIGTERM, self._cancelled)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _cancelled(self, _number: int, _frame: object) -> None:
        if os.path.exists(self.folder.path_of("cancelled")):
            self._end("cancelled", "")
        else:
            self._end("broken", "the host or its scheduler ended the job early; it is not finished")

    def _note_live(self, state: str, note: str = "") -> None:
        """Say how the job stands; for those who ask, so a full disk does not matter."""
        live: Dict[str, Any] = {
            "id": self.spec.id,
            "state": state,
            "note": note,
            "purpose": self.spec.purpose,
            "level": self.host.level,
            "weaker_because": self.host.weaker_because,
            "submitted_at": self.submitted_at,
            "started_at": self.started_at,
            "gpus": self.lease.uuids(),
        }
        try:
            self.folder.update_notes({"live": live})
        except OSError:
            pass

    def _note_queued(self, words: str) -> None:
        self._note_live("queued", words)
        self.caller.notify(b"queue")

    def _heed_earlier(self) -> None:
        """Heed a cancellation that came before there was a process to tell."""
        if os.path.exists(self.folder.path_of("cancelled")):
            self._end("cancelled", "")

    def _prepare(self) -> None:
        self.host.require(self.spec)
        if self.premade is not None:
            self._move_in(self.premade)
        else:
            self._furnish()
        assert self.place is not None
        self.stamps = self.place.materialize(self.spec.files)
        groups = [r.group.procs_paths()[0] for r in self.roles if r.group is not None]
        named: Dict[str, List[Any]] = {"groups": groups, "sandboxes": self._sandboxes()}
        self.ahead.able = self.spec.gpus.ahead and has_spare_cores() and self.lease.foreseen_view() is not None
        self.lease.take(self._heed_woken, named, self._note_queued, self._wakers, self.ahead)
        self.notes += self.lease.notes
        if not self.ahead.started:
            self._take_uids()

    def _take_uids(self) -> None:
        assert self.place is not None
        self.stamps = self.place.wait_for_uids(self.stamps, self._heed_woken, self._wakers, self._note_queued)

    def _start_ahead(self) -> bool:
        """Have the processes import what they need ahead of the job's turn; say whether that was possible."""
        view = self.lease.foreseen_view()
        given = self.place.assign_uids(self.stamps) if self.place is not None else None
        if view is None or given is None:  # not waited for: who holds the GPU may wait for the same uids
            return False
        self.stamps = given
        self._launch(view)
        self.folder.update_notes(identities(self.roles))
        return True

    def _launch(self, view: Tuple[List[str], Dict[str, str]]) -> None:
        assert self.place is not None
        if self.premade is not None:
            self.links[:] = self.premade.start(self.spec)
            return
        self.held.add(self.place.locks)
        self.links[:] = launch.start(self.host, self.spec, self.place, view, self.roles, self.held)

    def _wakers(self) -> List[int]:
        """Return what becomes readable by a signal or a word of the caller."""
        return [fd for fd in (self._wake_read, self.caller.fileno()) if fd >= 0]

    def _heed_woken(self) -> bool:
        descriptors.drain(self._wake_read)
        return self._heed_caller()

    def _furnish(self) -> None:
        self.place = JobWorkdir(self.host, {p.workspace: p.account_name() for p in self.spec.processes})
        self.roles[:] = [RoleProcess(p.role, p.trusted) for p in self.spec.processes]
        self.groups = ["%s.%s" % (self.spec.id, r.name) for r in self.roles]
        leader = self.roles[0].name
        # Noted before it is made: should this process be killed, hostd clears away what the notes name.
        self.folder.update_notes(dict(self.place.cleanup_record(self.host, self.groups), leader=leader))
        self._heed_earlier()
        for role, name in zip(self.roles, self.groups):
            role.group = self.host.group(name)
            role.keep([self.held.fileno()])  # beside what follows
            self._bound(role)
        self.place.make()

    def _move_in(self, premade: PrewarmedParts) -> None:
        self.place, self.roles[:], self.groups = premade.place, premade.roles, premade.group_names
        if len(self.roles) == 1:
            self.place.rename(self.spec.processes[0].workspace)
        self._heed_earlier()
        for role, process in zip(self.roles, self.spec.processes):
            role.name, role.trusted = process.role, process.trusted
            self._bound(role)

    def _bound(self, role: RoleProcess) -> None:
        """Set the limits of a role's group and the place and size of its output."""
        leads = role is self.roles[0]
        role.write_to(self.folder, self.spec.limits.output_bytes if leads else OTHER_ROLES_KEEP)
        if role.group is not None:
            self.host.limit(role.group, self.spec.limits)

    def _start(self) -> None:
        if self.status is not None:
            raise JobRefused(self.status, "before it started")
        assert self.place is not None
        self.held.add(self.lease.descriptors())
        if not self.ahead.started:
            self._launch(self.lease.view())
        for role in self.roles if self.premade is None else ():
            self._note_sandbox(role)
        for link in self.links:
            link.window, link.is_beside = self.lease.window, self.lease.is_beside
            link.tell = lambda words: self._note_live("running", words)
        self.ahead.grant_turn()
        self.held.close()
        self.folder.update_notes(identities(self.roles))
        self._running()

    def _sandboxes(self) -> List[processes.Identity]:
        return [role.process_one for role in self.roles if role.process_one is not None]

    def _note_sandbox(self, role: RoleProcess) -> None:
        """Note process 1 of a sandbox where it is found should this process and its keeper be killed."""
        if role.read_info():
            self.folder.update_notes(identities(self.roles))
            self.lease.name(self._sandboxes())

    def _running(self) -> None:
        self.started_at = time.time()
        self.clock = time.monotonic()
        self._note_live("running")
        self.caller.notify(b"start")

    def _watch(self) -> None:
        """Serve pipes, links, the channel and limits until the leader has ended or something struck."""
        deadline = self.clock + self.spec.limits.wall_s
        quota = LimitWatcher(self.spec.limits, self.host.limits_by_cgroup, self._end)
        leader = self.roles[0]
        workdirs = self.place.workdirs if self.place is not None else {}
        while self.status is None and not leader.ended:
            now = time.monotonic()
            if now >= deadline:
                return self._end("timeout", "wall limit of %g s" % self.spec.limits.wall_s)
            if now >= quota.next_at:
                quota.poll(workdirs, self.roles)
                self.notes += quota.notes
            if self.caller.orphaned:
                self._heed_caller()
            deadline += self._pump(max(0.0, min(deadline, quota.next_at) - time.monotonic()))
            self._reap()

    def _pump(self, timeout: float) -> float:
        """Wait for whatever happens first and handle it; return the time in which a role waited for its GPU."""
        poll, begin = select.poll(), time.monotonic()
        waiting = [link for link in self.links if link.is_waiting()]
        owners: Dict[int, Any] = {}
        for role in self.roles:
            for fd in (*role.pipes(), role.life(), role.info_read):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
                    owners[fd] = role
        for link in self.links:
            if link.open:
                poll.register(link.fileno(), select.POLLIN)
                owners[link.fileno()] = link
        for fd in self._wakers():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000 * (min(timeout, POLL_S) if waiting else timeout)):
            owner = owners.get(fd)
            if isinstance(owner, RoleProcess) and fd == owner.info_read:
                self._note_sandbox(owner)
            elif isinstance(owner, RoleProcess) and fd == owner.life():
                self.children.hear(owner)
            elif isinstance(owner, RoleProcess):
                if owner.read(fd) and owner is self.roles[0]:
                    self.caller.notify(b"output")
            elif isinstance(owner, ControlLink):
                owner.serve()
            elif fd == self._wake_read:
                descriptors.drain(fd)
            else:
                self._heed_caller()
        for link in waiting:
            link.try_window()
        return time.monotonic() - begin if waiting else 0.0

    def _heed_caller(self) -> bool:
        """Hear the caller, whose end may end the job; True when the job must end."""
        why = self.caller.reason_to_end()
        if why:
            self._end("caller_lost", why)
        return self.status is not None

    def _reap(self) -> bool:
        """Take the ends of children; True when no child is left."""
        all_gone = self.children.reap()
        for role in self.children.roles_without_keeper():
            self._end("broken", "the keeper of role %s was killed from outside; what it kept was killed" % role.name)
        return all_gone

    def _end(self, status: str, note: str) -> None:
        if self.status is None:
            self.status = status
            if note:
                self.notes.append(note)

    def _conclude(self) -> JobRecord:
        """Kill all that is left, wait until nobody lives, take the outputs, return the record."""
        wall = time.monotonic() - self.clock if self.started_at is not None else None
        self.children.kill_all(self._wake_read)
        drained = time.monotonic() + DRAIN_S  # the pipes may still hold what was written before the kill
        while self.started_at and any(r.pipes() for r in self.roles) and time.monotonic() < drained:
            self._pump(0.05)
        stats: List[ProcessRecord] = []
        for role in self.roles:
            record, notes = role.close(self.spec.limits)
            stats.append(record)
            self.notes += notes
        self.ended_at = time.time()  # nothing of it lives, and the next job may begin
        self.notes += self.lease.close()
        self._judge(stats)
        outputs, left = self._outputs() if self.started_at is not None else ([], [])
        return self._record(self.status or "broken", "; ".join(dict.fromkeys(self.notes)), wall, stats, outputs, left)

    def _judge(self, stats: Sequence[ProcessRecord]) -> None:
        """Find the status of a job that no limit of ours has ended."""
        limits = self.spec.limits
        leader = self.roles[0] if self.roles else None
        for number, record in enumerate(stats):
            if record.oom_kills:
                own = "role %s: a process was killed at the limit of %d bytes of memory"
                outside = oom_by_others(record.role, limits, record.peak_memory_bytes)
                self.notes.append(outside or own % (record.role, limits.memory_bytes))
                if self.status in (None, "failed") and (number == 0 or not self.spec.processes[0].trusted):
                    self.status = "oom"
        if leader is None or not leader.ended:
            return
        if self.status is None:
            workdirs = self.place.workdirs if self.place is not None else {}
            LimitWatcher(limits, self.host.limits_by_cgroup, self._end).disk(workdirs, self.roles, final=True)
        if limits.cpu_s is not None and leader.hit_cpu_limit(limits.cpu_s):
            self._end("timeout", cpu_limit_note(leader, limits.cpu_s))
        if self.status is None:
            self.status = "failed" if leader.exit_code != 0 else "broken" if any(r.lost for r in self.roles) else "ok"

    def _outputs(self) -> Tuple[List[Any], List[str]]:
        if not self.spec.outputs or self.place is None:
            return [], []
        name = self.spec.processes[0].workspace
        laid, stamps = {f.path: f.sha256 for f in self.spec.files.get(name, ())}, self.stamps.get(name, {})
        started_ns = int((self.started_at or 0.0) * 1e9)
        collector = job_files.Collector(self.place.workdirs[name], laid, stamps, started_ns, self.host.blobs)
        taken, left = collector.collect(self.spec.outputs)
        if collector.lost:
            self.notes.append(collector.lost)
            self.status = "broken" if self.status == "ok" else self.status
        return taken, left

    def _record(
        self,
        status: str,
        note: str,
        wall: Optional[float] = None,
        stats: Sequence[ProcessRecord] = (),
        outputs: Sequence[Any] = (),
        left: Sequence[str] = (),
    ) -> JobRecord:
        leader = self.roles[0] if self.roles else None
        return JobRecord(
            id=self.spec.id,
            state="finished",
            purpose=self.spec.purpose,
            status=status,
            note=note,
            level=self.host.level,
            weaker_because=self.host.weaker_because,
            processes=tuple(stats) or tuple(ProcessRecord(r.name) for r in self.roles),
            gpus=tuple(self.lease.uuids()),
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ended_at=self.ended_at or time.time(),
            wall_s=wall,
            gpu_s=self.lease.charged_s,
            stdout_bytes=leader.bytes_written("stdout") if leader else 0,
            stderr_bytes=leader.bytes_written("stderr") if leader else 0,
            stdout_kept=leader.bytes_kept("stdout") if leader else 0,
            stderr_kept=leader.bytes_kept("stderr") if leader else 0,
            outputs=tuple(outputs),
            outputs_left_out=tuple(left),
        )


def _explained(error: Exception) -> str:
    return job_files.disk_full_message(error) or "%s: %s" % (type(error).__name__, error)
