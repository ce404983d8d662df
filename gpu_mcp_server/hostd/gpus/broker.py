"""The broker of one host: it keeps the queue for the GPUs. It orders, and nothing more: the truth is the GPU's lock.

One process a host, started by the first job that finds a GPU taken, elected by an flock that it inherits, ended when
idle. It serves a Unix socket of messages (JSON, one a packet); the kernel says who the peer is. What a connection was
given is its own until it ends, and then the GPU's lock decides when the next one is let in. A grant is a permission to
take the locks; whoever cannot, because somebody without a broker was faster, is put back to its place.

From a client: `want` (fields of `gpu_queue.Request`), `ready` where it was not, then `have` or `lost`; `hold` for what
was granted by a broker that was killed; `idle` and `busy` for who holds on without using; `show`. To a client:
`queued`, `granted`, `leave`, `shown`, `error`.
"""

import json
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, Dict, List, Optional, Tuple, cast

from .broker_client import MESSAGE_BYTES, NAME
from .drain import DrainFiles
from .gpu_availability import GpuAvailability
from .gpu_locks import GpuLocks
from .gpu_queue import GrantedLease, Queue, Request
from .host_gpus import HostGpus
from .login_policy import job_uids, policy

IDLE_S = 600.0
IDLE = "GPU_MCP_HOSTD_BROKER_IDLE_S"
"""Environment variable with another time; for tests."""
REJOIN_S = 5.0
"""For so long a new broker believes those who say since when they have been waiting: the last one was killed."""
POLL_S = (0.002, 0.02)
"""Between two looks at GPUs that are taken without a lease, at first and later."""
TELL_S = 1.0
"""Between two messages on the queue to the same client, which takes longer silence for the broker's death."""
TOLD_WITH_S = 0.75
"""Who was told so long ago is told when somebody's turn comes: a hundred in line hear in two turns, not a hundred."""
ANSWER_S = 5.0
GRACE_S = 5.0
"""What an idle holder that was asked to leave has left."""
GONE_S = 5.0
"""Between two looks whether the folder is still there, at the host's policy, and notes of what was used."""
USAGE = "usage-%d"
"""What the next broker of the same login takes up; beside the locks, and so gone with the machine's uptime."""
MAX_USAGE_BYTES = 1 << 20
MAX_LINKED = 16
"""GPUs among which those joined by NVLink are looked for: the search may try every set of them."""
MOST_S = 7 * 86400.0
MAX_CLIENTS = 900
MAX_CLIENTS_OF_USER = 500
_CREDENTIALS = struct.Struct("3i")


