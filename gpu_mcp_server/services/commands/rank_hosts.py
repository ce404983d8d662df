"""Ranks on several hosts: each host gets a job with its share, and the jobs meet by themselves.

The first host named has rank 0. Who wants GPUs takes them host by host in the order of the hosts' names, so that two
such runs cannot wait for each other for ever.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.hostd.protocol import JobSpec
from gpu_mcp_server.models.job import RankOptions
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import Blobs, JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.settings.server_settings import Settings

PURPOSE = "ranks"
PEERS = "peers"
"""In a job's context: the jobs on other hosts that are one run with it."""
PATIENCE_S = 60.0
"""For all groups to meet, from the start of the first one that runs."""
PORTS = (20_000, 32_000)
"""Below what Linux gives to outgoing connections by default. Source: ip_local_port_range in ip(7)."""
TRIED_PORTS = 4
LOOK_S = 1.0
_log = structlog.get_logger()


@dataclass(frozen=True)
class RankGroup:
    """One host's share of the ranks."""

    host: str
    probe: HostProbe
    first: int
    """Its lowest rank."""
    count: int
    plan: Mapping[str, Any]
    """For `multi_host_ranks.py`: what all groups share, and which this is."""
    job_id: str


class RankHosts:
    """Shares ranks out, and starts the jobs besides the first."""

    def __init__(self, settings: Settings, jobs: JobRunner) -> None:
        self._settings, self._jobs = settings, jobs
        self._starting: set[asyncio.Task[None]] = set()

    async def distribute(self, ranks: RankOptions, timeout_s: float, *, detach: bool) -> list[RankGroup]:
        """Share ranks out over hosts, evenly and in their order.

        Raises:
            BadRequest: If that cannot be, or a host's settings do not let ranks use its network.
            NotFound, HostUnavailable: If a host is not there.
        """
        hosts = ranks.hosts
        if detach:
            raise BadRequest("Ranks on several hosts are not detached.", hint="submit_batch has long jobs on Slurm.")
        if len(set(hosts)) != len(hosts) or ranks.count % len(hosts):
            raise BadRequest(
                f"{ranks.count} ranks on {len(hosts)} hosts: name each host once, and as many ranks for each.",
                hint=f"count {len(hosts) * max(1, ranks.count // len(hosts))}, for instance.",
            )
        for name in hosts:
            self._jobs.hosts.choose(name)
            if not self._settings.hosts[name].ranks_network:
                raise BadRequest(
                    f"Ranks on several hosts need the network, and host {name!r} does not let them.",
                    hint=f"A person can set ranks_network = true for it: [hosts.{name}] in the configuration.",
                )
        probes = await asyncio.gather(*(self._jobs.probe(name) for name in hosts))
        shared: dict[str, Any] = {
            "groups": len(hosts),
            "hosts": hosts,
            "token": secrets.token_hex(32),
            "ports": [PORTS[0] + secrets.randbelow(PORTS[1] - PORTS[0]) for _ in range(TRIED_PORTS)],
            "addresses": self._addresses(hosts[0], probes[0]),
            "patience_s": min(PATIENCE_S, timeout_s),
        }
        each = ranks.count // len(hosts)
        return [
            RankGroup(host, probe, number * each, each, {**shared, "group": number}, new_job_id())
            for number, (host, probe) in enumerate(zip(hosts, probes, strict=True))
        ]

    def _addresses(self, host: str, probe: HostProbe) -> list[str]:
        named = self._settings.hosts[host].ranks_address
        return [named] if named else [*probe.addresses, "127.0.0.1"]

    async def start_others(
        self, groups: Sequence[RankGroup], specs: Sequence[JobSpec], blobs: Blobs
    ) -> Callable[[], None]:
        """Start the jobs of other groups that must take their GPUs before the first group does.

        Returns:
            What to call once the first group's job is submitted: it starts the rest behind it.
        """
        jobs = sorted(zip(groups, specs, strict=True), key=lambda one: one[0].host)
        number = next(n for n, (group, _) in enumerate(jobs) if group is groups[0])
        waits = bool(specs[0].gpus.count)
        try:
            await self._in_order(jobs[:number], blobs, waits=waits)
        except BaseException:
            await self.end(groups)
            raise

        def behind() -> None:
            task = asyncio.create_task(self._behind(groups, jobs[number + 1 :], blobs, waits=waits))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

        return behind

    async def _behind(
        self, groups: Sequence[RankGroup], jobs: Sequence[tuple[RankGroup, JobSpec]], blobs: Blobs, *, waits: bool
    ) -> None:
        try:
            if waits and jobs:
                await self._begun(groups[0])
            await self._in_order(jobs, blobs, waits=waits)
        except GpuMcpError as error:  # those that run say who never came
            _log.warning("a group of ranks cannot be started", error=str(error))
            await self.end(groups)

    async def _in_order(self, jobs: Sequence[tuple[RankGroup, JobSpec]], blobs: Blobs, *, waits: bool) -> None:
        for group, spec in jobs:
            about = {"ranks": group.count, "first": group.first}
            await self._jobs.submit(spec, host=group.host, blobs=blobs, context=about)
            if waits:
                await self._begun(group)

    async def _begun(self, group: RankGroup) -> None:
        """Wait until a job has its GPUs, or has ended without."""
        note = ""
        while True:
            record = (await self._jobs.poll(group.job_id, group.host, timeout_s=LOOK_S, note_seen=note)).record
            if record.state != "queued":
                return
            note = record.note

    async def end(self, groups: Sequence[RankGroup]) -> None:
        """End the jobs of all groups but the first, which says what it misses."""
        await asyncio.gather(*(self._jobs.end_quietly(g.job_id, g.host) for g in groups[1:]))


def peers(groups: Sequence[RankGroup]) -> dict[str, Any]:
    """Return how the first job's row names the other ones."""
    return {PEERS: [{"job": g.job_id, "host": g.host, "first": g.first, "count": g.count} for g in groups[1:]]}
