"""Count the analyzer's findings in public NCCL programs, beside a reader's.

    python benchmarks/nccl/analyzer.py FOLDER

FOLDER holds checkouts by the repository's name (nccl-tests, nccl, llm.c ...), at the commits in the results page; they are read and
nothing more. The reader's counts are below, file by file, and who writes and reads the buffers of the programs that are whole.
"""

# ruff: noqa: E501 - a table

import argparse
import re
import time
from collections import Counter
from pathlib import Path

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph

OWN = Path(__file__).parents[2] / "tests" / "nccl" / "programs"
SUFFIXES = {".cu", ".cuh", ".h", ".hpp", ".hh", ".cc", ".cpp"}
EXAMPLES = "nccl/docs/examples/"
COPY = ("cudaMemcpy", "cudaMemcpy")

# File: collectives by name as read, and producers of what is sent and consumers of what is received by site, where a whole program is here.
READ: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    f"{EXAMPLES}02_point_to_point/01_ring_pattern/c/main.cc": ("Send Recv", {"ncclSend": ("cudaMemcpy", ""), "ncclRecv": ("", "cudaMemcpy")}),
    f"{EXAMPLES}03_collectives/01_allreduce/c/main.cc": ("AllReduce", {"ncclAllReduce": ("cudaMemcpy cudaMemset", "cudaMemcpy")}),
    f"{EXAMPLES}04_user_buffer_registration/01_allreduce/c/main.cc": ("AllReduce", {"ncclAllReduce": COPY}),
    f"{EXAMPLES}05_symmetric_memory/01_allreduce/c/main.cc": ("AllReduce", {"ncclAllReduce": COPY}),
    f"{EXAMPLES}05_symmetric_memory/02_allgather/c/main.cc": ("AllGather", {"ncclAllGather": COPY}),
    "nccl-tests/src/all_gather.cu": ("AllGather", {}),
    "nccl-tests/src/all_reduce.cu": ("AllReduce", {}),
    "nccl-tests/src/alltoall.cu": ("AlltoAll Send Recv", {}),
    "nccl-tests/src/alltoallv.cu": ("Send Recv", {}),
    "nccl-tests/src/broadcast.cu": ("Broadcast Bcast*2", {}),
    "nccl-tests/src/gather.cu": ("Gather Send Recv", {}),
    "nccl-tests/src/hypercube.cu": ("Send Recv", {}),
    "nccl-tests/src/reduce.cu": ("Reduce", {}),
    "nccl-tests/src/reduce_scatter.cu": ("ReduceScatter", {}),
    "nccl-tests/src/scatter.cu": ("Scatter Send Recv", {}),
    "nccl-tests/src/sendrecv.cu": ("Send Recv", {}),
    "multi-gpu-programming-models/nccl/jacobi.cpp": ("Send*4 Recv*4", {"ncclSend@353": ("jacobi_kernel", ""), "ncclRecv@352": ("", "cudaMemcpy jacobi_kernel")}),
    "multi-gpu-programming-models/nccl_overlap/jacobi.cpp": ("Send*4 Recv*4", {}),
    "multi-gpu-programming-models/nccl_graphs/jacobi.cpp": ("Send*4 Recv*4", {}),
    "llm.c/dev/cuda/nccl_all_reduce.cu": ("AllReduce", {"ncclAllReduce": ("set_vector", "cudaMemcpy")}),
    "llm.c/llmc/zero.cuh": ("AllReduce*3 ReduceScatter", {}),
    "llm.c/train_gpt2.cu": ("AllReduce*2 AllGather", {}),
    "HeCBench/src/ccl-cuda/main.cu": ("AllReduce", {"ncclAllReduce": COPY}),
    "HeCBench/src/pingpong-cuda/main-nccl.cu": ("Send*4 Recv*4", {"ncclSend@98": ("ncclRecv test", ""), "ncclSend@125": ("ncclRecv", "")}),
    "CUDALibrarySamples/cuDSS/test_communication_layer/test_communication_layer.cu": ("Bcast", {"ncclBcast": ("", "cudaMemcpy")}),
    "FasterTransformer/src/fastertransformer/utils/nccl_utils.cc": ("AllReduce AllGather Send Recv Bcast", {}),
    "horovod/horovod/common/ops/nccl_operations.cc": (
        "AllReduce*2 AllGather*3 ReduceScatter*3 Reduce*3 Broadcast*4 Bcast*3 Send Recv", {}
    ),
    "horovod/horovod/common/ops/adasum_gpu_operations.cc": ("ReduceScatter Reduce AllGather Broadcast Bcast", {}),
    "fastmoe/cuda/balancing.cu": ("AllReduce AllGather", {}),
    "fastmoe/cuda/global_exchange.cpp": ("Send Recv", {}),
    "fastmoe/cuda/global_exchange.h": ("Send*2 Recv*2", {}),
    "fastmoe/cuda/fastermoe/smart_schedule.cpp": ("Reduce", {}),
    "fastmoe/cuda/fastermoe/smart_schedule.h": ("Send Recv Bcast", {}),
    "tutel/tutel/custom/custom_kernel.cpp": ("Send*7 Recv*7", {}),
    "own/alltoall.cu": ("AlltoAll", {"ncclAlltoAll": ("fill_send", "check_recv")}),
    "own/alltoall_warm.cu": ("AlltoAll*2", {"ncclAlltoAll@89": ("fill_send", "check_recv")}),
    "own/allreduce.cu": ("AllReduce", {"ncclAllReduce": ("fill", "check")}),
    "own/sendrecv.cu": ("Send Recv", {"ncclSend": ("cudaMemcpy scale", ""), "ncclRecv": ("", "cudaMemcpy")}),
    "own/threads.cu": ("AllGather ReduceScatter", {"ncclAllGather": ("fill", "ncclReduceScatter"), "ncclReduceScatter": ("ncclAllGather", "cudaMemcpyAsync")}),
    "own/mpi.cu": ("AllReduce", {"ncclAllReduce": COPY}),
}  # fmt: skip