class _Client:
    """One connection."""

    def __init__(self, end: socket.socket, uid: int) -> None:
        self.end, self.uid = end, uid
        self.told_at = 0.0
        self.told_near = False
        """Whether it was told that its processes may start."""
        self.granted_at: Optional[float] = None
        """When it was given GPUs that it has not taken yet."""

    def send(self, message: Dict[str, Any]) -> bool:
        try:
            # One client that does not read must not hold up the whole queue.
            self.end.send(json.dumps(message).encode("ascii"), socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True


class Broker:
    """The process.

    Args:
        locks: The GPUs' locks; the socket lies beside them.
        life: Descriptor of the election's lock.
        idle_s: After so long without a client it ends.
    """

    def __init__(self, locks: GpuLocks, life: int, idle_s: float = IDLE_S) -> None:
        self._life, self._idle_s = life, idle_s
        self._vacancy = GpuAvailability(locks, HostGpus())
        self.queue = Queue(self._vacancy.check)
        self._clients: Dict[int, _Client] = {}
        self._folder = os.open(locks.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = "%s-%d.sock" % (NAME, os.geteuid())
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._began = self._used_at = self._blocked_at = time.monotonic()
        self._gone_at = 0.0
        self._drains = DrainFiles(locks.folder)
        self._job_uids = job_uids()
        """A job has no business here."""
        self._shut: Dict[int, str] = {}
        self.queue.shut = self._why_shut

    def run(self) -> None:
        """Serve until idle."""
        self._open()
        self._take_up()
        while self._turn():
            pass
        self._keep()
        self._close()

    def _open(self) -> None:
        # By way of the folder's descriptor: the name of a socket may have 107 bytes.
        path = "/proc/self/fd/%d/%s" % (self._folder, self._name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        self._door.bind(path)
        # Every login may connect; SO_PEERCRED, not the file's mode, says who does.
        os.chmod(path, 0o666)
        self._inode = os.stat(path).st_ino
        self._door.listen(256)
        os.ftruncate(self._life, 0)
        os.pwrite(self._life, json.dumps({"pid": os.getpid(), "socket": self._name}).encode("ascii"), 0)

    def _close(self) -> None:
        os.ftruncate(self._life, 0)
        if self._is_there():
            os.unlink(self._name, dir_fd=self._folder)

    def _take_up(self) -> None:
        """Take up what the last broker knew of past use: its own login's word, or root's."""
        for uid in (os.geteuid(), 0):
            try:
                fd = os.open(USAGE % uid, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder)
            except OSError:
                continue
            try:
                if os.fstat(fd).st_uid == uid:
                    said = json.loads(os.read(fd, MAX_USAGE_BYTES).decode("ascii"))
                    self.queue.shares.restore(said["used"], time.time() - float(said["at"]), self._began)
                    return
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
            finally:
                os.close(fd)

    def _keep(self) -> None:
        """Note what was used, for the next broker; a full disk does not matter."""
        self.queue.charge(time.monotonic())
        text = json.dumps({"at": time.time(), "used": self.queue.shares.dump_state(time.monotonic())}).encode("ascii")
        name = USAGE % os.geteuid()
        try:
            fd = os.open(
                name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=self._folder
            )
        except OSError:
            return
        try:
            os.write(fd, text)
            os.replace(name + ".new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            pass
        finally:
            os.close(fd)

    def _why_shut(self, uid: int) -> str:
        """Say whether the host is being drained; looked at once in a turn."""
        if uid not in self._shut:
            self._shut[uid] = self._drains.drain_reason(uid)
        return self._shut[uid]

    def _is_there(self) -> bool:
        try:
            return os.stat(self._name, dir_fd=self._folder).st_ino == self._inode
        except OSError:
            return False

    def _turn(self) -> bool:
        poll = select.poll()
        for fd in (self._door.fileno(), *self._clients):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000 * self._patience()):
            if fd == self._door.fileno():
                self._accept()
            elif fd in self._clients:
                self._hear(fd)
        now = time.monotonic()
        self._vacancy.forget()
        self._shut.clear()
        self._serve(now)
        if self._clients:
            self._used_at = now
        if now >= self._gone_at:
            self._gone_at = now + GONE_S
            # The socket was removed or replaced, as by cleaning the folder: no client can find this broker any more.
            if not self._is_there():
                return False
            self.queue.shares.policy = policy()
            self._keep()
        return bool(self._clients) or now - self._used_at < self._idle_s

    def _patience(self) -> float:
        """Return how long nothing is due."""
        now = time.monotonic()
        due = [self._gone_at, *([] if self._clients else [self._used_at + self._idle_s])]
        if self.queue.waiting:
            first, later = POLL_S if self.queue.beside else (TELL_S, TELL_S)
            due.append(now + (first if now - self._blocked_at < 1.0 else later))
            due.append(min(self._clients[n].told_at for n in self.queue.waiting) + TELL_S)
            due += [t for t in [self.queue.next_idle_at()] if t is not None]
        return max(0.0, min(due) - now)

    def _accept(self) -> None:
        try:
            end, _ = self._door.accept()
        except OSError:
            return  # it has gone again
        # The kernel fills this in at connect, so a client cannot claim another uid.
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        client = _Client(end, uid)
        of_user = sum(1 for c in self._clients.values() if c.uid == uid)
        if uid in self._job_uids or len(self._clients) >= MAX_CLIENTS or of_user >= MAX_CLIENTS_OF_USER:
            client.send({"error": "too many clients"})
            end.close()
            return
        self._clients[end.fileno()] = client

    def _hear(self, fd: int) -> None:
        client = self._clients[fd]
        try:
            said = client.end.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        try:
            if not said:
                raise ValueError
            self._heed(fd, client, json.loads(said.decode("ascii")))
        # Every login may write here: whatever is wrong with a message ends its own connection and no other.
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self._drop(fd)

    def _heed(self, fd: int, client: _Client, message: Dict[str, Any]) -> None:
        what = message["op"]
        lease = self.queue.leases.get(fd)
        if what == "want" and lease is None:
            self.queue.waiting[fd] = self._request(fd, client, message)
        elif what == "hold" and lease is None and fd not in self.queue.waiting:
            self._hold(self._request(fd, client, message))
        elif what == "ready" and fd in self.queue.waiting:
            self.queue.waiting[fd].ready = True
        elif what == "have" and lease is not None:
            client.granted_at = None
        elif what == "lost" and client.granted_at is not None:
            client.granted_at = None
            self.queue.take_back(fd, time.monotonic())
        elif what == "idle" and lease is not None:
            lease.idle_since, lease.idle_s = time.monotonic(), max(0.001, float(message["after_s"]))
        elif what == "busy" and lease is not None:
            lease.idle_since, lease.told = None, False
        elif what == "charged" and lease is not None:
            self.queue.charge(time.monotonic())
            client.send({"charged": lease.charged_s})
        elif what == "show":
            client.send({"shown": self._shown(time.monotonic())})
        else:
            raise ValueError(what)

    def _request(self, fd: int, client: _Client, message: Dict[str, Any]) -> Request:
        now = time.monotonic()
        # A client's own word on its arrival would let it jump the queue at any other time.
        since = float(message.get("since", now)) if now - self._began < REJOIN_S else now
        links: Any = message.get("links")
        limit = min(MOST_S, max(0.0, float(message.get("limit_s") or MOST_S)))
        request = Request(
            number=fd,
            names=tuple(_texts(message["names"])),
            count=int(message["count"]),
            mode=message["mode"] if message["mode"] in ("exclusive", "windowed") else "shared",
            uid=client.uid,
            user=str(message.get("user", ""))[:80],
            weight=float(message.get("weight", 1.0)),
            kind=str(message.get("kind", ""))[:80],
            job=str(message.get("job", ""))[:80],
            priority=str(message.get("priority", "interactive")),
            foreign=str(message.get("foreign", "other")),
            since=max(now - MOST_S, min(now, since)),
            limit_s=limit if limit < MOST_S else None,
            links={str(k): _texts(v) for k, v in links.items()} if links is not None else None,
            ready=bool(message.get("ready", True)),
        )
        if not 0 < request.count <= len(set(request.names)) == len(request.names):
            raise ValueError("a count that the names do not have")
        if links is not None and len(request.names) > MAX_LINKED:
            raise ValueError("more than %d GPUs to search for joined ones" % MAX_LINKED)
        return request

    def _hold(self, request: Request) -> None:
        """Note what somebody holds since before this broker; the locks must bear it out."""
        self._vacancy.forget()
        if all(self._vacancy.check(name, "exclusive").taken for name in request.names):
            self.queue.charge(time.monotonic())
            self.queue.leases[request.number] = GrantedLease(request, request.names, time.monotonic())

    def _drop(self, fd: int) -> None:
        client = self._clients.pop(fd)
        self.queue.release(fd, time.monotonic())
        client.end.close()

    def _serve(self, now: float) -> None:
        for fd, client in list(self._clients.items()):
            # A client that is stopped, say, would keep the GPU from others without using it.
            if client.granted_at is not None and now - client.granted_at > ANSWER_S:
                self._drop(fd)
        if not self.queue.waiting:
            self._blocked_at = now
            return
        for grant in self.queue.grant_ready(now):
            self._blocked_at = now
            client = self._clients[grant.request.number]
            client.granted_at = now
            if not client.send({"granted": grant.names, "notes": grant.notes}):
                self._drop(grant.request.number)
        for number in self.queue.leases_to_reclaim(now):
            self._clients[number].send({"leave": GRACE_S})
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Tell waiting jobs their place, and a job that has come near its turn at once, so that it imports."""
        since = {n: now - self._clients[n].told_at for n in self.queue.waiting}
        anybody = any(waited >= TELL_S for waited in since.values())
        due = [n for n, waited in since.items() if anybody and waited >= TOLD_WITH_S]
        order = self.queue.waiting_in_order(now)
        near = self.queue.near_turn(order, now)
        due += [n for n in near if not self._clients[n].told_near and n not in due]
        for number in due:
            place = self.queue.standing(self.queue.waiting[number], order, now)
            self._clients[number].told_at, self._clients[number].told_near = now, number in near
            self._clients[number].send({"queued": list(place), "near": number in near})

    def _shown(self, now: float) -> Dict[str, Any]:
        """Return the queue and the leases, for people; as many as a message holds."""
        order = self.queue.waiting_in_order(now)
        waiting: List[Dict[str, Any]] = []
        for request in order[:50]:
            position, wait_s, why = self.queue.standing(request, order, now)
            about = _about(request, now - request.since)
            waiting.append({**about, "position": position, "wait_s": wait_s, "why": why[:200]})
        held: List[Tuple[int, GrantedLease]] = sorted(self.queue.leases.items())[:100]
        leases = [
            {**_about(x.request, now - x.since), "gpus": x.names, "idle": x.idle_since is not None} for _, x in held
        ]
        return {"pid": os.getpid(), "waiting": waiting, "leases": leases, "all_waiting": len(order)}


def _about(request: Request, seconds: float) -> Dict[str, Any]:
    return {
        "job": request.job,
        "uid": request.uid,
        "user": request.user,
        "mode": request.mode,
        "count": request.count,
        "seconds": round(seconds, 3),
    }


def _texts(value: Any) -> List[str]:
    if not isinstance(value, list):
        raise ValueError("no list")
    return [str(v)[:80] for v in cast("List[Any]", value)[:64]]


def serve(folder: str, life: int) -> int:
    """Be the broker of a folder of locks; `life` holds the election's lock."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CLIENTS + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most if hard < 0 else min(hard, most)), hard))
    os.set_inheritable(life, False)
    Broker(GpuLocks(folder), life, float(os.environ.get(IDLE, IDLE_S))).run()
    return 0
