"""The graph says what a reader would say."""

from pathlib import Path

import pytest

from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.program_model.kernel_effects import Effects
from gpu_mcp_server.nccl.program_model.program import ProgramModel

PROGRAMS = Path(__file__).parents[1] / "programs"
INIT = "ncclComm_t comm; cudaStream_t s; void init() { ncclCommInitRank(&comm, 2, id, 0); }\n"


def graph(text: str, **more: str) -> CollectiveGraph:
    return export_graph(Analysis({"main.cu": text, **{k.replace("_", "."): v for k, v in more.items()}}, "main.cu"))


def program(name: str) -> CollectiveGraph:
    return export_graph(Analysis({name: (PROGRAMS / name).read_text(encoding="utf-8")}, name))


def flow(found: CollectiveGraph, number: int = 0) -> dict[str, tuple[str, list[str]]]:
    site = found.sites[number]
    return {b.role: (b.name, [p.partition(":")[0] for p in b.producers + b.consumers]) for b in site.buffers}


def test_a_program_of_one_gpu_a_process_is_understood():
    found = program("alltoall.cu")
    (site,) = found.sites

    assert (site.call, site.phase, site.in_place, site.stage_b.possible) == ("ncclAlltoAll", "timed", False, True)
    assert flow(found) == {"send": ("d_send", ["fill_send"]), "recv": ("d_recv", ["check_recv"])}
    assert site.loops[-1] == "for (int it = 0; it < iters; it++)"
    assert site.arguments["count"] == "count"
    assert site.buffers[0].allocated == ["cudaMalloc alltoall.cu:71 (bytes)"]
    assert site.host_waits_at is not None and "Synchronize" in site.host_waits_at
    assert found.processes == "one GPU a process"
    assert found.stages.startswith("simple")


def test_a_process_with_several_gpus_is_known_by_its_group_and_its_device_loop():
    found = program("allreduce.cu")
    (site,) = found.sites

    assert found.processes == "one process drives several GPUs"
    assert site.group is not None and site.loops[-1] == "for (int i = 0; i < nDev; i++)"
    assert flow(found) == {"send": ("sendbuff[i]", ["fill"]), "recv": ("recvbuff[i]", ["check"])}


def test_buffers_are_followed_through_a_template_helper_a_method_and_a_constructor():
    found = program("sendrecv.cu")

    assert [x.pattern for x in found.exchanges] == ["all-to-all"]
    assert flow(found) == {"send": ("send.p", ["cudaMemcpy", "scale"])} or flow(found) == {
        "send": ("send.p", ["scale", "cudaMemcpy"])
    }
    assert found.sites[0].buffers[0].allocated == ["cudaMalloc sendrecv.cu:19 (count * nranks * sizeof(int))"]
    assert found.sites[0].function == "main > worker > all2all"


def test_warm_up_and_timed_sites_are_told_apart():
    assert [s.phase for s in program("alltoall_warm.cu").sites] == ["warm-up", "timed"]


KERNELS = """
__device__ void put(float* to, float v) { *to = v; }
__device__ float get(const float* of) { return __ldg(of); }
__device__ void opaque(float* p);
__global__ void copy(float* __restrict__ out, const float* in, int n) { out[n] = in[n]; }
__global__ void backwards(const float* in, float* out) { out[0] = in[1]; }
__global__ void scale(float* x) { for (int i = 0; i < 4; i++) x[i] *= 2; }
__global__ void aliased(float* a, float* b) {
  const float4* v = reinterpret_cast<const float4*>(a) + 1; float* w = b + 3; float4 t = v[2]; w[0] = t.x; }
__global__ void atomic(int* n, const int* m) { atomicAdd(&n[m[0]], 1); }
__global__ void helped(float* a, float* b, float* c, float* d) { put(&a[1], get(b)); put(c + 1, 2.f); opaque(d); }
__global__ void untouched(float* a, float* b) { float* c = a; c++; b[0] = 1; }
__global__ void picked(float* a, float* b, bool x) { (x ? a : b)[0] = 1; float& r = a[2]; r = 3; }
struct Args { float* out; const float* in; };
__global__ void packed(Args args) { args.out[0] = args.in[0]; }
__global__ void peer(ncclWindow_t sw, ncclWindow_t rw, ncclDevComm dc) {
  float* d = (float*)ncclGetLsaPointer(rw, 0, 1); const float* s = (const float*)ncclGetLocalPointer(sw, 0); d[0] = s[0]; }
__global__ void commented(float* a) { /* a[0] = 1; */ }
"""


