"""Hosts with something wrong about them: each gets its own words and a next step."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.backends.ssh import SshBackend
from gpu_mcp_server.errors import DiskFull, GpuMcpError, HostUnavailable, NoFreeGpu
from gpu_mcp_server.services.status.lab_status import missing_pieces
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
        link = await HostdClient.open(backend)
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
        (status,) = (await lab.status.gpus.status("box")).hosts

    assert "noexec" in (status.problem or "") and "state_dir" in (status.problem or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
async def test_a_tmp_where_nothing_may_be_executed_stops_no_job(start_sshd: StartSshd):
    server = start_sshd()
    server.stop()
    remount = 'mount --bind /tmp /tmp && mount -o remount,bind,noexec /tmp && exec "$@"'
    server.inside = ["unshare", "--mount", "sh", "-c", remount, "sh"]
    server.start()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as state:
        Path(state).chmod(0o711)
        async with laboratory(hosts={"box": server.settings(state_dir=f"{state}/s")}) as lab:
            script = "for d in /tmp /job; do cp /bin/true $d/built && $d/built && echo $d; done"
            done = await lab.commands.run(["sh", "-c", script], host="box")
            (status,) = (await lab.status.gpus.status("box")).hosts
    server.stop()
    assert done.stdout == "/tmp\n/job\n", done
    assert "noexec" not in (status.problem or "")


async def test_a_disk_that_fills_up_costs_no_record(sshd: Sshd, disk: Disk):
    folder = disk("size=12m,mode=711")
    async with ContractHost(SshBackend("box", sshd.settings(state_dir=str(folder)))) as host:
        done = await host.sh("head -c 40000000 /dev/zero >big; echo wrote; exit 3", outputs=("big",))
        assert done.record.state == "finished" and done.record.status in ("failed", "disk_quota")
        with pytest.raises(DiskFull, match="state_dir"):
            await host.submit(host.job("true", files={"x": b"y" * (20 << 20)}), {"x": b"y" * (20 << 20)})
        assert (await host.run("true")).record.status == "ok"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
async def test_a_host_without_a_gpu_says_so_where_one_is_asked_for(sshd: Sshd, state_dir: str):
    async with laboratory(hosts={"box": sshd.settings(state_dir=state_dir)}) as lab:
        (status,) = (await lab.status.gpus.status("box")).hosts
        assert status.why_no_gpu == "no NVIDIA driver on this host"
        with pytest.raises(NoFreeGpu) as refused:
            await lab.commands.run(["true"], host="box", gpus=1)
    assert "Host 'box' has 0 GPUs (no NVIDIA driver on this host), 1 were asked for" in str(refused.value)
    assert "gpu_status" in str(refused.value)


async def test_a_host_with_a_gpu_and_without_cuda_says_what_to_install(sshd: Sshd, state_dir: str):
    box = sshd.settings(state_dir=state_dir, cuda="/opt/no-cuda")
    async with laboratory(hosts={"box": box}) as lab:
        (status,) = (await lab.status.gpus.status("box")).hosts
        assert "no nvcc in /opt/no-cuda/bin, " in (status.problem or "")
        assert "correct `cuda` of this host" in (status.problem or "")
        probe = await lab.hosts.probe("box")
    bare = probe.model_copy(update={"nvcc": None, "gpus": [{"uuid": "GPU-a"}], "cuda_without_nvcc": ""})
    assert "no nvcc is found; install it, or set `cuda` of this host" in (missing_pieces("box", bare) or "")
    weak = probe.model_copy(update={"level": "namespaces"})
    assert "no job runs here: this server's min_level is full, the sandbox namespaces" in (
        missing_pieces("box", weak, least="full") or ""
    )
    broken = probe.model_copy(update={"why_no_gpu": "Driver/library version mismatch"})
    assert "cannot be asked: Driver/library version mismatch; `nvidia-smi` must work there" in (
        missing_pieces("box", broken) or ""
    )
