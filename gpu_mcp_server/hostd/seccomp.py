"""The system call filter of a sandboxed job, assembled here so that no host needs libseccomp.

`program` gives the bytes that `bwrap --seccomp FD` reads: an array of `struct sock_filter`. `Filter` applies the same
program to the calling process, for hosts where bubblewrap cannot run.

The list denies what a compiler, a kernel or a test never needs and what reaches deep into the kernel: it is a second
wall behind the namespaces. Everything else is allowed, Landlock's calls among it.

Source: numbers from Linux 6.1 `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64); program layout from
`Documentation/userspace-api/seccomp_filter.rst`; instruction layout from `linux/bpf_common.h`.
"""

import ctypes
import errno
import os
import struct
from typing import Dict, List, Optional, Tuple, Union

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Source: `linux/audit.h`, machine number | 64 bit | little endian."""

DENIED: Dict[str, Tuple[int, Optional[int]]] = {
    # name: (x86_64, aarch64); None where the architecture has no such call
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    # what is watched in a read-only folder of the system tells which programs others start, and when
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_writev": (311, 271),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}

DENIED_UNLESS_PROFILED: Dict[str, Tuple[int, Optional[int]]] = {
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
}

DENIED_WITH_SHARED_IPC: Dict[str, Tuple[int, Optional[int]]] = {
    # what they make is open to others of the uid, and outlives the job
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}

JUDGED: Dict[str, Tuple[int, int]] = {
    # calls whose arguments decide
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "seccomp": (317, 277),
    "socket": (41, 198),
    "socketpair": (53, 199),
}

AF_UNIX = 1
ALLOWED_FAMILIES = (AF_UNIX, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (getifaddrs needs it)."""
DATAGRAM_BIT = 2
"""In SOCK_DGRAM and SOCK_RAW, not in SOCK_STREAM and SOCK_SEQPACKET. Only a pair of the former can connect again."""

TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal of the person who started us."""

CLONE_NEWUSER = 0x10000000
X32_BIT = 0x40000000

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
NUMBER, ARCH = 0, 4
LOW_WORD = tuple(16 + 8 * i for i in range(6))

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000


def architecture() -> str:
    """Return this machine's name as `program` wants it."""
    return os.uname().machine


def _column(arch: str) -> int:
    if arch not in AUDIT_ARCH:
        raise ValueError("no filter for architecture %r, only for %s" % (arch, ", ".join(AUDIT_ARCH)))
    return list(AUDIT_ARCH).index(arch)


class _Assembler:
    """Collects instructions; jumps name a label that comes later, as BPF only jumps forward."""

    def __init__(self) -> None:
        self._code: List[Tuple[int, Union[str, int], Union[str, int], int]] = []
        self._labels: Dict[str, int] = {}

    def load(self, offset: int) -> None:
        self._code.append((LOAD, 0, 0, offset))

    def jump(self, kind: int, value: int, then: Union[str, int] = 0, otherwise: Union[str, int] = 0) -> None:
        self._code.append((kind, then, otherwise, value))

    def give(self, action: int) -> None:
        self._code.append((RETURN, 0, 0, action))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def _distance(self, at: int, target: Union[str, int]) -> int:
        steps = self._labels[target] - at - 1 if isinstance(target, str) else target
        if not 0 <= steps <= 255:
            raise ValueError("jump of %d instructions to %r" % (steps, target))
        return steps

    def bytes(self) -> bytes:
        return b"".join(
            struct.pack("=HBBI", code, self._distance(at, then), self._distance(at, otherwise), value)
            for at, (code, then, otherwise, value) in enumerate(self._code)
        )


def denied_numbers(arch: str, profiler: bool = False, shared_ipc: bool = False) -> Dict[str, int]:
    """Return the calls that fail with EPERM whatever their arguments, by name."""
    column = _column(arch)
    table = dict(DENIED)
    if not profiler:
        table.update(DENIED_UNLESS_PROFILED)
    if shared_ipc:
        table.update(DENIED_WITH_SHARED_IPC)
    found = {name: numbers[column] for name, numbers in sorted(table.items())}
    return {name: number for name, number in found.items() if number is not None}


