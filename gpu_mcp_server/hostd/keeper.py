"""The keeper: parent and subreaper of one sandbox, outside of it, between the supervisor and bubblewrap.

It holds the job's locks as long as anything of the sandbox lives, because nothing inside may hold anything of ours.
It adopts what the sandbox loses, kills all of it when the leader or the supervisor ends, and reports the end as
bubblewrap does: by the exit status, 128 + number for a signal. It keeps its own uid, is in none of the job's control
groups and is not dumpable, so that no job can stop, kill or read it. The supervisor asks it for an end by SIGTERM.

When the supervisor is killed, the keeper kills the sandbox before it lets the locks go; when the keeper is killed,
the supervisor does. When both are, bubblewrap dies with its parent, and the text of the lock names process 1.
"""

import ctypes
import os
import signal
from typing import Callable, Optional, Sequence

from . import descriptors, processes

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 4, 36, 37
_libc = ctypes.CDLL(None, use_errno=True)
PAUSE_S = 0.001


def adopt(willing: bool = True) -> None:
    """Become the parent of whatever those below lose, or no longer."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(willing), 0, 0, 0)


def adopts() -> bool:
    """Say whether this process is the parent of what those below lose."""
    answer = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; end at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def keep(start: Callable[[], None], held: Sequence[int], null: int, parent: int) -> None:
    """Fork a child that calls `start` (which must exec) and stay its parent until all below has ended; never returns.

    Args:
        start: What the child does.
        held: Descriptors that the keeper holds open as long as anything lives, and the child does not.
        null: A descriptor of /dev/null.
        parent: The supervisor's pid.
    """
    heard = (signal.SIGTERM, signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # each waits until it is asked for, so that none comes too early
    adopt()
    die_with(parent, signal.SIGTERM)  # before there is anything to leave behind
    ours = os.getpid()
    leader = os.fork()
    if leader == 0:
        for fd in held:
            os.close(fd)
        die_with(ours)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        start()
        os._exit(127)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in range(3):
        os.dup2(null, number)
    descriptors.close_all_but(held)
    status: Optional[int] = None
    while status is None:
        if signal.sigwait(heard) == signal.SIGTERM:
            processes.kill([leader])  # bubblewrap takes its sandbox with it
            kill_below()
            os.kill(ours, signal.SIGKILL)
        status = _end_of(leader)
    kill_below()
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _end_of(leader: int) -> Optional[int]:
    """Take the ends of children; return the leader's, None while it lives."""
    found: Optional[int] = None
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            found = status if pid == leader else found
            pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    return found


def kill_below() -> None:
    """Kill all below this process, which must `adopt`, until nothing is left."""
    while not processes.reaped_all():
        if signal.sigtimedwait([signal.SIGCHLD], PAUSE_S) is None:
            processes.kill(processes.below(os.getpid()))
