"""Transformed programs compile against NCCL's headers, change nothing twice, and leave the given files alone."""

import random
from pathlib import Path

import pytest

from gpu_mcp_server.models.transform import TransformResult
from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
from gpu_mcp_server.nccl.analysis.feasibility import is_hip_program
from gpu_mcp_server.nccl.analysis.graph_export import export_graph
from gpu_mcp_server.nccl.program_model.api_names import ROLES
from gpu_mcp_server.nccl.program_model.markers import blocks, frozen_text
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.stages.transformation import STAGES, transform
from gpu_mcp_server.nccl.templates import KernelApi, infrastructure, kernels
from tests.nccl.headers import compiled, homes

PROGRAMS = Path(__file__).parents[1] / "programs"
NAMES = ("alltoall.cu", "alltoall_warm.cu", "allreduce.cu", "sendrecv.cu", "threads.cu", "mpi.cu", "halo.cu")


def given(name: str) -> dict[str, str]:
    return {name: (PROGRAMS / name).read_text(encoding="utf-8")}


def written(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def host_calls(files: dict[str, str], main: str) -> list[str]:
    own = {p: t for p, t in files.items() if "ncclx" not in p}
    return [c.name for c in ProgramModel.read(own, main).calls if c.name in ROLES]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_changes_nothing_and_the_first_leaves_the_original(name: str):
    files = given(name)
    result, made = transform(files, name)
    again, more = transform(made, str(result.main))

    assert result.status == "done", result.needs_agent
    assert files == given(name) and name not in made
    assert (again.status, more, again.diff) == ("unchanged", {}, "")
    assert transform(files, name)[1] == made


@pytest.mark.parametrize("name", NAMES)
def test_stages_one_by_one_give_what_all_at_once_give(name: str):
    files, main = given(name), name
    for stage in STAGES:
        result, made = transform(files, main, stages=(stage,))
        if made:
            files, main = {**files, **made}, str(result.main)
    _, at_once = transform(given(name), name)

    assert {p: t for p, t in files.items() if p in at_once} == at_once


@pytest.mark.parametrize("name", NAMES)
def test_stage_a_keeps_the_collectives_and_stage_b_leaves_none(name: str):
    before = host_calls(given(name), name)
    a, made_a = transform(given(name), name, stages=("infrastructure",))
    b, made_b = transform(given(name), name)

    assert host_calls(made_a, str(a.main)) == before
    assert host_calls(made_b, str(b.main)) == []
    assert frozen_text(made_b[str(b.main)]) == frozen_text(made_b[str(b.main)].replace("ncclx::AllReduce(", "mine("))
    assert made_b["ncclx.cuh"] == infrastructure()


def test_what_is_made_compiles_against_the_real_headers(tmp_path: Path):
    """All programs in one translation unit, each in a namespace, as a compiler needs seconds for NCCL's headers."""
    includes: dict[str, None] = {}
    parts: list[str] = []
    for number, files in enumerate((*map(given, NAMES), {"own.cu": OWN_WINDOWS})):
        result, made = transform(files, *files)
        written(tmp_path, made)
        text = made[str(result.main)]
        includes |= dict.fromkeys(line for line in text.splitlines() if line.startswith("#include"))
        macros = [line.split()[1].partition("(")[0] for line in text.splitlines() if line.startswith("#define")]
        parts += [f'namespace n{number} {{\n#include "{result.main}"\n}}', *(f"#undef {m}" for m in macros)]
    (tmp_path / "all.cu").write_text("\n".join([*includes, *parts]) + "\nint main() { return 0; }\n", encoding="utf-8")

    assert compiled(tmp_path, "all.cu", None, "-I", str(PROGRAMS), "-O0", "-ptx") == ""


MACHINE_CODE = "-O2", "-lineinfo", "-cubin"


@pytest.mark.parametrize("api", ["lsa", "gin"])
def test_the_kernels_compile_with_every_version_at_hand(api: KernelApi, tmp_path: Path):
    """With one of them to machine code: no other test has that of every type."""
    text = '#include "ncclx.cuh"\nint main() { return ncclx::dev_init(nullptr); }'
    files = {"ncclx.cuh": infrastructure(), "ncclx_kernels.cuh": kernels(api), "t.cu": text}
    said = {str(h): compiled(written(tmp_path, files), "t.cu", h) for h in homes()[1:]}
    said[str(homes()[0])] = compiled(written(tmp_path, files), "t.cu", None, *MACHINE_CODE)

    assert said == {str(h): "" for h in homes()}


def test_the_compiler_would_have_told(tmp_path: Path):
    assert "undefined" in compiled(written(tmp_path, {"t.cu": "int main() { return nothing; }"}), "t.cu")


def test_one_process_with_several_gpus_sets_up_in_groups_and_in_its_own_loop():
    result, made = transform(given("allreduce.cu"), "allreduce.cu", stages=("infrastructure",))
    text = made[str(result.main)]

    assert (
        "  NCCLCHECK(ncclGroupStart());\n"
        "  for (int i = 0; i < nDev; i++) NCCLCHECK(ncclx::dev_init(comms[i]));\n"
        "  NCCLCHECK(ncclGroupEnd());\n"
        "  NCCLCHECK(ncclGroupStart());\n"
        "  for (int i = 0; i < nDev; i++) NCCLCHECK(ncclx::register_all(comms[i]));\n"
        "  NCCLCHECK(ncclGroupEnd());\n"
    ) in text
    assert "{ NCCLCHECK(ncclx::dev_fini(comms[i])); NCCLCHECK(ncclCommDestroy(comms[i])); }" in text


def test_check_macros_are_swapped_with_the_call_and_other_buffers_stay():
    result, made = transform(given("alltoall.cu"), "alltoall.cu", stages=("infrastructure",))
    text = made[str(result.main)]

    assert "NCCLCHECK(ncclx::mem_alloc(&d_send, bytes));" in text
    assert "CUDACHECK(cudaMalloc(&d_bad, sizeof(unsigned long long)));" in text
    assert "NCCLCHECK(ncclx::buf_free(d_send));" in text and "CUDACHECK(cudaFree(d_bad));" in text
    assert text.index("ncclx::register_all") < text.index("cudaEventRecord(start"), "set-up is not timed"
    assert text.index("ncclx::dev_fini") < text.index("ncclCommDestroy")


def test_a_loop_over_all_peers_becomes_one_call_in_a_helper_that_keeps_its_parameters():
    result, made = transform(given("sendrecv.cu"), "sendrecv.cu")

    assert "NK(ncclx::Sweep(send, recv, count, NcclType<T>::v, nranks, comm, s));" in made[str(result.main)]
    assert "explicit DevBuf(size_t bytes) : n(bytes) { NK(ncclx::mem_alloc(&p, bytes)); }" in made[str(result.main)]


def test_a_warm_up_runs_before_the_clock_and_waits():
    result, made = transform(given("alltoall.cu"), "alltoall.cu", stages=("infrastructure", "warmup"))
    text = made[str(result.main)]
    warm, wait = text.index("// ncclx warm-up"), text.index("(void)cudaStreamSynchronize(stream);")

    assert warm < wait < text.index("cudaEventRecord(start")
    assert transform(given("alltoall_warm.cu"), "alltoall_warm.cu")[0].done["warmup"] == [], "it has one"


BODY = """#include <nccl.h>
ncclComm_t comm; cudaStream_t s;
void run(int rank, int n) {{
  ncclCommInitRank(&comm, n, id, rank);
  float *a, *b;
  {}
  ncclCommDestroy(comm);
}}
"""
MALLOC = "cudaMalloc(&a, 64); cudaMalloc(&b, 64);"
REDUCE = "ncclAllReduce(a, b, 4, ncclFloat, ncclSum, comm, s);"


def made_of(body: str, **more: str) -> tuple[TransformResult, str]:
    result, made = transform({"m.cu": BODY.format(body), **more}, "m.cu")
    return result, made.get(str(result.main), "")


def test_set_up_stays_inside_a_loop_that_allocates_and_moves_out_of_one_that_does_not():
    _, inside = made_of(f"for (int i = 0; i < 3; i++) {{ {MALLOC} {REDUCE} cudaFree(a); cudaFree(b); }}")
    _, outside = made_of(f"{MALLOC} for (int i = 0; i < 3; i++) {{ if (i) {{ {REDUCE} }} }} cudaFree(a); cudaFree(b);")

    assert inside.index("for (int i") < inside.index("register_all") < inside.index("ncclx::AllReduce")
    assert outside.index("register_all") < outside.index("for (int i")


def test_errors_of_cuda_that_are_kept_stay_errors_of_cuda():
    _, text = made_of(f"cudaError_t e = cudaMalloc(&a, 64); if (cudaMalloc(&b, 64) != cudaSuccess) return; {REDUCE}")

    assert "cudaError_t e = ncclx::as_cuda(ncclx::mem_alloc(&a, 64));" in text
    assert "if (ncclx::as_cuda(ncclx::mem_alloc(&b, 64)) != cudaSuccess)" in text


def test_what_cannot_be_done_is_left_with_a_reason_and_the_rest_is_done():
    result, text = made_of(f"{MALLOC} {REDUCE} ncclPutSignal(a, 4, ncclFloat, 1, w, 0, 0, 0, 0, comm, s);")

    assert result.status == "partial"
    assert "ncclx::AllReduce(a, b" in text and "ncclPutSignal(a, 4" in text
    assert any("ncclPutSignal has no generated device counterpart" in r for r in result.needs_agent)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("cudaMallocManaged(&a, 64); cudaMalloc(&b, 64); " + REDUCE, "managed memory"),
        ("cudaMallocAsync(&a, 64, s); cudaMalloc(&b, 64); " + REDUCE, "memory of a pool"),
        ("ncclComm_t c2; ncclCommInitRank(&c2, n, id, 0); " + MALLOC + REDUCE, "2 communicators"),
        ("cudaMalloc(&a, rank * 4); cudaMalloc(&b, 64); " + REDUCE, "depends on the rank"),
        (MALLOC + "ncclSend(a, 4, ncclFloat, (rank + 1) % n, comm, s);", "the receiver's offset"),
        (MALLOC + "ncclAllReduce(a + rank * 4, b, 4, ncclFloat, ncclSum, comm, s);", "the offset depends on the rank"),
        (MALLOC + "ncclAllReduce(a, b, 4, ncclFloat, ncclAvg, comm, s);", "ncclAvg is not generated"),
        (MALLOC + "cudaStreamBeginCapture(s, m); " + REDUCE, "captures CUDA graphs"),
        (MALLOC + "auto f = ncclAllReduce; f(a, b, 4, ncclFloat, ncclSum, comm, s);", "function pointer f"),
    ],
)
def test_what_the_program_cannot_do_is_named_with_its_reason(body: str, reason: str):
    result, text = made_of(body)

    assert any(reason in r for r in result.needs_agent), result.needs_agent
    assert "ncclx::AllReduce" not in text


