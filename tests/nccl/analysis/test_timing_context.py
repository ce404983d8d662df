"""Clocks around a collective: C's clock, helpers that read one, times of which one ends and starts an interval."""

import pytest

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.stages.transformation import transform

PROGRAM = """
#include <nccl.h>
{helper}
void step(float* a, float* b, size_t n, ncclComm_t comm, cudaStream_t s) {{
  ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);
  cudaStreamSynchronize(s);
}}
int main(int argc, char** argv) {{
  float *a, *b; size_t n = 1024; ncclComm_t comm; cudaStream_t s; ncclUniqueId id; int early = atoi(argv[2]);
  cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4); ncclCommInitRank(&comm, 2, id, atoi(argv[1]));
{body}
  cudaFree(a); cudaFree(b); ncclCommDestroy(comm);
}}
"""
STEP = "step(a, b, n, comm, s);"
SECONDS = "static double seconds() { struct timeval t; gettimeofday(&t, 0); return t.tv_sec + 1e-6 * t.tv_usec; }"
WATCH = """struct Watch {
  double from; void start() { from = MPI_Wtime(); } double elapsed() { return MPI_Wtime() - from; }
};"""
LOG = 'static void say(const char* text) { printf("%f %s", MPI_Wtime(), text); }'


def program(body: str, helper: str = "") -> str:
    return PROGRAM.format(helper=helper, body=body)


@pytest.mark.parametrize(
    ("helper", "body"),
    [
        ("", f'clock_t from = clock(); {STEP} clock_t to = clock(); printf("%ld", to - from);'),
        (SECONDS, f'double from = seconds(); {STEP} double to = seconds(); printf("%f", to - from);'),
        (SECONDS, f'double from = seconds(); {STEP} printf("%f", seconds() - from);'),
        (WATCH, f'Watch w; w.start(); {STEP} printf("%f", w.elapsed());'),
        (
            "",
            f"double p = MPI_Wtime(); for (int i = 0; i < early; i++) {STEP} double q = MPI_Wtime(); "
            f'for (int i = 0; i < 9; i++) {STEP} double r = MPI_Wtime(); printf("%f %f", q - p, r - q);',
        ),
    ],
)
def test_a_step_between_clocks_is_timed(helper: str, body: str) -> None:
    assert [s.phase for s in Analysis({"m.cu": program(body, helper)}, "m.cu").sites] == ["timed"]


@pytest.mark.parametrize(
    ("helper", "body"),
    [
        (LOG, f'say("before"); {STEP} say("after");'),
        ("", f'double p = MPI_Wtime(); cudaStreamSynchronize(s); double q = MPI_Wtime(); {STEP} printf("%f", q - p);'),
        (
            "",
            f"double p = MPI_Wtime(); cudaDeviceSynchronize(); double q = MPI_Wtime(); {STEP} "
            'double t = MPI_Wtime(); cudaDeviceSynchronize(); double u = MPI_Wtime(); printf("%f %f", q - p, u - t);',
        ),
    ],
)
def test_a_step_beside_clocks_is_not_timed(helper: str, body: str) -> None:
    assert [s.phase for s in Analysis({"m.cu": program(body, helper)}, "m.cu").sites] == ["plain"]


def test_set_up_goes_ahead_of_a_clock_behind_a_helper() -> None:
    body = f'double from = seconds();\n{STEP}\nprintf("%f", seconds() - from);'
    _, made = transform({"m.cu": program(body, SECONDS)}, "m.cu", stages=("infrastructure",))
    text = made["m.device.cu"]
    assert text.index("ncclx::register_all(comm)") < text.index("double from = seconds()")
