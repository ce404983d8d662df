"""Time compiles through the tool: NVRTC against `nvcc -cubin` of the same kernel, and a build from the cache.

`python benchmarks/toolchains/compile.py [--repeats N]`. Every figure stands beside its yardstick from the same run,
taken turn by turn; each compile is of another source (a constant differs), as an agent's edits are. Needs nvcc and
NVRTC, no GPU. Nothing is asserted.
"""

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

KERNEL = """__global__ void add(const float *a, float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i] += a[i] * %d.f;
}
"""
PROJECT: dict[str, str | bytes] = {
    "Makefile": "all: program\nprogram: main.c\n\tgcc -o program main.c\n",
    "main.c": "int main(void) { return 0; }\n",
}
SPACE_S = 0.4
"""Between calls, as an agent's come: what waits for the next one is made meanwhile."""


def plain_nvcc(folder: Path, number: int) -> float:
    """Return seconds of `nvcc -cubin` alone."""
    file = folder / "k.cu"
    file.write_text(KERNEL % number, encoding="utf-8")
    began = time.perf_counter()
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-o", str(folder / "k.cubin"), str(file)], check=True)
    return time.perf_counter() - began


async def by_tool(client: Client, number: int, **more: str) -> tuple[float, float]:
    """Return seconds of one call, and those of the compiler's job in it."""
    arguments = {"source": KERNEL % number, "language": "cuda", "arch": "sm_90", **more}
    began = time.perf_counter()
    result = await client.call_tool("compile_kernel", arguments)
    took = time.perf_counter() - began
    data = result.structured_content or {}
    if data.get("status") != "ok" or data.get("cached"):
        raise SystemExit(f"not compiled: {result.content}")
    return took, float(data["seconds"])


async def from_cache(data: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Return seconds of a compile that is in the cache, and of a project's build, in the service."""
    async with Lab.open(Settings(data_dir=data)) as lab:
        source = CandidateSource(KERNEL % 1, "cuda", "k.cu")
        await lab.builds.compiler.compile(source, BuildOptions(library=False, arch="sm_90"))
        found: list[float] = []
        for _ in range(repeats):
            began = time.perf_counter()
            result = await lab.builds.compiler.compile(source, BuildOptions(library=False, arch="sm_90"))
            found.append(time.perf_counter() - began)
            assert result.cached
        projects: list[float] = []
        where = (await lab.store.workspaces.write(None, PROJECT)).workspace_id
        await lab.builds.projects.build(where)
        for _ in range(repeats):
            began = time.perf_counter()
            built = await lab.builds.projects.build(where)
            projects.append(time.perf_counter() - began)
            assert built.cached
    return found, projects


async def of_hip(data: Path, repeats: int) -> dict[str, list[float]]:
    """Return seconds of a compile by HIPRTC and by hipcc of the same kernel, in turns, in the service."""
    taken: dict[str, list[float]] = {"hiprtc": [], "hipcc": []}
    async with Lab.open(Settings(data_dir=data)) as lab:
        toolchains = (await lab.hosts.probe("local")).toolchains
        if toolchains.hiprtc is None or not any(c.name == "hipcc" for c in toolchains.hip):
            return {}
        for number in range(repeats):
            for compiler, seconds in taken.items():
                source = CandidateSource("#include <hip/hip_runtime.h>\n" + KERNEL % (1000 + number), "hip", "k.hip")
                await asyncio.sleep(SPACE_S)
                began = time.perf_counter()
                wish = BuildOptions(library=False, arch="gfx90a", compiler=compiler)
                result = await lab.builds.compiler.compile(source, wish)
                seconds.append(time.perf_counter() - began)
                assert result.status == "ok", result.summary()
    return taken


def line(name: str, seconds: list[float], more: str = "") -> str:
    """Return a row: median, least and 95th percentile in ms."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    median = 1e3 * statistics.median(seconds)
    return f"{name:44} {median:8.1f} {1e3 * ordered[0]:8.1f}-{1e3 * high:<8.1f} {len(seconds):4}  {more}"


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-bench-"))
    os.chmod(folder, 0o711)  # noqa: PTH101 - before the loop has anything else to do
    env = {**os.environ, "GPU_MCP_DATA_DIR": str(folder / "data")}
    nvcc: list[float] = []
    calls: list[tuple[float, float]] = []
    try:
        command = [sys.executable, "-m", "gpu_mcp_server"]
        async with Client(StdioServerParameters(command=command[0], args=command[1:], env=env)) as client:
            for number in range(1, 4):
                await by_tool(client, number)
                await asyncio.sleep(2 * SPACE_S)
            for number in range(10, 10 + repeats):
                nvcc.append(plain_nvcc(folder, number))
                await asyncio.sleep(SPACE_S)
                calls.append(await by_tool(client, number))
                await asyncio.sleep(SPACE_S)
        cached = await from_cache(folder / "cache", 50)
        hip = await of_hip(folder / "hip", max(3, repeats // 3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratios = [n / c for n, (c, _) in zip(nvcc, calls, strict=True)]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )
    print(f"{'what':44} {'median':>8} {'min':>8}-{'p95':8} {'n':>4}  ms")
    print(line("nvcc -cubin, plain", nvcc))
    print(line("compile_kernel by NVRTC, the whole call", [c for c, _ in calls]))
    print(line("  of it the compiler's job", [s for _, s in calls]))
    print(line("compile from the cache, in the service", cached[0], "goal <= 15"))
    print(line("build_project from the cache, in the service", cached[1], "goal <= 15"))
    for name, seconds in hip.items():
        print(line(f"compile by {name}, in the service", seconds))
    print(
        f"nvcc over compile_kernel: {statistics.median(ratios):.1f} (median of {len(ratios)} pairs, least "
        f"{min(ratios):.1f}, most {max(ratios):.1f}), goal >= 8; of the least times {min(nvcc) / min(calls)[0]:.1f}"
    )


if __name__ == "__main__":
    asyncio.run(main())
