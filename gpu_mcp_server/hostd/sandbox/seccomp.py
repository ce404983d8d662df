"""The system call filter of a sandboxed job, assembled here so that no host needs libseccomp.

`program` gives the bytes that `bwrap --seccomp FD` reads: an array of `struct sock_filter`. `Filter` applies the same
program to the calling process, for hosts where bubblewrap cannot run. It is a second wall behind the namespaces.

Every number has one of four answers. `ALLOWED` is Docker's default profile without capabilities, less what a job never
needs, plus memory policies. `DENIED` fails with EPERM: known calls that reach deep into the kernel. `JUDGED` depends
on arguments. Any other number, one of a newer kernel or of the x32 interface, fails with ENOSYS, so that libraries
fall back to older calls. Another architecture, that of `int 0x80` too, ends the process.

Beyond Docker's profile a job may call `mbind`, `get_mempolicy`, `set_mempolicy`, `set_mempolicy_home_node` and
`move_pages`: by these CUDA, hwloc and libnuma place memory near a GPU. Docker asks for CAP_SYS_NICE, as they reach
other processes; a job sees only its own. The kernel itself calls `uprobe`, like `uretprobe`, in a traced program.
Of Docker's it lacks `adjtimex`, `clock_adjtime`, `name_to_handle_at`, `process_vm_writev` and `vmsplice`.

Sources: numbers from Linux 6.18 `syscall_64.tbl` (x86_64) and `scripts/syscall.tbl` (aarch64); names from moby/profiles
seccomp/v0.2.3 `seccomp/default.json`; program layout from `Documentation/userspace-api/seccomp_filter.rst`; instruction
layout from `linux/bpf_common.h`.
"""

