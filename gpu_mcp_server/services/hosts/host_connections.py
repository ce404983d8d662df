"""The hosts of the laboratory: one open link each, opened at first use and again when it was lost.

What a host has is asked once a link. From that follows what surrounds a command there: its environment, the folders
that it is shown, the sandbox that it must have. A host is taken out of use here too, and let in again.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.errors import BadRequest, ConfigError, HostDrained, HostUnavailable, NotFound
from gpu_mcp_server.hostd.gpus.gpu_matching import matching_gpus
from gpu_mcp_server.hostd.protocol import BOXED, GpuRequest
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.models.toolchains import CompilerInfo, Toolchains
from gpu_mcp_server.services.hosts.judge_pythons import OWN, local_judge_pythons
from gpu_mcp_server.settings.host_settings import BATCH_KINDS
from gpu_mcp_server.settings.server_settings import (
    BatchHost,
    DockerHost,
    HostSettings,
    LocalHost,
    OpenSshHost,
    Settings,
)

DRAINED_S = 30.0
"""For so long a host that takes nothing new is not chosen by itself; then it is asked again."""


class Nvcc(Model):
    """A CUDA toolkit on a host."""

    path: str
    version: str
    root: str
    archs: list[str]
    build: str


class JudgePython(Model):
    """The interpreter that the judge runs in."""

    path: str
    version: str
    roots: list[str]
    numpy: str | None = None
    torch: str | None = None
    torch_archs: tuple[str, ...] = ()
    """Names that its TORCH_CUDA_ARCH_LIST may have, as `9.0a`."""
    triton: str | None = None
    uncompiled: tuple[str, ...] = ()
    """Packages that have no bytecode beside them."""
    bytecode: str = ""
    """Folder where hostd compiles theirs."""
    why: str = ""
    """Why it was taken: who named it or where it was found, and what the others lack."""


class Setup(Model):
    """Changes that a host's setup lines made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variables: dict[str, str] = Field(default_factory=dict)
    path: tuple[str, ...] = ()
    """Folders that PATH got."""
    roots: tuple[str, ...] = ()
    """Folders that jobs must be shown for it."""
    problem: str | None = None


class HostProbe(Model):
    """Equipment of a host, asked once a link."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hostname: str
    system: str
    machine: str
    kernel: str
    cpu: str
    cores: int
    memory_bytes: int
    level: str
    weaker_because: str
    hint: str
    signals_scoped: bool
    """Whether no job there can stop another, such as the judge whose clock times it."""
    state: str = ""
    """Folder for jobs there."""
    noexec: bool = False
    """Whether nothing in it may be executed."""
    cgroup: str | None
    compilers: dict[str, CompilerInfo]
    nvcc: Nvcc | None
    cuda_without_nvcc: str = ""
    """The folder that the settings name as CUDA's, if no compiler is there."""
    toolchains: Toolchains = Toolchains()
    judge: JudgePython | None
    driver: str | None
    driver_library: str | None
    gpus: list[dict[str, Any]]
    """NVIDIA's."""
    amd_gpus: tuple[dict[str, Any], ...] = ()
    rocm_libraries: str | None = None
    """Folder of ROCm's runtime."""
    why_no_gpu: str
    setup: Setup = Setup()
    addresses: tuple[str, ...] = ()
    """Where other machines may reach this one, best first."""

    def why_untimed(self) -> str:
        """Return why no time that is taken there is to be believed; empty where it is."""
        return "" if self.signals_scoped else "jobs can stop each other on this host, and the judge's clock with them"

    def describe_gpus(self) -> str:
        """Return how many GPUs there are, and what keeps others from being seen."""
        return f"{len(self.all_gpus())} GPUs" + (f" ({self.why_no_gpu})" if self.why_no_gpu else "")

    def all_gpus(self) -> list[dict[str, Any]]:
        """Return the GPUs that a job can have, of any vendor."""
        return [*self.gpus, *self.amd_gpus]

    def devices(self) -> list[str]:
        """Return what can be judged here."""
        if not self.judge or not self.judge.numpy:
            return []
        return ["cpu"] + (["cuda"] if self.gpus and self.nvcc and self.driver_library else [])


def min_level(settings: Settings) -> str:
    """Return the weakest sandbox that the settings accept; unless they say, the weakest with namespaces of its own."""
    return settings.min_level or BOXED[0]


