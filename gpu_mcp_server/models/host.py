"""Hosts and their GPUs."""

from gpu_mcp_server.models._base import Model, ResultModel
from gpu_mcp_server.models.lease import QueueEntry, ReservationInfo


class GpuProcess(Model):
    """A process that computes on a GPU."""

    pid: int
    name: str | None = None
    user: str | None = None
    memory_bytes: int | None = None


class Capability(Model):
    """One ability of a host, found by trying it."""

    name: str
    able: bool
    found: str = ""
    """A version, or why not."""
    todo: str = ""
    """What makes it able."""


class Gpu(Model):
    """One GPU now."""

    index: int
    uuid: str
    name: str
    arch: str | None = None
    """As compilers call it: sm_90."""
    vendor: str = "nvidia"
    """nvidia or amd."""
    shown_only: bool = False
    """Whether no job can have it: AMD's library shows it, and the kernel's compute driver does not."""
    memory_total_bytes: int | None = None
    """Absent where the driver does not say, as of memory that is the system's."""
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    throttle: list[str] | None = None
    """What holds the clocks down now, idleness apart."""
    mig: bool | None = None
    nvlink: list[str] = []
    """GPUs that it reaches by NVLink."""
    processes: list[GpuProcess] = []
    """At most 16, with their owners."""
    locked_by: str | None = None
    """Job that holds it, and how."""
    foreign_processes: int | None = None
    """Compute processes that are not ours; absent where the driver does not list them."""


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
    fix_hint: str | None = None
    """What lifts that level."""
    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    """What programs can still have; absent where the host does not say."""
    load: float | None = None
    """Threads that ran or were ready to, on average over the last minute."""
    driver: str | None = None
    toolchains: dict[str, str] = {}
    """Compiler to version."""
    judge: str | None = None
    """Python of the judge, with NumPy and torch versions."""
    times: str = ""
    """Of its last 20 times how many the judge could confirm; or that none was taken yet, or why none can be."""
    devices: list[str] = []
    """What evaluate_kernel can judge there: cpu, cuda."""
    gpus: list[Gpu] = []
    why_no_gpu: str | None = None
    """What keeps NVIDIA's GPUs from being seen there, where none is."""
    waiting: list[QueueEntry] = []
    """Jobs in line for GPUs, the next first; at most 20."""
    locks_note: str | None = None
    """Which other account's folder the locks of its GPUs are in, and what mends that."""
    drained: str | None = None
    """Since when, by whom and why nothing new is begun there; what runs goes on."""
    reservations: list[ReservationInfo] = []
    """GPUs that servers of this user keep between jobs."""
    capabilities: list[Capability] = []
    """Tried once for each driver: counters, sanitizer, memory export, MPI, NCCL ..."""
    trying: bool = False
    """Whether the server is still trying its capabilities; a later answer has them."""
    jobs_running: int = 0
    job_uids: tuple[int, int] | None = None
    """Free uids for jobs, and all of them; null where jobs run as the account that reaches the host."""


class LabStatus(ResultModel):
    """Every host of the laboratory."""

    hosts: list[HostStatus]
    note: str | None = None
    """When the caller's token expires, within a week before that."""

    def summary(self) -> str:
        """A block a host."""
        lines = [f"note: {self.note}"] if self.note else []
        for h in self.hosts:
            if not h.reachable:
                lines.append(f"{h.host} ({h.kind}): not reachable: {h.problem}")
                continue
            lines.append(
                f"{h.host} ({h.kind}): {h.cpu}, {h.cores} cores, sandbox {h.level}"
                + (f" (not full: {h.weaker_because})" if h.weaker_because else "")
                + f", judges {', '.join(h.devices) or 'nothing'}, jobs running: {h.jobs_running}"
            )
            lines += [f"  {problem}" for problem in (h.problem, h.drained) if problem]
            lines.append("  toolchains: " + (", ".join(f"{k} {v}" for k, v in h.toolchains.items()) or "none"))
            if h.judge:
                lines.append(f"  judge: {h.judge}")
            lines += [f"  times: {h.times}"] if h.times else []
            lines += [
                f"  GPU {g.index} {g.name} {g.arch or ''} "
                f"{_memory(g)}, {_known(g.utilization_percent, '%', 'load')}, "
                f"{_known(g.temperature_c, 'C', 'temperature')}, {g.uuid}"
                + "".join(_more(g))
                + (f", held by {g.locked_by}" if g.locked_by else _use(g))
                + (f", {g.foreign_processes} foreign processes" if g.foreign_processes else "")
                for g in h.gpus
            ]
            if not h.gpus:
                lines.append("  no GPU" + (f": {h.why_no_gpu}" if h.why_no_gpu else ""))
            lines += ["  able: being tried; ask again"] if h.trying else []
            if h.capabilities:
                able = [c.name + (f" {c.found}" if c.found else "") for c in h.capabilities if c.able]
                lines.append("  able: " + (", ".join(able) or "nothing of what was tried"))
                lines += [
                    f"  not able: {c.name}: {c.found}. {c.todo}".rstrip(". ") for c in h.capabilities if not c.able
                ]
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


def _memory(g: Gpu) -> str:
    """Return how much of its memory is in use."""
    if g.memory_total_bytes is None:
        return "memory unknown"
    used = "?" if g.memory_used_bytes is None else g.memory_used_bytes >> 20
    return f"{used}/{g.memory_total_bytes >> 20} MiB"


def _known(value: int | None, unit: str, name: str) -> str:
    return f"{name} unknown" if value is None else f"{value} {unit}"


def _use(g: Gpu) -> str:
    return ", shown only: /dev/kfd or its render node is not there for jobs" if g.shown_only else ", free"


def _more(g: Gpu) -> list[str]:
    """Return what is worth saying of a GPU besides its load."""
    said: list[str] = []
    if g.sm_clock_mhz is not None:
        said.append(f", {g.sm_clock_mhz}" + (f"/{g.sm_clock_max_mhz}" if g.sm_clock_max_mhz else "") + " MHz")
    if g.power_w is not None:
        said.append(f", {g.power_w:.0f}" + (f"/{g.power_limit_w:.0f}" if g.power_limit_w else "") + " W")
    if g.throttle:
        said.append(f", throttled: {', '.join(g.throttle)}")
    if g.mig:
        said.append(", MIG on")
    if g.nvlink:
        said.append(f", NVLink to {len(g.nvlink)}")
    for p in g.processes[:4]:
        used = f", {p.memory_bytes >> 20} MiB" if p.memory_bytes is not None else ""
        said.append(f"\n    process {p.pid} {p.name or '?'} of {p.user or '?'}{used}")
    return said
