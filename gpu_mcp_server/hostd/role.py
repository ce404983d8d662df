"""One running process of a job: its pipes, its group, its end."""

import fcntl
import os
import signal
from typing import Dict, List, Optional

from . import processes
from .cgroup import Group
from .jobs import JobFolder
from .protocol import Limits, ProcessRecord, ProcessSpec

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class Role:
    """A process, from before its start to its record."""

    def __init__(self, process: ProcessSpec, folder: JobFolder, keep_bytes: int) -> None:
        self.name = process.role
        self.trusted = process.trusted
        self.pid = 0
        self.ended = False
        self.exit_code = None  # type: Optional[int]
        self.signal = None  # type: Optional[int]
        self.group = None  # type: Optional[Group]
        self._frozen = ""
        self._keep = keep_bytes
        self._seen = {"stdout": 0, "stderr": 0}
        self._kept = {"stdout": 0, "stderr": 0}
        self._names = {}  # type: Dict[int, str]
        self._files = {}  # type: Dict[str, int]
        self.out_write = self._pipe("stdout", folder)
        self.err_write = self._pipe("stderr", folder)

    def _pipe(self, name: str, folder: JobFolder) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        try:
            fcntl.fcntl(read, _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass
        self._names[read] = name
        self._files[name] = os.open(folder.stream(self.name, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return write

    def started(self, pid: int) -> None:
        """Note the pid and drop our copies of what it writes to."""
        self.pid = pid
        os.close(self.out_write)
        os.close(self.err_write)

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
        room = self._keep - self._kept[name]
        if room <= 0:
            return False
        try:
            self._kept[name] += os.write(self._files[name], chunk[:room])
        except OSError:  # disk full: the count goes on, the output is lost, and the record shows both numbers
            self._keep = 0
        return True

    def seen(self, name: str) -> int:
        """Return the bytes that it wrote."""
        return self._seen[name]

    def kept(self, name: str) -> int:
        """Return the bytes that were kept of them."""
        return self._kept[name]

    def end(self, wait_status: int) -> None:
        """Note how it ended; bwrap reports a signal inside as 128 + number."""
        self.ended = True
        if os.WIFSIGNALED(wait_status):
            self.signal = os.WTERMSIG(wait_status)
        else:
            self.exit_code = os.WEXITSTATUS(wait_status)
            if self.exit_code > 128 and self.exit_code - 128 in _SIGNALS:
                self.signal = self.exit_code - 128

    def freeze(self) -> str:
        """Stop all its processes; return how: `freezer` or `sigstop`, or nothing when it could not be done."""
        if self.group is not None and self.group.freeze():
            self._frozen = "freezer"
        else:
            self._frozen = "sigstop"
            if not processes.stop(self.pid):
                return ""
        return self._frozen

    def thaw(self) -> None:
        """Let them go on."""
        if self._frozen == "freezer" and self.group is not None:
            self.group.thaw()
        elif self._frozen:
            processes.resume(self.pid)
        self._frozen = ""

    def kill(self) -> None:
        """Kill all its processes."""
        if not self.pid:
            return
        if not self.ended:
            processes.kill_below(self.pid) if self.group is None else self.group.kill()
            try:
                os.kill(self.pid, signal.SIGKILL)
            except OSError:
                pass
        elif self.group is not None:
            self.group.kill()
        if self._frozen:
            self.thaw()

    def close(self) -> ProcessRecord:
        """Wait until its group is empty, remove it, and return the record."""
        for fd in self.pipes():
            os.close(fd)
        for fd in self._files.values():
            os.close(fd)
        stats = {}  # type: Dict[str, object]
        if self.group is not None:
            if not self.group.wait_empty(2.0):
                self.group.kill()
                self.group.wait_empty(5.0)
            stats = dict(self.group.stats())
            self.group.remove()
        peak = stats.get("peak_memory_bytes")
        return ProcessRecord(
            role=self.name,
            exit_code=self.exit_code,
            signal=self.signal,
            peak_memory_bytes=peak if isinstance(peak, int) else None,
            oom_kills=int(str(stats.get("oom_kills") or 0)),
        )

    def notes(self, limits: Limits) -> List[str]:
        """Say which of the limits on output and files struck."""
        notes = []  # type: List[str]
        for name in ("stdout", "stderr"):
            if self._seen[name] > self._kept[name]:
                notes.append("%s: %d of %d bytes kept (limit %d)" % (name, self._kept[name], self._seen[name], limits.output_bytes))
        if self.signal == signal.SIGXFSZ:
            notes.append("a file went over %d bytes" % limits.file_bytes)
        return notes


_SIGNALS = {int(s) for s in signal.Signals}