def program(arch: str, profiler: bool = False, shared_ipc: bool = False, shared_uid: bool = False) -> bytes:
    """Return the filter as an array of `struct sock_filter`.

    Args:
        arch: `x86_64` or `aarch64`.
        profiler: Leave ptrace and process_vm_readv, which compute-sanitizer and ncu use on their own children.
        shared_ipc: The job has no IPC namespace of its own: deny what System V would share.
        shared_uid: Whoever started hostd has the job's uid, and its sockets (D-Bus, tmux, the SSH agent) would take
            the job for that person: deny sockets of AF_UNIX, other than pairs, and limits of other processes.

    Raises:
        ValueError: If the architecture is another one.
    """
    column = _column(arch)
    judged = {name: numbers[column] for name, numbers in JUDGED.items()}
    out = _Assembler()
    out.load(ARCH)
    out.jump(JUMP_EQUAL, AUDIT_ARCH[arch], 1, 0)
    out.give(KILL_PROCESS)
    out.load(NUMBER)
    if arch == "x86_64":
        out.jump(JUMP_AT_LEAST, X32_BIT, "no such call")
    judges = ["clone", "ioctl", "socket", *(["prlimit64"] if shared_uid else [])]
    for name in judges:
        out.jump(JUMP_EQUAL, judged[name], name)
    out.jump(JUMP_EQUAL, judged["socketpair"], "socketpair" if shared_uid else "socket")
    out.jump(JUMP_EQUAL, judged["clone3"], "no such call")
    for number in denied_numbers(arch, profiler, shared_ipc).values():
        out.jump(JUMP_EQUAL, number, "denied")
    out.give(ALLOW)
    out.label("clone")
    out.load(LOW_WORD[0])
    out.jump(JUMP_ANY_BIT, CLONE_NEWUSER, "denied", "allowed")
    out.label("ioctl")
    out.load(LOW_WORD[1])
    for request in TERMINAL_INJECTION:
        out.jump(JUMP_EQUAL, request, "denied")
    out.give(ALLOW)
    if shared_uid:
        _judge_shared_uid(out)
    out.label("socket")
    out.load(LOW_WORD[0])
    if shared_uid:
        out.jump(JUMP_EQUAL, AF_UNIX, "denied")
    for family in ALLOWED_FAMILIES:
        out.jump(JUMP_EQUAL, family, "allowed")
    out.give(RET_ERRNO | errno.EAFNOSUPPORT)
    out.label("denied")
    out.give(RET_ERRNO | errno.EPERM)
    out.label("no such call")
    # clone3 takes its flags by pointer, which no filter can read; on ENOSYS libc falls back to clone.
    out.give(RET_ERRNO | errno.ENOSYS)
    out.label("allowed")
    out.give(ALLOW)
    return out.bytes()


def _judge_shared_uid(out: _Assembler) -> None:
    """Judge the calls whose arguments matter only where others have the job's uid."""
    out.label("prlimit64")
    out.load(LOW_WORD[0])
    out.jump(JUMP_EQUAL, 0, "allowed", "denied")
    out.label("socketpair")
    out.load(LOW_WORD[1])
    out.jump(JUMP_ANY_BIT, DATAGRAM_BIT, "denied", "allowed")


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A filter made ready before a fork, so that `apply` only makes two system calls after it."""

    def __init__(self, arch: str, profiler: bool = False, shared_ipc: bool = False, shared_uid: bool = False) -> None:
        code = program(arch, profiler, shared_ipc, shared_uid)
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        libc = ctypes.CDLL(None, use_errno=True)
        self._prctl = libc.prctl
        self._prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        self._syscall = libc.syscall
        self._syscall.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p]
        self._syscall.restype = ctypes.c_long
        self._number = JUDGED["seccomp"][_column(arch)]
        self._address = ctypes.addressof(self._program)

    def apply(self) -> None:
        """Bind the calling thread and what it starts; there is no way back.

        Raises:
            OSError: If the kernel refuses, as when it was built without seccomp.
        """
        set_no_new_privs, set_mode_filter = 38, 1  # PR_SET_NO_NEW_PRIVS, SECCOMP_SET_MODE_FILTER
        failed = self._prctl(set_no_new_privs, 1, 0, 0, 0) != 0
        if failed or self._syscall(self._number, set_mode_filter, 0, self._address) != 0:
            code = ctypes.get_errno()
            raise OSError(code, "seccomp: " + os.strerror(code))


def install(arch: str, profiler: bool = False) -> None:
    """Bind the calling thread and what it starts.

    Raises:
        OSError: If the kernel refuses.
    """
    Filter(arch, profiler).apply()
