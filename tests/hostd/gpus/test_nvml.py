"""Unanswered queries of NVML are unknown; a GPU that is gone is left out; the host goes on. NVML is a stand-in."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpu_mcp_server.cli import status
from gpu_mcp_server.hostd.gpus import nvml
from gpu_mcp_server.hostd.protocol import GpuRequest
from gpu_mcp_server.models.host import Gpu, HostStatus, LabStatus
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.jobs.gpu_needs import GpuNeed
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.hostd.conftest import needs_root
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, called, client_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
FAKE = Path(__file__).parents[2] / "judge" / "fake_nvml.cpp"
FIELDS = set(Gpu.model_fields)
UUIDS = [f"GPU-abababab-0000-0000-0000-00000000000{n}" for n in range(3)]
ANSWERS = {
    "nvmlDeviceGetMemoryInfo": {"memory_total_bytes", "memory_used_bytes"},
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetCudaComputeCapability": {"arch"},
    "nvmlDeviceGetMinorNumber": {"minor"},
    "nvmlDeviceGetUtilizationRates": {"utilization_percent"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"throttle"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"pids"},
}
"""What each function of NVML fills in."""
NOT_SUPPORTED, NO_PERMISSION, IS_LOST, UNKNOWN = 3, 4, 15, 999
GB10 = " ".join(
    f"nvmlDeviceGet{name}={NOT_SUPPORTED}"
    for name in ("MemoryInfo", "EnforcedPowerLimit", "MigMode", "ComputeRunningProcesses_v3")
)
"""What a GPU whose memory is the system's refuses, besides."""
ASK = """
import json, sys
sys.path[:0] = sys.argv[1:]
from gpu_mcp_server.hostd.gpus import nvml as gpus_nvml
gpus_nvml.DRIVER_NODES = ("/dev/null",)
nvml = gpus_nvml.NvmlLibrary()
first, again = nvml.gpus(), nvml.gpus()
assert first == again, (first, again)
print(json.dumps({"gpus": first, "left_out": nvml.left_out, "why": nvml.why_none(), "driver": nvml.driver(),
                  "pids": [nvml.pids(g["uuid"]) for g in first]}))
"""
DEV = """exec unshare --mount sh -c '
d=$(mktemp -d) && mount -t tmpfs dev "$d" && mkdir "$d/shm" "$d/pts"
for n in null zero full random urandom tty; do touch "$d/$n"; mount --bind "/dev/$n" "$d/$n"; done
mount --rbind /dev/shm "$d/shm"; mount --rbind /dev/pts "$d/pts"; ln -s /proc/self/fd "$d/fd"
touch "$d/nvidiactl" "$d/nvidia0"; mount --rbind "$d" /dev; exec "$@"' sh "$@"
"""
"""Runs a program where there are nodes of NVIDIA's driver."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a libnvidia-ml.so.1 made from the stand-in."""
    folder = tmp_path_factory.mktemp("nvml")
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-o", library, str(FAKE)], check=True)
    return folder


