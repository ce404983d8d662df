"""Calls whose bodies are not here: libraries by their tables, all others with a question mark."""

import re

import pytest

from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph

BUFFERS = "float *a, *b, *c, *d; cudaMalloc(&a, 64); cudaMalloc(&b, 64); cudaMalloc(&c, 64); cudaMalloc(&d, 64);"
REDUCE = "ncclAllReduce(c, d, n, ncclFloat, ncclSum, comm, s);"
HEAD = """#include <nccl.h>
ncclComm_t comm; cudaStream_t s; const float one = 1, zero = 0; float some;
"""


def graph(before: str, after: str = "", top: str = "") -> CollectiveGraph:
    body = f"int main() {{ ncclCommInitRank(&comm, 2, id, 0); {BUFFERS}\n{before}\n{REDUCE}\n{after} }}"
    return export_graph(Analysis({"main.cu": HEAD + top + body}, "main.cu"))


def partners(found: CollectiveGraph) -> tuple[list[str], list[str]]:
    send, receive = found.sites[0].buffers
    bare = [[re.sub(r":\d+.*?(\?)?$", r"\1", p) for p in ps] for ps in (send.producers, receive.consumers)]
    return bare[0], bare[1]


FILL = "__global__ void fill(float* f) { *f = 1; }\n"
GEMM = "cublasSgemm(h, N, N, 4, 4, 4, &one, {}, 4, {}, 4, &{}, {}, 4);"


@pytest.mark.parametrize(
    ("before", "after", "wrote", "read"),
    [
        (GEMM.format("a", "b", "zero", "c"), GEMM.format("d", "b", "zero", "a"), "cublasSgemm", "cublasSgemm"),
        ("cublasSaxpy(h, n, &one, a, 1, c, 1);", "cublasSdot(h, n, d, 1, a, 1, &some);", "cublasSaxpy", "cublasSdot"),
        (
            "cublasLtMatmul(h, desc, &one, a, A, b, B, &zero, c, C, c, C, alg, w, ws, s);",
            "cublasLtMatmul(h, desc, &one, d, A, b, B, &zero, a, C, a, C, alg, w, ws, s);",
            "cublasLtMatmul",
            "cublasLtMatmul",
        ),
        (
            "cudnnConvolutionForward(h, &one, xd, a, wd, b, cd, alg, w, ws, &zero, yd, c);",
            "cudnnSoftmaxForward(h, alg, mode, &one, xd, d, &zero, yd, a);",
            "cudnnConvolutionForward",
            "cudnnSoftmaxForward",
        ),
        ("cufftExecC2C(p, a, c, 1);", "cufftExecC2C(p, d, a, 1);", "cufftExecC2C", "cufftExecC2C"),
        (
            "thrust::fill(thrust::cuda::par.on(s), thrust::device_pointer_cast(c), thrust::device_pointer_cast(c) + n, 0);",
            "thrust::transform(thrust::device, d, d + n, a, op);",
            "thrust::fill",
            "thrust::transform",
        ),
        (
            "cub::DeviceScan::InclusiveSum(tmp, bytes, a, c, n);",
            "cub::DeviceReduce::Sum(tmp, bytes, d, a, n);",
            "cub::DeviceScan::InclusiveSum",
            "cub::DeviceReduce::Sum",
        ),
        ("cuMemsetD32Async(c, 0, n, s);", "cuMemcpyDtoHAsync(host, d, n, s);", "cuMemsetD32Async", "cuMemcpyDtoHAsync"),
        ("MPI_Recv(c, n, MPI_FLOAT, 1, 0, w, st);", "MPI_Send(d, n, MPI_FLOAT, 1, 0, w);", "MPI_Recv", "MPI_Send"),
    ],
)  # fmt: skip
def test_a_known_library_writes_and_reads_what_its_table_says(before: str, after: str, wrote: str, read: str):
    assert partners(graph(before, after)) == ([wrote], [read])


def test_an_output_is_read_only_where_beta_may_be_other_than_zero():
    assert partners(graph("", GEMM.format("a", "b", "zero", "d")))[1] == []
    assert partners(graph("", GEMM.format("a", "b", "some", "d")))[1] == ["cublasSgemm"]


def test_descriptors_stand_for_their_pointers():
    made = "cusparseDnVecDescr_t x, y; cusparseCreateDnVec(&x, n, a, t); cusparseCreateDnVec(&y, n, c, t);"

    assert partners(graph(made + "cusparseSpMV(h, op, &one, m, x, &zero, y, t, alg, w);"))[0] == ["cusparseSpMV"]


def test_a_cutlass_operation_reads_a_b_and_c_and_writes_d():
    made = "Gemm gemm; Gemm::Arguments args({m, n, k}, {a, 4}, {b, 4}, {%s, 4}, {%s, 4}, {1, 0});"

    assert partners(graph(made % ("a", "c") + "gemm(args);", made % ("d", "b") + "gemm(args);")) == (["gemm"], ["gemm"])
    assert partners(graph(made % ("c", "a") + "gemm(args);"))[0] == []


