"""The way to the host's broker: finding it, starting it where it is missing, and waiting in its line."""

import json
import os
import select
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, cast

from .. import own_code
from ..sandbox import descriptors, keeper
from .gpu_locks import GpuLocks, Held
from .head_start import MOST

NAME = "broker"
MESSAGE_BYTES = 64 << 10
START_S = 5.0
"""For a broker to start."""
SILENCE_S = 5.0
"""A broker that says nothing for so long is dead or stopped: it speaks every second."""
STOP_POLL_S = 0.05
"""Between two looks whether to give up, where no descriptor tells of it."""
WOKEN_POLL_S = 1.0
RETRY_S = 0.01
MAX_TRIES = 5
"""Brokers in a row that end without a word."""
SHOW_S = 0.3
MOST_CHARGED_S = 1e9


class BrokerGone(Exception):
    """There is no broker, it does not answer, or it would not have us."""


class _Ended(BrokerGone):
    """It ended; there may be another one."""


class BrokerClient:
    """One connection; what it was given ends with it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def find(cls, locks: GpuLocks) -> "Optional[BrokerClient]":
        """Connect to the broker, or return None where there is none."""
        try:
            folder = os.open(locks.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            name = _socket_name(folder)
            if name:
                end.settimeout(SHOW_S)  # a stopped broker's queue of connections may be full
                end.connect("/proc/self/fd/%d/%s" % (folder, name))
                return cls(end)
        except OSError:
            pass
        finally:
            os.close(folder)
        end.close()
        return None

    @classmethod
    def find_or_start(cls, locks: GpuLocks, stop: Callable[[], bool]) -> "Optional[BrokerClient]":
        """Connect to the broker, started if need be; None where that does not work."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and not stop():
            link = cls.find(locks)
            if link is not None:
                return link
            if not _elect(locks):
                time.sleep(RETRY_S)
        return None

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._end.fileno()

    def send(self, what: str, **more: Any) -> None:
        """Send a message; that nobody hears it is found out by listening."""
        try:
            self._end.send(json.dumps({"op": what, **more}).encode("ascii"), socket.MSG_DONTWAIT)
        except OSError:
            pass

    def receive(self, timeout_s: float, wake: Sequence[int] = ()) -> Optional[Dict[str, Any]]:
        """Return the next message, or None when there is none in time, or when one of `wake` became readable.

        Raises:
            BrokerGone: If there will be none.
        """
        if self._end not in select.select([self._end, *wake], [], [], max(0.0, timeout_s))[0]:
            return None
        try:
            said = self._end.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            message: Any = json.loads(said.decode("ascii")) if said else None
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            message = None
        if not isinstance(message, dict) or "error" in message:
            self.close()
            raise BrokerGone if message else _Ended
        return cast("Dict[str, Any]", message)

    def ask_charged_s(self) -> Optional[float]:
        """Return the GPU seconds that the broker has charged for what it granted; None if it does not say."""
        self.send("charged")
        try:
            said = (self.receive(SHOW_S) or {}).get("charged")
        except BrokerGone:
            return None
        return float(said) if isinstance(said, (int, float)) and 0.0 <= said < MOST_CHARGED_S else None

    def close(self) -> None:
        """End the connection."""
        self._end.close()


class GrantRequest:
    """A job's request to the broker.

    Attributes:
        fields: The message, less what is added while waiting.
        owner: What the locks' files say of their holder.
        said: Told in words how the job stands in line.
        wake: Returns descriptors that become readable when there may be a reason to give up, or to be ready.
        is_ready: Says whether the job can use GPUs as soon as it has them; until then others are let past it.
    """

    def __init__(
        self,
        fields: Dict[str, Any],
        owner: Dict[str, object],
        said: Callable[[str], None],
        wake: Optional[Callable[[], Sequence[int]]] = None,
    ) -> None:
        self.fields, self.owner, self.said, self.wake = fields, owner, said, wake
        self.is_ready: Callable[[], bool] = lambda: True
        self.start: Callable[[], None] = lambda: None
        """Starts the job's processes, near its turn."""
        self.start_s: Callable[[], float] = lambda: 0.0
        """For how long they have been starting: no wait for others, so the deadline is so much later."""
        self.since = time.monotonic()
        self.heard = 0
        """Messages so far."""


