"""Writers and readers of buffers where pointers swap, sit in arrays, or are used in both branches of a loop."""

from gpu_mcp_server.models.collective import CollectiveSite
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph

KERNELS = "".join(
    f"__global__ void {name}({given}) {{ {body} }}\n"
    for name, given, body in (
        ("one", "float* p", "p[threadIdx.x] = 1;"),
        ("two", "float* p", "p[threadIdx.x] = 2;"),
        ("add", "float* p", "p[threadIdx.x] += 1;"),
        ("use", "const float* p, float* q", "q[threadIdx.x] = p[threadIdx.x];"),
        ("step", "const float* p, float* q", "q[threadIdx.x] = p[threadIdx.x];"),
    )
)
REDUCE = "ncclAllReduce({}, {}, 4, ncclFloat, ncclSum, comm, s);"


def sites(body: str) -> list[CollectiveSite]:
    text = f"""#include <nccl.h>
{KERNELS}
int main() {{ ncclComm_t comm; ncclCommInitRank(&comm, 2, id, 0); cudaStream_t s; float *out, *a, *b; cudaMalloc(&out, 64);
  cudaMalloc(&a, 64); cudaMalloc(&b, 64);
  float* from[2]; float* to[2]; for (int i = 0; i < 2; i++) {{ cudaMalloc(&from[i], 64); cudaMalloc(&to[i], 64); }}
{body}
}}"""
    return export_graph(Analysis({"m.cu": text}, "m.cu")).sites


def flow(site: CollectiveSite) -> tuple[set[str], set[str]]:
    send, receive = site.buffers
    return {p.partition(":")[0] for p in send.producers}, {c.partition(":")[0] for c in receive.consumers}


def test_elements_with_known_indices_are_told_apart():
    body = "one<<<1, 32>>>(from[0]); two<<<1, 32>>>(from[1]);"
    body += "".join(REDUCE.format(f"from[{i}]", f"to[{i}]") for i in (0, 1))
    first, second = sites(body + "use<<<1, 32>>>(to[0], out); step<<<1, 32>>>(to[1], out);")

    assert flow(first) == ({"one"}, {"use"})
    assert flow(second) == ({"two"}, {"step"})
    assert (first.buffers[0].name, second.buffers[1].name) == ("from[0]", "to[1]")


def test_an_element_with_an_unknown_index_may_be_any():
    body = f"one<<<1, 32>>>(from[0]); two<<<1, 32>>>(from[k]); {REDUCE.format('from[0]', 'to[k]')}"
    (site,) = sites(
        body + REDUCE.format("from[1]", "to[1 - k]").join(("", "")) and body + "use<<<1, 32>>>(to[0], out);"
    )

    assert flow(site) == ({"one", "two"}, {"use"})


def test_an_element_by_a_loop_variable_is_the_iterations_own():
    body = "for (int i = 0; i < 2; i++) { two<<<1, 32>>>(from[i]); one<<<1, 32>>>(from[i]); "
    (site,) = sites(body + REDUCE.format("from[i]", "to[i]") + "}")

    assert flow(site)[0] == {"one"}


def test_a_list_of_pointers_means_its_elements():
    (site,) = sites(
        f"float* both[2] = {{a, b}}; one<<<1, 32>>>(a); two<<<1, 32>>>(b); {REDUCE.format('both[0]', 'both[1]')}"
    )

    assert [x.name for x in site.buffers] == ["a", "b"]
    assert flow(site)[0] == {"one"}


def test_branches_of_a_loop_hand_buffers_to_each_other():
    first, second = sites(
        "for (int i = 0; i < 9; i++) {"
        f"if (i % 2 == 0) {{ step<<<1, 32>>>(a, b); {REDUCE.format('b', 'b')} }}"
        f"else {{ use<<<1, 32>>>(b, a); {REDUCE.format('a', 'a')} }} }}"
    )

    assert flow(first) == ({"step"}, {"use"})
    assert flow(second) == ({"use"}, {"step"})


def test_a_swap_by_a_third_pointer_keeps_what_was_written_by_the_same_name():
    swap = "float* third = a; a = b; b = third;"
    (site,) = sites(
        f"one<<<1, 32>>>(a); for (int i = 0; i < 9; i++) {{ step<<<1, 32>>>(a, b); {REDUCE.format('b', 'b')} {swap} }}"
        "use<<<1, 32>>>(a, out);"
    )

    assert flow(site)[0] == {"step"}
    assert {"step", "use"} <= flow(site)[1]


def test_a_collective_in_place_in_a_loop_reads_its_own_result():
    (site,) = sites(f"one<<<1, 32>>>(a); for (int i = 0; i < 9; i++) {{ {REDUCE.format('a', 'a')} }}")

    assert flow(site) == ({"one", "ncclAllReduce"}, {"ncclAllReduce"})


def test_what_comes_from_one_place_of_several_does_not_hide_what_was_there():
    (site,) = sites(f"one<<<1, 32>>>(a); float* p = k ? a : b; two<<<1, 32>>>(p); {REDUCE.format('a', 'b')}")

    assert flow(site)[0] == {"one", "two"}


def test_loops_of_every_way_are_named():
    text = f"""#include <nccl.h>
void go(float* a, float* b) {{ {REDUCE.format("a", "b")} }}
int main() {{ float *a, *b; cudaMalloc(&a, 64); cudaMalloc(&b, 64);
  for (int i = 0; i < 9; i++) go(a, b);
  for (int size = 1; size < 9; size++) for (int k = 0; k < 3; k++) go(a, b);
}}"""
    (site,) = export_graph(Analysis({"m.cu": text}, "m.cu")).sites

    assert [x.split("=")[0] for x in site.loops] == ["for (int i ", "for (int size ", "for (int k "]


def test_a_put_writes_the_memory_of_its_window():
    body = "ncclWindow_t w; ncclCommWindowRegister(comm, b, 64, &w, 0);"
    put = "ncclPutSignal(a, 4, ncclFloat, 1, w, 0, 0, 0, 0, comm, s); ncclWaitSignal(1, &waited, comm, s);"
    site = sites(f"{body} one<<<1, 32>>>(a); {put} use<<<1, 32>>>(b, out);")[0]

    assert flow(site) == ({"one"}, {"use"})


def test_a_receive_of_just_what_is_sent_hides_what_was_there():
    pair = "ncclRecv(a, {}, ncclFloat, 0, comm, s); {} ncclSend(a, n, ncclFloat, 0, comm, s);"
    body = "long n = 16; cudaMemset(a, 0, 64); one<<<1, 32>>>(a); "

    def producers(count: str, between: str) -> set[str]:
        (site,) = (x for x in sites(body + pair.format(count, between)) if x.call == "ncclSend")
        return {p.partition(":")[0] for p in site.buffers[0].producers}

    assert producers("n", "") == {"ncclRecv"}
    assert producers("n", "add<<<1, 32>>>(a);") == {"ncclRecv", "add"}
    assert producers("n / 2", "") == {"ncclRecv", "one"}
    assert producers("n", "n = n * 2;") == {"ncclRecv", "one"}
    assert producers("n", "MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD);") == {"ncclRecv", "one"}