@pytest.mark.parametrize(
    ("kernel", "reads", "writes"),
    [
        ("copy", ["in"], ["out"]), ("backwards", ["in"], ["out"]), ("scale", ["x"], ["x"]), ("aliased", ["a"], ["b"]),
        ("atomic", ["m", "n"], ["n"]), ("helped", ["b", "d"], ["a", "c"]), ("untouched", [], ["b"]),
        ("picked", [], ["a", "b"]), ("packed", ["args"], ["args"]), ("peer", ["sw"], ["rw"]), ("commented", [], []),
    ],
)  # fmt: skip
def test_read_and_write_sets_come_from_the_kernels_body(kernel: str, reads: list[str], writes: list[str]):
    program = ProgramModel.read({"k.cu": KERNELS}, "k.cu")
    found = Effects(program).effects_of(program.kernels[kernel])

    assert sorted(n for n, a in found.items() if a.reads) == reads
    assert sorted(n for n, a in found.items() if a.writes) == writes
    assert [n for n, a in found.items() if a.is_unknown] == (["d"] if kernel == "helped" else [])
    assert [n for n, a in found.items() if a.is_peer] == (["rw"] if kernel == "peer" else [])


STEP = "__global__ void step(float* out, const float* in) { out[0] = in[0]; }\n"
REDUCE = "ncclAllReduce(a, a, 1, ncclFloat, ncclSum, comm, s);"


@pytest.mark.parametrize(
    ("body", "producers", "consumers"),
    [
        (f"step<<<1, 1, 0, s>>>(a, b); {REDUCE} step<<<1, 1, 0, s>>>(b, a);", ["step:4"], ["step:4"]),
        (f"step<<<1, 1, 0, s>>>(b, a); {REDUCE} step<<<1, 1, 0, s>>>(a, b);", [], []),
        (f"cudaMemcpy(a, h, 4, k); {REDUCE} cudaMemcpyAsync(h, a, 4, k, s);", ["cudaMemcpy:4"], ["cudaMemcpyAsync:4"]),
        (f"cudaMemset(a, 0, 4); step<<<1, 1>>>(a, b); {REDUCE}", ["step:4"], []),
        (f"cudaMemset(a, 0, 4); if (x) step<<<1, 1>>>(a, b); {REDUCE}", ["step:4", "cudaMemset:4"], []),
        (f"if (x) step<<<1, 1>>>(a, b); else {REDUCE}", [], []),
        (f"for (;;) {{ {REDUCE} step<<<1, 1>>>(a, b); }}", ["step:4 (other iteration)"], []),
        (f"float* p = a + 2; float* q = (float*)p; step<<<1, 1>>>(q, b); {REDUCE}", ["step:4"], []),
        (f"std::swap(a, b); step<<<1, 1>>>(b, h); {REDUCE}", ["step:4"], []),
        (f"void* args[] = {{&a, &b}}; cudaLaunchKernel((void*)step, 1, 1, args, 0, s); {REDUCE}", ["step:4"], []),
        (f"there<<<1, 1>>>(a); {REDUCE}", ["there:4 ?"], []),
    ],
)  # fmt: skip
def test_producers_and_consumers_follow_the_data(body: str, producers: list[str], consumers: list[str]):
    text = f"{INIT}{STEP}void run(float* h, bool x) {{ float *a, *b; cudaMalloc(&a, 8); cudaMalloc(&b, 8);\n{body} }}"
    send, receive = graph(text).sites[0].buffers

    assert (send.producers, receive.consumers) == (producers, consumers)


