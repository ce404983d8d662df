"""Disagreement of ranks is refused for a transformation, and an error for verification."""

import pytest

from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.program_model.program import ProgramModel

START = """#include <mpi.h>
#include <nccl.h>
void reduce(float* x, float* y, size_t n, ncclComm_t c, cudaStream_t s) { ncclAllReduce(x, y, n, ncclFloat, ncclSum, c, s); }
struct Part { size_t at, size, all; };
Part part_of(size_t n, int r) { size_t own = n / 4 + (r == 3); return {r * (n / 4), own, n}; }
int main(int argc, char** argv) {
  int me, all; MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &me); MPI_Comm_size(MPI_COMM_WORLD, &all);
  ncclUniqueId id; if (me == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm; ncclCommInitRank(&comm, all, id, me); cudaStream_t s; cudaStreamCreate(&s);
  size_t n = 1000; float *a, *b;
"""
MADE = "  cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4);\n"
REDUCE = "ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);"
CAST = "ncclBroadcast(a, b, n, ncclFloat, 0, comm, s);"
END = "\n  cudaStreamSynchronize(s); ncclCommDestroy(comm); MPI_Finalize(); return 0;\n}\n"


def reasons(body: str) -> list[str]:
    found = export_graph(Analysis({"main.cu": START + body + END}, "main.cu"))
    return [r for s in found.sites for r in s.stage_a.reasons]


def errors(body: str) -> list[str]:
    program = ProgramModel.read({"main.cu": START + body + END}, "main.cu")
    return [f.text for f in rules.findings(program) if f.severity == "error" and f.rule == "agreement"]