def wait_for_grant(
    locks: GpuLocks, want: GrantRequest, deadline: float, stop: Callable[[], bool]
) -> "Optional[Tuple[BrokerClient, Held, List[str]]]":
    """Wait for a grant and take the locks; when a broker is killed the next one is started and told since when.

    Returns:
        The connection, the locks and what to note, or None when `deadline` passed or `stop()` said so.

    Raises:
        BrokerGone: If there is no broker and none can be started.
    """
    tried = 0
    while tried < MAX_TRIES:
        link = BrokerClient.find_or_start(locks, stop)
        if link is None:
            if stop():
                return None
            break
        heard_before = want.heard
        try:
            ready = want.is_ready()
            link.send("want", since=want.since, ready=ready, **want.fields)
            found = _wait(link, locks, want, deadline, stop, told_ready=ready)
        except _Ended:
            tried = tried + 1 if want.heard == heard_before else 0
            continue
        if found is None:
            link.close()
            return None
        return (link, *found)
    raise BrokerGone


def _wait(
    link: BrokerClient,
    locks: GpuLocks,
    want: GrantRequest,
    deadline: float,
    stop: Callable[[], bool],
    *,
    told_ready: bool,
) -> Optional[Tuple[Held, List[str]]]:
    heard = time.monotonic()
    while True:
        left = deadline + want.start_s() - time.monotonic()
        if left <= 0.0 or stop():
            return None
        if want.is_ready() and not told_ready:  # in this order: it hears what woke this loop
            link.send("ready")
            told_ready = True
        wake = want.wake() if want.wake is not None else ()
        message = link.receive(min(WOKEN_POLL_S if wake else STOP_POLL_S, left), wake)
        if message is None:
            if time.monotonic() - heard > SILENCE_S:
                link.close()
                raise BrokerGone
            continue
        heard = time.monotonic()
        want.heard += 1
        if "granted" in message:
            names = [str(n) for n in message["granted"]]
            if len(set(names)) != want.fields["count"] or not set(names) <= set(want.fields["names"]):
                link.close()
                raise BrokerGone  # another user's, and not ours
            mode = str(want.fields["mode"])
            held = locks.acquire(names, len(names), mode, want.owner, 0.0, stop)
            if held:
                link.send("have")
                return held, [str(n) for n in message.get("notes", [])]
            link.send("lost")
        elif "queued" in message:
            if _is_near(message):
                want.start()
            want.said(_in_words(message["queued"]))


def _is_near(message: Dict[str, Any]) -> bool:
    near: Any = message.get("near")
    if near is None:  # a broker of another version, which another login started, tells the place alone
        place: Any = message["queued"]
        return isinstance(place, list) and place[:1] in [[n + 1] for n in range(MOST)]
    return near is True


def _in_words(said: Any) -> str:
    try:
        position, wait_s, why = int(said[0]), float(said[1]) if said[1] is not None else None, str(said[2])[:400]
    except (TypeError, ValueError, LookupError):
        return "in a queue that cannot be read"
    if wait_s is not None and not 0.0 <= wait_s < 1e7:
        wait_s = None
    about = ", about %d s" % max(1, round(wait_s)) if wait_s is not None else ""
    return "position %d%s: waiting because %s" % (position, about, why)


def broker_status(locks: GpuLocks) -> Dict[str, Any]:
    """Return the broker's queue and leases; nothing where there is no broker."""
    link = BrokerClient.find(locks)
    if link is None:
        return {}
    try:
        link.send("show")
        return dict((link.receive(SHOW_S) or {}).get("shown", {}))
    except BrokerGone:
        return {}
    finally:
        link.close()


def _socket_name(folder: int) -> str:
    """Return what the elected broker calls its socket; a stranger may have written it."""
    try:
        fd = os.open(NAME + ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        name = json.loads(os.pread(fd, 4096, 0).decode("ascii"))["socket"]
    except (ValueError, KeyError, TypeError):
        return ""
    finally:
        os.close(fd)
    return name if isinstance(name, str) and "/" not in name and name.endswith(".sock") else ""


def _elect(locks: GpuLocks) -> bool:
    """Become the one who starts the broker, and start it; False when somebody else is, or there is one."""
    try:
        life = locks.try_lock(NAME)
    except OSError:
        return False
    if life is None:
        return False
    try:
        _start(locks.folder, life)
    finally:
        os.close(life)
    return True


def _start(folder: str, life: int) -> None:
    """Start a broker that belongs to nobody: it outlives this process and is not found among its children."""
    words = own_code.hostd_argv([NAME, folder, str(life)])
    # A supervisor adopts what those below it lose. It would adopt the broker too, and kill it when its job ends.
    adopts = keeper.is_subreaper()
    keeper.set_subreaper(False)
    try:
        pid = os.fork()
        if pid == 0:
            _become(words, life)
        os.waitpid(pid, 0)
    finally:
        keeper.set_subreaper(adopts)


def _become(words: Sequence[str], life: int) -> None:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        descriptors.close_except([life])
        os.set_inheritable(life, True)
        os.execv(words[0], list(words))
    finally:
        os._exit(127)