def test_a_receive_from_the_next_rank_comes_with_the_api_of_the_installed_version():
    text = BODY.format(MALLOC + "ncclSend(a, 4, ncclFloat, (rank + 1) % n, comm, s);")
    old, _ = transform({"m.cu": text}, "m.cu", nccl_version=(2, 28, 9))
    new, _ = transform({"m.cu": text}, "m.cu", nccl_version=(2, 32, 3))

    assert any("memset" in a for a in old.advice) and any("v2.28.9-1/examples" in a for a in old.advice)
    assert any("INITIALIZER" in a for a in new.advice) and any("v2.32.3-1/docs/examples" in a for a in new.advice)


@pytest.mark.parametrize(("version", "api", "works"), [((2, 27, 7), "lsa", False), ((2, 28, 3), "lsa", True), ((2, 28, 3), "gin", False), ((2, 28, 9), "gin", True)])  # fmt: skip
def test_an_nccl_without_the_device_api_is_refused_with_the_first_that_has_it(
    version: tuple[int, int, int], api: str, works: bool
):
    result, made = transform(given("alltoall.cu"), "alltoall.cu", api=api, nccl_version=version)  # type: ignore[arg-type]

    assert bool(made) == works
    if not works:
        assert "2.28" in result.headline and result.needs_agent


