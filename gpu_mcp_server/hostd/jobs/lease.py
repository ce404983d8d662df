"""The GPUs that one job holds."""

import os
import time
import zlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..gpus.broker_client import NAME, BrokerClient, BrokerGone, GrantRequest, wait_for_grant
from ..gpus.drain import DrainFiles
from ..gpus.gpu_locks import DYING_S, PROCESSOR, Held
from ..gpus.gpu_matching import choose_gpus, matching_gpus, vendor_of
from ..gpus.gpu_window import GpuWindow
from ..protocol import GpuRequest, JobSpec
from ..sandbox.processes import Identity
from . import reservation_socket
from .host_resources import Host, JobRefused
from .turn_ahead import AheadOfTurn

LEAST_WAIT_S = 0.25
"""For a broker to start and answer, for those who will not wait."""
PAUSE_S = 0.002
SHUT_S = 0.25
"""Between two looks whether the host is still being drained, where no broker looks."""
MOVED_S = 0.25
"""For each place that is ahead a new one is told so much later: a long line moves all the time."""
SHOWN_AND_CLOSED = (
    "level landlock shows the nodes of other AMD GPUs and closes them, so ROCm may find no GPU at all; "
    "a level with namespaces hides them"
)
SAY_PART = 0.05
"""Words on the queue come again after this part of the time waited so far: each is written down."""


