"""Describes how strongly one process of a job is confined, and by which means.

Levels, in order: `full` (namespaces, seccomp, limits by cgroup) > `namespaces` (the same, limits by rlimit and a
watcher) > `apptainer` (the same made by Apptainer, whose administrator says how large /tmp and /dev/shm are) >
`landlock` (own uid when root, Landlock, seccomp, watcher) > `unconfined` (rlimits and watcher alone).

Found by breaking it: bwrap started by uid 0 lets the job write /proc/sys, so it never is; bwrap's reaper keeps its
parent's environment and command line, so both are scrubbed; bwrap limits nothing by itself; its root and /dev stay
writable unless remounted; RLIMIT_AS breaks CUDA; RLIMIT_NPROC counts the whole uid, so pids.max is used where it is.
"""

import os
import re
import resource
import shutil
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..protocol import BOXED, Limits
from . import apptainer, descriptors, landlock, seccomp
from .apptainer import Apptainer
from .keeper import Keeper, Start

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
until [ "$_gate" = xx ]; do
  _gate=x$_gate
  for _name in /proc/1/fd/*; do [ ! -d "$_name" ] || _gate=; done
done
case $1 in
  */*)
    if [ ! -x "$1" ] || [ -d "$1" ]; then _why="Permission denied"; fi
    [ -e "$1" ] || _why="No such file or directory";;
  *) command -v "$1" >/dev/null || _why="No such file or directory";;
esac
[ -z "$_why" ] || { printf 'cannot start %s: %s\\n' "$1" "$_why" >&2; exit 127; }
unset _gate _why _name SHLVL OLDPWD
exec "$@"
"""
"""What the job waits behind until process 1 has no folder open any more: it comes with the host's /proc.

