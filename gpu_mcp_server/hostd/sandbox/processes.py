"""Process trees by /proc: who descends from whom, what they hold, stopping and killing them."""

import os
import signal
import stat
import time
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

STOP_S = 2.0
STOPPING_NS = 500_000
"""What threads may still run after they are seen to be stopped: one may have been put aside on its way there."""
Identity = Tuple[int, int, int]
"""A process for good: its pid, its start in ticks since boot, and the PID namespace in which it has that pid."""
STILL = frozenset(("T", "t", "Z", "X", "x", ""))
MAX_DESCRIPTORS = 20_000


def _parents() -> Dict[int, int]:
    found: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as text:
                    # A process names itself, brackets and spaces included, so fields are counted from the last bracket.
                    found[int(name)] = int(text.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def namespace() -> int:
    """Return the PID namespace that this process sees, 0 where the kernel does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def identity_of(pid: int) -> Optional[Identity]:
    """Return the identity of a process, None when it has ended. Source: proc_pid_stat(5), fields 3 and 22."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as text:
            fields = text.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X", b"x") else (pid, int(fields[19]), namespace())
    except (OSError, ValueError, IndexError):
        return None


def still_alive(known: Iterable[Any]) -> List[Identity]:
    """Return those of the identities noted by somebody that are still there, as far as this process can see them."""
    found: List[Identity] = []
    for each in known:
        now = identity_of(each[0]) if isinstance(each, list) and each and isinstance(each[0], int) else None
        if now is not None and list(now) == each:
            found.append(now)
    return found


def uids_of_processes() -> Set[int]:
    """Return the uids that any process has, as its own or to regain. Source: proc_pid_status(5), Uid."""
    found: Set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/status" % name, "rb") as text:
                    line = next(line for line in text if line.startswith(b"Uid:"))
            except (OSError, StopIteration):
                continue
            found.update(int(each) for each in line.split()[1:])
    return found


def descendants(*roots: int) -> List[int]:
    """Return processes and all below them."""
    children: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    seen: Set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        # /proc is no snapshot: a reused pid could make the parents form a circle.
        if pid not in seen:
            seen.add(pid)
            todo += children.get(pid, [])
    return sorted(seen)


def children(root: int) -> List[int]:
    """Return the direct children of a process."""
    return [pid for pid, parent in _parents().items() if parent == root]


def descendants_of(root: int) -> List[int]:
    """Return all below a process, without itself."""
    return [pid for pid in descendants(root) if pid != root]


def _children_listed(pid: int) -> List[int]:
    """Return the children that the kernel lists for each thread of a process."""
    found: List[int] = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), "rb") as text:
                found += [int(child) for child in text.read().split()]
    except OSError:
        pass
    return found


def tree_of(root: int) -> List[int]:
    """Return all below a process, without itself, at a cost that does not grow with the machine's other processes.

    Where a child ends just as the list is read, the kernel may leave out its next sibling: a caller that must not miss
    one looks until two looks agree, as `stop` does. Source: proc_tid_children(5). A kernel without these lists is asked
    for every process instead.
    """
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return descendants_of(root)
    seen: List[int] = []
    todo = _children_listed(root)
    while todo:
        pid = todo.pop()
        seen.append(pid)
        todo += _children_listed(pid)
    return sorted(seen)


def stands_still(pid: int) -> bool:
    """Say whether no thread of a process may run; one that is gone has none.

    Its first thread alone would not do: that one may have ended, or stand still already while others run on.
    """
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/stat" % (pid, task), "rb") as text:
                if text.read().rpartition(b")")[2].split()[0].decode("ascii") not in STILL:
                    return False  # of a process with many threads the others need not be read
    except (FileNotFoundError, ProcessLookupError):
        return not os.path.exists("/proc/%d" % pid)  # a thread that ended meanwhile has run, and so may others
    except (OSError, IndexError):
        pass
    return True


def stop(root: int) -> bool:
    """Stop all below a process; True once each of their threads stands still.

    A process that forks meanwhile is caught by the next pass; two passes in a row must find no process running, and the
    same processes as the pass before: one that forks and ends, over and over, is gone whenever its state is read.
    """
    deadline = time.monotonic() + STOP_S
    quiet, before = 0, [root]
    while quiet < 2:
        found = tree_of(root)
        running = [p for p in found if not stands_still(p)]
        quiet = 0 if running or found != before else quiet + 1
        before = found
        for pid in running:
            # SIGSTOP can be neither caught nor ignored, unlike SIGTSTP.
            _signal(pid, signal.SIGSTOP)
        if not quiet and time.monotonic() > deadline:
            return False
        if running:
            # The signal takes effect when a target next runs, so this process gives up its core.
            os.sched_yield()
    return True