class Lease:
    """GPUs for a job, by locks that live as long as its processes.

    Attributes:
        notes: What the record must say about the GPUs.
        link: The connection to the broker that granted them, if one did.
        window: The job's windows, if it shares its GPU so.
        charged_s: GPU seconds that the broker has charged such a job, once it let go; None if unknown.
    """

    def __init__(self, host: Host, spec: JobSpec, gpus: List[Dict[str, Any]]) -> None:
        self._host, self._spec = host, spec
        self._gpus = {g["uuid"]: g for g in matching_gpus(gpus, spec.gpus)}
        self._of_amd = sum(vendor_of(g) == "amd" for g in gpus)
        self._locks: Held = []
        self._uuids: List[str] = []
        self._door: Optional[reservation_socket.ReservationClient] = None
        self._said, self._say_at, self._moved_at = "", 0.0, 0.0
        self.link: Optional[BrokerClient] = None
        self.window: Optional[GpuWindow] = None
        self.charged_s: Optional[float] = None
        self.notes: List[str] = []

    def take(
        self,
        stop: Callable[[], bool],
        named: Mapping[str, Sequence[Any]],
        said: Callable[[str], None] = lambda words: None,
        wake: Optional[Callable[[], Sequence[int]]] = None,
        ahead: Optional[AheadOfTurn] = None,
    ) -> None:
        """Wait for the locks.

        Args:
            stop: Says whether to give up.
            named: `groups`, lists of processes of the job's control groups, and `sandboxes`, process 1 of each that
                there is already; the next holder waits until they are gone.
            said: Told in words how the job stands in line.
            wake: Returns descriptors that become readable when `stop()` may say something new.
            ahead: What is done before the job's turn; it is started at the head of the line or next to it.

        Raises:
            JobRefused: If they are not to be had in time, or `stop()` says so.
        """
        want = self._spec.gpus
        if want.count == 0 and want.mode == "none":
            return
        names = sorted(self._gpus) if want.count else [PROCESSOR]
        fault = self._host.locks.fault()
        if fault:
            raise JobRefused("refused", fault)
        count = max(1, want.count)
        self._check(names, count)
        owner: Dict[str, object] = {"job": self._spec.id, "pid": os.getpid(), "user": want.user, **named}
        turn = _Turn(names, count, owner, time.monotonic() + max(want.wait_s, LEAST_WAIT_S), stop, said)
        turn.wake, turn.ahead = wake, ahead
        if not (want.lease and want.count and self._from_reservation(turn)):
            self._locks = self._at_once(turn) or self._in_line(turn)
            if not self._locks:
                raise self._not_free(turn)
        self._uuids = [u for u, _ in self._locks if u != PROCESSOR]
        self.window = GpuWindow(self._host.locks, self._uuids[0]) if want.mode == "windowed" else None
        if want.mode != "shared" and self.link is None and self._door is None:
            self._note_strangers()
        self._note_unknown()

    def _check(self, names: Sequence[str], count: int) -> None:
        want = self._spec.gpus
        # Refused at once: no waiting gives a host more GPUs.
        if len(names) < count:
            raise JobRefused("no_gpu", "%d GPUs wanted, %d fit%s" % (count, len(names), _needs(want)))
        if not choose_gpus(names, count, self._links()):
            raise JobRefused("no_gpu", "no %d GPUs of this host are all joined by NVLink" % count)

    def _links(self) -> Optional[Dict[str, List[str]]]:
        if not self._spec.gpus.nvlink:
            return None
        return {uuid: list(gpu.get("nvlink") or ()) for uuid, gpu in self._gpus.items()}

    def _from_reservation(self, turn: "_Turn") -> bool:
        """Use the GPUs of a reservation, in turn with its other jobs; False when it has ended."""
        visit = reservation_socket.ReservationClient.connect(self._host.folders, self._spec.gpus.lease)
        if visit is None:
            self.notes.append("reservation %s has ended; the job waited like others" % self._spec.gpus.lease)
            return False
        self._door = visit
        names = [n for n in turn.names if n in visit.locks]
        if len(names) < turn.count:
            self.notes.append("reservation %s has %d GPUs that fit" % (self._spec.gpus.lease, len(names)))
            self._leave_door()
            return False
        left = turn.deadline - time.monotonic()
        inner = visit.turns.acquire(names, turn.count, self._lock_mode(), turn.owner, left, turn.stop)
        if not inner:
            raise JobRefused("no_gpu", "other jobs use the reservation's GPUs")
        chosen = {u for u, _ in inner}
        # Both locks are kept: the inner one orders the reservation's jobs, the outer one keeps strangers out.
        self._locks = [*inner, *((u, fd) for u, fd in visit.locks.items() if u in chosen)]
        visit.keep(chosen)
        return True

    def _at_once(self, turn: "_Turn") -> Held:
        """Take what is free where there is no broker, which is started by the first who must wait."""
        locks = self._host.locks
        # Where there is a broker there may be a queue, which no job may pass. A reservation always asks the broker:
        # only the broker can ask it to leave.
        if self._spec.purpose == "reserve" or locks.is_taken(NAME) or self._shut():
            return []
        # Only the broker says who starts ahead, and lets others past a job that is not ready.
        if turn.ahead is not None and not turn.ahead.is_ready():
            return []
        want = self._spec.gpus
        if want.mode == "windowed" or (want.mode == "shared" and not want.count):
            return []  # only the broker counts the jobs that share the processor, or a GPU with windows
        names = [n for n in turn.names if want.foreign == "warn" or want.mode == "shared" or not self._strangers(n)]
        # With NVLink the set matters, so it is fixed before any lock; otherwise any free ones will do.
        chosen = choose_gpus(names, turn.count, self._links()) if want.nvlink else names
        if len(chosen) < turn.count:
            return []
        held = locks.acquire(chosen, turn.count, want.mode, turn.owner, 0.0, turn.stop)
        if held and not self._is_settled(held, turn):
            _close(held)
        return held

    def _in_line(self, turn: "_Turn") -> Held:
        want = self._spec.gpus
        fields: Dict[str, Any] = {
            "names": list(turn.names),
            "count": turn.count,
            "mode": want.mode,
            "user": want.user,
            "weight": want.weight,
            "job": self._spec.id,
            "kind": runtime_class(self._spec),
            "priority": want.priority,
            "foreign": want.foreign,
            "limit_s": self._spec.limits.wall_s if self._spec.purpose != "reserve" else None,
            "links": self._links(),
        }
        request = GrantRequest(fields, turn.owner, self._heard(turn), turn.wakers if turn.wake else None)
        if turn.ahead is not None:
            request.is_ready, request.start = turn.ahead.is_ready, turn.ahead.start
            request.start_s = turn.ahead.start_s
        try:
            found = wait_for_grant(self._host.locks, request, turn.deadline, turn.stop)
        except BrokerGone:
            return self._without_broker(turn)
        if found is None:
            return []
        self.link, held, notes = found
        self.notes += notes
        return held

    def _lock_mode(self) -> str:
        """Return the mode of a lock that no broker grants: only the broker counts jobs with windows."""
        return "exclusive" if self._spec.gpus.mode == "windowed" else self._spec.gpus.mode

    def _shut(self) -> str:
        return DrainFiles(self._host.locks.folder).drain_reason(os.geteuid())

    def _heard(self, turn: "_Turn") -> Callable[[str], None]:
        """Return what passes words on: new positions soon, and the sooner the nearer to the head; all else seldom."""
        began = time.monotonic()

        def said(words: str) -> None:
            place = _position(words)
            if turn.ahead is not None and turn.ahead.hindrance:
                words += "; " + turn.ahead.hindrance
            now = time.monotonic()
            moved = place != _position(self._said) and now >= self._moved_at
            if moved or now >= self._say_at:
                self._said = words
                self._say_at = now + max(1.0, SAY_PART * (now - began))
                self._moved_at = now + MOVED_S * (_number(place) - 1)
                turn.said(words)

        return said

    def _without_broker(self, turn: "_Turn") -> Held:
        """Wait by the locks' turns alone."""
        self.notes.append("no broker answers on this host; the job waited outside the queue")
        while self._shut() and time.monotonic() < turn.deadline and not turn.stop():
            turn.said(self._shut())
            time.sleep(SHUT_S)
        names = choose_gpus(turn.names, turn.count, self._links()) if self._spec.gpus.nvlink else turn.names
        left = turn.deadline + (turn.ahead.start_s() if turn.ahead else 0.0) - time.monotonic()
        held = self._host.locks.acquire(names, turn.count, self._lock_mode(), turn.owner, left, turn.stop)
        if held and not self._is_settled(held, turn):
            self.notes.append("processes of the last job are still on the GPU")
        return held

    def _is_settled(self, held: Held, turn: "_Turn") -> bool:
        """Wait until the processes have died of those who had the GPUs before this job, or those who share them."""
        limit = time.monotonic() + DYING_S
        while any(self._host.locks.left_living(u) for u, _ in held):
            if time.monotonic() > limit or turn.stop():
                return False
            time.sleep(PAUSE_S)
        return True

    def _not_free(self, turn: "_Turn") -> JobRefused:
        holders = ", ".join("%s by %s" % (name, self._host.locks.holder(name) or "nobody") for name in turn.names)
        stood = "; last " + self._said if self._said else ""
        start_s = turn.ahead.start_s() if turn.ahead is not None else 0.0
        beside = " (without the %.0f s in which its own processes started)" % start_s if start_s >= 0.5 else ""
        late = "its turn did not come within %g s%s" % (self._spec.gpus.wait_s, beside)
        return JobRefused("no_gpu", "%s; held now: %s%s" % (late, holders, stood))

    def _strangers(self, uuid: str) -> List[int]:
        gpu = self._gpus.get(uuid)
        # An unknown list counts as empty here; `_note_unknown` tells the record so.
        listed: List[int] = (gpu["pids"] if gpu else None) or []
        pids = {p for p in listed if os.path.exists("/proc/%d" % p)}
        # Our own jobs that share the GPU are no strangers.
        return sorted(pids - self._host.job_pids()) if pids else []

    def _note_strangers(self) -> None:
        foreign = sorted({p for u in self._uuids for p in self._strangers(u)})
        if foreign:
            self.notes.append("foreign processes on the GPU, timings may suffer: pids %s" % foreign)

    def _note_unknown(self) -> None:
        """Say what was asked for and could not be looked at."""
        want = self._spec.gpus
        for uuid in self._uuids:
            gpu = self._gpus[uuid]
            if want.memory_bytes and gpu.get("memory_total_bytes") is None:
                self.notes.append("how much memory %s has is unknown, %d bytes were wanted" % (uuid, want.memory_bytes))
            if want.mode != "shared" and gpu["pids"] is None:
                self.notes.append("whether other processes compute on %s is unknown" % uuid)
        amd = any(vendor_of(self._gpus[uuid]) == "amd" for uuid in self._uuids)
        if amd and self._host.level == "landlock" and len(self._uuids) < self._of_amd:
            self.notes.append(SHOWN_AND_CLOSED)

    def uuids(self) -> List[str]:
        """Return the GPUs that the job has or had."""
        return sorted(set(self._uuids))

    def locks(self) -> Dict[str, int]:
        """Return what holds the lock of each GPU."""
        return dict(self._locks)

    def is_beside(self) -> bool:
        """Say whether other jobs have been on the job's GPU meanwhile, or right before."""
        # Within a reservation the first lock is the one that its jobs share; the other one is the reservation's.
        held = self._locks[:1] if self.window is not None else []
        return any(self._host.locks.is_beside(fd, self._spec.id) for _, fd in held)

    def name(self, sandboxes: Sequence[Identity]) -> None:
        """Have the locks name process 1 of each of the job's sandboxes."""
        for _, fd in self._locks if sandboxes else ():
            self._host.locks.name(fd, sandboxes)

    def descriptors(self) -> List[int]:
        """Return what holds the locks."""
        return [fd for _, fd in self._locks]

    def view(self) -> Tuple[List[str], Dict[str, str]]:
        """Return device nodes and environment for processes that may use the GPUs."""
        return self._view_of(self.uuids())

    def foreseen_view(self) -> Optional[Tuple[List[str], Dict[str, str]]]:
        """Return the view that the job will have where no other GPUs fit it; None where that is not known before."""
        fits = len(self._gpus) == self._spec.gpus.count and not self._spec.gpus.lease
        return self._view_of(sorted(self._gpus)) if fits else None

    def _view_of(self, uuids: Sequence[str]) -> Tuple[List[str], Dict[str, str]]:
        if not uuids:
            return [], {"CUDA_VISIBLE_DEVICES": ""}
        return self._host.gpu_view([self._gpus[u] for u in uuids])

    def close(self) -> List[str]:
        """Let go: the locks first, then the broker hears of it; return what the record must say of the locks."""
        # The look comes before the release, after which any holder's file would be legitimate.
        lost = [uuid for uuid, fd in self.locks().items() if not self._host.locks.is_in_place(uuid, fd)]
        if self.window is not None:
            self.window.close()
            self.charged_s = self.link.ask_charged_s() if self.link is not None else None
        _close(self._locks)
        if self.link is not None:
            self.link.close()
            self.link = None
        self._leave_door()
        said = (
            "another process replaced the lock of %s while the job held it: others may have used it and slowed the job"
        )
        return [said % uuid for uuid in lost]

    def _leave_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None