def test_a_macro_that_hides_a_library_is_seen_through():
    top = f"#define MULTIPLY(x, y, z) do {{ {GEMM.format('x', 'y', 'zero', 'z')} }} while (0)\n"

    assert partners(graph("MULTIPLY(a, b, c);", top=top))[0] == ["cublasSgemm"]


@pytest.mark.parametrize("call", ["normalize(c, n)", "model.forward(c + 4)", "run({a, c})", "launch(Args{c, n})"])
def test_a_call_that_no_table_knows_is_named_with_a_question_mark(call: str):
    name = call.partition("(")[0].rpartition(".")[2]

    assert partners(graph(f"{call};"))[0] == [f"{name}?"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("void* args[] = {&c, &n}; cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, args, nullptr);", "f?"),
        ("void* args[2]; args[1] = &n; args[0] = &c; cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, args, 0);", "f?"),
        ("cudaMemcpy3DParms p = {}; p.dstPtr = make_cudaPitchedPtr(c, 4, 4, 4); cudaMemcpy3D(&p);", "cudaMemcpy3D?"),
        ("struct { float* x; int n; } job = {.x = c}; run_job(job);", "run_job?"),
    ],
)
def test_memory_behind_a_structure_or_a_list_of_arguments_is_reached(call: str, name: str):
    assert partners(graph(call))[0] == [name]


def test_members_mean_what_the_list_of_their_structure_gives_them():
    by_member = graph("Pair p{a, c}; fill<<<1, 1>>>(p.y);", top="struct Pair { float *x, *y; };\n" + FILL)
    assert partners(by_member)[0] == ["fill"]
    exchange = "for (;;) { fill<<<1, 1>>>(a); std::tie(a, c) = std::make_tuple(c, a);"
    swapped = graph(exchange, "}", FILL)
    assert "fill" in partners(swapped)[0]


@pytest.mark.parametrize(
    "call", ['printf("%p", c)', "cudaPointerGetAttributes(&at, c)", "kept.push_back(c)", "CHECK(cudaGetLastError())"]
)
def test_a_call_that_touches_no_memory_is_not_named(call: str):
    assert partners(graph(f"{call};"))[0] == []


OTHERS = """#include <nccl.h>
int main() {
  ncclComm_t comm; ncclCommInitRank(&comm, 2, id, 0); cudaStream_t s;
  float *a, *b; cudaMalloc(&a, 64); cudaMalloc(&b, 64);
  pncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);
  ncclAllToAll(a, b, n, ncclFloat, comm, s);
  ncclAllToAllv(a, sizes, places, b, sizes, places, ncclFloat, comm, s);
  ncclPutSignal(a, n, ncclFloat, 1, window, 0, 0, 0, 0, comm, s);
  ncclWaitSignal(1, &waited, comm, s);
}
"""


def test_profiled_names_calls_of_rccl_and_one_sided_calls_communicate():
    found = export_graph(Analysis({"main.cu": OTHERS}, "main.cu"))

    assert [s.call for s in found.sites] == [
        "pncclAllReduce",
        "ncclAllToAll",
        "ncclAllToAllv",
        "ncclPutSignal",
        "ncclWaitSignal",
    ]
    assert [s.stage_b.possible for s in found.sites] == [True, True, True, False, False]
    assert [b.name for b in found.sites[2].buffers] == ["a", "b"]


def test_a_question_for_the_size_of_a_workspace_and_a_check_write_nothing():
    body = (
        "cusolverDnHandle_t h; int size; CHECK(a) << 1; CHECK_EQ(a, a);"
        "cusolverDnSpotrf_bufferSize(h, CUBLAS_FILL_MODE_LOWER, 8, a, 8, &size);"
    )
    text = f"""#include <nccl.h>
    int main() {{ float *a, *b; ncclComm_t comm; cudaStream_t s; cudaMalloc(&a, 256); cudaMalloc(&b, 256);
    cudaMemset(a, 0, 256); {body} ncclAllReduce(a, b, 64, ncclFloat, ncclSum, comm, s); }}"""
    site = export_graph(Analysis({"m.cu": text}, "m.cu")).sites[0]

    assert [p.partition(":")[0] for p in site.buffers[0].producers] == ["cudaMemset"]


def test_a_program_that_calls_cuda_is_not_one_of_hip_alone():
    text = """#if defined(USE_HIP)
    #include <hip/hip_runtime.h>
    #endif
    #include "nccl.h"
    int main() { float *a; ncclComm_t comm; cudaStream_t s; ncclUniqueId id; cudaMalloc(&a, 256);
    ncclCommInitRank(&comm, 2, id, 0); ncclAllReduce(a, a, 64, ncclFloat, ncclSum, comm, s); }"""
    reasons = export_graph(Analysis({"m.cu": text}, "m.cu")).sites[0].stage_a.reasons

    assert not any("HIP" in r for r in reasons)
