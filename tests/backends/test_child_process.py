"""Child processes and links to hostd whose owner has no time left: none of them stays behind."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.backends import hostd_client
from gpu_mcp_server.backends.child_process import ChildProcess
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.errors import HostUnavailable
from gpu_mcp_server.services.hosts.host_connections import Hosts
from gpu_mcp_server.settings.server_settings import Settings

DEAF = "import time\nwhile True: time.sleep(60)"


async def cancel(work: "asyncio.Task[None]") -> None:
    """Cancel a task as soon as it waits for something, and await its end."""
    await asyncio.sleep(0.1)
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def test_a_program_that_does_not_end_is_killed_where_its_end_is_not_awaited():
    child = await ChildProcess.start([sys.executable, "-c", DEAF])
    await cancel(asyncio.create_task(child.close()))

    assert child.process.returncode == -9


async def test_a_link_whose_leave_is_cut_off_ends_its_hostd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[ChildProcess] = []
    start = ChildProcess.start

    async def kept(argv, env=None):
        started.append(await start(argv, env))
        return started[-1]

    monkeypatch.setattr(ChildProcess, "start", kept)
    link = await HostdClient.open(LocalBackend(state_dir=str(tmp_path)))

    async def silent(verb, attachment=b"", **arguments):
        await asyncio.sleep(60)

    monkeypatch.setattr(link, "call", silent)
    monkeypatch.setattr(hostd_client, "BYE_S", 60.0)
    await cancel(asyncio.create_task(link.close()))

    assert started[0].process.returncode is not None and not link.is_open


async def test_a_link_that_opens_while_all_are_closed_is_closed_too(tmp_path: Path):
    hosts = Hosts(Settings(data_dir=tmp_path))
    opening = asyncio.create_task(hosts.link("local"))
    await asyncio.sleep(0.02)
    await hosts.close()

    with pytest.raises(HostUnavailable, match="closed its links while it opened one"):
        await opening
    assert not hosts.is_connected("local")
    assert (await hosts.link("local")).is_open, "a later one is not concerned"
    await hosts.close()
