"""The keeper: parent and subreaper of one sandbox, outside of it, between the supervisor and bubblewrap.

It holds the job's locks as long as anything of the sandbox lives, because nothing inside may hold anything of ours.
It and the child that becomes bubblewrap are forked while the job's files are laid: each fork of hostd's interpreter
takes a millisecond, for which no job needs to wait.
It adopts what the sandbox loses, kills all of it when the leader or the supervisor ends, and reports the end as
bubblewrap does: by the exit status, 128 + number for a signal. It keeps its own uid, is in none of the job's control
groups and is not dumpable, so that no job can stop, kill or read it. The supervisor asks it for an end by SIGTERM.

When the supervisor is killed, the keeper kills the sandbox before it lets the locks go; when the keeper is killed,
the supervisor does. When both are, bubblewrap dies with its parent, and the text of the lock names process 1.
"""

import ctypes
import fcntl
import marshal
import os
import resource
import signal
import socket
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import descriptors, landlock, mounts, processes, seccomp

END = struct.Struct("=id")
"""How a sandbox ended: its exit code, and the CPU seconds of all that was waited for."""
OOM_SCORE = b"500"
"""A host that runs out of memory ends jobs first."""
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 4, 36, 37
_libc = ctypes.CDLL(None, use_errno=True)
PAUSE_S = 0.001


def set_subreaper(willing: bool = True) -> None:
    """Become the parent of whatever those below lose, or no longer."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(willing), 0, 0, 0)


def is_subreaper() -> bool:
    """Say whether this process is the parent of what those below lose."""
    answer = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def set_pdeathsig(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; end at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


class Start(NamedTuple):
    """Parameters for starting a process; plain data, which is sent to the child that becomes it.

    Attributes:
        command: What it becomes.
        env: Its environment.
        keep: Descriptors that it gets, under the same numbers.
        folder: Where it starts, empty for where hostd is.
        folders: To be made before, where they are not.
        rlimits: What, soft, hard.
        no_new_privs: Whether it can gain none; not where a set-uid program makes the sandbox.
        uid: To drop to, if hostd is root.
        groups: Of that user.
        rules: Descriptor of a Landlock ruleset.
        writes: Folder below which that lets it write to files that are there, as `/proc/self`; empty for none.
        guard: A seccomp program.
        mounts: Descriptor of the mount namespace in which all paths are, if it is another.
    """

    command: List[str]
    env: Dict[str, str]
    keep: List[int]
    folder: str = ""
    folders: Sequence[str] = ()
    rlimits: Sequence[Tuple[int, int, int]] = ()
    no_new_privs: bool = True
    uid: Optional[int] = None
    groups: Sequence[int] = ()
    rules: Optional[int] = None
    writes: str = ""
    guard: bytes = b""
    mounts: Optional[int] = None

    def child_descriptors(self) -> List[int]:
        """Return the descriptors that the child uses and closes."""
        return [fd for fd in (self.rules, self.mounts) if fd is not None]


class Keeper:
    """A keeper, as who forked it sees it, and the child below it that waits for what it is to become.

    Attributes:
        pid: The keeper's; it ends as the child ends.
        life: A pipe that ends with the keeper.
    """

    def __init__(self, held: Sequence[int] = (), join: Sequence[str] = ()) -> None:
        """Fork both; must be called from the main thread: the sandbox dies with the thread that started it.

        Args:
            held: Descriptors that the keeper holds open as long as anything of the sandbox lives.
            join: `cgroup.procs` files that the child enters, which may take the kernel some milliseconds.

        Raises:
            OSError: If it could not be forked.
        """
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.life, alive = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                _use_plain_signals()
                null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                run_under_keeper(lambda: _become(theirs, join), held, alive, null, parent)
            finally:  # the child must never return into the parent's code
                os._exit(127)
        theirs.close()
        os.close(alive)

    def start(self, start: Start, stdio: Tuple[int, int, int]) -> None:
        """Have the child become a program.

        Args:
            start: Which.
            stdio: Descriptors for 0, 1 and 2.

        Raises:
            OSError: If the keeper or its child has ended, or there are more descriptors than a message can have.
        """
        plain: Any = tuple(start)
        told = descriptors.memory_file("start", marshal.dumps(plain))
        try:
            descriptors.send_with(self._link, b"start", [told, *stdio, *start.keep, *start.child_descriptors()])
        except ConnectionError:
            raise OSError(
                "a keeper ended before its sandbox was made: it was killed from outside, or could not be forked"
            ) from None
        finally:
            os.close(told)
            self._link.close()

    def close(self) -> None:
        """Let go of it; a child that waits ends."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1
        self._link.close()