def test_for_rccl_nothing_is_generated_and_what_its_headers_tell_is_said():
    result, made = transform(given("alltoall.cu"), "alltoall.cu", nccl_version=(2, 30, 4), library="rccl")
    old, _ = transform(given("alltoall.cu"), "alltoall.cu", nccl_version=(2, 27, 7), library="rccl")
    none, _ = transform({"m.cu": "int main() {}"}, "m.cu", library="rccl")

    assert made == {} and result.status == "needs the agent" and "hipcc" in result.needs_agent[0]
    assert any("ncclLsaBarrierSession" in a for a in result.advice) and not any(
        "from 2.30.4 on" in a for a in result.advice
    )
    assert any("from 2.30.4 on" in a for a in old.advice) and none.status == "nothing to transform"


HIP = """#include <hip/hip_runtime.h>
#include <rccl/rccl.h>
__global__ void fill(float* p, float v) { p[threadIdx.x] = v; }
int main() {
  const int devices = 2;
  ncclComm_t comms[2];
  float *from[2], *to[2], host[64];
  hipStream_t streams[2];
  for (int d = 0; d < devices; d++) {
    hipSetDevice(d);
    hipMalloc(&from[d], 256);
    hipMalloc((void**)(to + d), 256);
    hipMemset(to[d], 0, 256);
    hipStreamCreate(streams + d);
    hipLaunchKernelGGL(fill, dim3(1), dim3(64), 0, streams[d], from[d], 3.0f);
  }
  ncclCommInitAll(comms, devices, nullptr);
  ncclGroupStart();
  for (int d = 0; d < devices; d++) ncclAllReduce(from[d], to[d], 64, ncclFloat, ncclSum, comms[d], streams[d]);
  ncclGroupEnd();
  for (int d = 0; d < devices; d++) hipStreamSynchronize(streams[d]);
  hipMemcpy(host, to[0], 256, hipMemcpyDeviceToHost);
}
"""


