"""Marked code: the call with the kernel that computes what it sends, and none that makes input or verifies."""

from gpu_mcp_server.nccl.program_model.markers import frozen_text
from gpu_mcp_server.nccl.stages.transformation import transform

PROGRAM = """#include <nccl.h>
__global__ void make(float* p) {{ p[threadIdx.x] = 1; }}
template <int N>
__global__ void compute(const float* in, float* out) {{ out[threadIdx.x] = N * in[threadIdx.x]; }}
__global__ void check(const float* p, int* bad) {{ if (p[threadIdx.x] != 2) *bad = 1; }}
void run(int rank, int n) {{
  ncclComm_t comm; ncclCommInitRank(&comm, n, id, rank); cudaStream_t s;
  float *in, *a, *b; int* bad; cudaMalloc(&in, 64); cudaMalloc(&a, 64); cudaMalloc(&b, 64); cudaMalloc(&bad, 4);
  make<<<1, 16, 0, s>>>(in);
  for (int i = 0; i < 3; i++) {{
    {}
    ncclAllReduce(a, b, 16, ncclFloat, ncclSum, comm, s);
  }}
  check<<<1, 16, 0, s>>>(b, bad);
  ncclCommDestroy(comm);
}}
"""


def frozen(body: str) -> str:
    result, made = transform({"m.cu": PROGRAM.format(body)}, "m.cu")
    assert transform(made, str(result.main))[1] == {}, "a second run marks nothing more"
    return frozen_text(made[str(result.main)])


def test_the_kernel_that_computes_what_is_sent_may_be_fused_with_the_call():
    text = frozen("compute<2><<<1, 16, 0, s>>>(in, a);\n  cudaEventRecord(ready, s);")

    assert "compute" not in text and "template <int N>" not in text
    assert "void make(" in text and "make<<<" in text
    assert "void check(" in text and "check<<<" in text


def test_a_kernel_that_only_writes_stays_frozen():
    text = frozen("make<<<1, 16, 0, s>>>(a);")

    assert "void make(" in text and "make<<<1, 16, 0, s>>>(a)" in text and "void compute(" in text


def test_a_statement_between_that_is_no_launch_ends_the_block():
    text = frozen("compute<2><<<1, 16, 0, s>>>(in, a);\n  cudaStreamSynchronize(s);")

    assert "compute<2><<<" in text and "cudaStreamSynchronize(s)" in text


def test_what_computes_another_buffer_stays_frozen():
    assert "void compute(" in frozen("compute<2><<<1, 16, 0, s>>>(in, b);")
