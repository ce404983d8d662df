"""One control group: what it does, on version 2 and on version 1. `cgroup` says where groups can be made.

Source: `Documentation/admin-guide/cgroup-v2.rst` (cgroup.kill from Linux 5.14, cgroup.freeze from 5.2, memory.peak
from 5.19) and `Documentation/admin-guide/cgroup-v1/{memory,pids,freezer-subsystem}.rst`.
"""

import errno
import os
import select
import signal
import time
from typing import Dict, FrozenSet, List, Optional, Sequence, Set

CPU_PERIOD_US = 100_000
"""The kernel's default period of cpu.max and cpu.cfs_period_us."""
LEAST_CPU_QUOTA_US = 1_000
"""Below it the kernel answers EINVAL. Source: kernel/sched, min_cfs_quota_period."""
BUSY_POLL_S = 1.0
POLL_S = 0.0002
READ_BYTES = 64 << 10


class CgroupFiles:
    """Reads and writes the hierarchy; a test may put an imitation in its place."""

    def read(self, path: str) -> str:
        """Return a file's text."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts: List[bytes] = []
            while not parts or parts[-1]:
                parts.append(os.read(fd, READ_BYTES))
            return b"".join(parts).decode("utf-8", "replace")
        finally:
            os.close(fd)

    def write(self, path: str, text: str) -> None:
        """Write in one call: the kernel takes each write as one command."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def make(self, path: str) -> None:
        """Make a group, unless it is there."""
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass

    def remove(self, path: str) -> None:
        """Remove an empty group, if it is there."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass

    def exists(self, path: str) -> bool:
        """Say whether a file or group is there."""
        return os.path.exists(path)

    def writable(self, path: str) -> bool:
        """Say whether this process may write a file."""
        return os.access(path, os.W_OK)


def number_in(files: CgroupFiles, path: str, key: str = "") -> Optional[int]:
    """Return the number in a file, or the one after `key` in a file of lines."""
    try:
        text = files.read(path)
    except OSError:
        return None
    for line in text.splitlines():
        words = line.split()
        if key and len(words) == 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
        if not key and len(words) == 1 and words[0].isdigit():
            return int(words[0])
    return None


class Cgroup:
    """One group: the processes of one role of one job. What it is on disk differs by version.

    Attributes:
        name: Its name below `gpu-mcp-server`.
    """

    def __init__(self, name: str, files: CgroupFiles, folders: Sequence[str], features: FrozenSet[str]) -> None:
        self.name = name
        self._files = files
        self._folders = list(folders)
        self._features = features
        self._held: Dict[str, float] = {}
        """Limits as they were set last."""
        for folder in self._folders:
            files.make(folder)

    def procs_paths(self) -> List[str]:
        """Return the files that a process joins by writing `0` (itself) or a pid into each of them."""
        return [folder + "/cgroup.procs" for folder in self._folders]

    def add(self, pid: int) -> None:
        """Move a process in.

        Raises:
            OSError: If it is gone, or is not ours to move.
        """
        for path in self.procs_paths():
            self._files.write(path, str(pid))

    def pids(self) -> List[int]:
        """Return the processes inside, zombies left out: a process in any of the folders is in the first."""
        try:
            words = self._files.read(self.procs_paths()[0]).split()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return []
        return sorted({int(word) for word in words} - {0})

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no process is left inside.

        Returns:
            False if the time ran out first.
        """
        deadline = time.monotonic() + timeout_s
        while self.pids():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait_for_event(min(left, 0.05))
        return True

    def remove(self) -> bool:
        """Remove the group; it must be empty.

        Returns:
            False if something is left in it.
        """
        gone = True
        for folder in self._folders:
            for _ in range(50):
                try:
                    self._files.remove(folder)
                    break
                except OSError:
                    # A group that has just emptied is busy until its last process is reaped.
                    time.sleep(POLL_S)
            else:
                gone = False
        return gone

    def limit(
        self, memory_bytes: Optional[int] = None, processes: Optional[int] = None, cpus: Optional[float] = None
    ) -> Set[str]:
        """Set limits: memory without swap, processes and threads, CPU share (2.0 is two whole CPUs).

        Those that hold already are not written again: with control groups of version 1 that is six calls.

        Returns:
            The features that now hold a limit, of `memory`, `pids` and `cpu`; one that is missing was not available.
        """
        asked = {"memory": memory_bytes, "pids": processes, "cpu": cpus}
        wanted = {name: value for name, value in asked.items() if value is not None and name in self._features}
        for name, value in wanted.items():
            if self._held.get(name) == value:
                continue
            if name == "memory":
                self._limit_memory(int(value))
            elif name == "pids":
                self._files.write(self._folder("pids") + "/pids.max", str(value))
            else:
                self._limit_cpu(max(int(value * CPU_PERIOD_US), LEAST_CPU_QUOTA_US))
            self._held[name] = value
        return set(wanted)

    def freeze(self, timeout_s: float = 5.0) -> bool:
        """Stop all processes inside and wait until they have stopped.

        It looks without a pause for the first second, because a clock is usually waiting. It yields the
        processor meanwhile: a process must run to stop, maybe on this very one.

        Returns:
            False if the group cannot freeze, or did not within the time; it stays asked to.
        """
        if "freeze" not in self._features:
            return False
        self._set_frozen(True)
        began = time.monotonic()
        while not self._is_frozen():
            waited = time.monotonic() - began
            if waited > timeout_s:
                return False
            if waited > BUSY_POLL_S:
                time.sleep(POLL_S)
            else:
                os.sched_yield()
        return True

    def thaw(self) -> None:
        """Let the processes go on."""
        if "freeze" in self._features:
            self._set_frozen(False)

    def kill(self) -> None:
        """Kill all processes inside, frozen ones as well; `wait_empty` says when they are gone."""
        kill_file = self._kill_file()
        if kill_file is not None:
            self._files.write(kill_file, "1")
        else:
            self._kill_each()
        # On version 1 a frozen process takes even SIGKILL only once it is thawed.
        self.thaw()

    def _kill_each(self) -> None:
        # A frozen group cannot fork between the listing and the signals; without a freezer a few rounds must do.
        for _ in range(20):
            frozen = self.freeze(timeout_s=BUSY_POLL_S)
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if frozen or not self.pids():
                return

    def stats(self) -> Dict[str, Optional[float]]:
        """Return `peak_memory_bytes`, `oom_kills`, `pids_max_hits`, `cpu_s`; `None` where the kernel does not say."""
        raise NotImplementedError

    def _folder(self, controller: str) -> str:
        raise NotImplementedError

    def _limit_memory(self, size: int) -> None:
        raise NotImplementedError

    def _limit_cpu(self, quota_us: int) -> None:
        raise NotImplementedError

    def _set_frozen(self, frozen: bool) -> None:
        raise NotImplementedError

    def _is_frozen(self) -> bool:
        raise NotImplementedError

    def _kill_file(self) -> Optional[str]:
        raise NotImplementedError

    def _events_file(self) -> Optional[str]:
        raise NotImplementedError

    def _wait_for_event(self, timeout_s: float) -> None:
        """Sleep until cgroup.events changes, which it does when the last process leaves, or for `timeout_s`."""
        path = self._events_file()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        except OSError:
            fd = -1
        if fd < 0:
            time.sleep(min(timeout_s, 0.001))
            return
        try:
            poll = select.poll()
            poll.register(fd, select.POLLPRI)
            # Read first: the kernel reports changes since the last read, so that none between is lost.
            if b"populated 1" in os.read(fd, 4096):
                poll.poll(timeout_s * 1000)
            elif self.pids():
                # A hybrid host: those left are in the groups of version 1 alone.
                time.sleep(min(timeout_s, 0.001))
        finally:
            os.close(fd)


