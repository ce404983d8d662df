"""The pool of GPUs as the server sees it: which host a job goes to, whose time it is, and reservations."""

import asyncio
import getpass
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpu_mcp_server.errors import GpuMcpError, NoFreeGpu, NotFound
from gpu_mcp_server.hostd.protocol import GpuRequest, JobRecord, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.lease import GpuLease, Reserved
from gpu_mcp_server.services.hosts import HostProbe
from gpu_mcp_server.services.job_table import JobRow, JobTable
from gpu_mcp_server.services.jobs import JobRunner, raise_if_not_run
from gpu_mcp_server.services.owners import Owner
from gpu_mcp_server.settings import Settings

Progress = Callable[[str], Awaitable[None]]
HasBuild = Callable[[str], Awaitable[bool | None]]
"""Whether a host has a build already; None where it cannot be built."""

PURPOSE = "reserve"
OWNER = "owner"
"""In a reservation's context: the server whose jobs use it."""
QUEUE_S = 3600.0
"""How long a reservation waits in line; a cancelled call takes it out at once."""
IDLE_S = 60.0
"""A reservation that was not used for so long gives way to who waits."""
LONGEST_S = 8 * 3600.0
LOOK_S = 20.0
PATIENCE_S = 5.0
"""For a host to say how busy it is; one that does not is not chosen."""
UNKNOWN_WAIT_S = 60.0
"""What a place in a queue counts for of which no wait is foretold."""
BYTES_PER_S = 50e6
"""What a missing file counts for, as seconds of waiting."""
BUILD_S = 10.0
"""What a missing build counts for."""


@dataclass(frozen=True)
class Need:
    """GPUs that something wants."""

    count: int = 1
    arch: str = ""
    memory_bytes: int = 0
    nvlink: bool = False

    def fitting(self, probe: HostProbe) -> set[str]:
        """Return the GPUs of a host that will do."""
        return {
            str(g["uuid"])
            for g in probe.gpus
            if (not self.arch or g.get("arch") == self.arch)
            and int(g.get("memory_total_bytes") or 0) >= self.memory_bytes
        }


@dataclass(frozen=True)
class _Held:
    host: str
    count: int