def _become(link: socket.socket, join: Sequence[str]) -> None:
    """Enter groups, wait for a start, and make it."""
    descriptors.close_except([link.fileno()])
    refused: Optional[OSError] = None
    try:
        _enter(join)
    except OSError as error:  # said where it is heard
        refused = error
    said, fds = descriptors.receive_with(link, 16, descriptors.MOST)
    if not said:
        os._exit(0)  # the job ended before its start
    for number, fd in enumerate(fds[1:4]):
        os.dup2(fd, number)
    try:
        start = Start(*marshal.loads(os.read(fds[0], os.fstat(fds[0]).st_size)))
        _take(fds[4:], [*start.keep, *start.child_descriptors()])
        if refused is not None:
            raise refused
        _confine(start)
        os.execvpe(start.command[0], start.command, start.env)
    except Exception as error:
        os.write(2, ("the sandbox cannot be started: %s\n" % error).encode("utf-8", "replace"))


def _take(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors their numbers. Others that this process has are closed on exec."""
    if len(fds) != len(numbers):
        raise OSError("%d of %d descriptors have arrived" % (len(fds), len(numbers)))
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in fds]
    for number, fd in zip(numbers, above):
        os.dup2(fd, number)


def _enter(groups: Sequence[str]) -> None:
    for path in groups:
        procs = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # Python's own opening would import its codecs first
        os.write(procs, b"0")
        os.close(procs)


def _confine(start: Start) -> None:
    """Set limits, drop the uid, and close the ways back."""
    keeper = os.getppid()
    if start.mounts is not None:
        mounts.enter(start.mounts)
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, OOM_SCORE)
        os.close(score)
    except OSError:
        pass
    for what, soft, hard in start.rlimits:
        resource.setrlimit(what, (soft, hard))
    os.umask(0o022)
    _drop(start)
    set_pdeathsig(keeper)  # once more: the kernel forgets the first call when the uid changes
    if start.no_new_privs:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if start.folder:
        os.chdir(start.folder)
    for folder in start.folders:
        os.makedirs(folder, exist_ok=True)
    if start.rules is not None:
        if start.writes:
            landlock.allow_writes(start.rules, start.writes)
        landlock.restrict_self(start.rules)
    for fd in start.child_descriptors():
        os.close(fd)
    # The filter comes last: it denies some of the calls above, setns among them.
    if start.guard:
        seccomp.Filter(start.guard).apply()


def _drop(start: Start) -> None:
    if start.uid is None:
        return
    # Groups first: a process that is no longer root cannot change them.
    os.setgroups(list(start.groups))
    os.setresgid(start.uid, start.uid, start.uid)
    os.setresuid(start.uid, start.uid, start.uid)
    if os.geteuid() == 0:
        raise PermissionError("still root after dropping the uid")


def _use_plain_signals() -> None:
    """Reset every signal that Python, hostd or nohup ignores: a job inherits an ignored signal through exec."""
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def run_under_keeper(start: Callable[[], None], held: Sequence[int], life: int, null: int, parent: int) -> None:
    """Fork a child that calls `start` (which must exec) and stay its parent until all below has ended; never returns.

    Args:
        start: What the child does.
        held: Descriptors that the keeper holds open as long as anything lives, and the child does not.
        life: A pipe that tells how it ended, once nothing lives and nothing is held any more: `END`.
        null: A descriptor of /dev/null.
        parent: The supervisor's pid.
    """
    heard = (signal.SIGTERM, signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # each waits until it is asked for, so that none comes too early
    set_subreaper()
    set_pdeathsig(parent, signal.SIGTERM)  # before there is anything to leave behind
    ours = os.getpid()
    leader = os.fork()
    if leader == 0:
        for fd in (*held, life):
            os.close(fd)
        set_pdeathsig(ours)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        start()
        os._exit(127)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in range(3):
        os.dup2(null, number)
    descriptors.close_except([*held, life])
    status: Optional[int] = None
    while status is None:
        if signal.sigwait(heard) == signal.SIGTERM:
            processes.kill([leader])  # bubblewrap takes its sandbox with it
            kill_descendants()
            os.kill(ours, signal.SIGKILL)
        status = _end_of(leader)
    kill_descendants()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for fd in held:
        os.close(fd)
    # Nothing is held any more when the end is reported: the next job may take the locks at once.
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    try:
        os.write(life, END.pack(code, used.ru_utime + used.ru_stime))
    except OSError:
        pass  # the supervisor has closed its end
    os._exit(code)


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


def kill_descendants() -> None:
    """Kill all below this process, which must be a subreaper, until nothing is left."""
    while not processes.reaped_all():
        if signal.sigtimedwait([signal.SIGCHLD], PAUSE_S) is None:
            processes.kill(processes.descendants_of(os.getpid()))
