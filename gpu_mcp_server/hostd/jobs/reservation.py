"""GPUs that somebody keeps between jobs: a job of its own that runs nothing and lets other jobs in by its door.

It ends when it was not used for `keep_s`, at its wall limit, when it is cancelled, and, once it was idle for `idle_s`,
when the broker says that somebody waits and nobody came in within the time of grace. Being used renews it. Whoever is
in when it ends keeps the GPU until its own end.
"""

import os
import select
import time
from typing import Any, Dict, List, Optional

from ..gpus.broker_client import BrokerClient, BrokerGone
from ..sandbox import descriptors
from .host_resources import JobRefused
from .job_store import JobStore
from .reservation_socket import ReservationServer, reservation_status
from .supervisor import Supervisor

PURPOSE = "reserve"
LONGEST_SLEEP_S = 1.0


class Reservation(Supervisor):
    """Holds GPUs from its grant to its end."""

    _door: Optional[ReservationServer] = None
    _used_at = 0.0
    _leaves_at: Optional[float] = None
    _idle = False

    def _prepare(self) -> None:
        self.host.require(self.spec)
        if self.spec.gpus.count < 1:
            raise JobRefused("refused", "a reservation is of GPUs")
        self.folder.update_notes({"pid": os.getpid(), "leader": self.spec.processes[0].role, "level": self.host.level})
        self._heed_earlier()
        self.lease.take(self._heed_woken, {}, self._note_queued, self._wakers)
        self.notes += self.lease.notes

    def _start(self) -> None:
        if self.status is not None:
            raise JobRefused(self.status, "before it was granted")
        # No keeper runs here: the supervisor's own descriptors hold the locks.
        self.held.close()
        self._door = ReservationServer(self.folder, self.lease.locks())
        self._used_at = time.monotonic()
        self._running()

    def _note_live(self, state: str, note: str = "") -> None:
        super()._note_live(state, note or ("held" if state == "running" else ""))

    def _watch(self) -> None:
        assert self._door is not None
        try:
            while self.status is None:
                self._heed_use(self._door.count_active_jobs() > 0)
                self._end_when_due()
                if self.status is None:
                    self._wait(self._door)
        finally:
            self._door.close()

    def _heed_use(self, used: bool) -> None:
        if used:
            self._used_at, self._leaves_at = time.monotonic(), None
        if used == self._idle:
            self._used_at, self._idle = time.monotonic(), not used
            self._say_idle()

    def _say_idle(self) -> None:
        if self.lease.link is not None:
            if self._idle:
                self.lease.link.send("idle", after_s=self.spec.gpus.idle_s)
            else:
                self.lease.link.send("busy")

    def _ends_at(self) -> float:
        last = self.clock + self.spec.limits.wall_s
        return min(last, self._used_at + self.spec.gpus.keep_s) if self._idle else last

    def _end_when_due(self) -> None:
        now = time.monotonic()
        if self._leaves_at is not None and now >= self._leaves_at:
            idle = now - self._used_at
            self._end("cancelled", "gave way to waiting jobs, after %d s without use" % idle)
        elif now >= self.clock + self.spec.limits.wall_s:
            self._end("timeout", "reservations last %g s at most" % self.spec.limits.wall_s)
        elif now >= self._ends_at():
            self._end("timeout", "not used for %g s" % self.spec.gpus.keep_s)

    def _wait(self, door: ReservationServer) -> None:
        """Wait for whatever comes first, and heed it."""
        # A capped sleep also finds a broker that was started anew, of which no descriptor tells.
        due = [self._ends_at(), time.monotonic() + LONGEST_SLEEP_S]
        due += [self._leaves_at] if self._leaves_at is not None else []
        link = self._link()
        fds = [self._wake_read, *door.fds()]
        fds += [end.fileno() for end in (link, self.caller) if end is not None and end.fileno() >= 0]
        ready = select.select(fds, [], [], max(0.0, min(due) - time.monotonic()))[0]
        descriptors.drain(self._wake_read)
        self._heed_caller()
        if link is not None and link.fileno() in ready:
            self._heed_broker(link)
        door.serve(self._standing())

    def _heed_broker(self, link: BrokerClient) -> None:
        try:
            message = link.receive(0.0) or {}
        except BrokerGone:
            self.lease.link = None
            return
        # A job may have come in while the broker's wish was on its way; it is not turned out.
        if "leave" in message and self._idle:
            self._leaves_at = time.monotonic() + float(message["leave"])

    def _link(self) -> Optional[BrokerClient]:
        """Return the connection to the broker; one that was started anew is told what is held here."""
        if self.lease.link is None:
            self.lease.link = BrokerClient.find(self.host.locks)
            if self.lease.link is not None:
                want = self.spec.gpus
                about = {"names": self.lease.uuids(), "count": want.count, "mode": want.mode, "user": want.user}
                self.lease.link.send("hold", job=self.spec.id, **about)
                self._say_idle()
        return self.lease.link

    def _standing(self) -> Dict[str, Any]:
        now = time.monotonic()
        return {
            "lease_id": self.spec.id,
            "gpus": self.lease.uuids(),
            "user": self.spec.gpus.user,
            "in_use": not self._idle,
            "ends_in_s": round(self._ends_at() - now, 3),
            "leaves_in_s": round(self._leaves_at - now, 3) if self._leaves_at is not None else None,
        }


def reservation_states(folders: JobStore) -> List[Dict[str, Any]]:
    """Return how the reservations of this user's jobs stand."""
    found = [reservation_status(f) for f in folders.unfinished_jobs() if os.path.exists(f.path_of("door"))]
    return [s for s in found if s]