import ctypes
import errno
import functools
import os
import struct
from typing import Dict, List, Optional, Tuple

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Source: `linux/audit.h`, machine number | 64 bit | little endian."""

Numbers = Tuple[int, Optional[int]]
"""Of x86_64 and aarch64; None where the latter has no such call."""


def _table(text: str) -> Dict[str, Numbers]:
    found: Dict[str, Numbers] = {}
    for entry in text.split(","):
        name, x86_64, aarch64 = entry.split()
        found[name] = (int(x86_64), None if aarch64 == "-" else int(aarch64))
    return found


ALLOWED = _table("""
    accept 43 202, accept4 288 242, access 21 -, alarm 37 -, arch_prctl 158 -, bind 49 200, brk 12 214,
    cachestat 451 451, capget 125 90, capset 126 91, chdir 80 49, chmod 90 -, chown 92 -, clock_getres 229 114,
    clock_gettime 228 113, clock_nanosleep 230 115, close 3 57, close_range 436 436, connect 42 203,
    copy_file_range 326 285, creat 85 -, dup 32 23, dup2 33 -, dup3 292 24, epoll_create 213 -, epoll_create1 291 20,
    epoll_ctl 233 21, epoll_pwait 281 22, epoll_pwait2 441 441, epoll_wait 232 -, eventfd 284 -, eventfd2 290 19,
    execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, faccessat 269 48, faccessat2 439 439,
    fadvise64 221 223, fallocate 285 47, fanotify_mark 301 263, fchdir 81 50, fchmod 91 52, fchmodat 268 53,
    fchmodat2 452 452, fchown 93 55, fchownat 260 54, fcntl 72 25, fdatasync 75 83, fgetxattr 193 10, flistxattr 196 13,
    flock 73 32, fork 57 -, fremovexattr 199 16, fsetxattr 190 7, fstat 5 80, fstatfs 138 44, fsync 74 82,
    ftruncate 77 46, futex 202 98, futex_requeue 456 456, futex_wait 455 455, futex_waitv 449 449, futex_wake 454 454,
    futimesat 261 -, get_mempolicy 239 236, get_robust_list 274 100, getcpu 309 168, getcwd 79 17, getdents 78 -,
    getdents64 217 61, getegid 108 177, geteuid 107 175, getgid 104 176, getgroups 115 158, getitimer 36 102,
    getpeername 52 205, getpgid 121 155, getpgrp 111 -, getpid 39 172, getppid 110 173, getpriority 140 141,
    getrandom 318 278, getresgid 120 150, getresuid 118 148, getrlimit 97 163, getrusage 98 165, getsid 124 156,
    getsockname 51 204, getsockopt 55 209, gettid 186 178, gettimeofday 96 169, getuid 102 174, getxattr 191 8,
    getxattrat 464 464, inotify_rm_watch 255 28,
    io_cancel 210 3, io_destroy 207 1, io_getevents 208 4, io_pgetevents 333 292, io_setup 206 0, io_submit 209 2,
    ioprio_get 252 31, ioprio_set 251 30, kill 62 129, landlock_add_rule 445 445, landlock_create_ruleset 444 444,
    landlock_restrict_self 446 446, lchown 94 -, lgetxattr 192 9, link 86 -, linkat 265 37, listen 50 201,
    listmount 458 458, listxattr 194 11, listxattrat 465 465, llistxattr 195 12, lremovexattr 198 15, lseek 8 62,
    lsetxattr 189 6, lstat 6 -, madvise 28 233, map_shadow_stack 453 453, mbind 237 235, membarrier 324 283,
    memfd_create 319 279, memfd_secret 447 447, mincore 27 232, mkdir 83 -, mkdirat 258 34, mknod 133 -, mknodat 259 33,
    mlock 149 228, mlock2 325 284, mlockall 151 230, mmap 9 222, modify_ldt 154 -, move_pages 279 239, mprotect 10 226,
    mq_getsetattr 245 185, mq_notify 244 184, mq_open 240 180, mq_timedreceive 243 183, mq_timedsend 242 182,
    mq_unlink 241 181, mremap 25 216, mseal 462 462, msgctl 71 187, msgget 68 186, msgrcv 70 188, msgsnd 69 189,
    msync 26 227, munlock 150 229, munlockall 152 231, munmap 11 215, nanosleep 35 101, newfstatat 262 79, open 2 -,
    openat 257 56, openat2 437 437, pause 34 -, pidfd_open 434 434, pidfd_send_signal 424 424, pipe 22 -, pipe2 293 59,
    pkey_alloc 330 289, pkey_free 331 290, pkey_mprotect 329 288, poll 7 -, ppoll 271 73, prctl 157 167, pread64 17 67,
    preadv 295 69, preadv2 327 286, prlimit64 302 261, process_mrelease 448 448, pselect6 270 72, pwrite64 18 68,
    pwritev 296 70, pwritev2 328 287, read 0 63, readahead 187 213, readlink 89 -, readlinkat 267 78, readv 19 65,
    recvfrom 45 207, recvmmsg 299 243, recvmsg 47 212, remap_file_pages 216 234, removexattr 197 14,
    removexattrat 466 466, rename 82 -, renameat 264 38, renameat2 316 276, restart_syscall 219 128, rmdir 84 -,
    rseq 334 293, rt_sigaction 13 134, rt_sigpending 127 136, rt_sigprocmask 14 135, rt_sigqueueinfo 129 138,
    rt_sigreturn 15 139, rt_sigsuspend 130 133, rt_sigtimedwait 128 137, rt_tgsigqueueinfo 297 240,
    sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_getaffinity 204 123, sched_getattr 315 275,
    sched_getparam 143 121, sched_getscheduler 145 120, sched_rr_get_interval 148 127, sched_setaffinity 203 122,
    sched_setattr 314 274, sched_setparam 142 118, sched_setscheduler 144 119, sched_yield 24 124, seccomp 317 277,
    select 23 -, semctl 66 191, semget 64 190, semop 65 193, semtimedop 220 192, sendfile 40 71, sendmmsg 307 269,
    sendmsg 46 211, sendto 44 206, set_mempolicy 238 237, set_mempolicy_home_node 450 450, set_robust_list 273 99,
    set_tid_address 218 96, setfsgid 123 152, setfsuid 122 151, setgid 106 144, setgroups 116 159, setitimer 38 103,
    setpgid 109 154, setpriority 141 140, setregid 114 143, setresgid 119 149, setresuid 117 147, setreuid 113 145,
    setrlimit 160 164, setsid 112 157, setsockopt 54 208, setuid 105 146, setxattr 188 5, setxattrat 463 463,
    shmat 30 196, shmctl 31 195, shmdt 67 197, shmget 29 194, shutdown 48 210, sigaltstack 131 132, signalfd 282 -,
    signalfd4 289 74, splice 275 76, stat 4 -, statfs 137 43, statmount 457 457, statx 332 291, symlink 88 -,
    symlinkat 266 36, sync 162 81, sync_file_range 277 84, syncfs 306 267, sysinfo 99 179, tee 276 77, tgkill 234 131,
    time 201 -, timer_create 222 107, timer_delete 226 111, timer_getoverrun 225 109, timer_gettime 224 108,
    timer_settime 223 110, timerfd_create 283 85, timerfd_gettime 287 87, timerfd_settime 286 86, times 100 153,
    tkill 200 130, truncate 76 45, umask 95 166, uname 63 160, unlink 87 -, unlinkat 263 35, uprobe 336 -,
    uretprobe 335 -, utime 132 -, utimensat 280 88, utimes 235 -, vfork 58 -, wait4 61 260, waitid 247 95, write 1 64,
    writev 20 66