class GroupV2(Cgroup):
    """One folder holds everything."""

    def __init__(self, name: str, files: CgroupFiles, folder: str, features: FrozenSet[str]) -> None:
        super().__init__(name, files, [folder], features)
        self._at = folder

    def stats(self) -> Dict[str, Optional[float]]:
        """Return what the kernel counted."""
        used_us = number_in(self._files, self._at + "/cpu.stat", "usage_usec")
        return {
            "peak_memory_bytes": number_in(self._files, self._at + "/memory.peak"),
            "oom_kills": number_in(self._files, self._at + "/memory.events", "oom_kill"),
            "pids_max_hits": number_in(self._files, self._at + "/pids.events", "max"),
            "cpu_s": None if used_us is None else used_us / 1e6,
        }

    def _folder(self, controller: str) -> str:
        return self._at

    def _limit_memory(self, size: int) -> None:
        self._files.write(self._at + "/memory.max", str(size))
        # swap.max is absent on kernels without swap; oom.group kills the whole job, not one process of it.
        for name, text in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            if self._files.exists(self._at + "/" + name):
                self._files.write(self._at + "/" + name, text)

    def _limit_cpu(self, quota_us: int) -> None:
        self._files.write(self._at + "/cpu.max", "%d %d" % (quota_us, CPU_PERIOD_US))

    def _set_frozen(self, frozen: bool) -> None:
        self._files.write(self._at + "/cgroup.freeze", "1" if frozen else "0")

    def _is_frozen(self) -> bool:
        return "frozen 1" in self._files.read(self._at + "/cgroup.events")

    def _kill_file(self) -> Optional[str]:
        return self._at + "/cgroup.kill" if "kill" in self._features else None

    def _events_file(self) -> Optional[str]:
        return self._at + "/cgroup.events"