def asked(folder: Path, errors: str = "", count: int = 1, **more: str) -> dict[str, Any]:
    """Return what a process of its own hears from NVML: the library is loaded once a process."""
    env = {"LD_LIBRARY_PATH": str(folder), "CUDA_FAKE_NVML": "1500,4,0", "CUDA_FAKE_NVML_ERRORS": errors}
    env |= {"CUDA_FAKE_NVML_GPUS": str(count), "PATH": os.environ["PATH"], **more}
    paths = [p for p in sys.path if p]
    done = subprocess.run([sys.executable, "-c", ASK, *paths], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_shown(found: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the text of gpu_status and the table of `status`, for the same GPUs."""
    listed = [Gpu(**{k: v for k, v in g.items() if k in FIELDS}) for g in found]
    lab = LabStatus(hosts=[HostStatus(host="a", kind="local", reachable=True, gpus=listed)])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(status.render_status(lab.model_dump(mode="json", exclude_none=True)))
    return lab.summary(), console.export_text()


def test_all_answers_are_there_where_nothing_is_refused(folder: Path):
    said = asked(folder, count=2)
    first = said["gpus"][0]
    assert [g["uuid"] for g in said["gpus"]] == UUIDS[:2] and said["left_out"] == [] and said["driver"] == "580.0"
    assert [k for k, v in first.items() if v is None] == []
    assert (first["memory_total_bytes"], first["arch"], first["throttle"]) == (141 << 30, "sm_90", ["power cap"])
    assert first["nvlink"] == UUIDS[1:2] and first["power_w"] == 400.0


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize("function", ANSWERS)
def test_one_answer_that_is_refused_is_one_field_unknown(folder: Path, function: str, code: int):
    (found,) = asked(folder, f"{function}={code}")["gpus"]
    absent = {k for k, v in found.items() if v is None}
    assert absent == ANSWERS[function] - {"name"}
    assert "unknown name" in found["name"] if function.endswith("Name") else found["name"] == "NVIDIA H200"
    assert "H200" in as_shown([found])[0] or "unknown name" in as_shown([found])[0]


def test_a_gpu_that_answers_nothing_but_its_uuid_is_shown_as_unknown(folder: Path):
    errors = " ".join(f"{f}={NOT_SUPPORTED}" for f in ANSWERS)
    (found,) = asked(folder, errors + f" nvmlSystemGetDriverVersion={UNKNOWN}")["gpus"]
    assert found["uuid"] == UUIDS[0] and {k for k, v in found.items() if v is None} == {
        a for some in ANSWERS.values() for a in some
    } - {"name"}
    text, table = as_shown([found])
    assert "memory unknown, load unknown, temperature unknown" in text and "None" not in text.partition("GPU 0")[2]
    assert "unknown" in table.partition("unknown name")[2] and "None" not in table.partition("unknown name")[2]


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        (f"nvmlDeviceGetHandleByIndex_v2@1={IS_LOST}", "GPU is lost"),
        (f"nvmlDeviceGetHandleByIndex_v2@1={NO_PERMISSION}", "Insufficient Permissions"),
        (f"nvmlDeviceGetUUID@1={NOT_SUPPORTED}", "Not Supported"),
        (f"*@1={IS_LOST}", "GPU is lost"),
        (f"nvmlDeviceGetTemperature@1={IS_LOST}", "GPU is lost"),
    ],
)
def test_a_gpu_that_is_gone_is_left_out_and_the_others_are_there(folder: Path, errors: str, why: str):
    said = asked(folder, errors, count=3)
    assert [g["index"] for g in said["gpus"]] == [0, 2]
    assert [g["nvlink"] for g in said["gpus"]] == [UUIDS[2:], UUIDS[:1]]
    (reason,) = said["left_out"]
    assert reason.startswith("GPU 1 is left out") and why in reason


def test_why_there_is_no_gpu_is_said_when_all_are_gone_or_none_can_be_counted(folder: Path):
    gone = asked(folder, f"nvmlDeviceGetHandleByIndex_v2={IS_LOST}", count=2)
    assert gone["gpus"] == [] and "GPU 0" in gone["why"] and "GPU 1" in gone["why"]
    assert "Unknown" in asked(folder, f"nvmlDeviceGetCount_v2={UNKNOWN}")["why"]
    assert "Insufficient" in asked(folder, f"nvmlInit_v2={NO_PERMISSION}")["why"]
    assert asked(folder, count=0)["why"] == ""


def test_numbers_and_names_that_cannot_be_true_are_unknown(folder: Path):
    said = asked(folder, CUDA_FAKE_NVML_ODD="1")
    (found,) = said["gpus"]
    assert {k for k, v in found.items() if v is None} == {
        "memory_total_bytes", "memory_used_bytes", "utilization_percent", "power_w", "power_limit_w", "sm_clock_mhz",
        "sm_clock_max_mhz", "memory_clock_mhz",
    }  # fmt: skip
    assert (found["temperature_c"], found["mig"], said["driver"]) == (-12, True, None)
    assert "\x1b" not in found["name"] and "MIG on" in as_shown([found])[0]


def test_a_gpu_that_does_not_say_how_much_memory_it_has_is_not_refused():
    from gpu_mcp_server.hostd.gpus.gpu_matching import matches_request

    want = GpuRequest(1, "exclusive", memory_bytes=80 << 30)
    assert matches_request({"uuid": "a", "memory_total_bytes": None}, want)
    assert matches_request({"uuid": "a", "memory_total_bytes": 80 << 30}, want)
    assert not matches_request({"uuid": "a", "memory_total_bytes": 40 << 30}, want)
    cards = [{"uuid": "a", "memory_total_bytes": None}, {"uuid": "b", "memory_total_bytes": 1 << 30}]
    assert GpuNeed(1, memory_bytes=80 << 30).fitting(HostProbe.model_construct(gpus=cards)) == {"a"}


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
async def test_a_host_of_unified_memory_and_of_a_lost_gpu_works(folder: Path):
    with Folder() as own:
        enter = own / "enter"
        enter.write_text("#!/bin/sh\n" + DEV)
        enter.chmod(0o755)
        shutil.copy(folder / "libnvidia-ml.so.1", own)
        env = {"LD_LIBRARY_PATH": str(own), "CUDA_FAKE_NVML_GPUS": "2", "CUDA_FAKE_NVML": "1500,1,0"}
        env |= {"CUDA_FAKE_NVML_ERRORS": f"{GB10} *@1={IS_LOST}", "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
        python = wrapped(own / "state", env, str(enter))
        host = LocalHost(python=str(python), state_dir=str(own / "state"))
        async with client_of(own, hosts={"local": host}) as client:
            (shown,) = (await called(client, "gpu_status"))["hosts"]
            assert shown["reachable"] and [g["uuid"] for g in shown["gpus"]] == UUIDS[:1]
            assert "GPU 1 is left out: NVML says: GPU is lost" in shown["problem"]
            assert "memory_total_bytes" not in shown["gpus"][0] and "foreign_processes" not in shown["gpus"][0]
            done = await called(client, "run_command", command=["echo", "hi"])
            assert (done["status"], done["stdout"]) == ("ok", "hi\n")
            wanted = {"command": ["true"], "gpus": 1, "needs": {"memory_gb": 80}}
            done = await called(client, "run_command", **wanted)
            assert done["status"] == "ok" and f"how much memory {UUIDS[0]} has is unknown" in done["note"]
            assert f"whether other processes compute on {UUIDS[0]} is unknown" in done["note"]


def test_a_pretended_gpu_may_lack_answers_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    listed = tmp_path / "gpus.json"
    listed.write_text(json.dumps([{"uuid": "GPU-a", "pids": None, "memory_total_bytes": None}]))
    monkeypatch.setenv(nvml.PRETEND, str(listed))
    assert nvml.NvmlLibrary().gpus()[0]["memory_total_bytes"] is None and nvml.NvmlLibrary().pids("GPU-a") == []
