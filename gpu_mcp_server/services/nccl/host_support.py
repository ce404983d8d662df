"""A host's support for NCCL: headers and library of one version, GPUs, NVLink; and the stages they allow."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import JobSpec, Limits, ProcessSpec
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.compiler import read_json
from gpu_mcp_server.services.commands.command_runner import environment_of, min_level, roots_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.job_runner import JobRunner
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.settings.server_settings import Settings

WALL_S = 120.0
Version = tuple[int, int, int]
FIRST_WINDOWS: Version = (2, 27, 3)
FIRST_DEVICE: Version = (2, 28, 3)
"""Source: NVIDIA/nccl, tags; ncclDevCommCreate."""
ENOUGH_GPUS = 2


@dataclass(frozen=True)
class Install:
    """An installation of NCCL."""

    include: str
    library: str
    """Path of libnccl.so.2."""
    header: str
    runtime: str
    """Empty when the library could not be loaded."""
    device_api: bool
    """Whether there is nccl_device.h."""

    @property
    def folder(self) -> str:
        """Of the library."""
        return self.library.rpartition("/")[0]

    @property
    def version(self) -> Version:
        """Of the header."""
        return parse_version(self.header)

    @property
    def agrees(self) -> bool:
        """Return whether header and library are of one version."""
        return bool(self.runtime) and self.header == self.runtime


@dataclass(frozen=True)
class NcclHost:
    """A host, as far as NCCL is concerned."""

    host: str
    probe: HostProbe
    install: Install | None
    """The one to use: of one version, with the device interface, the newest."""
    others: Sequence[Install]
    mpi_compile: Sequence[str]
    mpi_link: Sequence[str]

    @property
    def gpus(self) -> int:
        """Return the number of NVIDIA GPUs."""
        return len(self.probe.gpus)

    @property
    def nvlink_group_size(self) -> int:
        """Return the size of the largest group of GPUs that all reach each other by NVLink."""
        names = {str(g["uuid"]): set(map(str, g.get("nvlink") or ())) for g in self.probe.gpus}
        return max((1 + len(reached & names.keys()) for reached in names.values()), default=0)


class NcclHosts:
    """Looks at hosts, once for each state of them."""

    def __init__(self, settings: Settings, jobs: JobRunner) -> None:
        self._settings, self._jobs = settings, jobs
        self._known: dict[str, NcclHost] = {}

    async def describe_host(self, host: str | None) -> NcclHost:
        """Return what a host has.

        Raises:
            NotFound: If it is not configured.
            HostUnavailable: If it cannot be reached.
        """
        where = self._jobs.hosts.choose(host)
        probe = await self._jobs.probe(where)
        known = self._known.get(where)
        if known is not None and known.probe is probe:
            return known
        request = {"pairs": self._pairs(where, probe)}
        spec = JobSpec(
            id=new_job_id(),
            purpose="probe",
            processes=(
                ProcessSpec(
                    argv=("{python}", json.dumps(request)),
                    env=environment_of(probe, {}),
                    program=worker_source("nccl_installs"),
                ),
            ),
            roots=self.roots(where, probe),
            limits=Limits(wall_s=WALL_S, tmp_bytes=1 << 28),
            min_level=min_level(self._settings),
        )
        done = await self._jobs.run(spec, host=where)
        said = read_json(done.stdout)
        installs = sorted((Install(**i) for i in said.get("installs", [])), key=_preference, reverse=True)
        mpi = cast("dict[str, list[str]]", said.get("mpi") or {})
        made = NcclHost(
            where,
            probe,
            installs[0] if installs else None,
            installs[1:],
            tuple(mpi.get("compile", ())),
            tuple(mpi.get("link", ())),
        )
        self._known[where] = made
        return made

    def roots(self, host: str, probe: HostProbe) -> tuple[str, ...]:
        """Return the folders that jobs with NCCL are shown."""
        pythons = [r for p in probe.toolchains.pythons for r in p.roots]
        mpi = probe.toolchains.tools.get("mpirun")
        more = [*self._settings.hosts[host].roots, *pythons, *(mpi.roots if mpi else ())]
        return roots_of(probe, more)

    def _pairs(self, host: str, probe: HostProbe) -> list[tuple[str, str]]:
        own = [(f"{r}/include", f"{r}/lib*") for r in self._settings.hosts[host].roots]
        sites = [f"{p.site}/nvidia/nccl" for p in probe.toolchains.pythons]
        wheels = [(f"{s}/include", f"{s}/lib") for s in sites]
        system = [
            ("/usr/local/nccl*/include", "/usr/local/nccl*/lib*"),
            ("/usr/local/cuda*/include", "/usr/local/cuda*/lib64"),
            ("/usr/include", "/usr/lib/*-linux-gnu"),
        ]
        return list(dict.fromkeys([*own, *wheels, *system]))


def require_install(host: NcclHost) -> Install:
    """Return the installation to build with.

    Raises:
        ToolMissing: If there is none.
    """
    if host.install is None:
        raise ToolMissing(
            "NCCL (nccl.h and libnccl.so.2)",
            host.host,
            hint="pip install nvidia-nccl-cu13 into judge_python, or name its folder in `roots` of this host.",
        )
    return host.install


def supported_stages(host: NcclHost) -> str:
    """Say which stages a host can run, and what would have to change for the others."""
    install = host.install
    if install is None:
        return "static rules only: there is no NCCL with headers here; pip install nvidia-nccl-cu13 into judge_python"
    if install.version < FIRST_WINDOWS:
        return f"static rules and host collectives: NCCL {install.header} has no windows; install 2.28.9 or later"
    if install.version < FIRST_DEVICE or not install.device_api:
        return (
            f"static rules and builds of host programs: NCCL {install.header} has no device interface; install 2.28.9"
        )
    if not install.agrees:
        return (
            f"static rules and builds: header {install.header} and library {install.runtime or 'that cannot be loaded'}"
            " differ, device code would read wrong addresses; install both of one version"
        )
    if host.gpus < ENOUGH_GPUS:
        there = "no GPU" if host.gpus == 0 else "one GPU"
        return (
            f"static rules, versions, builds of every stage: {there} here; runs need two with NVLink: name such a host"
        )
    if host.nvlink_group_size < ENOUGH_GPUS:
        return (
            f"stage A (windows and host collectives) on {host.gpus} GPUs: none reaches another by NVLink, so LSA "
            "kernels cannot run; a host with NVLink is needed for them"
        )
    return (
        f"everything with LSA on {host.nvlink_group_size} GPUs; GIN is compiled only, "
        "unless a network card with RDMA is there"
    )


def parse_version(version: str) -> Version:
    """Return a version as numbers; what is missing is 0."""
    major, minor, patch, *_ = [*(int(p) if p.isdigit() else 0 for p in version.split(".")), 0, 0, 0]
    return major, minor, patch


def _preference(install: Install) -> tuple[bool, bool, Version]:
    return install.agrees, install.device_api, install.version