bubblewrap starts both at once. From that folder `..` is the host's root, and a job that was quick enough took it from
/proc/1/fd: in 22 of 160 starts on a busy machine, with bubblewrap 0.8.0. Two looks in a row must find none: process 1
lists its descriptors by a folder that it opens before it closes the other, between a look's list and its tests.
"""
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
OF_SHELL = ("IFS", "OLDPWD", "OPTIND", "PPID", "PS1", "PS2", "PS4", "SHLVL")
"""Variables that a shell does not hand on as it got them."""

CPU_GRACE_S = 2
"""Between SIGXCPU at the CPU limit, which a record can name, and SIGKILL, which a program cannot catch."""
OTHERS_MAY_START = 512
"""RLIMIT_NPROC counts all of a user's processes; where jobs share the user's uid it only keeps a bomb within bounds."""
MARK = "SANDBOX"
"""Variable with `SandboxSpec.mark` in the environment of process 1."""


class SandboxSpec(NamedTuple):
    """Specification of a process's sandbox: what it may use, and its limits."""

    workdir: str
    roots: Sequence[Tuple[str, str]] = ()
    """Pairs of host folder and the path it has inside."""
    devices: Sequence[str] = ()
    limits: Limits = Limits()
    network: bool = False
    uid: Optional[int] = None
    """Drop to this uid first; needed when hostd is root."""
    groups: Sequence[int] = ()
    pids_by_cgroup: bool = False
    alone: bool = False
    """Whether its job has no other role."""
    profiler: bool = False
    counted: bool = False
    """Whether perf may count its events."""
    mark: str = ""
    """What process 1 has in its environment, so that it is found when all that knew it was killed."""
    mounts: Optional[int] = None
    """Descriptor of the mount namespace in which the workspace and the roots are, if it is not hostd's."""
    info_fd: Optional[int] = None
    """Where bubblewrap writes which process is process 1 of the sandbox, before that one may go on."""

    @property
    def writes_proc(self) -> bool:
        """Return whether it must write to its own files of /proc: debuggers do, and without that cuInit fails.

        Seen with driver 580.159: CUDA_ERROR_OPERATING_SYSTEM. Such a process starts behind Landlock instead.
        """
        return self.profiler or bool(self.devices)


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

    def is_isolated(self) -> bool:
        """Say whether processes run in their own namespaces."""
        return self.level in BOXED

    def spawn(
        self,
        argv: Sequence[str],
        env: Dict[str, str],
        box: SandboxSpec,
        stdio: Tuple[int, int, int],
        keep: Sequence[int] = (),
        by: Optional[Keeper] = None,
    ) -> int:
        """Start a process and return the pid of its keeper, which ends as the process ends.

        Must be called from the main thread: the sandbox dies with the thread that started it.

        Args:
            argv: Program and arguments, as seen inside.
            env: Environment on top of the fixed one.
            box: Confinement.
            stdio: Descriptors for 0, 1 and 2.
            keep: Descriptors that the process gets, under the same numbers.
            by: Its keeper, if there is one yet.

        Raises:
            OSError: If the process could not be forked, or its keeper has ended.
            PermissionError: If it would run as root.
        """
        if os.geteuid() == 0 and not box.uid:
            raise PermissionError("hostd is root and the job has no uid of its own")
        own = by or Keeper()
        start, made = self._start(list(argv), env, box, list(keep), own.life)
        try:
            own.start(start, stdio)
        finally:
            for fd in made:
                os.close(fd)
            if by is None:
                own.close()
        return own.pid

    def _start(
        self, argv: List[str], env: Dict[str, str], box: SandboxSpec, keep: List[int], life: int
    ) -> Tuple[Start, List[int]]:
        """Return how a process is started, and the descriptors that were made for it."""
        common: Dict[str, Any] = {"uid": box.uid, "groups": list(box.groups), "mounts": box.mounts}
        limits = rlimits(box)
        if self.level in BY_BUBBLEWRAP:
            command, made = self._bwrap_command(argv, environment(env), box)
            told = [] if box.info_fd is None else [box.info_fd]
            outside = {"PATH": "/usr/bin:/bin", MARK: box.mark}
            return Start(command, outside, [*keep, *made, *told], rlimits=limits, **common), made
        if self.apptainer is not None and self.level == "apptainer":
            # it may need a set-uid program yet, so its process 1 sets limits and gives up privileges
            command, fd = self._container(self.apptainer, argv, environment(env), box, keep, life)
            kept = [*keep, fd, life]
            return Start(command, apptainer.ENV, kept, box.workdir, no_new_privs=False, **common), [fd]
        temporary = os.path.join(box.workdir, ".tmp")
        inside = {**BASE_ENV, **env, "HOME": box.workdir, "TMPDIR": temporary}
        start = Start(argv, inside, keep, box.workdir, rlimits=limits, folders=[temporary], **common)
        if self.level != "landlock":
            return start, []
        rules, guard = self._landlock(box)
        # A role that shares its uid with others must not write to their files there, such as autogroup. Alone in its
        # job it may start programs that use the GPU, and no rule can name files of processes to come.
        writes = "" if not box.writes_proc else "/proc" if box.alone or box.uid is not None else "/proc/self"
        return start._replace(rules=rules.descriptor, writes=writes, guard=guard), [rules.descriptor]

    def _container(
        self, by: Apptainer, argv: List[str], env: Dict[str, str], box: SandboxSpec, keep: Sequence[int], life: int
    ) -> Tuple[List[str], int]:
        system = ["/usr", *SYSTEM_FOLDERS, *SYSTEM_FILES, *(NETWORK_FILES if box.network else ())]
        links = [path for path in SYSTEM_FOLDERS if os.path.islink(path)]  # which the image has as well
        shown = [(os.path.realpath(path), path) for path in system if os.path.exists(path) and path not in links]
        return by.container(
            argv, env, [*shown, *box.roots], box.workdir, box.devices, keep, rlimits(box), life, box.network,
            box.profiler, box.counted,
        )  # fmt: skip

    def _landlock(self, box: SandboxSpec) -> Tuple[landlock.Ruleset, bytes]:
        read = ["/usr", "/proc", "/sys", *SYSTEM_FOLDERS, *SYSTEM_FILES, *(NETWORK_FILES if box.network else ())]
        read += [inside for _, inside in box.roots]
        nodes = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", *box.devices]
        rules = landlock.Ruleset([p for p in read if os.path.exists(p)], [box.workdir], nodes, box.network)
        offline = not box.network
        shared_uid = box.uid is None and offline  # the groups of ranks meet at a socket in their workspace
        machine = os.uname().machine
        return rules, seccomp.program(machine, box.profiler, True, offline, shared_uid, box.counted, bool(box.devices))

    def _bwrap_command(self, argv: List[str], env: Dict[str, str], box: SandboxSpec) -> Tuple[List[str], List[int]]:
        options = self._bwrap_options(env, box)
        guard = descriptors.memory_file(
            "seccomp", seccomp.program(os.uname().machine, box.profiler, counted=box.counted)
        )
        options += ["--seccomp", str(guard)]
        if box.info_fd is not None:
            options += ["--info-fd", str(box.info_fd)]
        # Options go through a descriptor: process 1 keeps bubblewrap's command line, which the job can read.
        listed = descriptors.memory_file("args", b"".join(os.fsencode(o) + b"\0" for o in options))
        odd = ["%s=%s" % each for each in env.items() if not PLAIN_NAME.match(each[0]) or each[0] in OF_SHELL]
        argv = ["/usr/bin/env", "--", *odd, *argv] if odd else argv
        return [self.bwrap, "--args", str(listed), "--", "/bin/sh", "-c", GATE, "sh", *argv], [guard, listed]

    def _bwrap_options(self, env: Dict[str, str], box: SandboxSpec) -> List[str]:
        o = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        o += [] if box.network else ["--unshare-net"]
        # In a user namespace of its own a job would have all capabilities again. The filter denies that as well.
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


def rlimits(box: SandboxSpec) -> List[Tuple[int, int, int]]:
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
