"""The GPUs that one job holds."""

import os
from typing import Any, Callable, Dict, List, Tuple

from .host import Host, HostRefuses
from .protocol import JobSpec

PROCESSOR = "processor"
"""The lock of those who time on the processor alone: two at once would time each other."""


class Lease:
    """GPUs for a job, by locks that live as long as its processes.

    Attributes:
        notes: What the record must say about the GPUs.
    """

    def __init__(self, host: Host, spec: JobSpec, gpus: List[Dict[str, Any]]) -> None:
        self._host, self._spec = host, spec
        self._gpus = {g["uuid"]: g for g in gpus if not spec.gpus.uuids or g["uuid"] in spec.gpus.uuids}
        self._locks: List[Tuple[str, int]] = []
        self._uuids: List[str] = []
        self.notes: List[str] = []

    def take(self, stop: Callable[[], bool]) -> None:
        """Wait for the locks.

        Raises:
            HostRefuses: If they are not to be had in time, or `stop()` says so.
        """
        want = self._spec.gpus
        if want.count == 0:
            if want.mode == "exclusive":
                self._locks = self._turn([PROCESSOR], 1, stop)
            return
        if len(self._gpus) < want.count:
            raise HostRefuses("no_gpu", "%d GPUs wanted, %d fit" % (want.count, len(self._gpus)))
        self._locks = self._turn(sorted(self._gpus), want.count, stop)
        self._uuids = [u for u, _ in self._locks]
        if want.mode == "exclusive":
            self._look_for_others()

    def _turn(self, names: List[str], count: int, stop: Callable[[], bool]) -> List[Tuple[str, int]]:
        want = self._spec.gpus
        owner: Dict[str, object] = {"job": self._spec.id, "pid": os.getpid()}
        locks = self._host.locks.acquire(names, count, want.mode, owner, want.wait_s, stop)
        if not locks:
            holders = ", ".join("%s by %s" % (name, self._host.locks.holder(name)) for name in names)
            raise HostRefuses("no_gpu", "not free within %g s: %s" % (want.wait_s, holders))
        return locks

    def _look_for_others(self) -> None:
        pids = {p for u in self._uuids for p in self._gpus[u]["pids"] if os.path.exists("/proc/%d" % p)}
        foreign = sorted(pids - self._host.ours()) if pids else []
        if foreign:
            self.notes.append("foreign processes on the GPU, timings may suffer: pids %s" % foreign)

    def uuids(self) -> List[str]:
        """Return the GPUs that the job has or had."""
        return self._uuids

    def descriptors(self) -> List[int]:
        """Return what holds the locks."""
        return [fd for _, fd in self._locks]

    def view(self) -> Tuple[List[str], Dict[str, str]]:
        """Return device nodes and environment for processes that may use the GPUs."""
        if not self._uuids:
            return [], {"CUDA_VISIBLE_DEVICES": ""}
        return self._host.gpu_view([self._gpus[u] for u in self._uuids])

    def close(self) -> None:
        """Let go."""
        for fd in self.descriptors():
            os.close(fd)
        self._locks = []
