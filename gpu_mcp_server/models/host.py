"""Hosts and their GPUs."""

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.lease import Reserved, Waiting


class Gpu(Model):
    """One GPU now."""

    index: int
    uuid: str
    name: str
    arch: str | None = None
    """As compilers call it: sm_90."""
    memory_total_bytes: int
    memory_used_bytes: int
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    locked_by: str | None = None
    """Job that holds it, and how."""
    foreign_processes: int = 0
    """Compute processes that are not ours."""


class HostStatus(Model):
    """One host now."""

    host: str
    kind: str
    reachable: bool
    problem: str | None = None
    """Why it cannot be used, and what to do."""
    level: str | None = None
    """Strongest sandbox level that it gives."""
    weaker_because: str | None = None
    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    toolchains: dict[str, str] = {}
    """Compiler to version."""
    judge: str | None = None
    """Python of the judge, with NumPy and torch versions."""
    devices: list[str] = []
    """What evaluate_kernel can judge there: cpu, cuda."""
    gpus: list[Gpu] = []
    waiting: list[Waiting] = []
    """Jobs in line for GPUs, the next first; at most 20."""
    reservations: list[Reserved] = []
    """GPUs that servers of this user keep between jobs."""
    jobs_running: int = 0


class LabStatus(ResultModel):
    """Every host of the laboratory."""

    hosts: list[HostStatus]

    def summary(self) -> str:
        """A block a host."""
        lines: list[str] = []
        for h in self.hosts:
            if not h.reachable:
                lines.append(f"{h.host} ({h.kind}): not reachable: {h.problem}")
                continue
            lines.append(
                f"{h.host} ({h.kind}): {h.cpu}, {h.cores} cores, sandbox {h.level}"
                + (f" (not full: {h.weaker_because})" if h.weaker_because else "")
                + f", judges {', '.join(h.devices) or 'nothing'}, {h.jobs_running} jobs running"
            )
            if h.problem:
                lines.append(f"  {h.problem}")
            lines.append("  toolchains: " + (", ".join(f"{k} {v}" for k, v in h.toolchains.items()) or "none"))
            if h.judge:
                lines.append(f"  judge: {h.judge}")
            lines += [
                f"  GPU {g.index} {g.name} {g.arch or ''} "
                f"{g.memory_used_bytes >> 20}/{g.memory_total_bytes >> 20} MiB, "
                f"{g.utilization_percent} %, {g.temperature_c} C, {g.uuid}"
                + (f", held by {g.locked_by}" if g.locked_by else ", free")
                + (f", {g.foreign_processes} foreign processes" if g.foreign_processes else "")
                for g in h.gpus
            ]
            if not h.gpus:
                lines.append("  no GPU")
            lines += [
                f"  reservation {r.lease_id} of {r.user}: {', '.join(r.gpus)}, {'in use' if r.in_use else 'idle'}, "
                + (f"leaves in {r.leaves_in_s:.0f} s" if r.leaves_in_s is not None else f"ends in {r.ends_in_s:.0f} s")
                for r in h.reservations
            ]
            lines += [
                f"  waiting {w.position}: {w.job} of {w.user}, {w.gpus} {w.mode}, for {w.waited_s:.0f} s"
                + (f", about {w.expected_s:.0f} s more" if w.expected_s is not None else "")
                + f": {w.why}"
                for w in h.waiting
            ]
        return "\n".join(lines)