""")

DENIED = _table("""
    acct 163 89, add_key 248 217, adjtimex 159 171, bpf 321 280, chroot 161 51, clock_adjtime 305 266,
    clock_settime 227 112, delete_module 176 106, fanotify_init 300 262, finit_module 313 273, fsconfig 431 431,
    fsmount 432 432, fsopen 430 430, fspick 433 433, init_module 175 105, inotify_add_watch 254 27,
    inotify_init 253 -, inotify_init1 294 26, io_uring_enter 426 426,
    io_uring_register 427 427, io_uring_setup 425 425, ioperm 173 -, iopl 172 -, kcmp 312 272, kexec_file_load 320 294,
    kexec_load 246 104, keyctl 250 219, lookup_dcookie 212 18, lsm_get_self_attr 459 459, lsm_list_modules 461 461,
    lsm_set_self_attr 460 460, migrate_pages 256 238, mount 165 40, mount_setattr 442 442, move_mount 429 429,
    name_to_handle_at 303 264, nfsservctl 180 42, open_by_handle_at 304 265, open_tree 428 428, open_tree_attr 467 467,
    pidfd_getfd 438 438, pivot_root 155 41, process_madvise 440 440, process_vm_writev 311 271,
    quotactl 179 60, quotactl_fd 443 443, reboot 169 142, request_key 249 218, setdomainname 171 162,
    sethostname 170 161, setns 308 268, settimeofday 164 170, swapoff 168 225, swapon 167 224, sysfs 139 -,
    syslog 103 116, umount2 166 39, unshare 272 97, uselib 134 -, userfaultfd 323 282, ustat 136 -, vhangup 153 58,
    vmsplice 278 75
""")

SHARED_IPC = ("msgget", "semget", "shmget")
"""Allowed calls that are denied to a job without an IPC namespace: others of its uid reach what they make, and it stays
when the job ends."""

DENIED_UNLESS_PROFILED = _table("""
    process_vm_readv 310 270, ptrace 101 117
""")

DENIED_UNLESS_COUNTED = _table("""
    perf_event_open 298 241
""")

JUDGED = _table("""
    clone 56 220, clone3 435 435, ioctl 16 29, personality 135 92, socket 41 198, socketpair 53 199
""")
"""Calls whose arguments decide, by `JUDGMENTS`."""

CLONE_NEW = 0x7E020000
"""Source: `linux/sched.h`, every CLONE_NEW* that clone takes; CLONE_NEWTIME is for clone3 and unshare alone."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
ALLOWED_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""getifaddrs needs the last, with the protocol `ROUTES`."""
ROUTES = 0

SEQPACKET, TYPE_BITS = 5, 0xF
"""Of a socket's type, beside its flags."""

DATAGRAM_BIT = 2
"""In SOCK_DGRAM and SOCK_RAW, not in SOCK_STREAM and SOCK_SEQPACKET. Only a pair of the former can connect again."""

TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal of the person who started us."""

ALLOWED_PERSONALITIES = (0, 0x0040000, 0xFFFFFFFF)
"""PER_LINUX, ADDR_NO_RANDOMIZE and the question which it is: gdb, cuda-gdb, `setarch -R` and ThreadSanitizer ask for
nothing else. A job may know its own addresses: none of its programs gains privileges by exec. READ_IMPLIES_EXEC and
MMAP_PAGE_ZERO weaken the kernel's own defences; PER_LINUX32 and UNAME26, which Docker allows, nobody here needs."""

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
NUMBER, ARCH = 0, 4
LOW_WORD = tuple(16 + 8 * i for i in range(6))
"""Of each argument. The kernel takes what is judged here as 32 bits, so that an upper half hides nothing."""

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000

Block = Tuple[Tuple[int, int, int, int], ...]
"""Instructions that end in an answer: code, jump if true, jump if false, value. No jump leads out of them."""


def _give(action: int) -> Block:
    return ((RETURN, 0, 0, action),)


