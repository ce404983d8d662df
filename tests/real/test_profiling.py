"""check_memory and profile_kernel with the real tools on a GPU."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.toolchains import profiling
from gpu_mcp_server.models.run_target import RunTarget
from gpu_mcp_server.services.lab import Lab
from tests.laboratory import laboratory

pytestmark = pytest.mark.gpu
HERE = Path("benchmarks/toolchains")


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        probe = await lab.hosts.probe("local")
        if not probe.gpus or probe.nvcc is None:
            pytest.skip("no CUDA device with nvcc")
        yield lab


async def built(lab: Lab, tool: str) -> str:
    if tool not in (await lab.hosts.probe("local")).toolchains.tools:
        pytest.skip(f"{tool} is not installed")
    workspace = (await lab.store.workspaces.write(None, {"planted.cu": (HERE / "planted.cu").read_text()})).workspace_id
    command = ["nvcc", "-arch=native", "-lineinfo", "-o", "planted", "planted.cu"]
    done = await lab.commands.run(command, workspace_id=workspace, gpus=1, timeout_s=120)
    assert done.status == "ok", done.stderr
    return workspace


@pytest.mark.parametrize(("mode", "tool", "kind"), profiling.PLANTED)
async def test_a_planted_mistake_is_found_at_its_line(lab: Lab, mode: str, tool, kind):
    workspace = await built(lab, "compute-sanitizer")
    found = await lab.profiles.checker.check(RunTarget(command=["./planted", mode], workspace_id=workspace), tool)
    if kind is None:
        assert found.status == "clean", found.summary()
    else:
        line = profiling.line_of((HERE / "planted.cu").read_text(), mode)
        assert [(f.kind, f.line) for f in found.findings[:1]] == [(kind, line)], found.summary()


async def test_a_profile_names_the_limit_and_the_hot_line(lab: Lab):
    workspace = await built(lab, "ncu")
    target = RunTarget(command=["./planted", "perf"], workspace_id=workspace, kernel="saxpy", skip=1)
    result = await lab.profiles.profiler.profile(target)
    if result.status == "not_measured":
        pytest.skip(result.not_measured[0])
    (kernel,) = result.kernels
    assert kernel.bound and "DRAM" in kernel.bound, result.verdict
    assert kernel.roofline is not None and kernel.stalls_percent, result.verdict
    assert "planted.cu:" in result.verdict and len(result.verdict) <= 1600


async def test_an_illegal_address_is_named_with_its_line(lab: Lab):
    workspace = await built(lab, "cuda-gdb")
    done = await lab.commands.run(["./planted", "wild"], workspace_id=workspace, gpus=1)
    line = profiling.line_of((HERE / "planted.cu").read_text(), "wild")
    assert done.status == "failed" and f"planted.cu:{line}" in (done.note or ""), done.note


def test_the_planted_program_compiles():
    if subprocess.run(["sh", "-c", "command -v nvcc"], capture_output=True).returncode:
        pytest.skip("nvcc is not installed")
    subprocess.run(["nvcc", "-arch=sm_90", "-lineinfo", "-cubin", "-o", "/dev/null", HERE / "planted.cu"], check=True)
