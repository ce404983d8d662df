"""What surrounds a command on a host: environment, folders that it is shown, the sandbox it must have."""

from collections.abc import Mapping, Sequence

from gpu_mcp_server.hostd.protocol import BOXED
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.settings.server_settings import Settings


def min_level(settings: Settings) -> str:
    """Return the weakest sandbox that the settings accept; unless they say, the weakest with namespaces of its own."""
    return settings.min_level or BOXED[0]


def roots_of(probe: HostProbe, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders that a job is shown read-only besides /usr."""
    roots = [*(probe.judge.roots if probe.judge else ()), *([probe.nvcc.root] if probe.nvcc else ())]
    linked = [r for library in probe.toolchains.libraries.found.values() for r in library.roots]
    roots += [*linked, *probe.setup.roots, *more]
    return tuple(dict.fromkeys(r for r in roots if not r.startswith("/usr/")))


def device_name(probe: HostProbe, gpus: int) -> str:
    """Return what a job ran on, as records show it."""
    return str(probe.gpus[0]["name"]) if gpus and probe.gpus else f"{probe.cpu} ({probe.cores} cores)"


def environment_of(probe: HostProbe, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command, in which the host's compilers and the judge's Python are found."""
    path = ["/usr/local/cuda/bin", "/opt/rocm/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    if probe.nvcc:
        path.insert(0, f"{probe.nvcc.root}/bin")
    path[:0] = probe.setup.path
    if probe.judge:
        path.append(probe.judge.path.rpartition("/")[0])
    return {"PATH": ":".join(path), **given}
