"""Tells whether a GPU is free: no lock is held, the last job has died, and no foreign process uses it."""

import os
import time
from typing import Dict, List, Tuple

from .gpu_locks import DYING_S, PROCESSOR, GpuLocks
from .gpu_queue import GpuState
from .host_gpus import HostGpus

FRESH_S = 0.05
"""For how long a driver's answer is used again."""


class GpuAvailability:
    """Looks at the GPUs of this host."""

    def __init__(self, locks: GpuLocks, gpus: HostGpus) -> None:
        self._locks, self._gpus = locks, gpus
        self._dying: Dict[str, float] = {}
        self._pids: Dict[str, Tuple[float, List[int]]] = {}
        self._seen: Dict[Tuple[str, str], GpuState] = {}

    def forget(self) -> None:
        """Look anew from now on: within one turn of the broker each GPU is looked at once."""
        self._seen.clear()

    def check(self, name: str, mode: str) -> GpuState:
        """Say whether a GPU can be taken, and which strangers are on it."""
        key = (name, mode)
        if key not in self._seen:
            self._seen[key] = self._look(name, mode)
        return self._seen[key]

    def _look(self, name: str, mode: str) -> GpuState:
        alone = self._locks.is_free(name, "exclusive")
        if not alone:
            self._dying.pop(name, None)
            if mode == "exclusive" or not self._locks.is_free(name, mode):
                return GpuState("%s is held by %s" % (name, self._locks.holder(name) or "another process"))
            return GpuState()
        if self._locks.living(name):
            # The GPU's memory is freed only when the last process of the old job has died.
            began = self._dying.setdefault(name, time.monotonic())
            if time.monotonic() - began < DYING_S:
                return GpuState("processes of the last job on %s are still ending" % name)
        else:
            self._dying.pop(name, None)
        return GpuState("", tuple(self._strangers(name)) if mode != "shared" and name != PROCESSOR else ())

    def _strangers(self, name: str) -> List[int]:
        at, pids = self._pids.get(name, (0.0, []))
        # Asking the driver takes long beside a turn of the broker, so its answer serves several turns.
        if time.monotonic() - at > FRESH_S:
            pids = self._gpus.pids(name)
            self._pids[name] = (time.monotonic(), pids)
        # The driver may list processes for a moment after they have ended.
        return [pid for pid in pids if os.path.exists("/proc/%d" % pid)]
