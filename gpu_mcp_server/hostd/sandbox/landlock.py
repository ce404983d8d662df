"""Landlock: what a process may open, without namespaces and without privileges.

The fallback where bubblewrap cannot run (rented containers, hosts that forbid user namespaces), and a second layer
where it can. It restrains files, TCP ports, abstract sockets and signals; it does not restrain unix sockets by path,
UDP, the listing of /proc, or the use of resources.

Source: `Documentation/userspace-api/landlock.rst`, `linux/landlock.h`. The three calls have the same numbers on
x86_64 and aarch64.
"""

import ctypes
import errno
import os
import stat
import struct
from typing import Callable, List, Sequence, Tuple

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446

(
    EXECUTE,
    WRITE_FILE,
    READ_FILE,
    READ_DIR,
    REMOVE_DIR,
    REMOVE_FILE,
    MAKE_CHAR,
    MAKE_DIR,
    MAKE_REG,
    MAKE_SOCK,
    MAKE_FIFO,
    MAKE_BLOCK,
    MAKE_SYM,
    REFER,
    TRUNCATE,
    IOCTL_DEV,
) = (1 << i for i in range(16))

BIND_AND_CONNECT_TCP = 3
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
SCOPES = 6
"""Version from which on it keeps abstract sockets and signals within; Linux 6.12 has it."""
OLDER = "GPU_MCP_HOSTD_LANDLOCK"
"""Environment variable that makes this module behave as on a kernel of no more than this version; for tests."""
FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that mean something for what is not a folder; the kernel refuses the others there."""


def _calls() -> Tuple[ctypes.CDLL, Callable[..., int]]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    libc.syscall.restype = ctypes.c_long
    syscall: Callable[..., int] = libc.syscall
    return libc, syscall


def _failed(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, "%s: %s" % (what, os.strerror(code)))


def abi() -> int:
    """Return the version that the kernel speaks, 0 when Landlock is absent or switched off."""
    syscall = _calls()[1]
    version = syscall(ctypes.c_long(CREATE_RULESET), ctypes.c_void_p(None), ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(min(int(version), int(os.environ.get(OLDER, version))), 0)


def handled_files(version: int) -> int:
    """Return the file rights that a kernel of this version can withhold."""
    rights = REFER - 1
    if version >= 2:
        rights |= REFER
    if version >= 3:
        rights |= TRUNCATE
    if version >= 5:
        rights |= IOCTL_DEV
    return rights


class Ruleset:
    """A set of rules made ready before a fork; whoever made it closes it.

    Args:
        read_only: Files and folders to read and execute.
        read_write: Files and folders to do everything with, except making device nodes.
        devices: Device nodes to open, and to use with ioctl.
        allow_tcp: Leave TCP; without it no port can be bound or connected to (version 4 on).

    Attributes:
        version: What the kernel speaks: 4 adds TCP, 6 adds abstract sockets and signals.
        missing: Paths that do not exist here, and so got no rule.

    Raises:
        OSError: ENOSYS if the kernel has no Landlock.
    """

    def __init__(
        self, read_only: Sequence[str], read_write: Sequence[str], devices: Sequence[str], allow_tcp: bool
    ) -> None:
        self.version = abi()
        self.missing: List[str] = []
        if self.version == 0:
            raise OSError(errno.ENOSYS, "this kernel has no Landlock")
        self._libc, self._syscall = _calls()
        self._files = handled_files(self.version)
        network = 0 if allow_tcp or self.version < 4 else BIND_AND_CONNECT_TCP
        scope = SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if self.version >= SCOPES else 0
        # The struct grew with the versions, and an older kernel refuses fields that it does not know (E2BIG).
        size = 24 if self.version >= SCOPES else 16 if self.version >= 4 else 8
        # Landlock withholds only the rights that a ruleset names here. So all that this kernel knows are named, and
        # rules give some back.
        attributes = struct.pack("=QQQ", self._files, network, scope)[:size]
        self._fd = int(
            self._syscall(
                ctypes.c_long(CREATE_RULESET), ctypes.c_char_p(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)
            )
        )
        if self._fd < 0:
            raise _failed("landlock_create_ruleset")
        try:
            for path in read_only:
                self._add(path, EXECUTE | READ_FILE | READ_DIR)
            for path in read_write:
                # A device node that a job made here would have this folder's rights, not those of `devices`.
                self._add(path, self._files & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV))
            for path in devices:
                self._add(path, READ_FILE | WRITE_FILE | IOCTL_DEV)
        except BaseException:
            self.close()
            raise

    def _add(self, path: str, rights: int) -> None:
        try:
            add_rule(self._fd, path, rights & self._files)
        except (FileNotFoundError, NotADirectoryError):
            self.missing.append(path)

    @property
    def descriptor(self) -> int:
        """Return what `apply` needs open."""
        return self._fd

    def apply(self) -> None:
        """Bind the calling thread and what it starts; there is no way back.

        Raises:
            OSError: If the kernel refuses.
        """
        restrict_self(self._fd)

    def close(self) -> None:
        """Release the descriptor; a child that is already bound stays bound."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def allow_writes(descriptor: int, folder: str) -> None:
    """Let a ruleset's process write to existing files below a folder.

    Raises:
        OSError: As `add_rule`.
    """
    add_rule(descriptor, folder, (WRITE_FILE | TRUNCATE) & handled_files(abi()))


def add_rule(descriptor: int, path: str, rights: int) -> None:
    """Give a ruleset's process rights on a path and on all below it.

    Raises:
        OSError: If there is no such path, or the kernel refuses.
    """
    syscall = _calls()[1]
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= FOR_FILES
        rule, beneath = struct.pack("=Qi", rights, fd), ctypes.c_int(1)
        numbers = ctypes.c_long(ADD_RULE), ctypes.c_int(descriptor), beneath
        if syscall(*numbers, ctypes.c_char_p(rule), ctypes.c_uint32(0)) != 0:
            raise _failed("landlock_add_rule(%s)" % path)
    finally:
        os.close(fd)


def restrict_self(descriptor: int) -> None:
    """Bind the calling thread and what it starts to a ruleset; there is no way back.

    Raises:
        OSError: If the kernel refuses.
    """
    libc, syscall = _calls()
    set_no_new_privs = 38
    # Without it the kernel refuses callers that lack CAP_SYS_ADMIN: a set-uid program would run in a domain of theirs.
    if libc.prctl(set_no_new_privs, 1, 0, 0, 0) != 0:
        raise _failed("prctl")
    if syscall(ctypes.c_long(RESTRICT_SELF), ctypes.c_int(descriptor), ctypes.c_uint32(0)) != 0:
        raise _failed("landlock_restrict_self")
