"""How one process of a job is confined, and how strongly.

Levels, in order: `full` (namespaces, seccomp, limits by cgroup) > `namespaces` (the same, limits by rlimit and a
watcher) > `landlock` (own uid when root, Landlock, seccomp, watcher) > `unconfined` (rlimits and watcher alone).

Found by breaking it: bwrap started by uid 0 lets the job write /proc/sys, so it never is; bwrap's reaper keeps its
parent's environment and command line, so both are scrubbed; bwrap limits nothing by itself; its root and /dev stay
writable unless remounted; RLIMIT_AS breaks CUDA; RLIMIT_NPROC counts the whole uid, so pids.max is used where it is.
"""

import ctypes
import os
import resource
import shutil
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from . import landlock, seccomp
from .protocol import Limits

INNER_UID = 10001
BASE_ENV = {
    "PATH": "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "job",
    "LOGNAME": "job",
}
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/OpenCL")
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates", "/etc/pki")

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE, _CLONE_NEWNS = 1, 4096, 16384, 1 << 18, 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Confinement:
    """What a process gets and is kept from."""

    workdir: str
    roots: Sequence[Tuple[str, str]] = ()
    """Pairs of host folder and the path it has inside."""
    devices: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    network: bool = False
    uid: Optional[int] = None
    """Drop to this uid first; needed when hostd is root."""
    groups: Sequence[int] = ()
    join: Sequence[str] = ()
    """`cgroup.procs` files to enter."""
    pids_by_cgroup: bool = False
    profiler: bool = False
    sync_fd: Optional[int] = None
    """Descriptor that the sandbox holds open as long as it lives, invisible inside."""


class Sandbox:
    """Starts processes at one level."""

    def __init__(self, level: str, bwrap: Optional[str] = None) -> None:
        self.level = level
        self.bwrap = bwrap or shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin") or ""

    def namespaces(self) -> bool:
        """Say whether processes run in their own namespaces."""
        return self.level in ("full", "namespaces")

    def spawn(
        self,
        argv: Sequence[str],
        env: Dict[str, str],
        box: Confinement,
        stdio: Tuple[int, int, int],
        keep: Sequence[int] = (),
    ) -> int:
        """Start a process and return its pid.

        Must be called from the main thread: the sandbox dies with the thread that started it.

        Args:
            argv: Program and arguments, as seen inside.
            env: Environment on top of the fixed one.
            box: Confinement.
            stdio: Descriptors for 0, 1 and 2.
            keep: Descriptors that stay open, under the same numbers.

        Raises:
            OSError: If the process could not be forked.
        """
        inside = dict(BASE_ENV, **env)
        held = list(keep)
        if self.namespaces():
            inside.update(HOME="/job", TMPDIR="/tmp")
            command, more = self._bwrap_command(list(argv), inside, box)
            held += more
            outer = {"PATH": "/usr/bin:/bin"}
            rules = guard = None
        else:
            more = []
            inside.update(HOME=box.workdir, TMPDIR=os.path.join(box.workdir, ".tmp"))
            command, outer = list(argv), inside
            rules, guard = self._landlock(box) if self.level == "landlock" else (None, None)
        pid = os.fork()
        if pid == 0:
            try:
                self._become(command, outer, box, stdio, held, rules, guard)
            except BaseException as error:  # the child must never return into the parent's code
                os.write(2, ("cannot start %s: %s\n" % (argv[0], error)).encode("utf-8", "replace"))
            os._exit(127)
        for fd in more:
            os.close(fd)
        return pid

    def _become(
        self,
        command: List[str],
        env: Dict[str, str],
        box: Confinement,
        stdio: Tuple[int, int, int],
        keep: Sequence[int],
        rules: Optional[landlock.Ruleset],
        guard: Optional[seccomp.Filter],
    ) -> None:
        os.setsid()
        for path in box.join:
            with open(path, "w", encoding="ascii") as procs:
                procs.write("0")
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        _close_all_but(keep)
        for fd in keep:
            os.set_inheritable(fd, True)
        _apply_rlimits(box)
        os.umask(0o022)
        if box.uid is not None:
            os.setgroups(list(box.groups))
            os.setresgid(box.uid, box.uid, box.uid)
            os.setresuid(box.uid, box.uid, box.uid)
            if os.geteuid() == 0:
                raise PermissionError("still root after dropping the uid")
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if not self.namespaces():
            _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
            os.chdir(box.workdir)
            os.makedirs(".tmp", exist_ok=True)
            if rules is not None:
                rules.apply()
            if guard is not None:
                guard.apply()
        os.execvpe(command[0], command, env)

    def _landlock(self, box: Confinement) -> Tuple[landlock.Ruleset, seccomp.Filter]:
        read = ["/usr", "/proc", "/sys", *SYSTEM_FOLDERS, *SYSTEM_FILES, *(NETWORK_FILES if box.network else ())]
        read += [inside for _, inside in box.roots]
        nodes = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", *box.devices]
        rules = landlock.Ruleset([p for p in read if os.path.exists(p)], [box.workdir], nodes, box.network)
        return rules, seccomp.Filter(os.uname().machine, box.profiler)

    def _bwrap_command(self, argv: List[str], env: Dict[str, str], box: Confinement) -> Tuple[List[str], List[int]]:
        options = self._bwrap_options(env, box)
        guard = _memory_file("seccomp", seccomp.program(os.uname().machine, box.profiler))
        options += ["--seccomp", str(guard)]
        if box.sync_fd is not None:
            options += ["--sync-fd", str(box.sync_fd)]
        listed = _memory_file("args", b"".join(os.fsencode(o) + b"\0" for o in options))
        fds = [guard, listed] + ([os.dup(box.sync_fd)] if box.sync_fd is not None else [])
        if box.sync_fd is not None:
            options[-1] = str(fds[-1])
            os.ftruncate(listed, 0)
            os.pwrite(listed, b"".join(os.fsencode(o) + b"\0" for o in options), 0)
            os.lseek(listed, 0, os.SEEK_SET)
        return [self.bwrap, "--args", str(listed), "--", *argv], fds

    def _bwrap_options(self, env: Dict[str, str], box: Confinement) -> List[str]:
        o = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        o += [] if box.network else ["--unshare-net"]
        o += ["--disable-userns"] if _has_disable_userns(self.bwrap) else []
        o += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        o += ["--uid", str(INNER_UID), "--gid", str(INNER_UID), "--hostname", "job", "--clearenv"]
        for key, value in env.items():
            o += ["--setenv", key, value]
        o += ["--ro-bind", "/usr", "/usr"]
        for folder in SYSTEM_FOLDERS:
            if os.path.islink(folder):
                o += ["--symlink", os.readlink(folder).lstrip("/"), folder]
            elif os.path.isdir(folder):
                o += ["--ro-bind", folder, folder]
        for path in SYSTEM_FILES + (NETWORK_FILES if box.network else ()):
            o += ["--ro-bind-try", os.path.realpath(path), path]
        for outside, inside in box.roots:
            o += ["--ro-bind", outside, inside]
        o += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
        for node in box.devices:
            o += ["--dev-bind", node, node]
        if box.devices:
            o += ["--ro-bind", "/sys", "/sys"]
        o += ["--size", str(box.limits.tmp_bytes), "--perms", "1777", "--tmpfs", "/tmp"]
        o += ["--size", str(box.limits.shm_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"]
        o += ["--bind", box.workdir, "/job", "--chdir", "/job", "--remount-ro", "/dev", "--remount-ro", "/"]
        return o


_DISABLE_USERNS = {}  # type: Dict[str, bool]


def _has_disable_userns(bwrap: str) -> bool:
    """Say whether this bwrap (0.8 and later) can forbid nested user namespaces."""
    if bwrap not in _DISABLE_USERNS:
        with os.popen("'%s' --help 2>&1" % bwrap) as text:
            _DISABLE_USERNS[bwrap] = "--disable-userns" in text.read()
    return _DISABLE_USERNS[bwrap]


def _memory_file(name: str, content: bytes) -> int:
    fd = os.memfd_create(name, 0)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _close_all_but(keep: Sequence[int]) -> None:
    at = 3
    for fd in sorted(set(keep)):
        if fd >= 3:
            os.closerange(at, fd)
            at = fd + 1
    os.closerange(at, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _apply_rlimits(box: Confinement) -> None:
    limits = box.limits
    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]
    if limits.cpu_s is not None:
        wanted.append((resource.RLIMIT_CPU, max(1, int(limits.cpu_s + 0.999))))
    if not box.pids_by_cgroup and box.uid is not None:
        wanted.append((resource.RLIMIT_NPROC, limits.processes))
    for what, value in wanted:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def readable_by(path: str, uid: int) -> bool:
    """Say whether a foreign uid without groups can reach and read a folder."""
    at = os.path.realpath(path)
    need = 0o5
    while True:
        info = os.stat(at)
        mode = info.st_mode >> (6 if info.st_uid == uid else 0)
        if mode & need != need:
            return False
        if at == "/":
            return True
        at, need = os.path.dirname(at), 0o1


def shown(roots: Sequence[str], uid: Optional[int], folder: str) -> List[Tuple[str, str]]:
    """Pair each root with a path that the job's uid can reach.

    A root below a closed folder (an interpreter under /root) is bind-mounted at a readable place, in this process's
    own mount namespace. Only a hostd that is root needs and can do that.

    Raises:
        OSError: If the mount is refused.
    """
    pairs = []  # type: List[Tuple[str, str]]
    private = False
    for number, root in enumerate(roots):
        if uid is None or readable_by(root, uid):
            pairs.append((root, root))
            continue
        if not private:
            _check(_libc.unshare(_CLONE_NEWNS), "unshare")
            _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")
            private = True
        place = os.path.join(folder, "root%d" % number)
        os.makedirs(place, exist_ok=True)
        _check(_libc.mount(os.fsencode(os.path.realpath(root)), os.fsencode(place), None, _MS_BIND | _MS_REC, None), root)
        pairs.append((place, root))
    return pairs


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, "%s: %s" % (what, os.strerror(code)))