def read_counts(text: str) -> Counter[str]:
    pairs = [word.partition("*") for word in text.split()]
    return Counter({f"nccl{name}": int(times or 1) for name, _, times in pairs})


def folder_of(path: Path) -> dict[str, str]:
    found = [p for p in path.parent.rglob("*") if p.suffix in SUFFIXES and p.is_file()]
    return {str(p.relative_to(path.parent)): p.read_text("utf-8", "replace") for p in found}


def launches_as_read(text: str) -> int:
    bare = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", text, flags=re.S)
    return len(re.findall(r"<<<", bare)) + len(re.findall(r"\bcudaLaunch(?:Cooperative)?Kernel(?:Ex|ExC)?\s*\(", bare))


def flow_right(graph, truth: dict[str, tuple[str, str]], name: str) -> tuple[int, int, list[str]]:
    right = asked = 0
    wrong = []
    for key, (producers, consumers) in truth.items():
        call, _, line = key.partition("@")
        site = next(s for s in graph.sites if s.call == call and s.path == name and (not line or s.line == int(line)))
        for role, wanted in (("send", producers), ("recv", consumers)):
            buffer = next((b for b in site.buffers if b.role == role), None)
            if not wanted or buffer is None:
                continue
            found = {p.partition(":")[0] for p in (buffer.producers if role == "send" else buffer.consumers)}
            asked += 1
            right += found == set(wanted.split())
            if found != set(wanted.split()):
                wrong.append(f"{name} {key} {role}: found {sorted(found)}, read {wanted}")
    return right, asked, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    root = parser.parse_args().folder
    totals, wrong = Counter[str](), list[str]()
    print(
        "| file | collectives read | found | invented | launches read | found | flow right | A | B | s |\n"
        + "|---" * 10
        + "|"
    )
    for name, (counts, truth) in READ.items():
        path = OWN / name.removeprefix("own/") if name.startswith("own/") else root / name
        if not path.is_file():
            print(f"| {name} | not here |")
            continue
        start = time.perf_counter()
        analysis = Analysis(folder_of(path), path.name)
        graph = export_graph(analysis)
        seconds = time.perf_counter() - start
        sites = [s for s in graph.sites if s.path == path.name]
        want, have = read_counts(counts), Counter(s.call for s in sites)
        sources = analysis.program.sources
        own = [x for x in analysis.program.launches if x.source.path in sources]
        launches = len({(x.source.path, x.node.start_byte) for x in own})
        read = sum(launches_as_read(s.data.decode("utf-8", "replace")) for s in sources.values())
        right, asked, faults = flow_right(graph, truth, path.name)
        wrong += faults
        a, b = (sum(f.possible for f in fs) for fs in ([s.stage_a for s in sites], [s.stage_b for s in sites]))
        row = {"read": want.total(), "found": (want & have).total(), "invented": (have - want).total()}
        row |= {"launches read": read, "launches found": launches, "right": right, "asked": asked, "A": a, "B": b}
        totals.update(row)
        flow = f"{right}/{asked}" if asked else ""
        print(
            f"| {name} | {row['read']} | {row['found']} | {row['invented']} | {read} | {launches} | {flow} | {a} | {b} | {seconds:.2f} |"
        )
    print(f"\n{dict(totals)}")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
