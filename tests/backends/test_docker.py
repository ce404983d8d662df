"""Docker: the hull around hostd, and what goes wrong with it."""

import asyncio
import gc
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.backends import docker as backend
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.backends.docker import DockerBackend
from gpu_mcp_server.backends.hostd_client import HostdClient
from gpu_mcp_server.errors import ConfigError, GpuMcpError, HostUnavailable, ToolMissing
from gpu_mcp_server.settings.server_settings import DockerHost
from tests.backends.dockerd import Dockerd, asked


async def refused(settings: object, name: str = "refused") -> GpuMcpError:
    with pytest.raises(GpuMcpError) as caught:
        link = await HostdClient.open(DockerBackend(name, settings))
        await link.close()
    return caught.value


async def test_the_container_is_a_hull(dockerd: Dockerd):
    host = DockerBackend("hull", dockerd.settings(memory_bytes=2 << 30, cpus=1.5))
    async with ContractHost(host) as opened:
        (found,) = [c for c in dockerd.containers() if c["Labels"].get(backend.LABEL) == "hull"]
        about = dockerd.api.inspect_container(found["Id"])
        number = dockerd.api.exec_create(found["Id"], ["cat", "/proc/self/status"], user="10001:10001")["Id"]
        status = dockerd.api.exec_start(number).decode()
        assert (await opened.run("true")).record.status == "ok"
        assert opened.level == "namespaces", opened.weaker_because

    config = about["HostConfig"]
    assert (config["NetworkMode"], config["ReadonlyRootfs"], config["CapDrop"]) == ("none", True, ["ALL"])
    assert (config["Memory"], config["NanoCpus"], config["PidsLimit"]) == (2 << 30, 1_500_000_000, backend.PROCESSES)
    assert (config["AutoRemove"], config["Privileged"], about["Config"]["User"]) == (True, False, "10001:10001")
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapBnd:\t0000000000000000" in status
    await host.remove()


async def test_the_container_is_found_again_and_replaced_when_the_settings_change(dockerd: Dockerd):
    first, again = (DockerBackend("kept", dockerd.settings()) for _ in range(2))
    changed = DockerBackend("kept", dockerd.settings(cpus=1))

    def ids() -> list[str]:
        return [c["Id"] for c in dockerd.containers() if c["Labels"].get(backend.LABEL) == "kept"]

    async with ContractHost(first) as host:
        spec = host.job("sh", "-c", "echo kept", detached=True)
        await host.submit(spec)
        await host.wait_for_end(spec.id)
    before = ids()
    async with ContractHost(again):
        assert ids() == before
    async with ContractHost(changed) as host:
        assert len(ids()) == 1 and ids() != before
        assert (await host.wait_for_end(spec.id)).stdout == b"kept\n", "what jobs left is in the volume"
    await changed.remove()
    assert ids() == []


async def test_a_container_that_nobody_uses_ends_by_itself(dockerd: Dockerd):
    host = DockerBackend("idle", dockerd.settings(idle_s=1))
    link = await HostdClient.open(host)
    await link.abandon()
    for _ in range(600):
        if not [c for c in dockerd.containers() if c["Labels"].get(backend.LABEL) == "idle"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it goes on")


async def test_gpus_are_asked_for_by_device_request(dockerd: Dockerd, gpu_hook: Path):
    host = DockerBackend("gpus", dockerd.settings(gpus="0,2"))
    async with ContractHost(host) as opened:
        assert (await opened.run("true")).record.status == "ok"
    assert asked(gpu_hook)[-1] == ["NVIDIA_VISIBLE_DEVICES=0,2"]
    await host.remove()


async def test_what_is_wrong_with_docker_is_said(dockerd: Dockerd):
    no_image = await refused(dockerd.settings(image="none/such:1"))
    assert isinstance(no_image, ConfigError) and "`docker pull none/such:1`" in str(no_image)

    no_python = await refused(dockerd.settings(python="/opt/none/python3"))
    assert "/opt/none/python3" in str(no_python)


@pytest.mark.parametrize("gone", ["container", "exec"])
async def test_a_container_that_ends_between_two_questions_lacks_a_python(dockerd: Dockerd, gone: str):
    host = DockerBackend("ended", dockerd.settings(python="/opt/none/python3"))

    def ask(api: Any) -> None:
        if gone == "exec":
            api.exec_create = lambda *_, **__: {"Id": "f" * 64}
        host._exec(api, "f" * 64)

    with pytest.raises(ToolMissing, match="/opt/none/python3"):
        await asyncio.to_thread(host._explaining, ask)


async def test_a_docker_that_is_not_there_is_named_and_leaves_no_socket_open(tmp_path: Path):
    async def said(path: Path) -> str:
        error = await refused(DockerHost(image="none", docker_url=f"unix://{path}"))
        assert isinstance(error, HostUnavailable) and "Is dockerd running" in str(error)
        return str(error)

    socket_file = tmp_path / "s"
    nothing = await said(socket_file)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(socket_file))
        nobody = await said(socket_file)
    gc.collect()
    assert f"there is no {socket_file}" in nothing and f"no daemon listens on {socket_file}" in nobody


def test_gpus_become_a_request():
    assert backend.device_requests("") == []
    assert backend.device_requests("all")[0]["Count"] == -1
    assert backend.device_requests("GPU-1, GPU-2")[0]["DeviceIDs"] == ["GPU-1", "GPU-2"]
    assert json.dumps(backend.seccomp_profile())