class GroupV1(Cgroup):
    """One folder for each controller, and one of version 2 for cgroup.kill where it is mounted."""

    def __init__(self, name: str, files: CgroupFiles, parents: Dict[str, str], features: FrozenSet[str]) -> None:
        self._at = {controller: parent + "/" + name for controller, parent in parents.items()}
        # Several controllers may share one mount, as in /sys/fs/cgroup/cpu,cpuacct.
        super().__init__(name, files, list(dict.fromkeys(self._at.values())), features)

    def stats(self) -> Dict[str, Optional[float]]:
        """Return what the kernel counted."""
        memory, used_ns = self._at.get("memory", ""), None
        if "cpuacct" in self._at:
            used_ns = number_in(self._files, self._at["cpuacct"] + "/cpuacct.usage")
        return {
            "peak_memory_bytes": number_in(self._files, memory + "/memory.max_usage_in_bytes"),
            "oom_kills": number_in(self._files, memory + "/memory.oom_control", "oom_kill"),
            "pids_max_hits": number_in(self._files, self._at.get("pids", "") + "/pids.events", "max"),
            "cpu_s": None if used_ns is None else used_ns / 1e9,
        }

    def _folder(self, controller: str) -> str:
        return self._at[controller]

    def _limit_memory(self, size: int) -> None:
        plain = self._at["memory"] + "/memory.limit_in_bytes"
        with_swap = self._at["memory"] + "/memory.memsw.limit_in_bytes"
        if not self._files.exists(with_swap):
            self._files.write(plain, str(size))
            return
        # The limit with swap may never be below the one without: which goes first depends on the old ones.
        first, second = (with_swap, plain) if (number_in(self._files, with_swap) or 0) < size else (plain, with_swap)
        self._files.write(first, str(size))
        self._files.write(second, str(size))

    def _limit_cpu(self, quota_us: int) -> None:
        self._files.write(self._at["cpu"] + "/cpu.cfs_period_us", str(CPU_PERIOD_US))
        self._files.write(self._at["cpu"] + "/cpu.cfs_quota_us", str(quota_us))

    def _set_frozen(self, frozen: bool) -> None:
        self._files.write(self._at["freezer"] + "/freezer.state", "FROZEN" if frozen else "THAWED")

    def _is_frozen(self) -> bool:
        return self._files.read(self._at["freezer"] + "/freezer.state").strip() == "FROZEN"

    def _kill_file(self) -> Optional[str]:
        return self._at["unified"] + "/cgroup.kill" if "kill" in self._features else None

    def _events_file(self) -> Optional[str]:
        return self._at["unified"] + "/cgroup.events" if "unified" in self._at else None
