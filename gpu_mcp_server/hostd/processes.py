"""Process trees by /proc: who descends from whom, what they hold, stopping and killing them."""

import os
import signal
from typing import Dict, List, Set


def _parents() -> Dict[int, int]:
    found = {}  # type: Dict[int, int]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as text:
                    found[int(name)] = int(text.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def descendants(root: int) -> List[int]:
    """Return a process and all below it."""
    children = {}  # type: Dict[int, List[int]]
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    seen = set()  # type: Set[int]
    todo = [root]
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            todo += children.get(pid, [])
    return sorted(seen)


def state_of(pid: int) -> str:
    """Return the one-letter state of a process, or nothing when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as text:
            return text.read().rpartition(b")")[2].split()[0].decode("ascii")
    except (OSError, IndexError):
        return ""


def stop(root: int) -> bool:
    """Stop a process and all below it; True once each of them stands still.

    A process that forks meanwhile is caught by the next pass: passes go on until one finds nobody running.
    """
    for _ in range(200):
        running = [p for p in descendants(root) if state_of(p) not in ("T", "t", "Z", "X", "")]
        if not running:
            return True
        for pid in running:
            _signal(pid, signal.SIGSTOP)
    return False


def resume(root: int) -> None:
    """Let a stopped process and all below it go on."""
    for pid in descendants(root):
        _signal(pid, signal.SIGCONT)


def kill_below(root: int) -> None:
    """Kill all below a process, not itself."""
    for pid in descendants(root):
        if pid != root:
            _signal(pid, signal.SIGKILL)


def memory_and_threads(root: int) -> "tuple[int, int]":
    """Return resident bytes (shared pages counted once a process) and threads of a process and all below it."""
    total = 0
    threads = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in descendants(root):
        try:
            with open("/proc/%d/statm" % pid, "rb") as text:
                fields = text.read().split()
            total += (int(fields[1]) - int(fields[2])) * page
            threads += len(os.listdir("/proc/%d/task" % pid))
        except (OSError, IndexError, ValueError):
            continue
    return total, threads


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass
