"""How one process of a job is confined, and how strongly.

Levels, in order: `full` (namespaces, seccomp, limits by cgroup) > `namespaces` (the same, limits by rlimit and a
watcher) > `apptainer` (the same made by Apptainer, whose administrator says how large /tmp and /dev/shm are) >
`landlock` (own uid when root, Landlock, seccomp, watcher) > `unconfined` (rlimits and watcher alone).

Found by breaking it: bwrap started by uid 0 lets the job write /proc/sys, so it never is; bwrap's reaper keeps its
parent's environment and command line, so both are scrubbed; bwrap limits nothing by itself; its root and /dev stay
writable unless remounted; RLIMIT_AS breaks CUDA; RLIMIT_NPROC counts the whole uid, so pids.max is used where it is.
"""

import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import apptainer, descriptors, keeper, landlock, seccomp
from .apptainer import Apptainer, Container
from .protocol import BOXED, Limits

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

BY_BUBBLEWRAP = ("full", "namespaces")
"""Levels whose sandboxes bubblewrap makes."""

CPU_SLACK = 1.25
"""The watcher ends a job at its CPU time, the kernel a process that the watcher should miss. The kernel counts in whole
ticks here: it said 1.0 s where a group had used 0.9."""
GATE = """
_gate= _why=
until [ "$_gate" ]; do
  _gate=closed
  for _name in /proc/1/fd/*; do [ ! -d "$_name" ] || _gate=; done
done
until [ "$_gate" = open ]; do
  while read -r _name _value; do
    case $_name$_value in Seccomp:2) _gate=open; break;; esac
  done </proc/1/status
done
case $1 in
  */*)
    if [ ! -x "$1" ] || [ -d "$1" ]; then _why="Permission denied"; fi
    [ -e "$1" ] || _why="No such file or directory";;
  *) command -v "$1" >/dev/null || _why="No such file or directory";;
esac
[ -z "$_why" ] || { printf 'cannot start %s: %s\\n' "$1" "$_why" >&2; exit 127; }
unset _gate _why _name _value SHLVL OLDPWD
exec "$@"
"""
"""What the job waits behind until process 1 has its filter, the last thing that bubblewrap gives it.

bubblewrap starts both at once. Until process 1 has closed the host's /proc, from which `..` is the host's root, a job
that was quick enough took it from /proc/1/fd: in 22 of 160 starts on a busy machine, with bubblewrap 0.8.0. A look at
the descriptors is cheap; the status is read byte by byte, so it is asked for only then.
"""
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
OF_SHELL = ("IFS", "OLDPWD", "OPTIND", "PPID", "PS1", "PS2", "PS4", "SHLVL")
"""Variables that a shell does not hand on as it got them."""

CPU_GRACE_S = 2
"""Between SIGXCPU at the CPU limit, which a record can name, and SIGKILL, which a program cannot catch."""
OTHERS_MAY_START = 512
"""RLIMIT_NPROC counts all of a user's processes; where jobs share the user's uid it only keeps a bomb within bounds."""
MARK = "SANDBOX"
"""Variable with `Confinement.mark` in the environment of process 1."""
OOM_SCORE = "500"
"""A host that runs out of memory ends jobs first."""

_PR_SET_NO_NEW_PRIVS = 38
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
    held: Sequence[int] = ()
    """Descriptors that the keeper holds open as long as anything of the process lives. Nothing inside has them."""
    mark: str = ""
    """What process 1 has in its environment, so that it is found when all that knew it was killed."""
    info_fd: Optional[int] = None
    """Where bubblewrap writes which process is process 1 of the sandbox, before that one may go on."""

    @property
    def writes_proc(self) -> bool:
        """Whether it must write to its own files of /proc: debuggers do, and without that cuInit fails.

        Seen with driver 580.159: CUDA_ERROR_OPERATING_SYSTEM. Such a process starts behind Landlock instead.
        """
        return self.profiler or bool(self.devices)


@dataclass
class _Start:
    """How a process is started.

    Attributes:
        keep: Descriptors that it gets, under the same numbers.
        held: Descriptors that its keeper holds.
        made: Descriptors that were made for it; the parent has no use of them.
    """

    command: List[str]
    env: Mapping[str, str]
    keep: Sequence[int]
    held: Sequence[int] = ()
    made: Sequence[int] = ()
    rules: Optional[landlock.Ruleset] = None
    guard: Optional[seccomp.Filter] = None


class Sandbox:
    """Starts processes at one level.

    Args:
        level: Which.
        bwrap: Where bubblewrap is.
        by: This host's Apptainer, for the level of that name.
    """

    def __init__(self, level: str, bwrap: Optional[str] = None, by: Optional[Apptainer] = None) -> None:
        self.level = level
        self.bwrap = bwrap or shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin") or ""
        self.apptainer = by

    def boxed(self) -> bool:
        """Say whether processes run in their own namespaces."""
        return self.level in BOXED

    def spawn(
        self,
        argv: Sequence[str],
        env: Dict[str, str],
        box: Confinement,
        stdio: Tuple[int, int, int],
        keep: Sequence[int] = (),
    ) -> int:
        """Start a process and return the pid of its keeper, which ends as the process ends.

        Must be called from the main thread: the sandbox dies with the thread that started it.

        Args:
            argv: Program and arguments, as seen inside.
            env: Environment on top of the fixed one.
            box: Confinement.
            stdio: Descriptors for 0, 1 and 2.
            keep: Descriptors that stay open, under the same numbers.

        Raises:
            OSError: If the process could not be forked.
            PermissionError: If it would run as root.
        """
        if os.geteuid() == 0 and not box.uid:
            raise PermissionError("hostd is root and the job has no uid of its own")
        start = self._start(list(argv), env, box, list(keep))
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become(start, box, stdio, parent)
            except BaseException as error:  # the child must never return into the parent's code
                os.write(2, ("cannot start %s: %s\n" % (argv[0], error)).encode("utf-8", "replace"))
            os._exit(127)
        for fd in start.made:
            os.close(fd)
        return pid

    def _start(self, argv: List[str], env: Dict[str, str], box: Confinement, keep: List[int]) -> _Start:
        held = list(box.held)
        if self.level in BY_BUBBLEWRAP:
            command, made = self._bwrap_command(argv, environment(env), box)
            told = [] if box.info_fd is None else [box.info_fd]
            return _Start(command, {"PATH": "/usr/bin:/bin", MARK: box.mark}, [*keep, *made, *told], held, made)
        if self.apptainer is not None and self.level == "apptainer":
            new = self._container(self.apptainer, argv, environment(env), box, keep)
            return _Start(new.command, apptainer.ENV, [*keep, *new.inside], [*held, new.life], [*new.inside, new.life])
        inside = {**BASE_ENV, **env, "HOME": box.workdir, "TMPDIR": os.path.join(box.workdir, ".tmp")}
        if self.level != "landlock":
            return _Start(argv, inside, keep, held)
        rules, guard = self._landlock(box)
        return _Start(argv, inside, keep, held, [rules.descriptor], rules, guard)

    def _become(self, start: _Start, box: Confinement, stdio: Tuple[int, int, int], parent: int) -> None:
        os.setsid()
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        null = os.open(os.devnull, os.O_RDWR)
        descriptors.close_all_but([null, *start.held, *start.keep, *start.made])
        _plain_signals()

        ours = os.getpid()

        def begin() -> None:
            for path in box.join:
                procs = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # Python's own opening would import its codecs first
                os.write(procs, b"0")
                os.close(procs)
            self._drop(box, start.keep)
            keeper.die_with(ours)  # anew: the kernel forgets it with the change of the uid
            os.close(null)
            if self.level in BY_BUBBLEWRAP:
                os.execve(start.command[0], start.command, start.env)
            os.chdir(box.workdir)
            if not self.boxed():
                os.makedirs(".tmp", exist_ok=True)
            if start.rules is not None:
                start.rules.apply()
                start.rules.close()
            if start.guard is not None:
                start.guard.apply()
            os.execvpe(start.command[0], start.command, start.env)

        keeper.keep(begin, start.held, null, parent)

    def _drop(self, box: Confinement, keep: Sequence[int]) -> None:
        for fd in keep:
            os.set_inheritable(fd, True)
        try:
            score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            os.write(score, OOM_SCORE.encode())
            os.close(score)
        except OSError:
            pass
        later = self.level == "apptainer"  # which may need a set-uid program yet; its process 1 does the rest
        for what, soft, hard in () if later else rlimits(box):
            resource.setrlimit(what, (soft, hard))
        os.umask(0o022)
        if box.uid is not None:
            os.setgroups(list(box.groups))
            os.setresgid(box.uid, box.uid, box.uid)
            os.setresuid(box.uid, box.uid, box.uid)
            if os.geteuid() == 0:
                raise PermissionError("still root after dropping the uid")
        if not later:
            _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    def _container(
        self, by: Apptainer, argv: List[str], env: Dict[str, str], box: Confinement, keep: Sequence[int]
    ) -> Container:
        system = ["/usr", *SYSTEM_FOLDERS, *SYSTEM_FILES, *(NETWORK_FILES if box.network else ())]
        links = [path for path in SYSTEM_FOLDERS if os.path.islink(path)]  # which the image has as well
        shown = [(os.path.realpath(path), path) for path in system if os.path.exists(path) and path not in links]
        return by.container(
            argv, env, [*shown, *box.roots], box.workdir, box.devices, keep, rlimits(box), box.network, box.profiler
        )

    def _landlock(self, box: Confinement) -> Tuple[landlock.Ruleset, seccomp.Filter]:
        read = ["/usr", "/proc", "/sys", *SYSTEM_FOLDERS, *SYSTEM_FILES, *(NETWORK_FILES if box.network else ())]
        read += [inside for _, inside in box.roots]
        nodes = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", *box.devices]
        rules = landlock.Ruleset([p for p in read if os.path.exists(p)], [box.workdir], nodes, box.network)
        shared_uid = box.uid is None and not box.network  # the groups of ranks meet at a socket in their workspace
        return rules, seccomp.Filter(os.uname().machine, box.profiler, shared_ipc=True, shared_uid=shared_uid)

    def _bwrap_command(self, argv: List[str], env: Dict[str, str], box: Confinement) -> Tuple[List[str], List[int]]:
        options = self._bwrap_options(env, box)
        guard = descriptors.memory_file("seccomp", seccomp.program(os.uname().machine, box.profiler))
        options += ["--seccomp", str(guard)]
        if box.info_fd is not None:
            options += ["--info-fd", str(box.info_fd)]
        listed = descriptors.memory_file("args", b"".join(os.fsencode(o) + b"\0" for o in options))
        odd = ["%s=%s" % each for each in env.items() if not PLAIN_NAME.match(each[0]) or each[0] in OF_SHELL]
        argv = ["/usr/bin/env", "--", *odd, *argv] if odd else argv
        return [self.bwrap, "--args", str(listed), "--", "/bin/sh", "-c", GATE, "sh", *argv], [guard, listed]

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
        o += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
        for node in box.devices:
            o += ["--dev-bind", node, node]
        if box.devices:
            o += ["--ro-bind", "/sys", "/sys"]
        o += ["--size", str(box.limits.tmp_bytes), "--perms", "1777", "--tmpfs", "/tmp"]
        o += ["--size", str(box.limits.shm_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"]
        for outside, inside in box.roots:
            o += ["--ro-bind", outside, inside]
        o += ["--bind", box.workdir, "/job", "--chdir", "/job", "--remount-ro", "/dev", "--remount-ro", "/"]
        # No job may write the memory of process 1, nor how the kernel treats either.
        o += [] if box.writes_proc else ["--remount-ro", "/proc"]
        return o


_DISABLE_USERNS: Dict[str, bool] = {}


def _has_disable_userns(bwrap: str) -> bool:
    """Say whether this bwrap (0.8 and later) can forbid nested user namespaces."""
    if bwrap not in _DISABLE_USERNS:
        said = subprocess.run([bwrap, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
        _DISABLE_USERNS[bwrap] = b"--disable-userns" in said
    return _DISABLE_USERNS[bwrap]


def _plain_signals() -> None:
    """Undo what Python, hostd and whoever started it (nohup) ignore; an ignored signal would stay so in the job."""
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def _tasks() -> int:
    """Return how many processes and threads the whole machine has."""
    try:
        with open("/proc/loadavg", encoding="ascii") as text:
            return int(text.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 1 << 15


def environment(more: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment inside a sandbox with namespaces."""
    return {**BASE_ENV, **more, "HOME": "/job", "TMPDIR": "/tmp"}


def rlimits(box: Confinement) -> List[Tuple[int, int, int]]:
    """Return the kernel's limits for one process: what, soft, hard."""
    limits = box.limits
    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]
    if not box.pids_by_cgroup:
        others = 0 if box.uid is not None else _tasks() + OTHERS_MAY_START
        wanted.append((resource.RLIMIT_NPROC, others + limits.processes))
    found: List[Tuple[int, int, int]] = []
    for what, value in wanted:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        found.append((what, value, value))
    if limits.cpu_s is not None:
        soft = int(limits.cpu_s * CPU_SLACK) + CPU_GRACE_S
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        most = soft + CPU_GRACE_S if hard == resource.RLIM_INFINITY else min(soft + CPU_GRACE_S, hard)
        found.append((resource.RLIMIT_CPU, min(soft, most), most))
    return found