def test_a_hip_program_is_read_as_one_and_nothing_of_cuda_is_put_into_it():
    analysis = Analysis({"m.cpp": HIP}, "m.cpp")
    (site,) = export_graph(analysis).sites
    flow = {
        b.role: ([p.partition(":")[0] for p in b.producers], [c.partition(":")[0] for c in b.consumers])
        for b in site.buffers
    }
    result, made = transform({"m.cpp": HIP}, "m.cpp", nccl_version=(2, 28, 9))

    assert flow == {"send": (["fill"], []), "recv": ([], ["hipMemcpy"])}
    assert site.stage_a.reasons == [
        "a program of HIP: the generated windows and kernels are CUDA, write RCCL's by hand"
    ]
    assert made == {} and result.headline == "RCCL: nothing is generated for it, 1 sites stay"
    either = HIP.replace("#include <rccl", "#ifdef CUDA\n#include <cuda_runtime.h>\n#endif\n#include <rccl")
    assert not is_hip_program(Analysis({"m.cpp": either}, "m.cpp")), "it may be built for either"


@pytest.mark.parametrize("text", ["", "no CUDA {{{ <<<", '#include <cstdio>\nint main() { puts("ncclAllReduce(a)"); }'])
def test_where_nothing_communicates_nothing_is_transformed(text: str):
    result, made = transform({"m.cu": text}, "m.cu")

    assert (result.status, made) == ("nothing to transform", {})


def test_code_that_does_not_parse_today_is_edited_where_it_can_be_and_else_kept_byte_for_byte():
    broken = "int broken( { ;; <<<\n#ifdef A\n if (x) {\n#else\n if (y) {\n#endif\n"
    result, made = transform({"m.cu": BODY.format(f"{MALLOC} {REDUCE}") + broken}, "m.cu")

    assert made[str(result.main)].endswith(broken) and "ncclx::AllReduce(a, b" in made[str(result.main)]