@pytest.mark.parametrize(
    ("setup", "argument", "name"),
    [
        ("float* a; cudaMalloc((void**)&a, 8);", "a", "a"),
        ("float* a; cudaMalloc(reinterpret_cast<void**>(&a), 8);", "(const void*)(a + 4)", "a"),
        ("float* a[2]; cudaMalloc((void**)a + 1, 8);", "a[1]", "a[1]"),
        ("std::vector<float*> a(2); for (auto& p : a) {} cudaMalloc(&a[0], 8);", "a[0]", "a[0]"),
        ("struct { float* p; } c; cudaMalloc(&c.p, 8);", "c.p", "c.p"),
        ("Ctx c; Ctx* d = &c; cudaMalloc(&d->p, 8);", "c.p", "c.p"),
        ("Ctx c; fill_in(&c);", "c.p", "c.p"),
        ("Ctx c; fill_in_by_reference(c);", "c.p", "c.p"),
        ("float* a; allocate((void**)&a, 8);", "a", "a"),
        ("float* a = make(8);", "a", "a"),
        ("float* a; a = make(8); float* b = a;", "b + 1", "a"),
        ("float* a; MALLOC(a, 8);", "a", "a"),
        ("float *a, *b = nullptr; cudaMalloc(&a, 8); b = a + 2;", "&b[1]", "a"),
    ],
)  # fmt: skip
def test_a_buffer_is_traced_to_its_allocation(setup: str, argument: str, name: str):
    text = f"""{INIT}#define MALLOC(p, n) cudaMalloc((void**)&p, n)
struct Ctx {{ float* p; }};
void fill_in(Ctx* c) {{ cudaMalloc(&c->p, 8); }}
void fill_in_by_reference(Ctx& c) {{ cudaMalloc(&c.p, 8); }}
void allocate(void** to, size_t n) {{ cudaMalloc(to, n); }}
float* make(size_t n) {{ float* p; cudaMalloc(&p, n); return p; }}
void run() {{ {setup} ncclAllReduce({argument}, {argument}, 1, ncclFloat, ncclSum, comm, s); }}"""
    send = graph(text).sites[0].buffers[0]

    assert send.name == name
    assert send.memory == "device" and len(send.allocated) == 1


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("for (int p = 0; p < n; p++) { ncclSend(a + p * c, c, t, p, comm, s); ncclRecv(b + p * c, c, t, p, comm, s); }", "all-to-all"),
        ("for (int p = 0; p < n; p++) { ncclSend(a + d[p], k[p], t, p, comm, s); ncclRecv(b + e[p], l[p], t, p, comm, s); }", "all-to-all-v"),
        ("ncclSend(a, c, t, (rank + 1) % n, comm, s); ncclRecv(b, c, t, (rank - 1 + n) % n, comm, s);", "ring"),
        ("int next = (rank + 1) % n, prev = (rank + n - 1) % n; ncclSend(a, c, t, next, comm, s); ncclRecv(b, c, t, prev, comm, s);", "ring"),
        ("ncclRecv(a, c, t, up, comm, s); ncclSend(a + 1, c, t, down, comm, s); ncclRecv(a + 2, c, t, down, comm, s); ncclSend(a + 3, c, t, up, comm, s);", "halo"),
        ("ncclSend(a, c, t, rank ^ m, comm, s); ncclRecv(b, c, t, rank ^ m, comm, s);", "hypercube"),
        ("ncclSend(a, c, t, peer, comm, s); ncclRecv(b, c, t, peer, comm, s);", "pairwise"),
        ("ncclSend(a, c, t, 0, comm, s); if (rank == 0) for (int r = 0; r < n; r++) ncclRecv(b + r * c, c, t, r, comm, s);", "gather"),
        ("ncclRecv(a, c, t, 0, comm, s); if (rank == 0) for (int r = 0; r < n; r++) ncclSend(b + r * c, c, t, r, comm, s);", "scatter"),
        ("ncclSend(a, c, t, 1, comm, s);", "point-to-point"),
    ],
)  # fmt: skip
def test_sends_and_receives_are_recognised_as_what_they_are(body: str, pattern: str):
    text = f"{INIT}void run(float* a, float* b, int rank, int n) {{ ncclGroupStart(); {body} ncclGroupEnd(); }}"

    assert [x.pattern for x in graph(text).exchanges] == [pattern]


def test_ungrouped_sends_under_a_condition_on_the_rank_are_a_ping_pong():
    text = f"""{INIT}void run(float* a, int rank) {{
    if (rank == 0) {{ ncclSend(a, 1, t, 1, comm, s); ncclRecv(a, 1, t, 1, comm, s); }}
    else {{ ncclRecv(a, 1, t, 0, comm, s); ncclSend(a, 1, t, 0, comm, s); }} }}"""

    assert [(x.pattern, x.grouped) for x in graph(text).exchanges] == [("ping-pong", False)]


@pytest.mark.parametrize(
    ("comm", "process"),
    [
        ("ncclComm_t c;", "one GPU a process"),
        ("ncclComm_t& c = all[i];", "one process drives several GPUs"),
    ],
)
def test_a_group_around_the_making_of_one_variable_makes_one_communicator(comm: str, process: str):
    loop = "for (int i = 0; i < n; i++) {{ {} ncclCommInitRank(&c, size, id, rank + i); }}"
    outside, inside = (comm, "") if "&" not in comm else ("", comm)
    found = graph(
        f"#include <nccl.h>\nint main() {{ float *a, *b; cudaMalloc(&a, 8); cudaMalloc(&b, 8); {outside} ncclGroupStart(); "
        f"{loop.format(inside)} ncclGroupEnd(); ncclAllReduce(a, b, 2, ncclFloat, ncclSum, c, s); }}"
    )

    assert found.processes == process


