"""Two hosts with GPUs that files name, as two state folders of this machine: where jobs go, and reservations."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_mcp_server.errors import HostDrained, NoFreeGpu, NotFound
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.protocol import GpuRequest, JobSpec, ProcessSpec
from gpu_mcp_server.models.user import User
from gpu_mcp_server.runtime.current_user import acting_as
from gpu_mcp_server.services.hosts.host_connections import drain, resume
from gpu_mcp_server.services.jobs import gpu_scheduler
from gpu_mcp_server.services.jobs.gpu_needs import GpuNeed, exclusive_request
from gpu_mcp_server.services.jobs.server_liveness import ServerLiveness
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.hostd.brokers import broker_pid
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, client_of, settings_for

pytestmark = pytest.mark.anyio
GPUS = {
    "local": [{"uuid": "GPU-a", "arch": "sm_80", "memory_total_bytes": 42_949_672_960}],
    "big": [
        {"uuid": "GPU-b", "nvlink": ["GPU-c"], "memory_total_bytes": 85_520_809_984},
        {"uuid": "GPU-c", "nvlink": ["GPU-b"], "memory_total_bytes": 25_757_220_864},
    ],
}


def hosts_in(folder: Path) -> dict[str, LocalHost]:
    """Return hosts that share neither files nor GPUs nor locks."""
    found: dict[str, LocalHost] = {}
    for name, gpus in GPUS.items():
        own = folder / name
        own.mkdir(exist_ok=True)
        own.chmod(0o711)
        (own / "gpus.json").write_text(json.dumps(gpus))
        env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
        found[name] = LocalHost(python=str(wrapped(own / "state", env)), state_dir=str(own / "state"))
    return found


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    with Folder() as path:
        yield path
        for name in GPUS:
            pid = broker_pid(GpuLocks(str(path / name / "locks")))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


def asked_for_one() -> JobSpec:
    return JobSpec("j-one", (ProcessSpec(argv=("true",)),), gpus=GpuRequest(1, "exclusive"))


@asynccontextmanager
async def opened(folder: Path, name: str = "data", **more) -> AsyncGenerator[Lab]:
    data = folder / name
    data.mkdir(exist_ok=True)
    data.chmod(0o711)
    async with Lab.open(settings_for(data, hosts=hosts_in(folder), **more)) as lab:
        yield lab


@pytest.fixture
async def lab(folder: Path) -> AsyncIterator[Lab]:
    async with opened(folder) as found:
        yield found
        for name in GPUS:
            for standing in (await found.hosts.call(name, "pool"))[0]["reservations"]:
                await found.jobs.pool.release(standing["lease_id"])


async def busy(lab: Lab, host: str, gpus: int) -> str:
    """Keep GPUs of a host busy; return the job."""
    result = await lab.commands.run(["sleep", "60"], host=host, gpus=gpus, wait_s=0)
    while (await lab.commands.status(result.job_id)).state == "queued":
        await asyncio.sleep(0.01)
    return result.job_id


async def test_a_job_that_names_no_host_goes_where_a_gpu_is_free(lab):
    first = await lab.commands.run(["true"], gpus=1)
    assert (first.host, first.gpus) == ("local", ["GPU-a"])
    await busy(lab, "local", 1)
    second = await lab.commands.run(["true"], gpus=1)
    assert (second.host, second.status) == ("big", "ok")
    third = await lab.commands.run(["true"], gpus=2)
    assert (third.host, len(third.gpus)) == ("big", 2)


async def test_a_job_goes_where_its_files_are(lab):
    listing = await lab.store.workspaces.write(None, {"data.txt": b"x" * 1000})
    assert (await lab.jobs.pool.place(None, GpuNeed())) == "local"
    await lab.commands.run(["cat", "data.txt"], host="big", workspace_id=listing.workspace_id)
    result = await lab.commands.run(["cat", "data.txt"], workspace_id=listing.workspace_id, gpus=1)
    assert (result.host, result.status) == ("big", "ok")


async def test_hosts_that_are_slow_at_first_are_asked_again_before_a_job_is_refused(lab, monkeypatch):
    monkeypatch.setattr(gpu_scheduler, "PATIENCE_S", 0.0)
    assert await lab.jobs.pool.place(None, GpuNeed(2)) == "big"
    monkeypatch.setattr(gpu_scheduler, "FIRST_S", 0.0)
    with pytest.raises(NoFreeGpu, match=r"Without an answer: .*big: nothing within 0 s"):
        await lab.jobs.pool.place(None, GpuNeed(2))


async def test_the_host_that_is_named_or_set_is_not_second_guessed(folder):
    async with opened(folder, default_host="local") as lab:
        assert await lab.jobs.pool.place(None, GpuNeed(2)) == "local"
        assert await lab.jobs.pool.place("big", GpuNeed(1)) == "big"
        with pytest.raises(NotFound):
            await lab.jobs.pool.place("nowhere", GpuNeed(1))


async def test_a_reservation_is_used_by_the_server_s_jobs_until_it_is_released(lab):
    lease = await lab.jobs.pool.reserve(2, nvlink=True)
    assert (lease.state, lease.host, lease.gpus) == ("held", "big", ["GPU-b", "GPU-c"])
    assert lease.ends_in_s is not None
    result = await lab.commands.run(["true"], gpus=1)
    assert (result.host, result.status, result.note) == ("big", "ok", None)
    (status,) = [h for h in (await lab.status.gpus.status()).hosts if h.host == "big"]
    assert [(r.lease_id, r.in_use) for r in status.reservations] == [(lease.lease_id, False)]
    released = await lab.jobs.pool.release(lease.lease_id)
    assert released.state == "ended"
    assert (await lab.commands.run(["true"], gpus=2, host="big")).note is None
    assert (await lab.jobs.pool.release(lease.lease_id)).state == "ended", "a second time changes nothing"


async def test_a_job_says_that_its_reservation_has_ended_and_the_next_one_does_not_look_for_it(lab):
    lease = await lab.jobs.pool.reserve(1, host="local")
    await lab.jobs.runner.cancel(lease.lease_id, "local")
    while (await lab.hosts.call("local", "pool"))[0]["reservations"]:
        await asyncio.sleep(0.01)
    result = await lab.commands.run(["true"], host="local", gpus=1)
    assert f"reservation {lease.lease_id} has ended" in (result.note or "")
    assert (await lab.commands.run(["true"], host="local", gpus=1)).note is None


async def test_who_waits_hears_its_place_and_gpu_status_shows_the_line(lab):
    job = await busy(lab, "local", 1)
    heard: list[str] = []
    first_word = asyncio.Event()

    async def progress(message: str) -> None:
        heard.append(message)
        if message.startswith("queue: "):
            first_word.set()

    waiting = asyncio.create_task(lab.commands.run(["true"], host="local", gpus=1, progress=progress))
    await asyncio.wait_for(first_word.wait(), 20)
    assert any("position 1" in m and f"GPU-a is held by {job}" in m for m in heard)
    (status,) = (await lab.status.gpus.status("local")).hosts
    assert [(w.position, w.gpus, w.mode) for w in status.waiting] == [(1, 1, "exclusive")]
    assert "waiting 1: j-" in (await lab.status.gpus.status("local")).summary()
    await lab.commands.cancel(job)
    assert (await waiting).status == "ok"


async def test_a_reservation_that_must_wait_says_queued_and_is_waited_on(lab):
    job = await busy(lab, "local", 1)
    queued = await lab.jobs.pool.reserve(1, arch="sm_80", wait_s=1.0)
    assert queued.state == "queued"
    assert "position 1" in (queued.note or "")
    await lab.commands.cancel(job)
    held = await lab.jobs.pool.reserve(lease_id=queued.lease_id)
    assert (held.state, held.lease_id, held.gpus) == ("held", queued.lease_id, ["GPU-a"])


async def test_a_call_that_is_cancelled_leaves_no_reservation_behind(lab):
    await busy(lab, "local", 1)
    waiting = asyncio.create_task(lab.jobs.pool.reserve(1, host="local"))
    while not (await lab.hosts.call("local", "pool"))[0]["broker"].get("waiting"):
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    while (await lab.hosts.call("local", "pool"))[0]["broker"].get("waiting"):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("more", [{"count": 3}, {"arch": "gfx942"}, {"memory_bytes": 1 << 50}])
async def test_gpus_that_there_are_not_are_refused_at_once(lab, more):
    with pytest.raises(NoFreeGpu, match="were asked for"):
        await lab.jobs.pool.reserve(**more)


async def test_what_is_no_reservation_cannot_be_released(lab):
    job = await busy(lab, "local", 1)
    with pytest.raises(NotFound):
        await lab.jobs.pool.release(job)
    with pytest.raises(NotFound):
        await lab.jobs.pool.release("l-none")


async def test_users_of_one_server_stand_in_line_under_their_names_and_weights(lab):
    job = await busy(lab, "local", 1)
    ann, bob = User(name="ann"), User(name="bob", weight=3.0)
    waiting: list[asyncio.Task] = []
    for user in (ann, bob):
        with acting_as(user):
            waiting.append(asyncio.create_task(lab.commands.run(["true"], host="local", gpus=1)))
            assert lab.jobs.pool.before_submit(asked_for_one(), "local").gpus.weight == user.weight
    while len(line := (await lab.status.gpus.status("local")).hosts[0].waiting) < 2:
        await asyncio.sleep(0.01)
    assert {w.user.partition("@")[0] for w in line} == {"ann", "bob"}
    await lab.commands.cancel(job)
    assert [result.status for result in await asyncio.gather(*waiting)] == ["ok", "ok"]


async def test_a_reservation_is_its_user_s(lab):
    with acting_as(User(name="ann")):
        lease = await lab.jobs.pool.reserve(1, host="local")
        assert lab.jobs.pool.before_submit(asked_for_one(), "local").gpus.lease == lease.lease_id
    with acting_as(User(name="bob")):
        assert lab.jobs.pool.before_submit(asked_for_one(), "local").gpus.lease == ""
        assert await lab.jobs.pool.place(None, GpuNeed(1)) == "big"


async def test_new_jobs_go_elsewhere_or_are_told_while_a_host_is_drained(lab):
    found = await drain(lab.hosts, "local", "new driver", "ann")
    assert "drained by ann" in found.words
    lab.hosts.set_drained("local", False)  # as for a server that does not know of it yet
    with pytest.raises(HostDrained):
        await lab.commands.run(["true"])
    assert (await lab.commands.run(["true"], gpus=1)).host == "big"
    assert (await lab.commands.run(["true"])).host == "big"
    with pytest.raises(HostDrained, match="new driver"):
        await lab.commands.run(["true"], host="local")
    with pytest.raises(HostDrained, match="Every host with such GPUs"):
        await lab.jobs.pool.place(None, GpuNeed(1, arch="sm_80"))
    assert "new driver" in (await lab.status.gpus.status("local")).summary()
    assert (await resume(lab.hosts, "local")).words == ""
    assert (await lab.commands.run(["true"], gpus=1)).host == "local"


async def test_several_jobs_at_once_are_spread_over_the_hosts(lab):
    await lab.status.gpus.status()
    chosen = await asyncio.gather(*(lab.jobs.pool.place(None, GpuNeed(1)) for _ in range(3)))
    assert sorted(chosen) == ["big", "big", "local"]


async def test_a_detached_job_keeps_its_place_when_the_server_is_gone_and_is_found_by_the_next_one(folder):
    async with opened(folder) as lab:
        holder = await lab.commands.run(["sleep", "60"], host="local", gpus=1, detach=True)
        while (await lab.commands.status(holder.job_id)).state != "running":  # else the next one may come first
            await asyncio.sleep(0.01)
        waiting = await lab.commands.run(["true"], host="local", gpus=1, detach=True)
        while not (await lab.status.gpus.status("local")).hosts[0].waiting:
            await asyncio.sleep(0.01)
    async with opened(folder) as after:
        (place,) = (await after.status.gpus.status("local")).hosts[0].waiting
        assert place.job == waiting.job_id
        while "position 1" not in ((seen := await after.commands.status(waiting.job_id)).note or ""):
            assert seen.state == "queued"
            await asyncio.sleep(0.01)
        await after.commands.cancel(holder.job_id)
        assert (await after.commands.status(waiting.job_id, wait_s=20)).status == "ok"


async def test_two_servers_stand_in_one_line(lab, folder):
    job = await busy(lab, "local", 1)
    async with opened(folder, "other") as other:
        waiting = asyncio.create_task(other.commands.run(["true"], host="local", gpus=1))
        while not (await lab.status.gpus.status("local")).hosts[0].waiting:
            await asyncio.sleep(0.01)
        await lab.commands.cancel(job)
        assert (await waiting).status == "ok"


async def test_a_reservation_outlives_its_server_and_another_one_releases_it(folder):
    async with opened(folder) as lab:
        lease = await lab.jobs.pool.reserve(1, host="local")
    async with opened(folder) as again:
        (status,) = (await again.status.gpus.status("local")).hosts
        assert [r.lease_id for r in status.reservations] == [lease.lease_id]
        assert (await again.jobs.pool.release(lease.lease_id)).state == "ended"


async def test_a_reservation_is_used_by_the_server_that_comes_after_and_by_none_beside(folder):
    async with opened(folder) as lab:
        lease = await lab.jobs.pool.reserve(2, host="big")
        async with opened(folder) as beside:
            await beside.jobs.pool.take_over_reservations()
            spec = beside.jobs.pool.before_submit(asked_for_one(), "big")
            assert spec.gpus.lease == "", "the server that made it lives"
    async with opened(folder) as after:
        result = await after.commands.run(["true"], gpus=1)
        assert (result.host, result.status, result.note) == ("big", "ok", None)
        assert after.jobs.pool.before_submit(asked_for_one(), "big").gpus.lease == lease.lease_id
        await after.jobs.pool.release(lease.lease_id)


def test_a_server_lives_as_long_as_its_process(tmp_path: Path):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, ServerLiveness(tmp_path).register().encode())
        signal.pause()
    name, other = os.read(read, 100).decode(), ServerLiveness(tmp_path)
    assert other.is_alive(name) and not other.is_alive("nobody")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not other.is_alive(name)
    assert not list(tmp_path.iterdir()), "what a killed one left is removed"


async def test_the_tools_say_what_agents_need(folder):
    more = {"hosts": hosts_in(folder), "toolsets": ["core", "pool"]}
    async with client_of(folder, **more) as client:
        held = await client.call_tool("reserve_gpu", {"gpus": 2})
        assert not held.is_error
        lease_id = held.structured_content["lease_id"]
        assert held.structured_content["state"] == "held"
        assert "GPU-b, GPU-c on big held, ends after 900 s without use" in held.content[0].text
        freed = await client.call_tool("release_gpu", {"lease_id": lease_id})
        assert "2 GPUs of big are free again" in freed.content[0].text
        refused = await client.call_tool("reserve_gpu", {"gpus": 9})
        assert refused.is_error


async def test_a_command_says_what_its_gpus_must_be_and_how_urgent_it_is(lab: Lab, folder: Path):
    async with client_of(folder, hosts=hosts_in(folder)) as client:

        async def ran(**more: object):
            return await client.call_tool("run_command", {"command": ["true"], "gpus": 1, **more})

        for host in GPUS:
            await ran(host=host)  # who knows its hosts finds them in time on a busy machine
        large = await ran(needs={"memory_gb": 80})
        old = await ran(needs={"arch": "sm_80"})
        refused = [
            await ran(needs={"memory_gb": 141}, host="big"),
            await ran(needs={"arch": "sm_90"}, gpus=0),
            await ran(needs={"priority": "first"}),
        ]
    spec = JobSpec(
        "j-b", (ProcessSpec(argv=("true",)),), gpus=exclusive_request(GpuNeed(1), detached=False, priority="background")
    )
    noted = [
        lab.jobs.pool.before_submit(spec._replace(detached=detached), "local").gpus.priority
        for detached in (False, True)
    ]
    usual = lab.jobs.pool.before_submit(
        spec._replace(gpus=exclusive_request(GpuNeed(1), detached=True), detached=True), "local"
    ).gpus.priority

    assert [(r.structured_content["host"], r.structured_content["gpus"]) for r in (large, old)] == [
        ("big", ["GPU-b"]),
        ("local", ["GPU-a"]),
    ], "a card that is sold as 80 GB has 79.6 GiB"
    assert [r.is_error for r in refused] == [True] * 3
    said = [r.content[0].text for r in refused]
    assert (
        "0 of them such, 1 were asked for" in said[0] and "the job asks for none" in said[1] and "priority" in said[2]
    )
    assert (noted, usual) == (["background", "background"], "batch")
