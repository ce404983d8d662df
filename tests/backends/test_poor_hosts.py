"""Hosts with something wrong about them: each gets its own words and a next step."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.link import HostLink
from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.errors import DiskFull, GpuMcpError, HostUnavailable
from tests.backends.sshd import Sshd
from tests.laboratory import laboratory

StartSshd = Callable[..., Sshd]
Disk = Callable[..., Path]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Mounts small file systems with options of one's choice."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    made: list[str] = []

    def mount(options: str) -> Path:
        made.append(tempfile.mkdtemp(prefix="disk-"))
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", made[-1]], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("nothing can be mounted here")
        return Path(made[-1])

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)
        Path(folder).rmdir()


async def refused(backend: SshBackend) -> GpuMcpError:
    with pytest.raises(GpuMcpError) as caught:
        link = await HostLink.open(backend)
        await link.close()
    return caught.value


async def test_a_read_only_home_is_said_and_state_dir_mends_it(start_sshd: StartSshd, disk: Disk, state_dir: str):
    home = disk("ro,mode=755")
    server = start_sshd()
    server.stop()
    server.home = home
    server.start()

    error = await refused(SshBackend("box", server.settings()))
    assert isinstance(error, HostUnavailable) and not error.retryable
    assert "home folder is read-only" in str(error) and "state_dir" in str(error)

    async with ContractHost(SshBackend("box", server.settings(state_dir=state_dir))) as host:
        assert (await host.run("true")).record.status == "ok"


async def test_a_full_home_is_said(start_sshd: StartSshd, disk: Disk):
    home = disk("size=64k,mode=755")
    server = start_sshd()
    server.stop()
    server.home = home
    server.start()

    error = await refused(SshBackend("box", server.settings()))

    assert isinstance(error, DiskFull)
    assert "no room for hostd" in str(error) and "quota" in str(error)
    assert [p for p in home.rglob("*") if p.is_file()] == []


async def test_a_state_folder_that_cannot_be_made_is_said(sshd: Sshd, disk: Disk):
    error = await refused(SshBackend("box", sshd.settings(state_dir=f"{disk('ro')}/state")))

    assert isinstance(error, HostUnavailable)
    assert "Read-only file system" in str(error) and "state_dir" in str(error)


async def test_a_state_folder_where_nothing_may_be_executed_is_said(sshd: Sshd, disk: Disk):
    folder = disk("noexec,mode=711,size=64m")
    async with laboratory(hosts={"box": sshd.settings(state_dir=str(folder))}) as lab:
        (status,) = (await lab.gpus.status("box")).hosts

    assert "noexec" in (status.problem or "") and "state_dir" in (status.problem or "")


async def test_a_disk_that_fills_up_costs_no_record(sshd: Sshd, disk: Disk):
    folder = disk("size=12m,mode=711")
    async with ContractHost(SshBackend("box", sshd.settings(state_dir=str(folder)))) as host:
        done = await host.sh("head -c 40000000 /dev/zero >big; echo wrote; exit 3", outputs=("big",))
        assert done.record.state == "finished" and done.record.status in ("failed", "disk_quota")
        with pytest.raises(DiskFull, match="state_dir"):
            await host.submit(host.job("true", files={"x": b"y" * (20 << 20)}), {"x": b"y" * (20 << 20)})
        assert (await host.run("true")).record.status == "ok"
