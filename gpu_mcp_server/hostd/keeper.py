"""The parent of a process that has no namespace of its own: it leaves nothing behind, as bubblewrap's reaper would.

It adopts what the process starts and loses, kills all of it when the process or the supervisor ends, and reports the
end as bubblewrap does: by the exit status, 128 + number for a signal. It keeps its own uid, so that a job of another
uid cannot kill it.
"""

import ctypes
import os
import signal
import time
from typing import Callable, Sequence

from . import descriptors, processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
PAUSE_S = 0.001


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
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours = os.getpid()
    leader = os.fork()
    if leader == 0:
        for fd in held:
            os.close(fd)
        die_with(ours)
        start()
        os._exit(127)
    for number in range(3):
        os.dup2(null, number)
    descriptors.close_all_but(held)
    signal.signal(signal.SIGTERM, _end_all)
    die_with(parent, signal.SIGTERM)
    status = 0
    pid = 0
    while pid != leader:
        pid, status = os.waitpid(-1, 0)
    _kill_below()
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _end_all(number: int, frame: object) -> None:
    del frame
    _kill_below()
    os._exit(128 + number)


def _kill_below() -> None:
    while not processes.reaped_all():
        processes.kill(processes.below(os.getpid()))
        time.sleep(PAUSE_S)