def used_cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and all below it, with those of children that they have waited for.

    Source: proc(5), /proc/<pid>/stat, fields utime, stime, cutime, cstime.
    """
    ticks = 0
    for pid in descendants(root):
        try:
            with open("/proc/%d/stat" % pid, "rb") as text:
                ticks += sum(int(n) for n in text.read().rpartition(b")")[2].split()[11:15])
        except (OSError, ValueError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def runs_of(root: int) -> Dict[str, Tuple[int, int]]:
    """Return for how many nanoseconds, and how often, each thread below a process has run; empty if not counted.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """
    found: Dict[str, Tuple[int, int]] = {}
    for pid in tree_of(root):
        try:
            tasks = os.listdir("/proc/%d/task" % pid)
        except OSError:
            continue
        for task in tasks:
            try:
                with open("/proc/%d/task/%s/schedstat" % (pid, task), "rb") as text:
                    fields = text.read().split()
                found[task] = int(fields[0]), int(fields[2])
            except (OSError, ValueError, IndexError):
                continue  # that thread has ended; the others have run for what they have
    return found


def has_run_since(root: int, before: Dict[str, Tuple[int, int]]) -> Tuple[bool, bool]:
    """Say whether something below a stopped process has run since `before`, what `runs_of` said then.

    A timer's SIGCONT, for one, lets a process go on that nobody else has told to.

    Returns:
        Whether it surely has, and whether something has run at all: a thread that was put aside on its way to its stop
        may have, seldom; or one that left a child, which may have run for long and is gone by now. A virtual machine
        counts for a thread what the host took from it on that way, without another run.
    """
    if not all(map(stands_still, tree_of(root))):
        return True, True
    more = [(ns - before.get(task, (0, 0))[0], runs - before.get(task, (0, 0))[1])
            for task, (ns, runs) in runs_of(root).items()]  # fmt: skip
    again = [ns for ns, runs in more if runs > 0]
    return sum(again) > STOPPING_NS, bool(again) or sum(ns for ns, _ in more) > STOPPING_NS


def resume(root: int) -> None:
    """Let all below a stopped process go on."""
    for pid in tree_of(root):
        _signal(pid, signal.SIGCONT)


def kill(pids: Iterable[int]) -> None:
    """Kill processes; those that are gone are left out.

    All are stopped first: what has died makes room for those that fork without end, what stands still does not.
    """
    found = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL) if len(found) > 1 else (signal.SIGKILL,):
        for pid in found:
            _signal(pid, number)


def ask_to_end(keepers: Iterable[int]) -> None:
    """Ask keepers to kill all below them and to end; one that was stopped hears it too."""
    for pid in keepers:
        _signal(pid, signal.SIGTERM)
        _signal(pid, signal.SIGCONT)


def memory_and_threads(root: int, limit: int, most_threads: int, until: float) -> Tuple[int, int]:
    """Return memory in bytes and threads of all below a process; no memory where there are too many threads.

    Shared pages are counted in each process first. When that is over `limit`, shares of them are added up, until they
    are over it or time is up: a share takes the process's map, for which one waits as long as the process forks.

    Args:
        root: Whose descendants.
        limit: Bytes that matter.
        most_threads: Threads that matter.
        until: On the monotonic clock, when to leave the rest out.
    """
    pids = descendants_of(root)
    threads = 0
    for pid in pids:
        try:
            # Threads count: the kernel's own limits, pids.max and RLIMIT_NPROC, count them as well.
            threads += len(os.listdir("/proc/%d/task" % pid))
        except OSError:
            continue
    if threads > most_threads:
        return 0, threads
    held = {pid: _field(pid, "status", (b"RssAnon:", b"RssShmem:")) for pid in pids}
    total = sum(held.values())
    if total <= limit:
        return total, threads
    shares = 0
    # The largest come first, so a tree over its limit is found before time is up.
    for pid in sorted(held, key=held.__getitem__, reverse=True):
        shares += _field(pid, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:"))
        if shares > limit or time.monotonic() > until:
            break
    return shares or total, threads


def _field(pid: int, file: str, names: Tuple[bytes, ...]) -> int:
    total = 0
    try:
        with open("/proc/%d/%s" % (pid, file), "rb") as text:
            for line in text:
                if line.startswith(names):
                    total += int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return total


def deleted_bytes(pids: Iterable[int], device: int) -> int:
    """Return the bytes of files on a device that have no name any more but are still held open."""
    seen: Dict[int, int] = {}
    left = MAX_DESCRIPTORS
    for pid in pids:
        try:
            names = os.listdir("/proc/%d/fd" % pid)[:left]
        except OSError:
            continue
        left -= len(names)
        for name in names:
            try:
                info = os.stat("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            # An unlinked file keeps its blocks while it is open, and no walk of the workspace sees it.
            if info.st_nlink == 0 and info.st_dev == device and stat.S_ISREG(info.st_mode):
                seen[info.st_ino] = info.st_blocks * 512
    return sum(seen.values())


def processes_of_workspace(folder: str, mark: str) -> List[int]:
    """Return the processes of a workspace: bubblewrap's, which have a mark, and others that start or work there.

    Args:
        folder: The workspace.
        mark: Variable in whose value process 1 has the folder's name.
    """
    found: List[int] = []
    # The environment is that of the exec: it finds processes that have changed their folder since.
    words = {b"HOME=" + os.fsencode(folder), os.fsencode("%s=%s" % (mark, os.path.basename(folder)))}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as text:
                ours = not words.isdisjoint(text.read().split(b"\0"))
            ours = ours or (os.readlink("/proc/%s/cwd" % name) + "/").startswith(folder + "/")
        except OSError:
            continue
        if ours:
            found.append(int(name))
    return found


def reaped_all() -> bool:
    """Take the end of children that have ended; True when none is left, of any kind."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def ignore_but_wake(number: int, frame: object) -> None:
    """Handle a signal by nothing but waking the loop that waits."""
    del number, frame