class _Turn:
    """One wait for locks."""

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        owner: Dict[str, object],
        deadline: float,
        stop: Callable[[], bool],
        said: Callable[[str], None],
    ) -> None:
        self.names, self.count, self.owner = names, count, owner
        self.deadline, self.stop, self.said = deadline, stop, said
        self.wake: Optional[Callable[[], Sequence[int]]] = None
        self.ahead: Optional[AheadOfTurn] = None

    def wakers(self) -> List[int]:
        """Return descriptors that become readable by what may end the wait, or make the job ready for its turn."""
        return [*(self.wake() if self.wake else ()), *(self.ahead.descriptors() if self.ahead else ())]


def runtime_class(spec: JobSpec) -> str:
    """Return what a job is of: those of one purpose and command line take about as long as each other."""
    # NUL cannot occur in an argument, so no two different commands join to the same text.
    words = "\0".join((spec.gpus.mode, *spec.processes[0].argv))
    return "%s:%08x" % (spec.purpose, zlib.crc32(words.encode("utf-8", "replace")))


def _needs(want: GpuRequest) -> str:
    needs = [word for word in (want.vendor if want.vendor != "nvidia" else "", want.arch) if word]
    needs += ["%d bytes of memory" % want.memory_bytes] if want.memory_bytes else []
    return " (%s)" % ", ".join(needs) if needs else ""


def _number(position: str) -> int:
    number = position.rpartition(" ")[2]
    return int(number) if number.isdigit() else 1


def _position(words: str) -> str:
    return words.partition(":")[0].partition(",")[0]


def _close(held: Held) -> None:
    for _, fd in held:
        os.close(fd)
    held.clear()
