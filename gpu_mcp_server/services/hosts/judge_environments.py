"""A judge's Python on a host, made on a person's word: a virtual environment of ours with the packages that they name.

hostd makes it below its state folder, with the host's own python3 and pip. What fails is told with pip's words and with
what to do next.
"""

import os
import re
from collections.abc import Mapping, Sequence

from gpu_mcp_server.errors import BadRequest, ConfigError, DiskFull, GpuMcpError, HostError, ToolMissing
from gpu_mcp_server.models._base import Model
from gpu_mcp_server.services.hosts.host_connections import Hosts

LIMIT_S = 3600.0
"""For pip. torch with CUDA is 3 GB."""
MOST_PACKAGES = 32
SAID_LINES = 4
KINDS = ("local", "ssh", "openssh")
"""Kinds of hosts whose state folder stays: a container's and an allocation's go with it."""
_REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(\[[\w.,-]+\])?((==|>=|<=|~=|!=|<|>)[\w.*+!]+)?", re.ASCII
)
_NETWORK = re.compile(
    r"Failed to establish a new connection|Name or service not known|name resolution|Network is unreachable"
    r"|Connection refused|ConnectTimeout|timed out|ProxyError|SSLError|ConnectionResetError|No route to host"
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
_SPACE = re.compile(r"No space left on device|quota exceeded", re.IGNORECASE)
_UNKNOWN = re.compile(r"No matching distribution found for (.+)")


class JudgeEnvironment(Model):
    """An environment that was made."""

    python: str
    packages: dict[str, str]
    """Versions of what was asked for, and of NumPy."""


def package_names(packages: Sequence[str]) -> list[str]:
    """Return the names of requirements such as `torch==2.13.0`.

    Raises:
        BadRequest: If one is no name with at most one version, or there are none, or too many.
    """
    if not 0 < len(packages) <= MOST_PACKAGES:
        raise BadRequest(f"{len(packages)} packages; 1 to {MOST_PACKAGES} can be installed at once.")
    found: list[str] = []
    for one in packages:
        match = _REQUIREMENT.fullmatch(one)
        if match is None:
            raise BadRequest(f"{one[:80]!r} is no package.", hint="A name, or a name with a version: torch==2.13.0.")
        found.append(match[1])
    return found


def pip_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pip reads; hostd on this machine has none of them, so that no job finds them."""
    return {name: value for name, value in environment.items() if name.startswith("PIP_") or name.upper() in PROXIES}


def packages_hint(host: str, packages: str) -> str:
    """Return what a person can do on a host whose judge lacks packages."""
    return f"A person can run `gpu-mcp-server hosts set {host} --with {packages}`, or set judge_python of the host."


async def make_judge_environment(hosts: Hosts, host: str, packages: Sequence[str]) -> JudgeEnvironment:
    """Install packages, and NumPy, in the host's environment of ours, and make that if there is none.

    Raises:
        BadRequest: If a package's name is none, or the host keeps no state folder.
        ToolMissing: If no Python there has the modules venv and ensurepip.
        DiskFull: If the state folder has no room.
        HostError: If pip fails otherwise.
    """
    names = package_names(packages)
    if hosts.kind(host) not in KINDS:
        raise BadRequest(
            f"Packages cannot be installed on a host of kind {hosts.kind(host)}: its folders go with it.",
            hint="Put them into the image or a shared folder, and name the Python there: --judge-python.",
        )
    probe = await hosts.probe(host)
    answer, _ = await hosts.call(
        host,
        "make_environment",
        again=False,
        packages=list(packages),
        names=names,
        environment={**(pip_variables(os.environ) if hosts.kind(host) == "local" else {}), **hosts.environment(host)},
        path=list(probe.setup.path),
        limit_s=LIMIT_S,
    )
    if "failed" in answer:
        raise environment_error(host, answer["failed"], answer["said"], probe.state)
    return JudgeEnvironment.model_validate(answer)


def environment_error(host: str, step: str, said: str, state: str) -> GpuMcpError:
    """Return the error of a step that failed, with the end of what it printed and what to do next."""
    last = " | ".join([line.strip() for line in said.splitlines() if line.strip()][-SAID_LINES:])[-600:]
    if _SPACE.search(said):
        return DiskFull(
            f"Host {host!r} has no room for the packages in {state}: {last}.",
            hint="Free space there, or set state_dir of the host to a folder on a larger disk.",
        )
    match step:
        case "venv":
            return ToolMissing(
                f"A Python with the modules venv and ensurepip ({said.strip()[:400]})", host,
                hint="On Debian and Ubuntu: apt-get install python3-venv. Or name a Python there with the packages: "
                f"`gpu-mcp-server hosts set {host} judge_python=PATH`.",
            )  # fmt: skip
        case "busy":
            return HostError(f"Packages are being installed in {said} on host {host!r} now.", hint="Wait for that.")
        case "limit":
            return HostError(
                f"pip on host {host!r} did not end within {said}.", hint="Is its network slow? Call again to try again."
            )
        case "reach":
            return ConfigError(
                f"Jobs on host {host!r} have accounts of their own, which cannot enter the folder of {said}.",
                hint="Set state_dir of the host to a folder that all may enter, such as /var/lib/gpu-mcp.",
            )
        case "import":
            return HostError(
                f"NumPy was installed on host {host!r}, and does not start: {last}.",
                hint="Is the state folder mounted noexec, or the disk full? Set state_dir to another folder.",
            )
        case _:
            return HostError(f"pip failed on host {host!r}: {last}.", hint=_pip_hint(said))


def _pip_hint(said: str) -> str:
    if _NETWORK.search(said):
        return (
            "The host does not reach its package index. Set a mirror or proxy in pip.conf there, or PIP_INDEX_URL in "
            "`environment` of the host."
        )
    if match := _UNKNOWN.search(said):
        return f"Is {match[1].strip()} spelt right, and is there such a version for the host's Python and processor?"
    return "What pip printed says why; try the same `pip install` there by hand."
