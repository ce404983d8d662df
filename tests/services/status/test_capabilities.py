"""Abilities of a host, tried with real programs; its table for people."""

import asyncio
import io
import shutil

import pytest
from rich.console import Console

from gpu_mcp_server.cli import status
from gpu_mcp_server.models.host import Capability, Gpu, GpuProcess, HostStatus, LabStatus
from gpu_mcp_server.services.status import capabilities as module
from gpu_mcp_server.workers import capabilities
from tests.laboratory import laboratory


async def test_what_was_tried_is_remembered_until_the_driver_changes(monkeypatch: pytest.MonkeyPatch):
    async with laboratory() as lab:
        assert await lab.status.capabilities.known_capabilities("local") == []
        tried = await lab.status.capabilities.try_all("local")
        assert await lab.status.capabilities.known_capabilities("local") == tried
        if shutil.which("mpirun"):
            assert [c.able for c in tried if c.name == "MPI"] == [True], tried
        if not (await lab.hosts.probe("local")).gpus:
            assert not {"kernel launch", "counters"} & {c.name for c in tried}
        shown = (await lab.status.gpus.status("local")).hosts[0]
        assert shown.capabilities == tried
        monkeypatch.setattr(module, "FORMAT", 99)
        assert await lab.status.capabilities.known_capabilities("local") == []


async def test_an_answer_does_not_wait_for_a_trial_that_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch):
    async with laboratory() as lab:
        service, goes_on = lab.status.gpus, asyncio.Event()
        probe = (await lab.hosts.probe("local")).model_copy(
            update={"driver": "580.1", "gpus": [{"name": "NVIDIA H100"}]}
        )
        tried = [Capability(name="counters", able=True, found="")]

        async def slow(host: str) -> list[Capability]:
            await goes_on.wait()
            return tried

        monkeypatch.setattr(service._capabilities, "try_all", slow)
        assert await service._able("local", probe) is None
        [trial] = service._trials.values()
        goes_on.set()
        await trial
        assert trial.result() == tried


def test_a_host_without_a_driver_says_so_instead_of_breaking():
    found = capabilities.gpu({"python": "python3", "tiny": "gpu_mcp_server/workers/tiny_kernel.py"})
    if not found["kernel launch"][0]:
        assert "libcuda" in found["kernel launch"][1] or "cuInit" in found["kernel launch"][1]


def test_ncclss_header_is_read(tmp_path):
    (tmp_path / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 3\n")
    assert capabilities.nccl_header([str(tmp_path)]) == "2.28.3"
    assert capabilities.nccl_header(["/nowhere/*"]) == ""


GPU = Gpu(
    index=0, uuid="GPU-1", name="NVIDIA H200", arch="sm_90", memory_total_bytes=141 << 30, memory_used_bytes=70 << 30, utilization_percent=97,
    temperature_c=54, power_w=690.2, power_limit_w=700.0, sm_clock_mhz=1515, sm_clock_max_mhz=1980, throttle=["power cap"],
    processes=[GpuProcess(pid=7, name="python3", user="ada", memory_bytes=9 << 30)],
)  # fmt: skip


def test_text_and_table_say_clocks_power_throttling_and_whose_processes_they_are():
    lab = LabStatus(
        hosts=[
            HostStatus(
                host="a",
                kind="local",
                reachable=True,
                gpus=[GPU],
                capabilities=[Capability(name="counters", able=False, found="ERR_NVGPUCTRPERM", todo="open them")],
            )
        ]
    )
    text = lab.summary()
    assert "1515/1980 MHz, 690/700 W, throttled: power cap" in text
    assert "process 7 python3 of ada, 9216 MiB" in text and "not able: counters: ERR_NVGPUCTRPERM. open them" in text
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(status.render_status(lab.model_dump(mode="json", exclude_none=True)))
    shown = console.export_text()
    assert (
        "NVIDIA H200 sm_90" in shown and "1515/1980 MHz" in shown and "python3 of ada" in shown and "power cap" in shown
    )
    assert "\x1b" not in shown
