"""A warm-up runs once and ahead of every clock, in the program's function or a caller's; elsewhere it is refused."""

import pytest

from gpu_mcp_server.models.transform import TransformResult
from gpu_mcp_server.nccl.stages.transformation import transform

CALLED = """#include <mpi.h>
#include <nccl.h>
#define CHECK(x) do { if ((x) != ncclSuccess) exit(1); } while (0)
HELPER
int main() {
  ncclComm_t comm; CHECK(ncclCommInitRank(&comm, n, id, rank)); cudaStream_t s; cudaStreamCreate(&s);
  float *x, *y; cudaMalloc(&x, 4096); cudaMalloc(&y, 4096);
  double t = 0;
  BODY
  CHECK(ncclCommDestroy(comm));
}
"""
STEP = """void step(float* from, float* to, int count, ncclComm_t c, cudaStream_t q) {
  CHECK(ncclAllReduce(from, to, count, ncclFloat, ncclSum, c, q));
  cudaStreamSynchronize(q);
}
"""
LOOP = (
    "for (int i = 0; i < 100; i++) { double t0 = MPI_Wtime(); step(x, y, 1000 + 24, comm, s); t += MPI_Wtime() - t0; }"
)


def warmed(helper: str, body: str) -> tuple[TransformResult, str]:
    text = CALLED.replace("HELPER", helper).replace("BODY", body)
    result, made = transform({"main.cu": text}, "main.cu", stages=("infrastructure", "warmup"))
    return result, made[str(result.main)]


def test_a_call_in_a_helper_is_warmed_in_the_caller_whose_loop_has_the_clock():
    result, text = warmed(STEP, LOOP)

    assert result.needs_agent == []
    assert (
        "CHECK(ncclAllReduce(x, y, (1000 + 24), ncclFloat, ncclSum, comm, s));\n"
        "  (void)cudaStreamSynchronize(s);\n  for (int i = 0"
    ) in text
    assert text.index("register_all") < text.index("// ncclx warm-up") < text.index("MPI_Wtime")
    assert text.count("ncclAllReduce(") == 2


def test_a_clock_two_callers_up_is_found():
    timed = STEP + (
        "void timed(float* p, float* q, ncclComm_t c, cudaStream_t s) { double t0 = MPI_Wtime(); step(p, q, 8, c, s); "
        "total += MPI_Wtime() - t0; }\n"
    )
    _, text = warmed(timed, "for (int i = 0; i < 100; i++) timed(x, y, comm, s);")

    main = text[text.index("int main") :]
    assert main.index("CHECK(ncclAllReduce(x, y, 8, ncclFloat, ncclSum, comm, s));") < main.index("for (int i = 0")
    assert text.count("// ncclx warm-up") == 1


@pytest.mark.parametrize(
    ("helper", "body", "reason"),
    [
        (STEP.replace("CHECK(", "int half = count / 2; CHECK(").replace("to, count", "to, half"), LOOP, "half"),
        (STEP, "for (int k = 1; k < 9; k++) " + LOOP.replace("1000 + 24", "k * 64"), "k is not known"),
        (STEP, "int m; for (int k = 1; k < 9; k++) { m = k; " + LOOP.replace("1000 + 24", "m") + " }", "m is not known"),
        (STEP.replace("from, to,", "to, to,"), LOOP, "in place"),
        (STEP, LOOP.replace("step(", "use<<<1, 32>>>(y); step("), "reads first"),
    ],
)  # fmt: skip
def test_where_no_place_runs_once_or_data_would_change_a_warm_up_is_refused(helper: str, body: str, reason: str):
    result, text = warmed("__global__ void use(float* p) { p[threadIdx.x] += 1; }\n" + helper, body)

    assert any(reason in r for r in result.needs_agent), result.needs_agent
    assert "// ncclx warm-up" not in text and result.done["warmup"] == []


def test_a_function_whose_callers_are_not_here_is_not_warmed():
    text = (CALLED.replace("HELPER", STEP).replace("BODY", "") + "void f(float* x, float* y) {" + LOOP + "}").replace(
        "int main()", "void g()"
    )
    result, _ = transform({"main.cu": text}, "main.cu", stages=("warmup",))

    assert any("how often f runs is not known" in r for r in result.needs_agent)


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = -warmup; i < 20; i++) { if (i == 0) t0 = MPI_Wtime(); CALL } t = MPI_Wtime() - t0;",
        "for (int i = -5; i < 20; i++) { if (i == 0) t0 = MPI_Wtime(); CALL } t = MPI_Wtime() - t0;",
        "for (int i = 0; i < warmup + 20; i++) { if (i == warmup) t0 = MPI_Wtime(); CALL } t = MPI_Wtime() - t0;",
        "go(x, y, 5, comm, s); double t0 = MPI_Wtime(); go(x, y, 20, comm, s); t = MPI_Wtime() - t0;",
    ],
)
def test_a_program_that_warms_itself_needs_no_warm_up(body: str):
    call = "ncclAllReduce(x, y, 8, ncclFloat, ncclSum, comm, s);"
    head = "void go(float* x, float* y, int n, ncclComm_t comm, cudaStream_t s)"
    helper = f"{head} {{ for (int i = 0; i < n; i++) {call} }}\n" if "go(" in body else ""
    result, text = warmed(helper, body.replace("CALL", call))

    assert result.done["warmup"] == [] and result.needs_agent == []
    assert "// ncclx warm-up" not in text


def test_neighbours_counted_from_minus_one_are_no_warm_up():
    call = "ncclAllReduce(x, y, 8, ncclFloat, ncclSum, comm, s);"
    body = f"double t0 = MPI_Wtime(); for (int d = -1; d <= 1; d++) {call} t = MPI_Wtime() - t0;"

    assert len(warmed("", body)[0].done["warmup"]) == 1


ONE = "double t0 = MPI_Wtime(); step(x, y, 8, comm, s); t += MPI_Wtime() - t0;"


@pytest.mark.parametrize(
    ("helper", "body", "reason"),
    [
        (STEP, f"std::for_each(v.begin(), v.end(), [&](int k) {{ {ONE} }});", "how often for_each runs the function"),
        ("#define EACH(n) for (int e = 0; e < (n); e++)\n" + STEP, f"EACH(9) {{ {ONE} }}", "`EACH(9)` repeats it"),
    ],
)
def test_a_place_that_something_else_than_a_loop_repeats_is_refused(helper: str, body: str, reason: str):
    result, text = warmed(helper, body)

    assert "// ncclx warm-up" not in text
    assert any(reason in left for left in result.needs_agent), result.needs_agent


def test_a_warm_up_goes_before_the_label_that_is_jumped_back_to():
    _, text = warmed(STEP, f"again: {ONE} if (t < 9) goto again;")

    assert text.index("// ncclx warm-up") < text.index("again:")


def test_a_function_that_calls_itself_with_the_clock_inside_is_no_place():
    down = STEP.replace("  CHECK", "  double t0 = MPI_Wtime();\n  CHECK").replace(
        "  cuda", "  t1 = MPI_Wtime();\n  if (count > 1) step(from, to, count / 2, c, q);\n  cuda"
    )
    _, text = warmed(down, "step(x, y, 8, comm, s);")

    assert text.index("int main") < text.index("// ncclx warm-up") < text.index("  step(x, y, 8")
