"""Taking a host out of use without ending what runs there, and letting it in again."""

from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.services.hosts.host_connections import Hosts


@dataclass(frozen=True)
class Drained:
    """How a host stands."""

    host: str
    words: str
    """Since when, by whom and why nothing new is begun; empty when it takes jobs."""
    for_all: bool
    """Whether that holds for every login of the host, or for the jobs of ours alone."""


async def drain(hosts: Hosts, host: str, why: str, by: str) -> Drained:
    """Begin nothing new on a host; what runs goes on, who waits in its line keeps its place.

    Raises:
        NotFound: If the host is not configured.
        BadRequest: If it is a batch system's.
    """
    return await _asked(hosts, host, {"on": True, "why": why, "by": by})


async def resume(hosts: Hosts, host: str) -> Drained:
    """Let new jobs in again; root's drain is ended by root only.

    Raises:
        NotFound: If the host is not configured.
        BadRequest: If it is a batch system's.
    """
    return await _asked(hosts, host, {"on": False})


async def _asked(hosts: Hosts, host: str, said: dict[str, Any]) -> Drained:
    if hosts.kind(host) in ("slurm", "pbs"):
        raise BadRequest(
            f"The nodes of {host!r} are the batch system's.", hint="Its administrator drains them: scontrol, pbsnodes."
        )
    answer, _ = await hosts.call(host, "drain", **said)
    hosts.note_drained(host, bool(answer["drained"]))
    return Drained(host, answer["drained"], answer["for_all"])
