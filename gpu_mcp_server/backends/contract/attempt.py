"""Small programs that try to leave the sandbox, and the words by which each says that it failed, as it should."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_mcp_server.backends.contract.host import JobSnapshot

MIB = 1 << 20
ANY = "any"
"""Whatever sandbox the job happens to get."""
COLD, PREWARMED, PROFILED = "cold", "prewarmed", "profiled"
"""One made for the job, one that waited for it, and one whose job may trace its own children."""
COLD_AND_PREWARMED = (COLD, PREWARMED)
EACH = (COLD, PREWARMED, PROFILED)
WALLED = (PREWARMED, PROFILED)
"""Those whose job starts behind Landlock."""


def nothing(done: JobSnapshot) -> bool:
    """Say whether nothing was printed."""
    return done.record.status in ("ok", "failed") and not done.stdout.strip()


def ends_as(*wanted: str) -> Callable[[JobSnapshot], bool]:
    """Look whether the job has one of these statuses."""
    return lambda done: done.record.status in wanted


def says(*words: str) -> Callable[[JobSnapshot], bool]:
    """Look whether something was printed, and these words alone."""
    return lambda done: done.record.status == "ok" and set(done.text.split()) <= set(words) and bool(done.text.split())


def only_tries(done: JobSnapshot) -> bool:
    """Say whether the program came to its end and reached nothing, which it would have named."""
    return done.record.status == "ok" and done.text == TRIED


@dataclass(frozen=True)
class EscapeAttempt:
    """One way out."""

    row: int
    what: str
    closed_by: str
    script: str
    closed: Callable[[JobSnapshot], bool] = nothing
    """Whether the attempt failed, as it should; by default nothing may be printed."""
    python: bool = False
    least: str = "unconfined"
    """Weakest sandbox level that promises to close it."""
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    sandboxes: tuple[str, ...] = (ANY,)
    """Kinds of sandbox in which it is tried, one after the other."""


TRY = """
# What the programs in Python begin with. `code` and `call` give the error's name, `openable` the paths that open.
import ctypes, errno, os, socket, sys
def code(work):
    try:
        work()
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
here = 0 if os.uname().machine == "x86_64" else 1
def call(numbers, *given):
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(numbers[here]), *[ctypes.c_long(x) for x in given])
    return "done" if done >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
def openable(paths, flags=os.O_WRONLY):
    return [path for path in paths if code(lambda: os.close(os.open(path, flags | os.O_NONBLOCK))) == "done"]
def has_wall():
    return libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint32(1)) >= 2
"""
TRIED = "tried\n"
REFUSED = ("EPERM", "EACCES", "EROFS", "ENOENT", "ESRCH", "EXDEV", "ENXIO", "EAFNOSUPPORT", "ECONNREFUSED")