def _judge(argument: int, kind: int, values: Tuple[int, ...], found: int, otherwise: int) -> Block:
    """Answer `found` if the comparison holds for any of the values."""
    compare = tuple((kind, len(values) - i, 0, value) for i, value in enumerate(values))
    return ((LOAD, 0, 0, LOW_WORD[argument]), *compare, *_give(otherwise), *_give(found))


PASS = _give(ALLOW)
REFUSE = _give(RET_ERRNO | errno.EPERM)
UNKNOWN = _give(RET_ERRNO | errno.ENOSYS)

# A kernel without the family answers EAFNOSUPPORT, too, and programs go on without it.
_SOCKET = _judge(0, JUMP_EQUAL, ALLOWED_FAMILIES, ALLOW, RET_ERRNO | errno.EAFNOSUPPORT)
JUDGMENTS: Dict[str, Block] = {
    "clone": _judge(0, JUMP_ANY_BIT, (CLONE_NEW,), RET_ERRNO | errno.EPERM, ALLOW),
    "clone3": UNKNOWN,  # it takes its flags by pointer, which no filter can read; libc falls back to clone
    "ioctl": _judge(1, JUMP_EQUAL, TERMINAL_INJECTION, RET_ERRNO | errno.EPERM, ALLOW),
    "personality": _judge(0, JUMP_EQUAL, ALLOWED_PERSONALITIES, ALLOW, RET_ERRNO | errno.EPERM),
    "socket": _SOCKET,
    "socketpair": _SOCKET,
}
OFFLINE: Dict[str, Block] = {
    "socket": (
        (LOAD, 0, 0, LOW_WORD[0]),
        (JUMP_EQUAL, 0, 4, AF_NETLINK),
        *_judge(2, JUMP_EQUAL, (ROUTES,), ALLOW, RET_ERRNO | errno.EPERM),
        *_judge(0, JUMP_EQUAL, (AF_UNIX,), ALLOW, RET_ERRNO | errno.EAFNOSUPPORT),
    ),
}
"""Judgments in place of others for a job that has no network namespace and may not use the network. Landlock leaves UDP
open, listening at a port that the kernel chooses, and netlink's protocol for programs, by which jobs could talk."""
SHARED_UID: Dict[str, Block] = {
    "prlimit64": _judge(0, JUMP_EQUAL, (0,), ALLOW, RET_ERRNO | errno.EPERM),
    "socket": ((LOAD, 0, 0, LOW_WORD[0]), (JUMP_EQUAL, 0, 1, AF_UNIX), *REFUSE, *OFFLINE["socket"]),
    "socketpair": (
        (LOAD, 0, 0, LOW_WORD[0]),
        (JUMP_EQUAL, 1, 0, AF_UNIX),
        *_give(RET_ERRNO | errno.EAFNOSUPPORT),
        *_judge(1, JUMP_ANY_BIT, (DATAGRAM_BIT,), RET_ERRNO | errno.EPERM, ALLOW),
    ),
}
"""Further ones for a job that has the same uid as hostd and its user."""
SHARED_UID_GPU: Dict[str, Block] = {
    "socket": (
        (LOAD, 0, 0, LOW_WORD[0]),
        (JUMP_EQUAL, 0, 5, AF_UNIX),
        (LOAD, 0, 0, LOW_WORD[1]),
        (AND, 0, 0, TYPE_BITS),
        (JUMP_EQUAL, 0, 1, SEQPACKET),
        *PASS,
        *REFUSE,
        *OFFLINE["socket"],
    ),
    "connect": _give(RET_ERRNO | errno.ENOENT),
}
"""Further ones there for a process that has a GPU. cuInit listens at an abstract SEQPACKET socket named after its
process, and asks at another whether there is MPS: it must hear that there is not. Sources: a strace of driver 580.159's
cuInit on an H200, and one in issue 10 of https://github.com/NVIDIA/cuda-checkpoint."""


def architecture() -> str:
    """Return this machine's name as `program` wants it."""
    return os.uname().machine


def _numbers(table: Dict[str, Numbers], arch: str) -> Dict[str, int]:
    if arch not in AUDIT_ARCH:
        raise ValueError("no filter for architecture %r, only for %s" % (arch, ", ".join(AUDIT_ARCH)))
    column = list(AUDIT_ARCH).index(arch)
    found = {name: numbers[column] for name, numbers in table.items()}
    return {name: number for name, number in found.items() if number is not None}


