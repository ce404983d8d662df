"""Who holds which GPU since when, and who waits."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.identity import as_server
from gpu_mcp_server.models.host import Gpu, HostStatus
from gpu_mcp_server.models.lease import Reserved, Waiting
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.overview import JobStanding

FRESH_S = 1.5
"""A look at the hosts serves everybody who asks within it."""
HOLDER = re.compile(r"^([jlb]-[A-Za-z0-9-]{1,60}) \((exclusive|shared)\)$")


@dataclass(frozen=True)
class Holding:
    """Who has a GPU."""

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
    holding: Holding | None


@dataclass(frozen=True)
class HostRows:
    """One host's part of the pool."""

    host: HostStatus
    gpus: Sequence[GpuRow]
    waiting: Sequence[tuple[Waiting, bool]]
    """With whether the visitor may cancel it."""
    reservations: Sequence[tuple[Reserved, bool]]

    @property
    def reserved(self) -> int:
        """How many reservations there are."""
        return len(self.reservations)


@dataclass(frozen=True)
class PoolNow:
    """The whole pool, as one visitor may see it."""

    hosts: Sequence[HostRows]
    owners: Mapping[str, str]
    """Of jobs and reservations, as far as users are known."""

    @property
    def gpus(self) -> int:
        """How many there are."""
        return sum(len(host.gpus) for host in self.hosts)

    @property
    def held(self) -> int:
        """How many are held."""
        return sum(row.holding is not None for host in self.hosts for row in host.gpus)

    @property
    def foreign(self) -> int:
        """How many nobody of ours holds, and others compute on."""
        return sum(row.holding is None and row.gpu.foreign_processes > 0 for host in self.hosts for row in host.gpus)

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(len(host.waiting) for host in self.hosts)


@dataclass(frozen=True)
class _Look:
    at: float
    hosts: Sequence[HostStatus]
    jobs: Mapping[str, JobStanding]


class PoolView:
    """Looks at all hosts at most once in a while, however many look at the page."""

    def __init__(self) -> None:
        self._look: _Look | None = None
        self._looking: asyncio.Task[_Look] | None = None

    async def hosts(self, lab: Lab) -> Sequence[HostStatus]:
        """Return every host."""
        return (await self._fresh(lab)).hosts

    async def now(self, lab: Lab) -> PoolNow:
        """Return the pool as the current user may see it."""
        look = await self._fresh(lab)
        handles = {w.job for h in look.hosts for w in h.waiting}
        handles |= {r.lease_id for h in look.hosts for r in h.reservations}
        handles |= {job for h in look.hosts for g in h.gpus if (job := _job_of(g)) is not None}
        standing = {handle: await lab.overview.right(handle) for handle in sorted(handles)}
        rows = [
            HostRows(
                host,
                [GpuRow(gpu, _holding(gpu, look.jobs, standing)) for gpu in host.gpus],
                [(w, standing[w.job] == "own") for w in host.waiting],
                [(r, standing[r.lease_id] == "own") for r in host.reservations],
            )
            for host in look.hosts
        ]
        return PoolNow(rows, await lab.overview.owners(handles))

    async def _fresh(self, lab: Lab) -> _Look:
        if self._look is not None and time.monotonic() - self._look.at < FRESH_S:
            return self._look
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._looked(lab), name="pool for the dashboard")
        return await asyncio.shield(self._looking)

    async def _looked(self, lab: Lab) -> _Look:
        with as_server():
            hosts = (await lab.gpus.status()).hosts
            held = {job for host in hosts for gpu in host.gpus if (job := _job_of(gpu)) is not None}
            jobs = {job: found for job in sorted(held) if (found := await _standing(lab, job)) is not None}
        self._look = _Look(time.monotonic(), hosts, jobs)
        return self._look


async def _standing(lab: Lab, job_id: str) -> JobStanding | None:
    try:
        return await lab.overview.job(job_id)
    except GpuMcpError:
        return None


def _job_of(gpu: Gpu) -> str | None:
    found = HOLDER.match(gpu.locked_by or "")
    return found[1] if found else None


def _holding(gpu: Gpu, jobs: Mapping[str, JobStanding], standing: Mapping[str, str]) -> Holding | None:
    if gpu.locked_by is None:
        return None
    found = HOLDER.match(gpu.locked_by)
    if found is None:
        return Holding(said=gpu.locked_by)
    job = jobs.get(found[1])
    if job is None:
        return Holding(said=gpu.locked_by, job_id=found[1], mode=found[2])
    record = job.record
    return Holding(
        said=gpu.locked_by,
        job_id=found[1],
        mode=found[2],
        user=job.user,
        purpose="reservation" if job.row.purpose == "reserve" else job.row.purpose,
        seconds=time.time() - record.started_at if record is not None and record.started_at else None,
        visible=standing[found[1]] != "none",
        mine=standing[found[1]] == "own",
    )
