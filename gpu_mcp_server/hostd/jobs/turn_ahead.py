"""Work of a job ahead of its turn on a GPU: its processes start and import while the GPU is another's, or free.

A job that had its GPU while it imports would keep it idle. So it is in line from the start and keeps its place there.
Others are let past until its trusted role says that only work on the GPU is left.
"""

import os
import select
import time
from typing import Callable, List

from .owner_control import ControlLink

SPARE = "GPU_MCP_HOSTD_SPARE_CORES"
"""Environment variable with another such number; for tests."""
SPARE_CORES = int(os.environ.get(SPARE, 8))
"""With so many, processes may import while something is timed on a GPU."""
START_S = 180.0
"""After so long a job takes its turn, ready or not. Jobs behind the first three do not start, so those that hang would
keep the GPU idle. An owner says that it is ready after 120 s at most."""


def has_spare_cores() -> bool:
    """Say whether imports are in no clock's way."""
    return (os.cpu_count() or 1) >= SPARE_CORES


class AheadOfTurn:
    """Start of a job's processes ahead of its turn, and what they say meanwhile.

    Attributes:
        able: Whether they may start then.
        started: Whether they have.
    """

    def __init__(self, links: List[ControlLink], start: Callable[[], bool]) -> None:
        """Begin.

        Args:
            links: To trusted roles; `start` fills the list.
            start: Starts the processes; says whether it did.
        """
        self.able = self.started = self._tried = False
        self._links, self._start = links, start
        self._started_at = 0.0

    def start_once(self) -> None:
        """Start the processes, if they may and were not asked to before."""
        if not self.able or self._tried:
            return
        self._tried, self._started_at = True, time.monotonic()
        self.started = self._start()
        for link in self._links if self.started else ():
            link.has_turn = False

    def is_ready(self) -> bool:
        """Say whether the job can use its GPU as soon as it has it."""
        if not self.able or (self._tried and not self.started):
            return True  # then all is done in the job's turn
        if not self._tried:
            return False
        waiting = self.descriptors()
        readable = select.select(waiting, [], [], 0.0)[0] if waiting else []
        for link in self._links:
            if link.open and link.fileno() in readable:
                link.serve()
        return not self.descriptors()

    def descriptors(self) -> List[int]:
        """Return what becomes readable when a trusted role that is not ready speaks or ends."""
        if not self.started or time.monotonic() - self._started_at > START_S:
            return []
        # A role that has ended is waited for no longer: in its turn the job ends, and its record says why.
        return [link.fileno() for link in self._links if link.open and not link.is_ready]

    def grant_turn(self) -> None:
        """Tell the trusted roles that the job has its GPUs."""
        for link in self._links:
            link.grant_turn()