class Pool:
    """Chooses hosts, marks jobs, keeps reservations."""

    def __init__(self, settings: Settings, jobs: JobRunner, table: JobTable) -> None:
        self._settings, self._jobs, self._table = settings, jobs, table
        self._user = _own_name()
        self._held: dict[str, _Held] = {}
        self.owner = Owner(settings.data_dir / "servers")
        self._resuming: asyncio.Task[None] | None = None
        jobs.steward = self

    async def resumed(self) -> None:
        """Take over the reservations of servers that are no more, once; hosts that do not answer keep theirs."""
        if self._resuming is None:
            self._resuming = asyncio.create_task(self._resume(), name="reservations")
        await asyncio.shield(self._resuming)

    async def _resume(self) -> None:
        rows = [row for row in await self._table.unfinished() if row.purpose == PURPOSE]
        await asyncio.gather(*(self._take_over(row) for row in rows if row.job_id not in self._held))

    async def _take_over(self, row: JobRow) -> None:
        was = row.context.get(OWNER)
        if not isinstance(was, str) or self.owner.lives(was):
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                record = (await self._jobs.look(row.job_id, row.host)).record
        except (GpuMcpError, TimeoutError):
            return
        if record.state == "running" and await self._table.hand_over(row, {OWNER: self.owner.declared()}):
            self._held[row.job_id] = _Held(row.host, len(record.gpus))

    async def close(self) -> None:
        """Leave the reservations to the next server."""
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        self.owner.close()

    def prepared(self, spec: JobSpec, host: str) -> JobSpec:
        """Say in a job whose it is, how it stands to strangers, and which reservation of this server it uses."""
        want = spec.gpus
        if want.mode == "none":
            return spec
        lease = next(
            (i for i, held in self._held.items() if held.host == host and held.count >= want.count > 0), want.lease
        )
        gpus = replace(
            want,
            user=want.user or self._user,
            foreign=self._settings.hosts[host].foreign_processes,
            priority="batch" if spec.detached and spec.purpose != PURPOSE else want.priority,
            lease=lease if spec.purpose != PURPOSE else "",
        )
        return replace(spec, gpus=gpus)

    def heard(self, record: JobRecord) -> None:
        """Forget a reservation that has ended, or that a job did not find any more."""
        self._held.pop(record.id, None)
        for lease in [i for i in self._held if f"reservation {i} has ended" in record.note]:
            del self._held[lease]

    async def place(
        self,
        named: str | None,
        need: Need,
        *,
        files: Mapping[str, int] | None = None,
        has_build: HasBuild | None = None,
    ) -> str:
        """Choose the host of a job that wants GPUs: where one is free or soon will be, and where its files are.

        Args:
            named: The host that was asked for; that one, or the settings' default, is not second-guessed.
            need: What it wants.
            files: Its files' sizes by sha256.
            has_build: Says whether a host need not build what the job runs.

        Raises:
            NotFound: If the host is not configured.
        """
        hosts = self._jobs.hosts
        if need.count:
            await self.resumed()
        if named or self._settings.default_host or len(hosts.names()) == 1 or need.count == 0:
            return hosts.choose(named)
        held = next((h.host for h in self._held.values() if h.count >= need.count), None)
        if held is not None:
            return held
        costs = await asyncio.gather(*(self._cost(n, need, files or {}, has_build) for n in hosts.names()))
        known = [(cost, name) for cost, name in zip(costs, hosts.names(), strict=True) if cost is not None]
        return min(known, key=lambda pair: pair[0])[1] if known else hosts.choose(None)

    async def _cost(self, host: str, need: Need, files: Mapping[str, int], has_build: HasBuild | None) -> float | None:
        """Return the seconds that a job would lose on a host, roughly; None where it cannot run."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                fitting = need.fitting(await self._jobs.probe(host))
                if len(fitting) < need.count:
                    return None
                now, _ = await self._jobs.hosts.call(host, "gpus")
                missing: list[str] = []
                if files:
                    missing = (await self._jobs.hosts.call(host, "have", sha256=list(files)))[0]["missing"]
                built = await has_build(host) if has_build else True
        except (GpuMcpError, TimeoutError):
            return None
        if built is None:
            return None
        free = [g for g in now["gpus"] if g["uuid"] in fitting and not g["locked_by"] and not g["foreign"]]
        queue = now["pool"]["broker"].get("waiting", [])
        wait_s = 0.0 if len(free) >= need.count and not queue else UNKNOWN_WAIT_S
        wait_s += sum(UNKNOWN_WAIT_S if w["wait_s"] is None else w["wait_s"] for w in queue)
        return wait_s + sum(files[s] for s in missing) / BYTES_PER_S + (0.0 if built else BUILD_S)

    async def reserve(
        self,
        count: int = 1,
        *,
        host: str | None = None,
        arch: str = "",
        memory_bytes: int = 0,
        nvlink: bool = False,
        keep_s: float = 900.0,
        lease_id: str | None = None,
        wait_s: float = 240.0,
        progress: Progress | None = None,
    ) -> GpuLease:
        """Hold GPUs between jobs, or wait on for a reservation that is queued.

        Args:
            count: GPUs.
            host: Where; the best one if not given.
            arch: Only GPUs of this architecture.
            memory_bytes: Only GPUs with at least so much memory.
            nvlink: Whether all must be joined by NVLink.
            keep_s: It ends after so long without use.
            lease_id: Of an earlier answer.
            wait_s: How long to wait before answering `queued`.
            progress: Told its place in the queue.

        Raises:
            NotFound: If there is no such host or reservation.
            NoFreeGpu: If no host has such GPUs.
        """
        if lease_id is not None:
            where = await self._reservation(lease_id)
        else:
            need = Need(count, arch, memory_bytes, nvlink)
            where = await self.place(host, need)
            if len(need.fitting(await self._jobs.probe(where))) < need.count:
                raise NoFreeGpu(
                    f"Host {where!r} has no {need.count} such GPUs.", hint="gpu_status shows what there is.",
                    retryable=False,
                )  # fmt: skip
            lease_id = f"l-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(4)}"
            about = {OWNER: self.owner.declared()}
            await self._jobs.submit(self._spec(lease_id, need, keep_s), host=where, blobs={}, context=about)
        try:
            record = await self._granted(lease_id, where, wait_s, progress)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(lease_id, where)
            raise
        if record.state == "running":
            self._held[lease_id] = _Held(where, len(record.gpus))
        elif record.state == "finished":
            raise_if_not_run(record, where)
        return await self._lease(record, where)

    def _spec(self, lease_id: str, need: Need, keep_s: float) -> JobSpec:
        return JobSpec(
            id=lease_id,
            purpose=PURPOSE,
            processes=(ProcessSpec(argv=(PURPOSE,)),),
            gpus=GpuRequest(
                count=need.count,
                mode="exclusive",
                wait_s=QUEUE_S,
                arch=need.arch,
                memory_bytes=need.memory_bytes,
                nvlink=need.nvlink,
                keep_s=keep_s,
                idle_s=IDLE_S,
            ),
            limits=Limits(wall_s=LONGEST_S),
            min_level="unconfined",  # it runs nothing
            detached=True,
        )

    async def _granted(self, lease_id: str, host: str, wait_s: float, progress: Progress | None) -> JobRecord:
        deadline, note = time.monotonic() + wait_s, ""
        while True:
            left = max(0.0, deadline - time.monotonic())
            record = (await self._jobs.look(lease_id, host, timeout_s=min(LOOK_S, left), note_seen=note)).record
            if record.state != "queued" or time.monotonic() >= deadline:
                return record
            if progress is not None and record.note != note:
                await progress(f"queue: {record.note}")
            note = record.note

    async def release(self, lease_id: str) -> GpuLease:
        """End a reservation; one that has ended already says how.

        Raises:
            NotFound: If there is no such reservation.
        """
        host = await self._reservation(lease_id)
        self._held.pop(lease_id, None)
        await self._jobs.cancel(lease_id, host)
        return await self._lease((await self._jobs.look(lease_id, host, timeout_s=10.0)).record, host)

    async def _reservation(self, lease_id: str) -> str:
        """Return the host of a reservation."""
        row = await self._table.get(lease_id)
        if row.purpose != PURPOSE:
            raise NotFound("reservation", lease_id, hint="lease_id comes from reserve_gpu.")
        return row.host

    async def _lease(self, record: JobRecord, host: str) -> GpuLease:
        def lease(state: Literal["held", "queued", "ended"], **more: Any) -> GpuLease:
            return GpuLease(lease_id=record.id, host=host, gpus=list(record.gpus), state=state, **more)

        if record.state == "finished":
            return lease("ended", note=record.note or None)
        if record.state == "queued":
            return lease("queued", note=record.note or None)
        now, _ = await self._jobs.hosts.call(host, "pool")
        mine = next((Reserved(**r) for r in now["reservations"] if r["lease_id"] == record.id), None)
        return lease("held", ends_in_s=mine.ends_in_s if mine else None)


def _own_name() -> str:
    """Return who the GPU time of this server's jobs is counted for, where several people share a login."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:64]
