"""One running process of a job: its pipes, its group, its end."""

import fcntl
import json
import os
import signal
import time
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from ..files import job_files
from ..protocol import Limits, ProcessRecord
from ..sandbox import processes
from ..sandbox.cgroup import Cgroup
from ..sandbox.keeper import END, Keeper
from .job_folder import JobFolder

PIPE_BYTES = 256 << 10
"""An ordinary user may have 64 MiB of pipes in all. Source: pipe(7), pipe-user-pages-soft."""
_F_SETPIPE_SZ = 1031
MOST_STIRRED, STOPS_A_STIR = 3, 20
"""Times that a stopped process may have run a little, and stops after which the supervisor forgets one of these. No
process with 128 threads ran in 1,300 stops on a busy machine; a virtual machine's host may suspend a thread for longer.
A candidate gains nothing by one round of twenty, and cannot save up stops without a run for the rounds of one shape."""


class RoleProcess:
    """A process, from before its start to its record."""

    def __init__(self, name: str, trusted: bool = False) -> None:
        self.name = name
        self.trusted = trusted
        self.keeper: Optional[Keeper] = None
        """Once it is there; it may wait for its start as long as the job waits."""
        self.pid = 0
        """The keeper's, which ends by itself when all of the sandbox has ended."""
        self.process_one: Optional[processes.Identity] = None
        """Process 1 of its sandbox, once bubblewrap has said which it is."""
        self.ended = False
        self.reported = False
        """Whether its keeper has reported the end: nothing lives by then, and it holds nothing any more."""
        self.forsaken = False
        """Whether its keeper was killed by somebody else."""
        self.exit_code: Optional[int] = None
        self.signal: Optional[int] = None
        self.group: Optional[Cgroup] = None
        self.oom = False
        """Whether the watcher found it over its memory; a group's own count is in `oom_kills`."""
        self._cpu_s = 0.0
        """Used when somebody looked last, without what its group had used before the job."""
        self._cpu_before_s = 0.0
        self._emptied = False
        self._frozen = ""
        self.thawed_s = 0.0
        """Just before it was let go on last, on the monotonic clock."""
        self._runs: Dict[str, Tuple[int, int]] = {}
        self._stops = self._stirred = 0
        """How often it was stopped, and one of its processes had run a little meanwhile, less what is forgotten."""
        self._room = {"stdout": 0, "stderr": 0}
        self._seen = {"stdout": 0, "stderr": 0}
        self._kept = {"stdout": 0, "stderr": 0}
        self._asked_to_end = False
        self._info = b""
        self.lost = ""
        """Why output could not be kept, if so."""
        self._folder: Optional[JobFolder] = None
        self._names: Dict[int, str] = {}
        self._files: Dict[str, int] = {}
        self._writes: List[int] = []
        self.out_write = self._pipe("stdout")
        self.err_write = self._pipe("stderr")
        self.info_read, self.info_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._writes.append(self.info_write)

    def _pipe(self, name: str) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        try:
            fcntl.fcntl(read, _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass
        self._names[read] = name
        self._writes.append(write)
        return write

    def write_to(self, folder: JobFolder, keep_bytes: int) -> None:
        """Say where a job's output goes, and how much of each stream is kept; what was used before is not the job's."""
        self._folder = folder
        self._room = {"stdout": keep_bytes, "stderr": keep_bytes}
        self._cpu_before_s = self._cpu_of_group() or 0.0

    def allow_uid(self, uid: int) -> None:
        """Let a uid open its output again, as programs do that write to /dev/stderr."""
        for fd in (self.out_write, self.err_write):
            os.fchown(fd, uid, uid)

    def keep(self, held: Sequence[int]) -> None:
        """Fork its keeper, which holds descriptors open as long as anything of the sandbox lives.

        Raises:
            OSError: If it could not be forked.
        """
        self.keeper = Keeper(held, self.group.procs_paths() if self.group is not None else ())
        self.pid = self.keeper.pid

    def close_child_ends(self) -> None:
        """Drop our copies of what it writes to."""
        self._drop_writes()

    def read_info(self) -> bool:
        """Take what bubblewrap says of process 1; True when it is known now. Source: bwrap(1), --info-fd."""
        if self.info_read < 0:
            return False
        try:
            while True:
                chunk = os.read(self.info_read, 4096)
                if not chunk:
                    break
                self._info += chunk
        except BlockingIOError:
            return False
        os.close(self.info_read)
        self.info_read = -1
        try:
            self.process_one = processes.identity_of(int(json.loads(self._info.decode("ascii"))["child-pid"]))
        except (ValueError, KeyError, TypeError):
            pass  # another level, or bubblewrap failed before
        return self.process_one is not None

    def _drop_writes(self) -> None:
        while self._writes:
            os.close(self._writes.pop())

    def life(self) -> int:
        """Return the descriptor over which its keeper reports the end, -1 when nothing comes of it any more."""
        return self.keeper.life if self.keeper is not None and not self.reported else -1

    def read_end(self) -> bool:
        """Take its keeper's report; False when the keeper was killed before it could report anything."""
        assert self.keeper is not None
        said = os.read(self.keeper.life, END.size)
        self.keeper.close()
        if said and not self.ended:
            code, cpu_s = END.unpack(said)
            self.end(code << 8, cpu_s)
            self.reported = True
        return self.reported

    def pipes(self) -> List[int]:
        """Return the descriptors that may still bring output."""
        return list(self._names)

    def read(self, fd: int) -> bool:
        """Take what is in a pipe, keep it up to the limit, count the rest; True when something was kept."""
        name = self._names[fd]
        try:
            chunk = os.read(fd, PIPE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            os.close(fd)
            del self._names[fd]
            return False
        self._seen[name] += len(chunk)
        rest = memoryview(chunk)[: max(0, self._room[name] - self._kept[name])]
        if not rest:
            return False
        try:
            while rest:  # a disk that fills up takes a part first
                written = os.write(self._file(name), rest)
                self._kept[name] += written
                rest = rest[written:]
        except OSError as error:  # the count goes on, the output is lost, and the record says so
            self.lost = job_files.disk_full_message(error) or "%s cannot be written: %s" % (name, error)
            self._room[name] = 0
            return False
        return True

    def _file(self, name: str) -> int:
        if name not in self._files:
            assert self._folder is not None
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._files[name] = os.open(self._folder.stream(self.name, name), flags, 0o600)
        return self._files[name]

    def bytes_written(self, name: str) -> int:
        """Return the bytes that it wrote."""
        return self._seen[name]

    def bytes_kept(self, name: str) -> int:
        """Return the bytes that were kept of them."""
        return self._kept[name]

    def end(self, wait_status: int, cpu_s: float) -> None:
        """Note how it ended, and what it and those that it waited for have used; bwrap reports a signal as 128 + it."""
        self.ended = True
        self._cpu_s = max(self._cpu_s, cpu_s)
        if os.WIFSIGNALED(wait_status):
            self.signal = os.WTERMSIG(wait_status)
            self.forsaken = not self._asked_to_end
        else:
            self.exit_code = os.WEXITSTATUS(wait_status)
            if self.exit_code - 128 in _SIGNALS:
                self.signal = self.exit_code - 128

    def out_of_memory(self) -> bool:
        """Say whether its memory limit struck."""
        return self.oom or bool(self.group is not None and self.group.stats().get("oom_kills"))

    def hit_cpu_limit(self, cpu_s: float) -> bool:
        """Say whether the CPU limit ended it, or one of its processes, as a compiler's driver then fails by itself."""
        return self.signal == signal.SIGXCPU or (self.exit_code != 0 and self._cpu_s >= cpu_s)

    def used_cpu_s(self) -> float:
        """Return the CPU seconds that its processes have used together."""
        of_group = self._cpu_of_group()
        if of_group is not None:
            self._cpu_s = max(self._cpu_s, of_group - self._cpu_before_s)
        elif self.pid and not self.ended:
            self._cpu_s = max(self._cpu_s, processes.used_cpu_s(self.pid))
        return self._cpu_s

    def _cpu_of_group(self) -> Optional[float]:
        return self.group.stats().get("cpu_s") if self.group is not None else None

    def pids(self) -> List[int]:
        """Return the processes that run for it."""
        if self.group is not None:
            return self.group.pids()
        return processes.descendants_of(self.pid) if self.pid else []

    def freeze(self) -> str:
        """Stop all its processes; return how: `freezer` or `sigstop`, or nothing when it could not be done."""
        if self.group is not None and self.group.freeze():
            self._frozen = "freezer"
        else:
            self._frozen = "sigstop"
            if not self.pid or not processes.stop(self.pid):
                return ""
            # Unlike a frozen group, a stopped process goes on at any SIGCONT, a timer's too: its run time tells when it
            # is thawed.
            self._runs = processes.runs_of(self.pid)
        return self._frozen

    def thaw(self) -> bool:
        """Let them go on; return whether one of them had gone on by itself."""
        had_run, stopped = False, self._frozen == "sigstop" and bool(self.pid)
        if stopped:
            had_run, stirred = processes.has_run_since(self.pid, self._runs)
            self._stirred += stirred
            had_run = had_run or self._stirred > MOST_STIRRED
            self._stops += 1
            if self._stops % STOPS_A_STIR == 0:
                self._stirred = max(0, self._stirred - 1)
        self.thawed_s = time.monotonic()
        if stopped:
            processes.resume(self.pid)
        elif self._frozen and self.group is not None:
            self.group.thaw()
        self._frozen = ""
        return had_run

    def kill(self) -> None:
        """Kill all its processes."""
        if self.group is not None and not (self.ended and self._is_empty()):
            self.group.kill()
        if self.pid and not self.ended:
            self._asked_to_end = True
            processes.ask_to_end([self.pid])
        if self._frozen:
            self.thaw()

    def close(self, limits: Limits) -> "tuple[ProcessRecord, list[str]]":
        """Wait until its group is empty, and return the record and what to note about it."""
        self._drop_writes()
        if self.keeper is not None:
            self.keeper.close()
        for fd in [*self._names, *self._files.values(), *([self.info_read] if self.info_read >= 0 else [])]:
            os.close(fd)
        self.info_read = -1
        self._names.clear()
        self._files.clear()
        stats: Dict[str, Optional[float]] = {}
        notes = self._notes(limits)
        if self.group is not None:
            if not (self._is_empty() or self.group.wait_empty(2.0)):
                self.group.kill()
                if not self.group.wait_empty(5.0):
                    notes.append("role %s: processes that do not die: %s" % (self.name, self.group.pids()))
            stats = self.group.stats()
            self.used_cpu_s()
        hits = int(stats.get("pids_max_hits") or 0)
        if hits:
            notes.append(
                "role %s reached the limit of %d processes and threads, %d times" % (self.name, limits.processes, hits)
            )
        peak = stats.get("peak_memory_bytes")
        record = ProcessRecord(
            role=self.name,
            exit_code=self.exit_code,
            signal=self.signal,
            peak_memory_bytes=int(peak) if peak is not None else None,
            oom_kills=max(int(stats.get("oom_kills") or 0), int(self.oom)),
        )
        return record, notes

    def _is_empty(self) -> bool:
        """Say whether nobody is left in its group; once it is so nobody can get in."""
        self._emptied = self._emptied or self.group is None or not self.group.pids()
        return self._emptied

    def clear(self) -> None:
        """Remove its group, which is empty; that takes as long as all else at an end, so it comes after the record."""
        if self.group is not None:
            self.group.remove()

    def _notes(self, limits: Limits) -> List[str]:
        """Say which of the limits on output and files struck."""
        notes = [self.lost] if self.lost else []
        for name in ("stdout", "stderr"):
            if self._room[name] and self._seen[name] > self._kept[name]:
                words = (name, self._kept[name], self._seen[name], self._room[name])
                notes.append("%s: %d of %d bytes kept (limit %d)" % words)
        if self.signal == signal.SIGXFSZ:
            notes.append("a file went over the limit of %d bytes" % limits.file_bytes)
        return notes


def identities(roles: Iterable[RoleProcess]) -> Dict[str, List[processes.Identity]]:
    """Return what must be known of sandboxes should all that hold them be killed."""
    keepers = [processes.identity_of(role.pid) for role in roles if role.pid]
    inside = [role.process_one for role in roles]
    return {
        "keepers": [each for each in keepers if each is not None],
        "sandboxes": [each for each in inside if each is not None],
    }


_SIGNALS = {int(s) for s in signal.Signals}