def denied_numbers(
    arch: str, profiler: bool = False, shared_ipc: bool = False, counted: bool = False
) -> Dict[str, int]:
    """Return the calls that fail with EPERM whatever their arguments, by name."""
    table = DENIED if profiler else {**DENIED, **DENIED_UNLESS_PROFILED}
    table = table if counted else {**table, **DENIED_UNLESS_COUNTED}
    return _numbers({**table, **({name: ALLOWED[name] for name in SHARED_IPC} if shared_ipc else {})}, arch)


def allowed_numbers(arch: str, profiler: bool = False, counted: bool = False) -> Dict[str, int]:
    """Return the calls that go through whatever their arguments, by name."""
    table = {**ALLOWED, **DENIED_UNLESS_PROFILED} if profiler else ALLOWED
    return _numbers({**table, **DENIED_UNLESS_COUNTED} if counted else table, arch)


def _runs(answers: Dict[int, Block]) -> List[Tuple[int, Block]]:
    """Return runs of numbers that have the same answer: the first number of each, ascending from 0."""
    runs = [(0, answers.get(0, UNKNOWN))]
    for number in range(1, max(answers) + 2):
        answer = answers.get(number, UNKNOWN)
        if answer != runs[-1][1]:
            runs.append((number, answer))
    return runs


def _search(runs: List[Tuple[int, Block]]) -> Block:
    """Return a balanced search for the loaded number's run: into its left half, or over it."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    left, right = _search(runs[:middle]), _search(runs[middle:])
    # The kernel runs the filter at every system call, so it searches instead of comparing all numbers. A jump's offset
    # is one byte: `struct.pack` refuses a left half of more than 255 instructions.
    return ((JUMP_AT_LEAST, len(left), 0, runs[middle][0]), *left, *right)


@functools.lru_cache(maxsize=None)
def program(
    arch: str, profiler: bool = False, shared_ipc: bool = False, offline: bool = False, shared_uid: bool = False,
    counted: bool = False, gpu: bool = False,
) -> bytes:  # fmt: skip
    """Return the filter as an array of `struct sock_filter`.

    Args:
        arch: `x86_64` or `aarch64`.
        profiler: Leave ptrace and process_vm_readv, which debuggers, compute-sanitizer and ncu use on their own
            children. The kernel filters anew what a tracer makes of a call, since Linux 4.8.
        shared_ipc: The job has no IPC namespace of its own: deny what System V would share.
        offline: It has no network namespace, and may not use the network: no sockets of the Internet.
        shared_uid: Whoever started hostd has the job's uid, and its sockets (D-Bus, tmux, the SSH agent) would take
            the job for that person: deny, of an `offline` job, sockets of AF_UNIX, other than pairs, and limits of
            others.
        counted: Leave perf_event_open, by which perf counts and samples the job's own processes. The kernel's
            `perf_event_paranoid` bounds it as it does for every login.
        gpu: It uses a GPU, which matters with `shared_uid` alone.

    Raises:
        ValueError: If the architecture is another one.
    """
    answers = dict.fromkeys(allowed_numbers(arch, profiler, counted).values(), PASS)
    judgments = {**JUDGMENTS, **(OFFLINE if offline else {}), **(SHARED_UID if shared_uid else {})}
    judgments.update(SHARED_UID_GPU if shared_uid and gpu else {})
    known = {**ALLOWED, **JUDGED}
    answers.update((_numbers(known, arch)[name], block) for name, block in judgments.items())
    answers.update((number, REFUSE) for number in denied_numbers(arch, profiler, shared_ipc, counted).values())
    begin: Block = (
        (LOAD, 0, 0, ARCH),
        # First of all: a number means another call on another architecture, and `int 0x80` brings 32-bit numbers.
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[arch]),
        *_give(KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
    )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in (*begin, *_search(_runs(answers))))


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A program, as `program` makes it, ready for the kernel: `apply` makes two system calls."""

    def __init__(self, code: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        libc = ctypes.CDLL(None, use_errno=True)
        self._prctl = libc.prctl
        self._prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
        self._syscall = libc.syscall
        self._syscall.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p]
        self._syscall.restype = ctypes.c_long
        self._number = allowed_numbers(os.uname().machine)["seccomp"]
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


def install(arch: str, profiler: bool = False, counted: bool = False) -> None:
    """Bind the calling thread and what it starts.

    Raises:
        OSError: If the kernel refuses.
    """
    Filter(program(arch, profiler, counted=counted)).apply()
