"""Hosts without GPUs: processors, memory, and the jobs that run there or are queued."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.models.host import HostStatus
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.status.listings import ListRequest
from gpu_mcp_server.web.dashboard.jobs import JobLine, job_list

LISTED = 50
"""Unfinished jobs of one host."""


@dataclass(frozen=True)
class ProcessorHost:
    """One host and its unfinished jobs."""

    host: HostStatus
    jobs: Sequence[JobLine]
    """Those that the visitor may see, the oldest first."""

    @property
    def queued_count(self) -> int:
        """Return how many of these jobs are queued."""
        return sum(line.state == "queued" for line in self.jobs)

    @property
    def hidden_count(self) -> int:
        """Return how many unfinished jobs the visitor may not see."""
        return max(0, self.host.jobs_running - len(self.jobs))

    @property
    def memory_used_percent(self) -> float | None:
        """Return the share of memory in use; None where the host does not say."""
        total, available = self.host.memory_bytes, self.host.memory_available_bytes
        return 100 * (total - available) / total if total and available is not None else None


async def processor_hosts(lab: Lab, hosts: Sequence[HostStatus]) -> Sequence[ProcessorHost]:
    """Return the hosts that answer and have no GPU."""
    found: list[ProcessorHost] = []
    for host in hosts:
        if host.reachable and not host.gpus:
            asked = ListRequest(chosen={"host": host.host, "state": "unfinished"}, sort="oldest", limit=LISTED)
            lines, _ = await job_list(lab, asked)
            found.append(ProcessorHost(host, [line for line in lines if not line.is_over]))
    return found
