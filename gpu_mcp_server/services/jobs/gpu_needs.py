"""A job's needs of GPUs: how many, which ones, its longest wait, and its priority."""

from dataclasses import dataclass

from gpu_mcp_server.errors import BadRequest, NoFreeGpu
from gpu_mcp_server.hostd.gpus.gpu_matching import matching_gpus, vendor_of
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec
from gpu_mcp_server.models.job import GpuNeeds
from gpu_mcp_server.services.hosts.host_connections import HostProbe

ATTACHED_S, DETACHED_S = 60.0, 86_400.0
"""Wall-clock limits of jobs for which none was given."""
QUEUE_S, DETACHED_QUEUE_S = 3600.0, 86_400.0
"""How long a job or reservation waits in line, and a job that outlives its caller."""


@dataclass(frozen=True)
class GpuNeed:
    """GPUs that something wants."""

    count: int = 1
    arch: str = ""
    memory_bytes: int = 0
    nvlink: bool = False
    vendor: str = "nvidia"
    """Empty for those of any one vendor."""

    @classmethod
    def from_request(cls, count: int, needs: GpuNeeds | None) -> "GpuNeed":
        """Return what a command wants.

        Raises:
            BadRequest: If it says what GPUs must be, and wants none.
        """
        if needs is None:
            return cls(count, vendor="")
        if not count:
            raise BadRequest("`needs` is about GPUs, and the job asks for none.", hint="Give gpus, or no needs.")
        return cls(count, needs.arch, needs.memory_gb * 10**9, needs.nvlink, needs.vendor)

    def check(self, probe: HostProbe, host: str) -> None:
        """Refuse a host that never had such GPUs.

        Raises:
            NoFreeGpu: If it has too few.
        """
        fitting = len(self.fitting(probe))
        if fitting < self.count:
            such = f", {fitting} of them such" if fitting < len(probe.all_gpus()) else ""
            raise NoFreeGpu(
                f"Host {host!r} has {probe.describe_gpus()}{such}, {self.count} were asked for.",
                hint="Name another host (gpu_status), or ask for fewer or others.",
                retryable=False,
            )

    def fitting(self, probe: HostProbe) -> set[str]:
        """Return the GPUs of a host that will do, all of one vendor."""
        return {str(g["uuid"]) for g in matching_gpus(probe.all_gpus(), self._request())}

    def vendor_on(self, probe: HostProbe) -> str:
        """Return whose GPUs it gets on a host that has them."""
        return next((vendor_of(g) for g in matching_gpus(probe.all_gpus(), self._request())), self.vendor)

    def _request(self) -> GpuRequest:
        return GpuRequest(self.count, vendor=self.vendor, arch=self.arch, memory_bytes=self.memory_bytes)


def exclusive_request(need: GpuNeed, *, detached: bool, priority: str = "interactive") -> GpuRequest:
    """Return the wish of a command for GPUs of its own, with patience."""
    return GpuRequest(
        count=need.count,
        mode="exclusive" if need.count else "none",
        wait_s=DETACHED_QUEUE_S if detached else QUEUE_S,
        vendor=need.vendor,
        arch=need.arch,
        memory_bytes=need.memory_bytes,
        nvlink=need.nvlink,
        priority=priority,
    )


def priority_of(spec: JobSpec) -> str:
    """Return a job's class: nobody waits for one that outlives its caller, so it does not go before who does."""
    asked = spec.gpus.priority
    return "batch" if spec.detached and asked == "interactive" else asked
