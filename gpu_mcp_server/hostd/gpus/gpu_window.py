"""Windows of jobs that share a GPU: each has it alone for a while, as where something is timed.

Such jobs share the GPU's lock (mode `windowed`). A second lock orders them: a job that runs kernels beside others
shares it, and a job in its window holds it alone. A waiting job holds neither. It keeps the turn, so that no other job
starves it.
"""

import os
from typing import Optional

from .gpu_locks import GpuLocks

POLL_S = 0.004
"""Between two looks whether a window can be entered or shared."""


class GpuWindow:
    """One job's place in the windows of its GPU.

    Args:
        locks: Of the host.
        uuid: Of the GPU, whose lock the job holds.
    """

    def __init__(self, locks: GpuLocks, uuid: str) -> None:
        self._locks, self._name = locks, uuid + "-window"
        self._held: Optional[int] = None
        self._turn: Optional[int] = None
        self.wanted = ""
        """`alone` or `shared`, while the job waits for it."""

    def want(self, part: str) -> None:
        """Leave what the job has, and wait for a window (`alone`) or for others to be out of theirs (`shared`)."""
        self._leave()
        self.wanted = part

    def try_enter(self) -> bool:
        """Try to have what is wanted; return whether that is so now.

        Raises:
            OSError: If the locks' files cannot be used.
        """
        if self._turn is None:
            self._turn = self._locks.try_lock(self._name + "-turn")
        if self._turn is None:
            return False
        self._held = self._locks.try_lock(self._name, shared=self.wanted == "shared")
        if self._held is None:
            return False
        os.close(self._turn)
        self._turn, self.wanted = None, ""
        return True

    def _leave(self) -> None:
        for fd in (self._held, self._turn):
            if fd is not None:
                os.close(fd)
        self._held = self._turn = None

    def close(self) -> None:
        """Let others have it."""
        self.wanted = ""
        self._leave()
