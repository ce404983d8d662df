"""A pool of two hosts that SSH reaches, in networks of their own, over lines that lose packets and fail."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Generator
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_mcp_server.errors import HostUnavailable, NoFreeGpu
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.services.jobs.gpu_scheduler import GpuNeed
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import SshHost
from tests.backends.apart import ip, lose, two_apart
from tests.backends.sshd import Sshd
from tests.hostd.brokers import broker_pid
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, settings_for

TAG = "gmp"
GPUS = {"one": ["GPU-a"], "two": ["GPU-b", "GPU-c"]}
ARCHES = ("sm_80", "sm_90")


@pytest.fixture(scope="module")
def apart() -> Generator[list[Sshd]]:
    with two_apart(TAG, "10.213.8") as found:
        yield found


@pytest.fixture
async def lab(apart: list[Sshd]) -> AsyncIterator[Lab]:
    """Yield a laboratory without a GPU, whose two hosts pretend to have some."""
    hosts: dict[str, SshHost] = {}
    folders: list[Path] = []
    for (name, uuids), sshd in zip(GPUS.items(), apart, strict=True):
        own = sshd.folder / "host"
        own.mkdir(exist_ok=True, mode=0o711)
        folders.append(own)
        arch = ARCHES[len(hosts)]
        (own / "gpus.json").write_text(json.dumps([{"uuid": uuid, "arch": arch} for uuid in uuids]))
        told = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
        python = str(wrapped(own / "state", told))
        hosts[name] = sshd.settings(state_dir=str(own / "state"), python=python, quiet_s=4, grace_s=60)
    with Folder() as data:
        async with Lab.open(settings_for(data, hosts=hosts)) as opened:
            for name in GPUS:
                await opened.hosts.probe(name)
            yield opened
    for own in folders:
        pid = broker_pid(GpuLocks(str(own / "locks")))
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


async def test_jobs_are_spread_and_no_gpu_has_two_though_packets_are_lost(lab: Lab):
    if not (lose(TAG, 0, 0.02) and lose(TAG, 1, 0.02)):
        pytest.skip("no iptables here that loses packets at random")
    hosts = [name for name in lab.hosts.names() if name in GPUS]
    files = {f"f{n}": os.urandom(2000) for n in range(200)}
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    runs = [
        lab.commands.run(["sh", "-c", "cat f* | wc -c; sleep 0.2"], gpus=1, workspace_id=workspace) for _ in range(12)
    ]
    done = await asyncio.gather(*runs)
    assert [(d.status, d.stdout.strip()) for d in done] == [("ok", "400000")] * 12
    assert {d.host for d in done} == set(hosts) == {"one", "two"}
    records = [(await lab.jobs.runner.poll(d.job_id, d.host)).record for d in done]
    for uuid in {uuid for record in records for uuid in record.gpus}:
        spans = sorted((r.started_at or 0.0, r.ended_at or 0.0) for r in records if r.gpus == (uuid,))
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans)), spans


async def test_a_host_whose_line_fails_is_said_and_its_job_is_had_when_it_comes_back(lab: Lab):
    heard = asyncio.Event()

    async def progress(said: str) -> None:
        if "begun" in said:
            heard.set()

    script = "echo begun; sleep 12; echo finished"
    running = asyncio.create_task(
        lab.commands.run(["sh", "-c", script], host="one", gpus=1, timeout_s=60, progress=progress)
    )
    await asyncio.wait_for(heard.wait(), 60)
    ip("link", "set", f"{TAG}-out0", "down")
    try:
        with pytest.raises(HostUnavailable, match="'one'"):
            await lab.hosts.call("one", "gpus", again=False)
        with pytest.raises(NoFreeGpu, match="No host that answers has such GPUs"):
            await lab.jobs.pool.place(None, GpuNeed(1, arch=ARCHES[0]))
        elsewhere = await lab.commands.run(["echo", "here"], gpus=1)
        assert (elsewhere.host, elsewhere.status) == ("two", "ok")
    finally:
        ip("link", "set", f"{TAG}-out0", "up")
    done = await running
    assert (done.host, done.status, done.stdout) == ("one", "ok", "begun\nfinished\n")