def test_markers_of_the_programs_own_that_do_not_pair_stop_the_marking_alone():
    result, text = made_of(f"// EVOLVE-BLOCK-START\n {MALLOC} {REDUCE}")

    assert any(r.startswith("mark: ") and "never ended" in r for r in result.needs_agent)
    assert "ncclx::AllReduce" in text and "EVOLVE-BLOCK-END" not in text


def test_several_files_are_renamed_together_and_include_each_other():
    files = {
        "src/main.cu": '#include "lib/buf.h"\n#include "lib/comm.cuh"\n' + BODY.format("make(&a); make(&b); go(a, b, comm, s);"),
        "src/lib/buf.h": "#pragma once\ninline void make(float** p) { cudaMalloc(p, 64); }\n",
        "src/lib/comm.cuh": '#pragma once\n#include "buf.h"\n'
        "inline void go(float* a, float* b, ncclComm_t c, cudaStream_t s) { ncclAllReduce(a, b, 4, ncclFloat, ncclSum, c, s); }\n",
        "src/lib/other.h": "int other;\n",
    }  # fmt: skip
    result, made = transform(files, "src/main.cu")

    assert result.main == "src/main.device.cu"
    assert set(made) == {
        "src/main.device.cu", "src/lib/buf.device.h", "src/lib/comm.device.cuh", "src/ncclx.cuh", "src/ncclx_kernels.cuh",
    }  # fmt: skip
    assert '#include "lib/buf.device.h"' in made["src/main.device.cu"]
    assert '#include "buf.device.h"\n#include "../ncclx.cuh"' in made["src/lib/comm.device.cuh"]
    assert "ncclx::mem_alloc(p, 64)" in made["src/lib/buf.device.h"]


def test_the_generated_kernels_are_one_block_and_their_interface_is_outside_it():
    for api in ("lsa", "gin"):
        text = kernels(api)  # type: ignore[arg-type]
        assert len(blocks(text)) == 1
        assert "NCCLX_SEND_IN_WINDOW" in frozen_text(text)


@pytest.mark.parametrize(
    "call", ["ncclAllReduce(a, b);", "ncclAllReduce();", "ncclAllReduce(a, b, 4, ncclFloat, ncclSum,"]
)
def test_a_call_with_arguments_missing_is_left_alone(call: str):
    result, text = made_of(f"{MALLOC} {call}")

    assert result.status in {"needs the agent", "partial"} or "ncclx::dev_init()" not in text
    assert "dev_init()" not in text


@pytest.mark.parametrize("seed", range(3))
def test_damaged_programs_are_transformed_or_refused_and_never_twice(seed: int):
    chance = random.Random(seed)
    for name in NAMES[:4]:
        text = (PROGRAMS / name).read_text(encoding="utf-8")
        for _ in range(3):
            at = chance.randrange(len(text))
            text = chance.choice([text[:at] + text[at + 40 :], text[:at] + chance.choice("(){};<>*&") + text[at:]])
        result, made = transform({"m.cu": text}, "m.cu")
        assert not made or transform(made, str(result.main))[1] == {}


def test_a_collective_without_a_gin_kernel_is_left_and_not_called_replaced():
    result, _ = transform(given("mpi.cu"), "mpi.cu", api="gin")
    by_lsa, _ = transform(given("mpi.cu"), "mpi.cu")

    assert result.done["replace"] == [] and by_lsa.done["replace"] != []
    assert any("left to you" in r for r in result.needs_agent)


def grouped(*calls: str, before: str = "") -> tuple[TransformResult, str]:
    body = "".join(f"{c}; " for c in ("ncclGroupStart()", *calls, "ncclGroupEnd()"))
    return made_of(f"{MALLOC} {before} {body}")


SEND, RECEIVE = "ncclSend(a, 4, ncclFloat, {}, comm, s)", "ncclRecv(b, 4, ncclFloat, {}, comm, s)"


