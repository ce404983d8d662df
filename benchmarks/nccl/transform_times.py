"""Processor time of analyze_nccl and transform_nccl: a program of 400 collectives, and files that are given.

python benchmarks/nccl/transform_times.py [FILE ...]
"""

import sys
import time
from pathlib import Path

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.stages.transformation import transform
from gpu_mcp_server.services.nccl.transform import local_program

SITES = 400
BUFFERS = 40
HEAD = """#include <nccl.h>
#define CHECK(x) do { if ((x) != ncclSuccess) exit(1); } while (0)
__global__ void fill(float* x, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) x[i] = i; }
__global__ void use(const float* x, size_t n) { volatile float y = x[0]; }
int main(int argc, char** argv) {
  ncclComm_t comm; ncclUniqueId id; cudaStream_t s; cudaStreamCreate(&s);
  ncclCommInitRank(&comm, 2, id, atoi(argv[1])); size_t n = 1024;
"""


def many_sites() -> str:
    """Return a program with that many all-reduces, each between two launches."""
    made = [f"  float* {v}{i}; cudaMalloc(&{v}{i}, n * sizeof(float));\n" for i in range(BUFFERS) for v in "ab"]
    calls = [
        f"  fill<<<64, 256, 0, s>>>(a{i}, n);\n"
        f"  CHECK(ncclAllReduce(a{i}, b{i}, n, ncclFloat, ncclSum, comm, s));\n"
        f"  use<<<64, 256, 0, s>>>(b{i}, n);\n"
        for i in (n % BUFFERS for n in range(SITES))
    ]
    return HEAD + "".join(made) + "".join(calls) + "  cudaStreamSynchronize(s); ncclCommDestroy(comm);\n}\n"


def main(paths: list[str]) -> None:
    programs = {f"{SITES} sites": ({"main.cu": many_sites()}, "main.cu")}
    for path in paths:
        files, name = local_program(Path(path))
        programs[path] = (files, name or "")
    print("| program | sites | analyze, s | transform, s |\n| --- | --- | --- | --- |")
    for title, (files, name) in programs.items():
        began = time.process_time()
        graph = export_graph(Analysis(files, name))
        analyzed = time.process_time()
        transform(files, name)
        print(f"| {title} | {len(graph.sites)} | {analyzed - began:.2f} | {time.process_time() - analyzed:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
