"""NVIDIA's checkers, profiler and debugger, torch and Triton in a sandbox whose filter allows what is listed alone."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract.host import ContractHost, JobSnapshot
from gpu_mcp_server.backends.local import LocalBackend
from gpu_mcp_server.hostd.protocol import GpuRequest, ProcessSpec
from gpu_mcp_server.services.hosts.host_connections import HostProbe, environment_of, roots_of
from gpu_mcp_server.services.profiles.tool_jobs import HOMES
from tests.laboratory import Folder, laboratory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
PLANTED = Path("benchmarks/toolchains/planted.cu")
BUILD_AND_RUN = 'grep Seccomp: /proc/self/status && nvcc -arch=native -lineinfo -o planted planted.cu && exec "$@"'
LIMITS = {"memory_bytes": 24 << 30, "processes": 512, "tmp_bytes": 1 << 30, "disk_bytes": 4 << 30, "shm_bytes": 1 << 30}
TOOLS = (
    ("compute-sanitizer", ("--tool", "memcheck"), "wild", "Invalid __global__ write"),
    ("compute-sanitizer", ("--tool", "racecheck"), "race", "RACECHECK SUMMARY: 1 hazard"),
    ("compute-sanitizer", ("--tool", "initcheck"), "unwritten", "Uninitialized __global__ memory read"),
    ("ncu", ("--set", "basic"), "perf", "SM Active Cycles"),
    ("cuda-gdb", ("-batch", "-ex", "set disable-randomization on", "-ex", "run", "-ex", "bt", "--args"), "wild",
     "Illegal Address"),
)  # fmt: skip
TORCH = """
import torch
import triton
import triton.language as tl
from torch.utils.data import DataLoader

@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)

if __name__ == "__main__":
    x = torch.ones(1000, device="cuda")
    twice[(8,)](x, 1000, BLOCK=128)
    rows = torch.compile(lambda a: a.softmax(-1).sum())(torch.randn(64, 64, device="cuda"))
    pinned = sum(int(batch.cuda().sum()) for batch in DataLoader(torch.ones(8, 4), num_workers=2, pin_memory=True))
    print("sums", int(x.sum()), round(float(rows)), pinned)
"""


@pytest.fixture
async def probe() -> AsyncIterator[HostProbe]:
    async with laboratory() as lab:
        found = await lab.hosts.probe("local")
    if not found.gpus:
        pytest.skip("no CUDA device")
    yield found


async def run(probe: HostProbe, process: ProcessSpec, roots: Sequence[str], files: dict[str, bytes]) -> JobSnapshot:
    with Folder() as folder:
        async with ContractHost(LocalBackend("filtered", state_dir=str(folder / "state"))) as host:
            spec = host.job(
                processes=(process,), files=files, gpus=GpuRequest(1, "exclusive"), limits=LIMITS, wall_s=110,
                roots=roots_of(probe, roots),
            )  # fmt: skip
            assert await host.submit(spec, files) == {"claimed": True}
            done = await host.look(spec.id, timeout_s=120.0)
    assert done.record.state == "finished", done
    return done


@pytest.mark.parametrize(("tool", "options", "mode", "says"), TOOLS)
async def test_a_tool_works_under_the_filter_of_a_profiled_job(probe: HostProbe, tool: str, options, mode, says):
    found = probe.toolchains.tools.get(tool)
    if found is None or probe.nvcc is None:
        pytest.skip(f"{tool if found is None else 'nvcc'} is not installed")
    argv = ("/bin/sh", "-c", BUILD_AND_RUN, "sh", found.path, *options, "./planted", mode)
    process = ProcessSpec(argv=argv, env=environment_of(probe, {}), profiled=True)
    done = await run(probe, process, (*found.roots, *HOMES), {"planted.cu": PLANTED.read_bytes()})
    said = done.text + done.stderr.decode("utf-8", "replace")
    if "ERR_NVGPUCTRPERM" in said:
        pytest.skip("the driver keeps performance counters for administrators")
    assert said.startswith("Seccomp:\t2"), said
    assert says in said
    assert "Operation not permitted" not in said


async def test_torch_and_triton_work_under_the_filter(probe: HostProbe):
    pythons = [python for python in probe.toolchains.pythons if python.torch and python.triton]
    if not pythons:
        pytest.skip("no Python with torch and Triton")
    process = ProcessSpec(argv=(pythons[0].path, "made.py"), env=environment_of(probe, {"HOME": "/job"}))
    done = await run(probe, process, pythons[0].roots, {"made.py": TORCH.encode()})
    assert "sums 2000 64 32" in done.text, done
