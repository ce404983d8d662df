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

from gpu_mcp_server.errors import GpuMcpError, HostDrained, NoFreeGpu, NotFound
from gpu_mcp_server.hostd.protocol import GpuRequest, JobRecord, JobSpec, Limits, ProcessSpec
from gpu_mcp_server.models.lease import GpuLease, ReservationInfo
from gpu_mcp_server.runtime.current_user import as_server, current_user
from gpu_mcp_server.services.jobs.gpu_needs import QUEUE_S, GpuNeed, priority_of
from gpu_mcp_server.services.jobs.job_runner import JobRunner, raise_if_not_run
from gpu_mcp_server.services.jobs.job_table import JobRow, JobTable
from gpu_mcp_server.services.jobs.server_liveness import ServerLiveness
from gpu_mcp_server.settings.server_settings import Settings

Progress = Callable[[str], Awaitable[None]]
HasBuild = Callable[[str], Awaitable[bool | None]]
"""Whether a host has a build already; None where it cannot be built."""

PURPOSE = "reserve"
OWNER, USER, VENDOR = "owner", "user", "vendor"
"""In a reservation's context: the server whose jobs use it, for whom, and whose GPUs they are."""
IDLE_S = 60.0
"""A reservation that was not used for so long gives way to who waits."""
LONGEST_S = 8 * 3600.0
LOOK_S = 20.0
PATIENCE_S = 5.0
"""For a host to say how busy it is; one that does not is not chosen."""
FIRST_S = 60.0
"""The same where no host that answers has what is wanted: one that is new gets hostd and is looked at first."""
UNKNOWN_WAIT_S = 60.0
"""What a place in a queue counts for of which no wait is foretold."""
BYTES_PER_S = 50e6
"""What a missing file counts for, as seconds of waiting."""
BUILD_S = 10.0
"""What a missing build counts for."""
RECENT_S = 2.0
"""A job that was sent to a host so long before it was looked at may not have been seen there yet."""


@dataclass(frozen=True)
class FairShareOwner:
    """User who is charged for the jobs of a call, and that user's weight in the pool."""

    user: str
    weight: float = 1.0


@dataclass(frozen=True)
class _Held:
    host: str
    count: int
    user: str
    vendor: str

    def serves(self, user: str, count: int, vendor: str) -> bool:
        """Say whether a job of a user finds what it wants in it."""
        return self.user == user and self.count >= count > 0 and vendor in ("", self.vendor)


@dataclass(frozen=True)
class _Offer:
    """Offer of a host for a job that wants GPUs."""

    host: str
    cost_s: float = 0.0
    """Seconds that the job would lose there, roughly."""
    free: int = 0
    """GPUs that fit and are free."""
    fits: bool = False
    drained: str = ""
    silent: str = ""
    """Why it could not be asked."""
    late: bool = False
    """Whether it may still answer."""
    seen_at: float = 0.0


