"""Time compiles of a CUTLASS 3 product: first, changed, again, and how much of a changed one could be saved.

`python benchmarks/toolchains/cutlass_compile.py TREE [--repeats N] [--json FILE]`; TREE is CUTLASS's (`include`,
`tools/util/include`). Ways take turns, and each changed source has another tile. Seconds are of the processors (user
and system, of nvcc and its children), as a busy machine blurs them little; by the clock they stand beside.
Needs nvcc, no GPU. Nothing is asserted.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import Settings

SOURCE = (Path(__file__).parent / "cutlass_gemm.cu").read_text(encoding="utf-8")
TILE = "Shape<_128, _128, _64>"
TILES = tuple(f"Shape<{tile}>" for tile in ("_128, _64, _64", "_128, _128, _32", "_64, _128, _64", "_128, _256, _64"))
HEADERS = "\n".join(line for line in SOURCE.splitlines() if line.startswith("#include")) + "\n__global__ void k() {}\n"
AS_HERE = ("-shared", "-cudart=static", "-Xcompiler=-fPIC", "-Xlinker=-z,defs", "-keep")
CHANGED = ("changed", "its device part alone")


def by_nvcc(text: str, options: tuple[str, ...], tree: Path) -> tuple[float, float]:
    """Return seconds of the processors and by the clock of one run of nvcc."""
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-bench-") as folder:
        (Path(folder) / "k.cu").write_text(text, encoding="utf-8")
        command = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-lineinfo", "-Xptxas=-v"]
        command += [*options, f"-isystem={tree}/include", f"-isystem={tree}/tools/util/include", "-o", "out", "k.cu"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = time.perf_counter() - began
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, took


async def again(tree: Path, repeats: int) -> list[float]:
    """Return seconds by the clock of compiles in the service of a source that it compiled before."""
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="gpu-mcp-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 - before the loop has anything else to do
        hosts = {"local": {"include_paths": [f"{tree}/include", f"{tree}/tools/util/include"]}}
        settings = Settings.model_validate({"data_dir": Path(folder), "index_documentation": False, "hosts": hosts})
        async with Lab.open(settings) as lab:
            for number in range(repeats + 1):
                began = time.perf_counter()
                wish = BuildOptions(library=False, arch="sm_90a")
                made = await lab.builds.compiler.compile(CandidateSource(SOURCE, "cuda", "k.cu"), wish)
                if made.status != "ok" or bool(made.cached) != (number > 0):
                    raise SystemExit(made.summary())
                taken.append(time.perf_counter() - began)
    return taken[1:]


def row(name: str, clock: list[float], processors: list[float]) -> str:
    """Return a row of the table: medians, and least to most."""
    both = [f"{statistics.median(s):.3g} ({min(s):.3g} to {max(s):.3g})" if s else "" for s in (processors, clock)]
    return f"| {name} | {both[0]} | {both[1]} | {len(clock)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("first", *CHANGED, "the headers alone")}
    for number in range(asked.repeats):
        other = SOURCE.replace(TILE, TILES[number % len(TILES)])
        works = ((SOURCE, AS_HERE), (other, AS_HERE), (other, ("-cubin",)), (HEADERS, AS_HERE))
        for name, (text, options) in zip(taken, works, strict=True):
            taken[name].append(by_nvcc(text, options, asked.tree))
            sys.stderr.write(f"{os.getloadavg()[0]:.1f} {name} {taken[name][-1]}\n")
            if asked.json:
                asked.json.write_text(json.dumps(taken))
    cached = asyncio.run(again(asked.tree, asked.repeats))
    print("| what | processors, s | clock, s | n |\n| --- | --- | --- | --- |")
    for name, pairs in taken.items():
        print(row(name, [clock for _, clock in pairs], [used for used, _ in pairs]))
    print(row("first again, in the service", cached, []))


if __name__ == "__main__":
    main()