def test_a_group_of_sends_and_receives_becomes_one_exchange_with_its_arguments():
    result, text = grouped(SEND.format("(rank + 1) % n"), RECEIVE.format("(rank + n - 1) % n"))

    assert result.needs_agent == []
    assert any("have run on no GPU yet" in u for u in result.unverified)
    assert "ncclx::GroupStart();" in text and "ncclx::GroupEnd();" in text
    assert "ncclx::Send(a, 4, ncclFloat, (rank + 1) % n, comm, s)" in text
    assert text.index("EVOLVE-BLOCK-START") < text.index("ncclx::GroupStart") < text.index("EVOLVE-BLOCK-END")


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ((SEND.format("1"), RECEIVE.format("1").replace(", s)", ", t)")), "several streams"),
        ((SEND.format("1"), RECEIVE.format("1"), REDUCE.rstrip(";")), "its group also holds ncclAllReduce"),
        (("if (rank > 0) " + SEND.format("rank - 1"), "if (rank == 0) " + RECEIVE.format("1")), "every rank's"),
        ((SEND.format("1").replace("ncclFloat", "ncclFloat8e4m3"), RECEIVE.format("1")), "ncclFloat8e4m3"),
        ((SEND.format("1").replace("a,", "unknown,"), RECEIVE.format("1")), "of its group, has to stay"),
    ],
)
def test_a_group_that_not_all_ranks_may_come_to_stays_whole(calls: tuple[str, ...], reason: str):
    result, text = grouped(*calls)

    assert any(reason in r for r in result.needs_agent), result.needs_agent
    assert "ncclx::Send" not in text and "ncclx::Recv" not in text and "ncclx::Group" not in text


def test_sends_in_no_group_go_to_the_device_both_halves_or_none():
    body = f"{MALLOC} if (rank == 0) {{ {SEND.format('1')}; }} else {{ {RECEIVE.format('0')}; }} "
    result, text = made_of(body)
    assert result.needs_agent == []
    assert "ncclx::Send(a, 4, ncclFloat, 1, comm, s)" in text and "ncclx::Recv(b, 4, ncclFloat, 0, comm, s)" in text

    group = f"ncclGroupStart(); {SEND.format('rank')}; {RECEIVE.format('rank')}; ncclGroupEnd(); "
    for other, reason in (
        (group, "which of them meet cannot be told"),
        (f"{RECEIVE.format('2').replace('b,', 'unknown,')}; ", "which it may meet, has to stay"),
        (f"{SEND.format('2').replace('ncclFloat', 'ncclFloat8e4m3')}; ", "ncclFloat8e4m3"),
    ):
        result, text = made_of(body + other)
        assert any(reason in r for r in result.needs_agent), result.needs_agent
        assert "ncclx::Send(a, 4, ncclFloat, 1" not in text and "ncclx::Recv(b, 4, ncclFloat, 0" not in text


COUNTS = "ncclAllToAllv(a, sent, from, b, got, into, ncclFloat, comm, s);"
PARTS = """for (int r = 0; r < n; r++) {
  if (rank % 2 == 0) ncclSend(a + from[r], sent[r], ncclFloat, r, comm, s);
}"""


def test_an_all_to_all_of_counts_becomes_one_exchange():
    result, text = made_of(f"{MALLOC} size_t sent[2], from[2], got[2], into[2]; {COUNTS}")
    by_gin, _ = transform({"m.cu": BODY.format(f"{MALLOC} {COUNTS}")}, "m.cu", api="gin")

    assert result.needs_agent == [] and "ncclx::AlltoAllv(a, sent, from, b, got, into, ncclFloat, comm, s)" in text
    assert any("AlltoAllv" in u and "no GPU yet" in u for u in result.unverified)
    assert by_gin.done["replace"] != [] and by_gin.needs_agent == []


def test_a_gather_of_counts_by_a_group_of_broadcasts_goes_to_the_device_with_its_group():
    loop = "for (int r = 0; r < n; r++) ncclBroadcast(a, b + place[r], count[r], ncclFloat, r, comm, s);"
    result, text = made_of(f"{MALLOC} ncclGroupStart(); {loop} ncclGroupEnd();")

    assert result.needs_agent == []
    assert "ncclx::Broadcast(a, b + place[r], count[r], ncclFloat, r, comm, s)" in text
    assert "ncclGroupStart(); for" in " ".join(text.split())