class GpuScheduler:
    """Chooses hosts, marks jobs, keeps reservations."""

    def __init__(self, settings: Settings, jobs: JobRunner, table: JobTable) -> None:
        self._settings, self._jobs, self._table = settings, jobs, table
        self._local = _local_name()
        self._held: dict[str, _Held] = {}
        self._sent: dict[str, list[float]] = {}
        self.owner = ServerLiveness(settings.data_dir / "servers")
        self._resuming: asyncio.Task[None] | None = None
        jobs.steward = self

    def share(self) -> FairShareOwner:
        """Return whose time the jobs of the call at hand are: the user's, or of who started this program."""
        user = current_user()
        name = self._local if user.is_local else user.name
        return FairShareOwner(f"{name}@{socket.gethostname()}"[:64], user.weight)

    async def take_over_reservations(self) -> None:
        """Take over the reservations of servers that are no more, once; hosts that do not answer keep theirs."""
        if self._resuming is None:
            with as_server():
                self._resuming = asyncio.create_task(self._resume(), name="reservations")
        await asyncio.shield(self._resuming)

    async def _resume(self) -> None:
        rows = [row for row in await self._table.unfinished_jobs() if row.purpose == PURPOSE]
        await asyncio.gather(*(self._take_over(row) for row in rows if row.job_id not in self._held))

    async def _take_over(self, row: JobRow) -> None:
        was = row.context.get(OWNER)
        if not isinstance(was, str) or self.owner.is_alive(was):
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                record = (await self._jobs.poll(row.job_id, row.host)).record
        except (GpuMcpError, TimeoutError):
            return
        if record.state == "running" and await self._table.hand_over(row, {OWNER: self.owner.register()}):
            user = str(row.context.get(USER) or self.share().user)
            self._held[row.job_id] = _held(row, len(record.gpus), user)

    async def close(self) -> None:
        """Leave the reservations to the next server."""
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        self.owner.close()

    def before_submit(self, spec: JobSpec, host: str) -> JobSpec:
        """Say in a job whose it is, how it stands to strangers, and which reservation of this server it uses."""
        want = spec.gpus
        if want.mode == "none":
            return spec
        share = self.share()
        user, here = want.user or share.user, {i: h for i, h in self._held.items() if h.host == host}
        lease = next((i for i, h in here.items() if h.serves(user, want.count, want.vendor)), want.lease)
        gpus = want._replace(
            vendor=here[lease].vendor if lease in here else want.vendor,
            user=user,
            weight=share.weight,
            foreign=self._settings.hosts[host].foreign_processes,
            priority=priority_of(spec) if spec.purpose != PURPOSE else want.priority,
            lease=lease if spec.purpose != PURPOSE else "",
        )
        return spec._replace(gpus=gpus)

    def on_job_end(self, record: JobRecord) -> None:
        """Forget a reservation that has ended, or that a job did not find any more."""
        self._held.pop(record.id, None)
        for lease in [i for i in self._held if f"reservation {i} has ended" in record.note]:
            del self._held[lease]

    async def place(
        self,
        named: str | None,
        need: GpuNeed,
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
            HostDrained: If all hosts that have such GPUs take nothing new.
            NoFreeGpu: If no host that answers has such GPUs, and some do not answer.
        """
        hosts = self._jobs.hosts
        if need.count:
            await self.take_over_reservations()
        if named or self._settings.default_host or len(hosts.names()) == 1 or need.count == 0:
            return hosts.choose(named)
        user = self.share().user
        held = next((h.host for h in self._held.values() if h.serves(user, need.count, need.vendor)), None)
        if held is not None:
            return held
        offers = await self._offers(need, files or {}, has_build)
        able = [offer for offer in offers if offer.fits and not offer.drained]
        if able:
            chosen = min(able, key=lambda offer: offer.cost_s + self._unseen_s(offer, need)).host
            self._sent.setdefault(chosen, []).append(time.monotonic())
            return chosen
        drained = [f"{offer.host}: {offer.drained}" for offer in offers if offer.fits]
        if drained:
            raise HostDrained(f"Every host with such GPUs takes nothing new: {'; '.join(drained)}.")
        silent = [f"{offer.host}: {offer.silent}" for offer in offers if offer.silent]
        if silent:
            raise NoFreeGpu(f"No host that answers has such GPUs. Without an answer: {'; '.join(silent)}")
        return hosts.choose(None)

    async def _offers(self, need: GpuNeed, files: Mapping[str, int], has_build: HasBuild | None) -> list[_Offer]:
        """Ask all hosts; those that were too slow once more with patience, if nobody else has what is wanted."""
        names = self._jobs.hosts.names()
        offers = await asyncio.gather(*(self._offer(n, need, files, has_build, PATIENCE_S) for n in names))
        late = [offer.host for offer in offers if offer.late]
        if late and not any(offer.fits for offer in offers):
            again = await asyncio.gather(*(self._offer(n, need, files, has_build, FIRST_S) for n in late))
            offers = [*(offer for offer in offers if not offer.late), *again]
        return offers

    def _unseen_s(self, offer: _Offer, need: GpuNeed) -> float:
        """Return what the jobs count for that were sent to a host so lately that it may not have shown them."""
        sent = [at for at in self._sent.get(offer.host, []) if at > offer.seen_at - RECENT_S]
        self._sent[offer.host] = sent
        return UNKNOWN_WAIT_S if 0 < offer.free < len(sent) + need.count else 0.0

    async def _offer(
        self, host: str, need: GpuNeed, files: Mapping[str, int], has_build: HasBuild | None, patience_s: float
    ) -> _Offer:
        try:
            async with asyncio.timeout(patience_s):
                fitting = need.fitting(await self._jobs.probe(host))
                if len(fitting) < need.count:
                    return _Offer(host)
                seen_at = time.monotonic()
                now, _ = await self._jobs.hosts.call(host, "gpus")
                self._jobs.hosts.set_drained(host, bool(now["drained"]))
                if now["drained"]:
                    return _Offer(host, fits=True, drained=now["drained"])
                missing: list[str] = []
                if files:
                    missing = (await self._jobs.hosts.call(host, "have", sha256=list(files)))[0]["missing"]
                built = await has_build(host) if has_build else True
        except GpuMcpError as error:
            return _Offer(host, silent=str(error))
        except TimeoutError:
            return _Offer(host, silent=f"nothing within {patience_s:g} s", late=True)
        if built is None:
            return _Offer(host)
        free = [g for g in now["gpus"] if g["uuid"] in fitting and not g["locked_by"] and not g["foreign"]]
        queue = now["pool"]["broker"].get("waiting", [])
        wait_s = 0.0 if len(free) >= need.count and not queue else UNKNOWN_WAIT_S
        known = [w["wait_s"] for w in queue if w["wait_s"] is not None]
        wait_s += max(known, default=0.0) + UNKNOWN_WAIT_S * (len(queue) - len(known))
        cost_s = wait_s + sum(files[s] for s in missing) / BYTES_PER_S + (0.0 if built else BUILD_S)
        return _Offer(host, cost_s, len(free), fits=True, seen_at=seen_at)

    async def reserve(
        self,
        count: int = 1,
        *,
        vendor: str = "",
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
            vendor: Whose; empty for those of any one vendor.
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
            where = (await self._reservation(lease_id)).host
        else:
            need = GpuNeed(count, arch, memory_bytes, nvlink, vendor)
            where = await self.place(host, need)
            probe = await self._jobs.probe(where)
            need.check(probe, where)
            need = replace(need, vendor=need.vendor_on(probe))
            lease_id = f"l-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(4)}"
            about = {OWNER: self.owner.register(), USER: self.share().user, VENDOR: need.vendor}
            await self._jobs.submit(self._spec(lease_id, need, keep_s), host=where, blobs={}, context=about)
        try:
            record = await self._granted(lease_id, where, wait_s, progress)
        except asyncio.CancelledError:
            await self._jobs.end_quietly(lease_id, where)
            raise
        if record.state == "running":
            row = await self._reservation(lease_id)
            self._held[lease_id] = _held(row, len(record.gpus), self.share().user)
        elif record.state == "finished":
            raise_if_not_run(record, where)
        return await self._lease(record, where)

    def _spec(self, lease_id: str, need: GpuNeed, keep_s: float) -> JobSpec:
        return JobSpec(
            id=lease_id,
            purpose=PURPOSE,
            processes=(ProcessSpec(argv=(PURPOSE,)),),
            gpus=GpuRequest(
                count=need.count,
                mode="exclusive",
                wait_s=QUEUE_S,
                vendor=need.vendor,
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
            record = (await self._jobs.poll(lease_id, host, timeout_s=min(LOOK_S, left), note_seen=note)).record
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
        host = (await self._reservation(lease_id)).host
        self._held.pop(lease_id, None)
        await self._jobs.cancel(lease_id, host)
        return await self._lease((await self._jobs.poll(lease_id, host, timeout_s=10.0)).record, host)

    async def _reservation(self, lease_id: str) -> JobRow:
        """Return a reservation as it was asked for."""
        absent = NotFound("reservation", lease_id, hint="lease_id comes from reserve_gpu.")
        try:
            row = await self._table.get_own(lease_id)
        except NotFound:
            raise absent from None
        if row.purpose != PURPOSE:
            raise absent
        return row

    async def _lease(self, record: JobRecord, host: str) -> GpuLease:
        def lease(state: Literal["held", "queued", "ended"], **more: Any) -> GpuLease:
            return GpuLease(lease_id=record.id, host=host, gpus=list(record.gpus), state=state, **more)

        if record.state == "finished":
            return lease("ended", note=record.note or None)
        if record.state == "queued":
            return lease("queued", note=record.note or None)
        now, _ = await self._jobs.hosts.call(host, "pool")
        mine = next((ReservationInfo(**r) for r in now["reservations"] if r["lease_id"] == record.id), None)
        return lease("held", ends_in_s=mine.ends_in_s if mine else None)


def _held(row: JobRow, count: int, user: str) -> _Held:
    """Return what a reservation holds; those of servers before this version hold NVIDIA's GPUs."""
    return _Held(row.host, count, user, str(row.context.get(VENDOR) or "nvidia"))


def _local_name() -> str:
    """Return the login that started this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
