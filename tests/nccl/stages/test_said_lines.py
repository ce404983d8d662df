"""Words of a transformation and an analysis: lines that a reader finds, each obstacle once, nothing cut in silence."""

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.stages.transformation import transform

PROGRAM = """#include <mpi.h>
#include <nccl.h>
int main(int argc, char** argv) {
  int me; MPI_Comm_rank(MPI_COMM_WORLD, &me);
  float *a, *b; size_t n = 1024; ncclComm_t comm; cudaStream_t s; ncclUniqueId id;
  cudaMalloc(&a, n * 4);
  cudaMalloc(&b, n * 4);
  ncclCommInitRank(&comm, 2, id, me);
  ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);
  cudaStreamSynchronize(s);
  ncclAllGather(a, b, n / 2, ncclFloat, comm, s);
  cudaStreamSynchronize(s);
  cudaFree(a); cudaFree(b); ncclCommDestroy(comm);
}
"""


def test_calls_stand_at_their_lines_of_the_given_file_and_markers_at_those_of_the_new_one() -> None:
    result, made = transform({"m.cu": PROGRAM}, "m.cu")
    new = made["m.device.cu"].splitlines()

    assert result.done["replace"] == [
        "ncclAllReduce at m.cu:9 to ncclx::AllReduce",
        "ncclAllGather at m.cu:11 to ncclx::AllGather",
    ]
    regions = [said.partition(" ")[0].removeprefix("m.device.cu:").split("-") for said in result.done["mark"]]
    assert [(new[int(a) - 1].strip(), new[int(b) - 1].strip()) for a, b in regions] == [
        ("// EVOLVE-BLOCK-START", "// EVOLVE-BLOCK-END")
    ] * len(regions)


def test_an_obstacle_of_two_calls_is_said_once() -> None:
    result, made = transform({"m.cu": PROGRAM.replace("&a, n * 4", "&a, (n + me) * 4")}, "m.cu")

    assert not made and len(result.needs_agent) == 1
    assert result.needs_agent[0].startswith("c1 ncclAllReduce m.cu:9, c2 ncclAllGather m.cu:11: a: its size")
    assert result.headline == "m.cu stays as it is: 1 obstacle, said below"
    assert "infrastructure: nothing was done" in result.summary()


def test_headers_that_were_not_given_are_said_where_no_call_is_found() -> None:
    text = (
        '#include <vector>\n#include "exchange.h"\n#include "nccl.h"\nint main() { ncclUniqueId id; swap_halos(); }\n'
    )
    headline = export_graph(Analysis({"m.cu": text}, "m.cu")).headline

    assert headline.endswith("no host call communicates here; not given: exchange.h")


def test_a_long_line_says_that_it_was_cut() -> None:
    names = [f"fill_the_halo_of_side_{i}" for i in range(5)]
    kernels = "".join(
        f"__global__ void {n}(float* x, int i) {{ if (i > {k}) x[i] += i; }}\n" for k, n in enumerate(names)
    )
    launches = "".join(f"  {n}<<<1, 1, 0, s>>>(a, {k});\n" for k, n in enumerate(names))
    text = PROGRAM.replace("int main", f"{kernels}int main").replace("  ncclAllReduce", f"{launches}  ncclAllReduce")
    said = next(x for x in export_graph(Analysis({"m.cu": text}, "m.cu")).summary().splitlines() if x.startswith("c1 "))

    assert "[A+ B+]" in said
    assert "and 2 more" in said or said.endswith("…")