DIFFERENT = {
    "count from the rank": (f"size_t n2 = n + (me < 3 ? 1 : 0); {MADE} {REDUCE.replace('n,', 'n2,', 1)}", "its count n2"),
    "count under a test": (f"{MADE} if (me == 0) n = 5;\n {REDUCE}", "its count n"),
    "count through a helper": (f"{MADE} reduce(a, b, n + me, comm, s);", "its count"),
    "root": (f"{MADE} ncclBroadcast(a, b, n, ncclFloat, me, comm, s);", "its root me"),
    "operation": (f"{MADE} {REDUCE.replace('ncclSum', 'me ? ncclSum : ncclMax')}", "its op"),
    "collective of one rank": (f"{MADE} if (me == 0) {REDUCE}", "it stands under `me==0`"),
    "collective of even ranks, in a helper": (f"{MADE} if (me % 2 == 0) reduce(a, b, n, comm, s);", "it stands under"),
    "another order": (f"{MADE} if (me) {{ {REDUCE} {CAST} }} else {{ {CAST} {REDUCE} }}", "the same calls in one order"),
    "an order around a call of all": (f"{MADE} if (me) {CAST} {REDUCE} if (!me) {CAST}", "it stands under `me`"),
    "more turns on one side": (
        f"{MADE} int i = 0, j = 0; if (me % 2) while (i++ < 10) {REDUCE} else while (j++ < 20) {REDUCE}", "equally often"
    ),
    "one side under another test": (f"{MADE} if (me == 0) {REDUCE} else if (n > 7) {REDUCE}", "equally often"),
    "one side under another test of the rank": (f"{MADE} if (!me) {REDUCE} else if (me % 2) {REDUCE}", "equally often"),
    "a test that a pointer changes": (
        f"{MADE} int mine = 1, *p = &mine; *p = me; if (mine > 0) {REDUCE}", "it stands under `mine>0`"
    ),
    "way out before": (f"{MADE} if (me != 0) return 0;\n {REDUCE}", "it stands under `not (me!=0)`"),
    "one case of a switch": (f"{MADE} switch (me) {{ case 0: {REDUCE} break; default: break; }}", "it stands under `me==0`"),
    "the right side of &&": (f"{MADE} me == 0 && {REDUCE}", "it stands under `me==0`"),
    "turns by the rank": (f"{MADE} for (int i = 0; i < me + 1; i++) {REDUCE}", "in a loop whose turns depend on the rank"),
    "turns counted down": (f"{MADE} int left = me; while (left-- > 0) {REDUCE}", "in a loop whose turns depend"),
    "flags in a vector, raised by the owner": (
        f"{MADE} std::vector<bool> ready(4); for (int t = 0; t < 4; t++) {{ if (t % 2 == me) ready[t] = true; }}"
        f"for (int t = 0; t < 4; t++) if (ready[t]) {REDUCE}", "it stands under `ready[t]`"
    ),
    "flags that skip": (
        f"{MADE} bool ready[4] = {{}}, sent[4] = {{}}; for (int t = 0; t < 4; t++) {{ if (t % 2 == me) ready[t] = true;"
        f"if (!ready[t] || sent[t]) continue; {REDUCE} sent[t] = true; }}", "it stands under `not (!ready[t]||sent[t])`"
    ),
    "a jump over": (f"{MADE} if (me != 0) goto out;\n {REDUCE}\nout:;", "it stands under `not (me!=0)`"),
    "an exit before": (f"{MADE} if (me > 1) exit(0);\n {REDUCE}", "it stands under `not (me>1)`"),
    "an element": (f"{MADE} size_t m[2] = {{n, n}}; m[0] -= me; {REDUCE.replace('n,', 'm[0],', 1)}", "its count m[0]"),
    "a member": (f"{MADE} Part p {{me, n}}; {REDUCE.replace('n,', 'p.at,', 1)}", "its count p.at"),
    "a member of what a function returns": (
        f"Part p = part_of(n, me); {MADE} {REDUCE.replace('n,', 'p.size,', 1)}", "its count p.size"
    ),
    "a launcher's variable": (f'{MADE} int r = atoi(getenv("SLURM_PROCID")); if (r == 0) {REDUCE}', "it stands under `r==0`"),
    "generated collective": (f"{MADE} ncclx::AllReduce(a, b, n + me, ncclFloat, ncclSum, comm, s);", "its count n + me"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_collective_on_which_ranks_differ_is_an_error_and_refused(body: str, said: str):
    assert any(said in e for e in errors(body)), errors(body)
    if "ncclx::" not in body:
        assert any(said in r for r in reasons(body)), reasons(body)


SHARED = {
    "plain": f"{MADE} {REDUCE}",
    "agreed by broadcast": f"if (me == 0) n = read(); MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD); {MADE} {REDUCE}",
    "both sides": f"{MADE} if (me == 0) {{ {REDUCE} }} else {{ {REDUCE.replace('a, b', 'b, a')} }}",
    "two tests that are each other's opposite": f"{MADE} if (me % 2) {REDUCE} puts(\"\"); if (!(me % 2)) {REDUCE}",
    "equal and unequal": f"{MADE} if (me == 0) {{ {REDUCE} {CAST} }} if (me != 0) {{ {REDUCE} {CAST} }}",
    "a chain of tests": f"{MADE} if (me == 0) {REDUCE} else if (me == 1) {REDUCE} else {REDUCE}",
    "as many turns": f"{MADE} int i = 0, j = 0; if (me) while (i++ < 9) {REDUCE} else for (; j < 9; j++) {REDUCE}",
    "number of ranks": f"{MADE} ncclAllReduce(a, b, n / all, ncclFloat, ncclSum, comm, s);",
    "send and receive": f"{MADE} if (me) ncclSend(a, me, ncclFloat, 0, comm, s); else ncclRecv(a, 1, ncclFloat, 1, comm, s);",
    "communicator of its own": f"{MADE} ncclComm_t c; ncclCommSplit(comm, me % 2, me, &c, 0);\n"
    f"if (me % 2) {REDUCE.replace('comm', 'c')}",
    "each case of a switch": f"{MADE} switch (me) {{ case 0: {REDUCE} break; case 1: {REDUCE} break; default: {REDUCE} }}",
    "cases of no rank": f"{MADE} switch (all) {{ case 2: {REDUCE} break; default: {CAST} }}",
    "ranks that do not exist": f"{MADE} if (me >= all || me < 0) return 1; if (me < all) {REDUCE}",
    "steps from the rank to itself": f"{MADE} for (int p = me; p < me + all; p++) {REDUCE}",
    "another member": f"Part p = part_of(n, me); {MADE} {REDUCE.replace('n,', 'p.all,', 1)}",
    "a jump to before": f"{MADE} again: {REDUCE}\n if (me < 0) goto again;",
    "usage": f'if (me == 0 && argc < 2) {{ puts("usage"); return 1; }} {MADE} {REDUCE}',
    "in range": f"{MADE} if (rank < nranks) {REDUCE}",
}  # fmt: skip


@pytest.mark.parametrize("body", SHARED.values(), ids=SHARED.keys())
def test_what_ranks_share_or_need_not_share_is_no_error(body: str):
    assert errors(body) == []


def test_memory_that_ranks_allocate_differently_is_refused_for_windows():
    size = "cudaMalloc(&a, (n + 10 * me) * 4); cudaMalloc(&b, n * 4);"
    some = "if (me % 2 == 0) cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4);"

    assert any("a: its size (n + 10 * me) * 4 depends on the rank" in r for r in reasons(f"{size} {REDUCE}"))
    assert any("a: allocated under `me%2==0`" in r for r in reasons(f"{some} {REDUCE}"))
    both = "if (me) cudaMalloc(&a, n * 4); else cudaMalloc(&a, n * 4); cudaMalloc(&b, n * 4);"
    assert not any("depends on the rank" in r for r in reasons(f"{both} {REDUCE}"))


@pytest.mark.parametrize(
    "body",
    [
        "size_t m = n + me; ncclMemAlloc((void**)&a, m); ncclWindow_t w; ncclCommWindowRegister(comm, a, m, &w, 2);",
        "ncclx::mem_alloc(&a, n + me); ncclx::register_all(comm);",
        "if (me == 0) ncclx::mem_alloc(&a, n); ncclx::register_all(comm);",
        "ncclWindow_t w; ncclMemAlloc((void**)&a, n); if (me) ncclCommWindowRegister(comm, a, n, &w, 2);",
    ],
)
def test_a_window_on_which_ranks_differ_is_an_error(body: str):
    assert errors(body) != []
    assert errors(body.replace("me", "7").replace("ncclM7", "ncclMem").replace("m7_alloc", "mem_alloc")) == []


ENTANGLED = {
    "variables": ("int x = 0, y = 0;\n" + "x = x + y + x; y = y + x + y;\n" * 40, "x"),
    "members": ("Part p;\n" + "p.at = p.size + p.all; p.size = p.at + p.all; p.all = p.at + p.size;\n" * 40, "p.at"),
}


@pytest.mark.parametrize("kind", ENTANGLED)
def test_values_made_of_each_other_are_followed_to_the_rank_that_one_of_them_holds(kind: str):
    """Each way through them was gone once, and forty lines have more ways than there is time for."""
    made, value = ENTANGLED[kind]

    assert reasons(f"{MADE}{made}if ({value} == 1) {REDUCE}") == reasons(MADE + REDUCE)
    assert any("me" in each for each in reasons(f"{MADE}{made}{value} += 0; {value} = me;\nif ({value} == 1) {REDUCE}"))


def test_a_switch_of_thousands_of_cases_and_thousands_of_labels_are_read():
    """Each case was compared with all before it, and each statement with all labels before it."""
    cases = "".join(f"case {n}: n = {n}; break;\n" for n in range(3000))
    jumps = "".join(f"again{n}: n = {n};\n" for n in range(1500)) + "if (n) goto again0;\n"

    assert reasons(f"{MADE}switch (n) {{ {cases} }}\n{jumps}{REDUCE}") == reasons(MADE + REDUCE)


@pytest.mark.parametrize("asked", ["MPI_Comm_rank(MPI_COMM_WORLD, &rank)", "ncclCommUserRank(comm, &rank)"])
def test_whether_a_call_succeeded_does_not_depend_on_the_rank_that_it_gives(asked: str):
    text = (
        "#include <nccl.h>\nint main() { int rank, failed; ncclComm_t comm; ncclUniqueId id; float* a;\n"
        f'ncclCommInitRank(&comm, 2, id, 0); failed = {asked};\nif (failed != 0) {{ puts("no"); return 1; }}\n'
        "cudaMalloc(&a, 64); ncclAllReduce(a, a, 16, ncclFloat, ncclSum, comm, 0); }\n"
    )
    found = export_graph(Analysis({"main.cu": text}, "main.cu"))

    assert found.sites[0].stage_a.reasons == []