def test_kernels_in_another_file_are_found_by_what_is_called():
    found = graph(
        INIT + "void launch_step(float*, float*);\nvoid run() { float *a, *b; cudaMalloc(&a, 8); cudaMalloc(&b, 8);\n"
        f"launch_step(a, b); {REDUCE} }}",
        kernels_cu=STEP + "void launch_step(float* x, float* y) { step<<<1, 1>>>(x, y); }",
        unrelated_cu="void other() { ncclSend(p); }",
    )

    assert found.files == ["main.cu", "kernels.cu"]
    assert found.sites[0].buffers[0].producers == ["step:2"]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("cudaMallocManaged(&a, 8);", "managed memory cannot be registered"),
        ("cudaMallocAsync(&a, 8, s);", "memory of a pool"),
        ("cudaMallocHost(&a, 8);", "host memory"),
        ("cudaMalloc(&a, rank * 8);", "depends on the rank"),
        ("cudaMalloc(&a, 8); ncclCommWindowRegister(comm, a, 8, &w, 0);", "a window of the program's own over cudaMalloc: use"),
        ("", "its allocation is not here"),
    ],
)  # fmt: skip
def test_memory_that_cannot_be_registered_is_named_with_what_to_do(made: str, reason: str):
    (site,) = graph(f"{INIT}ncclWindow_t w; void run(int rank) {{ float* a; {made} {REDUCE} }}").sites

    assert not site.stage_a.possible and any(reason in r for r in site.stage_a.reasons)


@pytest.mark.parametrize(
    ("inits", "reason"),
    [
        ("", "the communicator is not created in these files"),
        ("ncclCommInitRank(&comm, 2, id, 0); ncclCommSplit(comm, 0, 0, &other, 0);", "ncclCommSplit"),
        ("ncclCommInitRank(&comm, 2, id, 0);\nncclCommInitRank(&other, 2, id, 0);", "2 communicators"),
    ],
)
def test_communicators_that_cannot_be_told_apart_are_the_agents(inits: str, reason: str):
    (site,) = graph(f"ncclComm_t comm, other; void run() {{ {inits} float* a; cudaMalloc(&a, 8); {REDUCE} }}").sites

    assert any(reason in r for r in site.stage_a.reasons)


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("", "there is no NCCL in these files"),
        ("this is not CUDA at all {{{ <<< ((", "there is no NCCL in these files"),
        (
            "#include <nccl.h>\nint main() { ncclComm_t c; ncclCommInitRank(&c, 1, id, 0); }",
            "no host call communicates",
        ),
        ("__global__ void k(ncclDevComm c, ncclWindow_t w) { /* TODO */ }", "NCCL is used"),
        ("// ncclDevComm\nvoid f() {}", "there is no NCCL in these files"),
        ("void f() { ncclDevCommCreate(c, &r, &d); }", "the device API is there already"),
    ],
)
def test_where_nothing_communicates_there_is_nothing_to_transform(text: str, headline: str):
    found = graph(text)

    assert found.status == "nothing to transform"
    assert found.headline.startswith("nothing to transform: ") and headline in found.headline


def test_the_summary_stays_within_400_tokens_however_many_sites_there_are():
    calls = "\n".join(
        f"ncclAllReduce(buffer_number_{n}, buffer_number_{n}, 1, t, ncclSum, comm, s);" for n in range(90)
    )
    found = graph(f"{INIT}void run() {{ {calls} }}")

    assert len(found.sites) == 90
    assert len(found.summary()) <= 1600
    assert "more sites)" in found.summary()


def test_a_program_that_calls_itself_without_end_is_cut_and_that_is_said():
    nested = "\n".join(f"void f{n}() {{ f{n + 1}(); f{n + 1}(); f{n + 1}(); f{n + 1}(); }}" for n in range(11))
    found = graph(f"{nested}\nvoid f11() {{ ncclSend(a, 1, t, 0, c, s); cudaFree(a); }}\nint main() {{ f0(); }}")

    assert len(found.sites) == 1
    assert any("left out" in n for n in found.notes)
