"""Looks after the limits that no kernel enforces: disk and CPU time, memory and processes where there is no group."""

import math
import os
import time
from typing import Callable, Dict, FrozenSet, List, Optional, Set, Tuple

from ..files import file_trees
from ..protocol import Limits
from ..sandbox import processes
from .role_process import RoleProcess

WATCH_S = 0.2
SYSTEM_PROCESSES = 4
"""Processes of the sandbox itself that a limit by uid counts too."""
OWN = 0.9
"""Who was killed for memory with less than this share of its limit did not reach it."""
SHARE = 20
"""A look may take one part in this many of the time."""
RARELY_S = 1.0
"""Between two looks at most: a job ends within 2 s of its limit, and a look at thousands of processes takes long."""
TEMPORARY = ("/tmp", "/dev/shm")
SEVERAL = 8
"""Processes to look at for one that lives inside, where nobody says which one does."""


def oom_by_others(name: str, limits: Limits, peak: Optional[float]) -> str:
    """Say that a role was killed for memory before it came to its own limit; nothing if that was the reason.

    A limit above it was reached then: that of a batch system's job, of a service, or the machine's memory.
    """
    if peak is None or peak > OWN * limits.memory_bytes:
        return ""
    allocation = os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID")
    whose = (
        "the memory of allocation %s; raise `memory` of this host" % allocation
        if allocation
        else "this machine's memory"
    )
    words = (name, peak, limits.memory_bytes, whose)
    return "role %s was killed for memory at %d bytes, below its own limit of %d; it used up %s" % words


def cpu_limit_note(role: RoleProcess, cpu_s: float) -> str:
    """Say that a role has used up its CPU time."""
    return "CPU limit of %g s: role %s used %.1f s" % (cpu_s, role.name, role.used_cpu_s())


class LimitWatcher:
    """The watch over one job.

    Args:
        limits: Of the job.
        by_group: What groups limit here.
        end: Called with status and note when the job must end.
    """

    def __init__(self, limits: Limits, by_group: FrozenSet[str], end: Callable[[str, str], None]) -> None:
        self._limits, self._by_group, self._end = limits, by_group, end
        self.notes: Set[str] = set()
        """Limits that something came up to without going over them."""
        self.next_at = time.monotonic() + WATCH_S
        self._over_at = time.monotonic() + limits.wall_s

    def poll(self, workdirs: Dict[str, str], roles: List[RoleProcess]) -> None:
        """Look once, while the job runs."""
        began = time.monotonic()
        for role in roles:
            if not role.ended or role.group is not None:
                self._memory_and_processes(role, roles)
                if self._limits.cpu_s is not None and role.used_cpu_s() >= self._limits.cpu_s:
                    self._strike(role, roles, "timeout", cpu_limit_note(role, self._limits.cpu_s))
            if not role.ended:
                self._temporary_files(role, roles)
        self.disk(workdirs, roles)
        now = time.monotonic()
        took_s = now - began
        self.next_at = now + max(WATCH_S, min(SHARE * took_s, RARELY_S))
        if self.next_at + took_s > self._over_at:
            self.next_at = math.inf  # it would keep the supervisor from ending the job in time

    def disk(self, workdirs: Dict[str, str], roles: List[RoleProcess], final: bool = False) -> None:
        """Measure the workspaces; `final` when no process of the job lives any more."""
        limits = self._limits
        for name, workdir in workdirs.items():
            if not os.path.isdir(workdir):
                continue
            used = file_trees.usage(workdir, limits.disk_files, mend=final)
            total = used.bytes
            if not final and total <= limits.disk_bytes:
                # Deleted files on other devices, such as memory files, use no disk of the workspace's.
                device = os.stat(workdir).st_dev
                total += processes.deleted_bytes([p for r in roles for p in r.pids()], device)
            if total > limits.disk_bytes:
                self._end(
                    "disk_quota", "workspace %s holds more than the limit of %d bytes" % (name, limits.disk_bytes)
                )
            elif used.entries > limits.disk_files:
                self._end(
                    "disk_quota", "workspace %s holds more than the limit of %d files" % (name, limits.disk_files)
                )
            elif used.too_deep:
                self._end(
                    "disk_quota", "workspace %s has folders nested deeper than %d" % (name, file_trees.MAX_NESTING)
                )

    def _memory_and_processes(self, role: RoleProcess, roles: List[RoleProcess]) -> None:
        limits = self._limits
        memory, threads = 0, 0
        if role.group is None or not {"memory", "pids"} <= self._by_group:
            until = min(time.monotonic() + RARELY_S, self._over_at)
            memory, threads = processes.memory_and_threads(role.pid, limits.memory_bytes, limits.processes, until)
        over = memory > limits.memory_bytes
        if over or role.out_of_memory():
            role.oom = role.oom or over
            note = "role %s went over the limit of %d bytes of memory" % (role.name, limits.memory_bytes)
            peak = None if over or role.group is None else role.group.stats().get("peak_memory_bytes")
            outside = oom_by_others(role.name, limits, peak)
            self._strike(role, roles, "oom", outside or note)
        elif threads > limits.processes:
            note = "role %s went over the limit of %d processes and threads" % (role.name, limits.processes)
            self._strike(role, roles, "failed", note)
        elif threads + SYSTEM_PROCESSES >= limits.processes:
            note = "role %s came up to the limit of %d processes and threads" % (role.name, limits.processes)
            self.notes.add(note)

    def _temporary_files(self, role: RoleProcess, roles: List[RoleProcess]) -> None:
        """Count the files in what a sandbox has of its own: bubblewrap limits their bytes alone."""
        for folder, files in temporary_files(role):
            if files > self._limits.tmp_files:
                words = (role.name, self._limits.tmp_files, folder)
                self._strike(role, roles, "disk_quota", "role %s holds more than the limit of %d files in %s" % words)

    def _strike(self, role: RoleProcess, roles: List[RoleProcess], status: str, note: str) -> None:
        """End the job, or only the role when a trusted leader is there to say what that means."""
        if roles[0].trusted and role is not roles[0]:
            self.notes.add(note)
            role.kill()
        else:
            self._end(status, note)


def temporary_files(role: RoleProcess) -> List[Tuple[str, int]]:
    """Return how many files each of a sandbox's own temporary folders holds; nothing where it has none, or has ended.

    Seen through a process inside, as nobody outside has a path to these mounts. Source: proc_pid_root(5).
    """
    if role.process_one is not None:
        inside = [one[0] for one in processes.still_alive([list(role.process_one)])]
    else:
        inside = role.pids()[-SEVERAL:]
    for pid in inside:
        found = [(folder, count) for folder in TEMPORARY for count in _own_files(pid, folder)]
        if found:
            return found
    return []


def _own_files(pid: int, folder: str) -> List[int]:
    """Return the files of a process's folder, if that is another file system than this process has there."""
    path = "/proc/%d/root%s" % (pid, folder)
    try:
        if os.stat(path).st_dev == os.stat(folder).st_dev:
            return []
        held = os.statvfs(path)
    except OSError:
        return []
    return [held.f_files - held.f_ffree]
