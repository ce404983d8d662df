"""The pool's page: the holder of each GPU, since when, and the queue."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.host import Gpu, HostStatus
from gpu_mcp_server.models.lease import QueueEntry, ReservationInfo
from gpu_mcp_server.runtime.current_user import as_server
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.status.dashboard_queries import JobState

FRESH_S = 1.5
"""A look at a host serves everybody who asks within it."""
PATIENCE_S = 1.0
"""For hosts to answer before pages show what they said last; who is asked later does not wait for the silent ones."""
OLD_S = 10.0
"""From then on a page says how old it is what a host said."""
HOLDER = re.compile(r"^([jlb]-[A-Za-z0-9-]{1,60}) \((exclusive|shared|windowed)\)$")


@dataclass(frozen=True)
class GpuHolder:
    """Holder of a GPU."""

    said: str
    """What the lock's file says, for those who may not see more."""
    job_id: str | None = None
    mode: str = ""
    user: str = ""
    purpose: str = ""
    seconds: float | None = None
    visible: bool = False
    """Whether the visitor may open the job."""
    mine: bool = False


@dataclass(frozen=True)
class GpuRow:
    """One GPU and its holder."""

    gpu: Gpu
    holding: GpuHolder | None


@dataclass(frozen=True)
class HostRows:
    """One host's part of the pool."""

    host: HostStatus
    gpus: Sequence[GpuRow]
    waiting: Sequence[tuple[QueueEntry, bool]]
    """With whether the visitor may cancel it."""
    reservations: Sequence[tuple[ReservationInfo, bool]]
    old_s: float | None = None
    """Age of all that, where it is not new."""

    @property
    def reserved_count(self) -> int:
        """Return the number of reservations."""
        return len(self.reservations)


@dataclass(frozen=True)
class PoolSnapshot:
    """The whole pool, as one visitor may see it."""

    hosts: Sequence[HostRows]
    owners: Mapping[str, str]
    """Of jobs and reservations, as far as users are known."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(len(host.gpus) for host in self.hosts)

    @property
    def held_count(self) -> int:
        """Return the number of held GPUs."""
        return sum(row.holding is not None for host in self.hosts for row in host.gpus)

    @property
    def foreign(self) -> int:
        """Return the number of GPUs that only foreign processes use."""
        return sum(row.holding is None and bool(row.gpu.foreign_processes) for host in self.hosts for row in host.gpus)

    @property
    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return sum(len(host.waiting) for host in self.hosts)


@dataclass(frozen=True)
class _Look:
    """A host's answer, and the holders of its GPUs."""

    at: float
    host: HostStatus
    jobs: Mapping[str, JobState]


class PoolView:
    """Looks at each host at most once in a while, however many look at the page; a silent one holds up nobody."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._looking: dict[str, tuple[float, asyncio.Task[None]]] = {}

    async def hosts(self, lab: Lab) -> Sequence[HostStatus]:
        """Return every host as it said last."""
        return [look.host for look in await self._fresh(lab)]

    async def snapshot(self, lab: Lab) -> PoolSnapshot:
        """Return the pool as the current user may see it."""
        looks = await self._fresh(lab)
        hosts = [look.host for look in looks]
        handles = {w.job for h in hosts for w in h.waiting} | {r.lease_id for h in hosts for r in h.reservations}
        handles |= {job for h in hosts for g in h.gpus if (job := _job_of(g)) is not None}
        rights = {handle: await lab.status.overview.right(handle) for handle in sorted(handles)}
        rows = [
            HostRows(
                look.host,
                [GpuRow(gpu, _holding(gpu, look.jobs, rights)) for gpu in look.host.gpus],
                [(w, rights[w.job] == "own") for w in look.host.waiting],
                [(r, rights[r.lease_id] == "own") for r in look.host.reservations],
                _age(look),
            )
            for look in looks
        ]
        return PoolSnapshot(rows, await lab.status.overview.owners(handles))

    async def _fresh(self, lab: Lab) -> Sequence[_Look]:
        names, now = lab.hosts.names(), time.monotonic()
        for name in names:
            look, asked = self._looks.get(name), self._looking.get(name)
            if (look is None or now - look.at > FRESH_S) and (asked is None or asked[1].done()):
                self._looking[name] = now, asyncio.create_task(self._look(lab, name), name=f"pool: {name}")
        waited_for = [task for since, task in self._looking.values() if now - since < PATIENCE_S and not task.done()]
        if waited_for:
            await asyncio.wait(waited_for, timeout=PATIENCE_S)
        return [self._looks.get(name) or _silent(lab, name) for name in names]

    async def _look(self, lab: Lab, name: str) -> None:
        with as_server():
            (host,) = (await lab.status.gpus.status(name)).hosts
            held = {job for gpu in host.gpus if (job := _job_of(gpu)) is not None}
            jobs = {job: found for job in sorted(held) if (found := await _standing(lab, job)) is not None}
        self._looks[name] = _Look(time.monotonic(), host, jobs)


def _silent(lab: Lab, name: str) -> _Look:
    problem = "it was asked and has not answered yet"
    return _Look(
        time.monotonic(), HostStatus(host=name, kind=lab.hosts.kind(name), reachable=False, problem=problem), {}
    )


def _age(look: _Look) -> float | None:
    age = time.monotonic() - look.at
    return age if age > OLD_S else None


async def _standing(lab: Lab, job_id: str) -> JobState | None:
    try:
        return await lab.status.overview.job(job_id)
    except GpuMcpError:
        return None


def _job_of(gpu: Gpu) -> str | None:
    found = HOLDER.match(gpu.locked_by or "")
    return found[1] if found else None


def _holding(gpu: Gpu, jobs: Mapping[str, JobState], rights: Mapping[str, str]) -> GpuHolder | None:
    if gpu.locked_by is None:
        return None
    found = HOLDER.match(gpu.locked_by)
    if found is None:
        return GpuHolder(said=gpu.locked_by)
    job = jobs.get(found[1])
    if job is None:
        return GpuHolder(said=gpu.locked_by, job_id=found[1], mode=found[2])
    record = job.record
    return GpuHolder(
        said=gpu.locked_by,
        job_id=found[1],
        mode=found[2],
        user=job.user,
        purpose="reservation" if job.row.purpose == "reserve" else job.row.purpose,
        seconds=time.time() - record.started_at if record is not None and record.started_at else None,
        visible=rights[found[1]] != "none",
        mine=rights[found[1]] == "own",
    )
