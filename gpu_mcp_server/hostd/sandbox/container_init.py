"""Process 1 of a sandbox that Apptainer makes: it looks before it lets the job in, and adds what Apptainer lacks.

Apptainer's administrator decides what every container gets (`bind path`, `always use nv`, `mount hostfs`), so what is
there is compared with what was asked for, each time. Apptainer has no seccomp filter for ordinary users, hands on
descriptors, and leaves its own settings in the environment of process 1, which the job must not read.

Only its source travels, through a descriptor; it imports nothing of ours and runs on Python 3.6.
"""

import ctypes
import os
import re
import resource
import select
import signal
from typing import Any, Dict, List, Optional, Tuple

BOOT = (
    "import json, os, sys; told = json.load(os.fdopen(int(sys.argv[-1]))); names = {'__name__': 'container_init'}; "
    "exec(compile(told['sources']['container_init'], 'container_init', 'exec'), names); names['main'](told)"
)
"""What the interpreter is given; its last argument is the descriptor of what it is told."""
NOT_AS_ASKED = 126
ABANDONED = 137

MINIMAL_DEV = ("null", "zero", "full", "random", "urandom", "tty", "console", "pts", "ptmx", "shm", "mqueue")
OWN = ("/", "/proc", "/tmp", "/job", "/dev", "/etc/resolv.conf", "/etc/hostname", "/etc/localtime")
"""Mount points of every container; beside these only what the job was given."""
WRITABLE = ("/job", "/tmp", "/dev/shm")
_PR_SET_DUMPABLE = 4


def main(told: Dict[str, Any]) -> None:
    """Start the job and stay until it, or whoever holds the other end of `life`, has ended; never returns.

    Args:
        told: `argv` and `env` of the job, its `rlimits` (what, soft, hard), `keep` (descriptors that it gets),
            `life`, `shown` (folders and files of the host), `devices`, `network`, `profiler`, `counted`, and the
            `sources` of this module, `landlock` and `seccomp`.
    """
    landlock = _module(told, "landlock")
    wrong = unlike(told, bool(landlock["abi"]()))
    if wrong:
        os.write(2, ("Apptainer's container is not as asked for: %s\n" % wrong).encode("utf-8", "replace"))
        os._exit(NOT_AS_ASKED)
    life = int(told["life"])
    _close_all_but([life] + [int(fd) for fd in told["keep"]])
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # closes /proc/1/environ, mem and fd to the job
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = os.fork()
    if child == 0:
        try:
            os.close(life)
            _start(told, landlock)
        except BaseException as error:  # the child must never return into its parent's code
            os.write(2, ("cannot start %s: %s\n" % (told["argv"][0], error)).encode("utf-8", "replace"))
        os._exit(127)
    for number in range(3):
        os.dup2(read, number)
    _close_all_but([life, read, write])
    while True:
        if life in select.select([life, read], [], [])[0]:
            os._exit(ABANDONED)
        os.read(read, 64)
        status = _end_of(child)
        if status is not None:
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def unlike(told: Dict[str, Any], restrained: bool) -> str:
    """Say in what this container is not the one that was asked for, or nothing.

    Args:
        told: What `main` is told.
        restrained: Whether Landlock will keep the job from writing where it should not.
    """
    status = _status_of_self()
    if os.getpid() != 1:
        return "it has no process namespace of its own (allow pid ns)"
    if os.getuid() == 0 or int(status.get("CapEff", "1"), 16):
        return "it is privileged"
    if not told["network"] and _interfaces() != ["lo"]:
        return "it has the interfaces %s" % " ".join(_interfaces())
    if not (restrained or os.statvfs("/").f_flag & os.ST_RDONLY):
        return "its system can be written, and the kernel has no Landlock"
    expected = set(OWN) | {"/dev/" + name for name in MINIMAL_DEV} | set(told["devices"])
    shown = tuple(path + "/" for path in told["shown"])
    for point, options in _mounts():
        if point in expected:
            continue
        if not (point + "/").startswith(shown):
            return "%s is shown without being asked for (bind path in apptainer.conf?)" % point
        if "ro" not in options and not restrained:
            return "%s can be written, and the kernel has no Landlock" % point
    return ""


def _module(told: Dict[str, Any], name: str) -> Dict[str, Any]:
    names: Dict[str, Any] = {"__name__": name}
    exec(compile(told["sources"][name], name, "exec"), names)
    return names


def _mounts() -> List[Tuple[str, List[str]]]:
    """Return mount points and their options. Source: proc_pid_mountinfo(5), fields 5 and 6, octal escapes."""
    found: List[Tuple[str, List[str]]] = []
    with open("/proc/self/mountinfo", "rb") as text:
        for line in text:
            point, options = line.split(b" ")[4:6]
            plain = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal.group(1), 8)]), point)
            found.append((os.fsdecode(plain), options.decode("ascii").split(",")))
    return found


def _status_of_self() -> Dict[str, str]:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as text:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in text)}


def _interfaces() -> List[str]:
    with open("/proc/net/dev", encoding="ascii") as text:
        return [line.partition(":")[0].strip() for line in text if ":" in line]


def _start(told: Dict[str, Any], landlock: Dict[str, Any]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    _close_all_but([int(fd) for fd in told["keep"]])
    os.umask(0o022)
    for what, soft, hard in told["rlimits"]:
        resource.setrlimit(what, (soft, hard))
    seccomp = _module(told, "seccomp")
    guard = seccomp["Filter"](seccomp["program"](os.uname().machine, told["profiler"], counted=told["counted"]))
    if landlock["abi"]():
        nodes = ["/dev/" + name for name in MINIMAL_DEV if name != "shm"] + list(told["devices"])
        rules = landlock["Ruleset"](["/"], WRITABLE, nodes, True)
        rules.apply()
        rules.close()
    guard.apply()
    os.execvpe(told["argv"][0], told["argv"], told["env"])


def _close_all_but(keep: List[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own


def _end_of(child: int) -> Optional[int]:
    """Take the ends of all that have ended; return the job's, None while it lives."""
    found = None
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            found = status if pid == child else found
            pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    return found
