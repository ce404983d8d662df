"""The whole suite against one host."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from gpu_mcp_server.backends.base import Backend
from gpu_mcp_server.backends.contract import confinement, files, lifetimes, limits, output, programs
from gpu_mcp_server.backends.contract.behaviour import Behaviour, DoesNotApply
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.errors import GpuMcpError

PATIENCE_S = 120.0

BEHAVIOURS: tuple[Behaviour, ...] = tuple(
    behaviour
    for room in (programs.ROOM, output.ROOM, files.ROOM, lifetimes.ROOM, limits.ROOM, confinement.ROOM)
    for behaviour in room.behaviours
)


@dataclass(frozen=True)
class BehaviourFinding:
    """Result of checking one behaviour."""

    behaviour: Behaviour
    result: Literal["met", "unmet", "skipped"]
    why: str
    """Empty when it was met."""
    took_s: float


async def check(backend: Backend, only: str = "") -> AsyncGenerator[BehaviourFinding]:
    """Prove the behaviours of a room, or those whose name contains `only`; each over a link of its own.

    Raises:
        GpuMcpError: If the host cannot be reached at the start.
    """
    async with ContractHost(backend):
        pass
    rooms = {behaviour.room for behaviour in BEHAVIOURS}
    for behaviour in BEHAVIOURS:
        if only == behaviour.room or (only not in rooms and only in behaviour.name):
            yield await check_behaviour(backend, behaviour)


async def check_behaviour(backend: Backend, behaviour: Behaviour) -> BehaviourFinding:
    """Prove one behaviour."""
    began = time.monotonic()
    result: Literal["met", "unmet", "skipped"] = "unmet"
    why = ""
    try:
        async with asyncio.timeout(PATIENCE_S), ContractHost(backend) as host:
            await behaviour.check(host)
        result = "met"
    except DoesNotApply as reason:
        result, why = "skipped", str(reason)
    except AssertionError as error:
        why = str(error)
    except TimeoutError:
        why = f"not proven within {PATIENCE_S:g} s"
    except GpuMcpError as error:
        why = f"{type(error).__name__}: {error}"
    return BehaviourFinding(behaviour, result, why, time.monotonic() - began)