def test_parts_that_only_some_ranks_have_are_left_with_the_reason():
    result, text = made_of(f"{MALLOC} ncclGroupStart(); {PARTS} ncclGroupEnd();")

    assert any("no part of its group is every rank's" in r for r in result.needs_agent), result.needs_agent
    assert "ncclx::Send" not in text


def test_by_gin_all_but_reductions_and_sends_in_no_group_go_to_the_device():
    result, made = transform(given("halo.cu"), "halo.cu", api="gin")
    alone, _ = transform(given("parity.cu"), "parity.cu", api="gin")

    assert {r.split()[1] for r in result.needs_agent if "left to you" in r} == {"ncclReduce"}
    assert {r.split()[1] for r in alone.needs_agent if "left to you" in r} == {"ncclSend", "ncclRecv"}
    text = made[str(result.main)]
    assert "ncclx::Bcast(" in text and "ncclx::GroupEnd()" in text and "ncclReduce(" in text
    assert alone.done["replace"] == []


OWN = (
    "ncclMemAlloc((void**)&a, 64); ncclMemAlloc((void**)&b, 64); ncclWindow_t v, w; "
    "ncclCommWindowRegister(comm, a, 64, &v, FLAG); ncclCommWindowRegister(comm, b, 64, &w, FLAG); "
    f"{REDUCE} ncclCommWindowDeregister(comm, v); ncclCommWindowDeregister(comm, w); ncclMemFree(a); ncclMemFree(b);"
)
OWN_WINDOWS = BODY.replace("ncclComm_t comm;", "ncclUniqueId id; ncclComm_t comm;").format(
    OWN.replace("FLAG", "NCCL_WIN_COLL_SYMMETRIC")
)


def test_a_program_with_windows_of_its_own_keeps_them_and_goes_to_the_device():
    result, text = made_of(OWN.replace("FLAG", "NCCL_WIN_COLL_SYMMETRIC"))

    assert (result.status, result.needs_agent) == ("done", [])
    assert "a keeps its own window" in result.done["infrastructure"]
    assert "ncclx::AllReduce(a, b" in text
    assert text.count("ncclx::window_register(comm") == 2 and text.count("ncclx::window_deregister(comm") == 2
    assert "mem_alloc" not in text and "buf_free" not in text and "ncclMemFree(a)" in text


def test_windows_that_a_group_registers_are_known_from_its_end_on():
    register = "ncclCommWindowRegister(comm, a, 64, &v, FLAG); ncclCommWindowRegister(comm, b, 64, &w, FLAG);"
    body = OWN.replace(register, f"ncclGroupStart(); {register} ncclGroupEnd();").replace("FLAG", "NCCL_WIN_DEFAULT")
    result, text = made_of(body)

    assert result.needs_agent == [] and "ncclx::AllReduce(a, b" in text
    assert (
        text.index("ncclGroupStart();")
        < text.index("ncclx::window_register")
        < text.index("ncclx::window_group_end();")
    )
    assert text.index("ncclx::window_group_end();") < text.index("ncclx::register_all(comm)")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("FLAG", "NCCL_WIN_GIN_ONLY", "with other flags than NCCL_WIN_COLL_SYMMETRIC"),
        ("ncclMemAlloc((void**)&a", "cudaMalloc((void**)&a", "over cudaMalloc"),
        ("ncclCommWindowRegister(comm, a, 64, &v, FLAG);", "ncclGroupStart(); ncclCommWindowRegister(comm, a, 64, &v, FLAG); end();", "a group registers"),
        ("ncclCommWindowRegister(comm, a, 64, &v, FLAG);", "if (rank == 0) ncclCommWindowRegister(comm, a, 64, &v, FLAG);", "only some ranks register"),
    ],
)  # fmt: skip
def test_windows_that_the_generated_code_cannot_use_are_left(old: str, new: str, reason: str):
    result, text = made_of(OWN.replace(old, new).replace("FLAG", "NCCL_WIN_COLL_SYMMETRIC"))

    assert any(reason in r for r in result.needs_agent), result.needs_agent
    assert "ncclx::AllReduce" not in text