def roots_of(probe: HostProbe, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders that a job is shown read-only besides /usr."""
    roots = [*(probe.judge.roots if probe.judge else ()), *([probe.nvcc.root] if probe.nvcc else ())]
    linked = [r for library in probe.toolchains.libraries.found.values() for r in library.roots]
    rocm = [probe.rocm_libraries.rpartition("/")[0]] if probe.amd_gpus and probe.rocm_libraries else []
    roots += [*linked, *rocm, *probe.setup.roots, *more]
    return tuple(dict.fromkeys(r for r in roots if not r.startswith("/usr/")))


def device_name(probe: HostProbe, device: str) -> str:
    """Return what a job runs on, as records show it; `device` is cpu, cuda or hip."""
    gpus = {"cuda": probe.gpus, "hip": list(probe.amd_gpus)}.get(device, [])
    return str(gpus[0]["name"]) if gpus else f"{probe.cpu} ({probe.cores} cores)"


def leased_name(probe: HostProbe, want: GpuRequest) -> str:
    """Return what a job with such a wish for GPUs runs on, as records show it."""
    gpus = matching_gpus(probe.all_gpus(), want) if want.count else []
    return str(gpus[0]["name"]) if gpus else device_name(probe, "cpu")


def environment_of(probe: HostProbe, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command, in which the host's compilers and the judge's Python are found."""
    path = ["/usr/local/cuda/bin", "/opt/rocm/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    if probe.nvcc:
        path.insert(0, f"{probe.nvcc.root}/bin")
    path[:0] = probe.setup.path
    if probe.judge:
        path.append(probe.judge.path.rpartition("/")[0])
    return {"PATH": ":".join(path), **given}


class Hosts:
    """Opens and keeps links."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links: dict[str, HostdClient] = {}
        self._probes: dict[str, tuple[HostdClient, HostProbe]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closed = 0
        """How often all links were closed."""
        self._looking: dict[str, asyncio.Lock] = {}
        self._drained: dict[str, float] = {}

    def names(self) -> list[str]:
        """Return the configured hosts."""
        return list(self._settings.hosts)

    def kind(self, name: str) -> str:
        """Return how a host is reached."""
        return self._host(name).kind

    def choose(self, name: str | None) -> str:
        """Return the host to use: the one asked for, the default, or the first that takes new jobs.

        Raises:
            NotFound: If it is not configured.
        """
        chosen = name or self._settings.default_host or next(iter(self._settings.hosts), "")
        self._host(chosen)
        if not name and not self._settings.default_host and self.is_drained(chosen):
            return next((other for other in self._settings.hosts if not self.is_drained(other)), chosen)
        return chosen

    def is_drained(self, name: str) -> bool:
        """Say whether a host was found a moment ago to take nothing new."""
        return time.monotonic() - self._drained.get(name, -DRAINED_S) < DRAINED_S

    def set_drained(self, name: str, drained: bool) -> None:
        """Note whether a host takes new jobs."""
        self._drained.pop(name, None)
        if drained:
            self._drained[name] = time.monotonic()

    def _host(self, name: str) -> HostSettings:
        try:
            return self._settings.hosts[name]
        except KeyError:
            known = ", ".join(self._settings.hosts) or "none"
            raise NotFound("host", name, hint=f"Configured: {known}. `gpu-mcp-server hosts add` adds one.") from None

    def backend(self, name: str) -> Backend:
        """Return the way to a host; nothing is opened."""
        host = self._host(name)
        if isinstance(host, LocalHost):
            from gpu_mcp_server.backends.local import LocalBackend

            return LocalBackend(name, python=host.python, state_dir=self.state_dir(name))
        if isinstance(host, OpenSshHost):
            from gpu_mcp_server.backends.openssh import OpenSshBackend

            return OpenSshBackend(name, host)
        if isinstance(host, DockerHost):
            from gpu_mcp_server.backends.docker import DockerBackend

            return DockerBackend(name, host)
        if isinstance(host, BatchHost):
            from gpu_mcp_server.backends.batch import BatchBackend

            return BatchBackend(name, host)
        from gpu_mcp_server.backends.ssh import SshBackend  # asyncssh takes 0.1 s to import

        return SshBackend(name, host)

    def state_dir(self, name: str) -> str | None:
        """Return where a host keeps jobs; for the local one below our own data by default."""
        host = self._host(name)
        if host.state_dir is None and isinstance(host, LocalHost):
            return str(self._settings.data_dir / "hostd")
        return host.state_dir

    def grace_s(self, name: str) -> float:
        """Return how long an attached job goes on there after its line was lost."""
        return self._host(name).grace_s

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables that every job there gets: of the setup lines, and of the settings."""
        known = self._probes.get(name)
        return {**(known[1].setup.variables if known else {}), **self._host(name).environment}

    async def link(self, name: str) -> HostdClient:
        """Return an open link, opening one if need be."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            link = self._links.get(name)
            if link is None or not link.is_open:
                if link is not None:
                    await link.close()
                closed = self._closed
                link = await HostdClient.open(self.backend(name), self._host(name).quiet_s)
                if self._closed != closed:
                    await link.close()
                    raise HostUnavailable(f"The server closed its links while it opened one to host {name!r}.")
                self._links[name] = link
            return link

    def is_connected(self, name: str) -> bool:
        """Say whether a link is open now."""
        link = self._links.get(name)
        return link is not None and link.is_open

    async def allocation(self, name: str) -> str | None:
        """Return the number of the batch job in which hostd runs there; `None` on hosts of other kinds."""
        return (await self.link(name)).greeting["allocation"] if isinstance(self._host(name), BatchHost) else None

    async def end_of_allocation(self, name: str, number: str) -> str | None:
        """Return how a batch job ended, in words; `None` while it has not.

        Raises:
            HostUnavailable: If the scheduler does not answer.
        """
        from gpu_mcp_server.backends.batch import BatchBackend

        host = self._host(name)
        return await BatchBackend(name, host).end_of(number) if isinstance(host, BatchHost) else None

    async def call(
        self, name: str, verb: str, attachment: bytes = b"", *, again: bool = True, **arguments: Any
    ) -> tuple[Any, bytes]:
        """Make a request that may be made twice: a lost link is opened `again` once."""
        link = await self.link(name)
        try:
            return await link.call(verb, attachment, **arguments)
        except HostDrained:
            self.set_drained(name, True)
            raise
        except HostUnavailable:
            if link.is_open or not again:
                raise
            return await (await self.link(name)).call(verb, attachment, **arguments)

    async def probe(self, name: str) -> HostProbe:
        """Return what a host has; asked once a link, however many wait for it."""
        link = await self.link(name)
        async with self._looking.setdefault(name, asyncio.Lock()):
            known = self._probes.get(name)
            if known is None or known[0] is not link:
                known = self._probes[name] = (link, await self._look(name, link))
        return known[1]

    async def _look(self, name: str, link: HostdClient) -> HostProbe:
        host = self._host(name)
        pythons = {host.judge_python: "judge_python of this host"} if host.judge_python else {}
        if isinstance(host, LocalHost):
            here = (
                {sys.executable: OWN}
                if pythons
                else await asyncio.to_thread(local_judge_pythons, Path.cwd(), os.environ)
            )
            pythons |= {path: what for path, what in here.items() if path not in pythons}
        answer, _ = await link.call(
            "probe",
            judge_pythons=list(pythons),
            judge_reasons=pythons,
            judge_named=host.judge_python is not None,
            cuda=host.cuda,
            include_paths=host.include_paths,
            setup=host.setup,
        )
        probe = HostProbe.model_validate(answer)
        if probe.setup.problem:
            raise ConfigError(
                f"The setup lines of host {name!r} fail: {probe.setup.problem}.",
                hint=f"A person can correct `setup` in [hosts.{name}]; the lines run in a login shell there.",
            )
        return probe

    async def close(self) -> None:
        """End all links, and those that open meanwhile as soon as they do; attached jobs end with them."""
        self._closed += 1
        await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)
        self._links.clear()


@dataclass(frozen=True)
class DrainState:
    """Draining state of a host."""

    host: str
    words: str
    """Since when, by whom and why nothing new is begun; empty when it takes jobs."""
    for_all: bool
    """Whether that holds for every login of the host, or for the jobs of ours alone."""


async def drain(hosts: Hosts, host: str, why: str, by: str) -> DrainState:
    """Begin nothing new on a host; what runs goes on, who waits in its line keeps its place.

    Raises:
        NotFound: If the host is not configured.
        BadRequest: If it is a batch system's.
    """
    return await _ask_to_drain(hosts, host, {"on": True, "why": why, "by": by})


async def resume(hosts: Hosts, host: str) -> DrainState:
    """Let new jobs in again; root's drain is ended by root only.

    Raises:
        NotFound: If the host is not configured.
        BadRequest: If it is a batch system's.
    """
    return await _ask_to_drain(hosts, host, {"on": False})


async def _ask_to_drain(hosts: Hosts, host: str, said: dict[str, Any]) -> DrainState:
    if hosts.kind(host) in BATCH_KINDS:
        raise BadRequest(
            f"The nodes of {host!r} are the batch system's.", hint="Its administrator drains them: scontrol, pbsnodes."
        )
    answer, _ = await hosts.call(host, "drain", **said)
    hosts.set_drained(host, bool(answer["drained"]))
    return DrainState(host, answer["drained"], answer["for_all"])
