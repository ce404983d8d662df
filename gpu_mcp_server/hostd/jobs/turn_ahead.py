"""Work of a job ahead of its turn on a GPU: its processes start and import while the GPU is another's, or free.

A job that had its GPU while it imports would keep it idle. So it is in line from the start and keeps its place there.
Others are let past until its trusted role says that only work on the GPU is left.
"""

import select
import time
from typing import Callable, List, Optional

from ..gpus.head_start import START_S
from .owner_control import ControlLink

NO_UIDS = "its processes do not start before enough uids for jobs are free"


class AheadOfTurn:
    """Start of a job's processes ahead of its turn, and what they say meanwhile.

    Attributes:
        able: Whether they may start then.
        started: Whether they have.
        hindrance: What kept the supervisor from starting the processes, in words; empty if nothing did.
    """

    def __init__(
        self,
        links: List[ControlLink],
        start: Callable[[], bool],
        preparing: Optional[Callable[[], List[int]]] = None,
    ) -> None:
        """Begin.

        Args:
            links: To trusted roles; `start` fills the list.
            start: Starts the processes; says whether it did, or whether uids were lacking.
            preparing: Of processes made ahead of the job returns what becomes readable when one more has imported, and
                nothing once all have: they are as good as started then.
        """
        self.able = self.started = False
        self.hindrance = ""
        self._links, self._start, self._preparing = links, start, preparing
        self._started_at = 0.0
        self._ready_at: Optional[float] = None

    def start(self) -> None:
        """Start the processes, if they may and have not; who lacked uids is asked again.

        A job without uids is not ready: in its turn it would keep the GPU idle while it waits for them.
        """
        if not self.able or self.started:
            return
        self._started_at = time.monotonic()
        self.started = self._start()
        self.hindrance = "" if self.started else NO_UIDS
        for link in self._links if self.started else ():
            link.has_turn = False

    def start_s(self) -> float:
        """Return for how long the processes have been starting, or were until they were ready."""
        if not self.started:
            return 0.0
        until = self._ready_at if self._ready_at is not None else time.monotonic()
        return min(START_S, until - self._started_at)

    def is_ready(self) -> bool:
        """Say whether the job can use its GPU as soon as it has it."""
        if not self.able:
            return True  # then all is done in the job's turn
        if not self.started:
            return self._preparing is not None and not self._preparing()
        waiting = self.descriptors()
        readable = select.select(waiting, [], [], 0.0)[0] if waiting else []
        for link in self._links:
            if link.open and link.fileno() in readable:
                link.serve()
        ready = not self.descriptors()
        if ready and self._ready_at is None:
            self._ready_at = time.monotonic()
        return ready

    def descriptors(self) -> List[int]:
        """Return what becomes readable when a trusted role that is not ready speaks or ends, or has been prepared."""
        if self.able and not self.started and self._preparing is not None:
            return self._preparing()
        if not self.started or time.monotonic() - self._started_at > START_S:
            return []
        # A role that has ended is waited for no longer: in its turn the job ends, and its record says why.
        return [link.fileno() for link in self._links if link.open and not link.is_ready]

    def grant_turn(self) -> None:
        """Tell the trusted roles that the job has its GPUs."""
        for link in self._links:
            link.grant_turn()
