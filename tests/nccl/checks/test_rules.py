from pathlib import Path

import pytest

from gpu_mcp_server.models.transform import Api
from gpu_mcp_server.nccl.checks import rules
from gpu_mcp_server.nccl.checks.findings import Finding
from gpu_mcp_server.nccl.program_model.program import ProgramModel
from gpu_mcp_server.nccl.stages.transformation import transform

HERE = Path(__file__).parents[1]
FAULTS = sorted((HERE / "faults").glob("*.cu"))
CLEAN = sorted((HERE / "clean").glob("*.cu"))
EXCHANGE = (HERE / "clean" / "exchange.cu").read_text(encoding="utf-8")
PROGRAMS = sorted((HERE / "programs").glob("*.cu"))
HOST = """
#include <nccl.h>
int main() {
  for (int i = 0; i < 20; i++) ncclAlltoAll(from, to, count, ncclFloat, comm, stream);
  ncclAllReduce(from, from, n, ncclFloat, ncclSum, comm, stream);
}
"""


def found(text: str, **more: object) -> list[Finding]:
    return rules.findings(ProgramModel.read({"main.cu": text}, "main.cu"), **more)  # type: ignore[arg-type]


def broken(findings: list[Finding]) -> set[str]:
    return {f.rule for f in findings if f.severity == "error"}


def test_there_are_at_least_sixteen_planted_faults():
    assert len(FAULTS) >= 16


@pytest.mark.parametrize("path", FAULTS, ids=lambda p: p.stem)
def test_a_planted_fault_is_caught_by_the_rule_that_is_for_it(path: Path):
    text = path.read_text(encoding="utf-8")
    wanted = set(text.partition("\n")[0].partition("fault: ")[2].split(", "))

    assert broken(found(text)) == wanted


@pytest.mark.parametrize("path", CLEAN, ids=lambda p: p.stem)
def test_a_clean_program_raises_no_alarm(path: Path):
    assert broken(found(path.read_text(encoding="utf-8"))) == set()


def test_each_rule_says_what_it_looked_at_or_what_it_found():
    program = ProgramModel.read({"main.cu": EXCHANGE}, "main.cu")
    checks = rules.checks(program, rules.findings(program), compared=False, frozen=False)

    assert {c.name: c.status for c in checks} == {
        **dict.fromkeys([c.name for c in checks], "passed"),
        "frozen text": "skipped",
    }
    assert {c.name: c.evidence for c in checks}["barriers"] == "exchange"


def test_text_between_markers_may_change_and_all_else_may_not():
    inside = EXCHANGE.replace("there[i] = own[peer * count + i]", "there[i] = __ldg(own + peer * count + i)")
    outside = EXCHANGE.replace("got[i] != (float)i", "false")

    assert broken(found(inside, before={"main.cu": EXCHANGE})) == set()
    changed = [f for f in found(outside, before={"main.cu": EXCHANGE}) if f.severity == "error"]
    assert [f.rule for f in changed] == ["frozen text"]
    assert outside.split("\n")[changed[0].line - 1].count("if (false)") == 1


def test_a_file_that_vanished_is_a_change_of_frozen_text():
    assert "the file is gone" in found(EXCHANGE, before={"main.cu": EXCHANGE, "ncclx.cuh": ""})[0].text


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (("ncclAlltoAll(from, to,", "ncclx::AlltoAll(from, to,"), False),
        (("ncclAllReduce(from, from, n,", "ncclx::AllReduce(from, from, n / 2,"), True),
        (("ncclAllReduce(from, from, n, ncclFloat, ncclSum, comm, stream);", ""), True),
        (("ncclAlltoAll(from, to,", "ncclAlltoAll(to, from,"), True),
    ],
    ids=["replaced", "half the count", "removed", "exchanged"],
)
def test_communication_is_compared_with_the_original(change: tuple[str, str], caught: bool):
    original = ProgramModel.read({"main.cu": HOST}, "main.cu")

    assert broken(found(HOST.replace(*change), original=original)) == ({"collectives"} if caught else set())


@pytest.mark.parametrize(("header", "caught"), [((2, 28, 9), False), ((2, 29, 2), True), ((2, 27, 7), True)])
def test_requirements_are_held_against_the_version_of_the_header(header: tuple[int, int, int], caught: bool):
    old = EXCHANGE.replace("ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;", "").replace(
        "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER", "NEVER"
    )

    assert broken(found(old, header=header)) == ({"requirements"} if caught else set())


def test_a_launch_by_each_spelling_is_held_against_the_barrier_count():
    chevrons = "exchange<<<CTAS, 512, 0, stream>>>(devComm, fromWindow, toWindow, count);"
    library = """void* args[] = {&devComm, &fromWindow, &toWindow, &count};
    OK(cudaLaunchKernel((const void*)exchange, dim3(4 * CTAS), dim3(512), args, 0, stream));"""

    assert broken(found(EXCHANGE.replace(chevrons, library))) == {"barrier count"}


@pytest.mark.parametrize(
    "printed",
    [
        'printf("%s\\n", wrong ? "FAIL" : "PASS");',
        'if (wrong == 0) puts("PASS");',
        'std::cout << (wrong ? "FAIL" : "PASS");',
        'if (rank == 0 && !wrong) printf("Verification: PASS\\n");',
    ],
)
def test_success_that_depends_on_the_data_raises_no_alarm(printed: str):
    a, b = EXCHANGE.index("  if (wrong) {"), EXCHANGE.index("  return 0;\n}")

    assert broken(found(EXCHANGE[:a] + printed + EXCHANGE[b:])) == set()


def transformed(path: Path, api: Api = "lsa") -> tuple[dict[str, str], str]:
    files = {p.name: p.read_text(encoding="utf-8") for p in path.parent.iterdir() if p.is_file()}
    result, made = transform(files, path.name, nccl_version=(2, 28, 9), api=api)
    return {**files, **made}, result.main or path.name


@pytest.mark.parametrize("api", ["lsa", "gin"])
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_what_the_transformation_makes_raises_no_alarm(path: Path, api: Api):
    files, main = transformed(path, api)
    original = ProgramModel.read(files, path.name)

    assert broken(rules.findings(ProgramModel.read(files, main), original=original, header=(2, 28, 9))) == set()


BARRIER = "bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);"


@pytest.mark.parametrize(
    ("file", "old", "new", "caught"),
    [
        ("ncclx_kernels.cuh", BARRIER, "", "barriers"),
        ("ncclx_kernels.cuh", BARRIER, f"if (dc.lsaRank) {BARRIER}", "divergence"),
        ("ncclx_kernels.cuh", BARRIER, BARRIER.replace("acq_rel", "relaxed"), "orders"),
        ("ncclx_kernels.cuh", "wanted.lsaBarrierCount = NCCLX_CTAS", "wanted.lsaBarrierCount = 8", "barrier count"),
        ("ncclx.cuh", "NCCL_WIN_COLL_SYMMETRIC", "NCCL_WIN_DEFAULT", "frozen text"),
    ],
    ids=["barrier gone", "barrier of some ranks", "relaxed", "too few barriers", "infrastructure changed"],
)
def test_a_fault_in_generated_code_is_caught(file: str, old: str, new: str, caught: str):
    files, main = transformed(next(p for p in PROGRAMS if "ncclAllReduce" in p.read_text(encoding="utf-8")))
    assert old in files[file]

    assert caught in broken(rules.findings(ProgramModel.read({**files, file: files[file].replace(old, new, 1)}, main)))


ONE_WARP = """__syncthreads();
  cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_system);
  if (threadIdx.x < 32) {
    ncclCoopWarpSpan one{0, 1, 0};
    ncclLsaBarrierSession<ncclCoopWarpSpan> last(one, devComm, ncclTeamLsa(devComm), devComm.lsaBarrier, blockIdx.x);
    last.arrive(one, cuda::memory_order_relaxed);
    last.wait(one, cuda::memory_order_acquire);
  }
  __syncthreads();
}
// EVOLVE-BLOCK-END"""
POLLED = """volatile int* flag = (volatile int*)to;
  while (*flag != 1) {}
}
// EVOLVE-BLOCK-END"""
LAST = f"{BARRIER}\n}}\n// EVOLVE-BLOCK-END"


@pytest.mark.parametrize("protocol", [ONE_WARP, POLLED], ids=["one warp behind a fence", "a flag that is polled"])
def test_a_protocol_of_the_kernels_own_is_not_understood_instead_of_wrong(protocol: str):
    assert LAST in EXCHANGE
    findings = found(EXCHANGE.replace(LAST, protocol))

    assert broken(findings) == set()
    assert any(f.text.startswith("not understood: ") for f in findings)
    assert not any("it hangs" in f.text for f in findings)


def test_a_communicator_in_device_memory_is_not_understood_and_one_of_the_host_is_wrong():
    by_pointer = EXCHANGE.replace("exchange(ncclDevComm devComm,", "exchange(const ncclDevComm* devComm,")
    device = by_pointer.replace(">>>(devComm,", ">>>(onDevice,")

    assert broken(found(device)) == set()
    assert broken(found(by_pointer.replace(">>>(devComm,", ">>>(&devComm,"))) == {"requirements"}


def test_a_wait_in_a_callee_is_a_wait():
    inside = "int finish(cudaStream_t s) { return cudaStreamSynchronize(s); }\nint run("
    program = EXCHANGE.replace("int run(", inside, 1).replace("OK(cudaStreamSynchronize(stream))", "OK(finish(stream))")
    program = program.replace("OK(cudaMemcpy(&wrong", "OK(later(&wrong")

    assert broken(found(program)) == set()
    assert broken(found(program.replace("return cudaStreamSynchronize(s)", "return 0"))) == {"pairs"}


def test_usage_that_speaks_of_passing_an_argument_is_no_success():
    said = 'void usage() { printf("  --stream   Pass nullptr for the default\\n"); }\nint run('

    assert broken(found(EXCHANGE.replace("int run(", said, 1))) == set()


def test_a_success_that_the_original_prints_too_is_a_note_and_one_that_was_put_in_an_error():
    program, original = (
        ProgramModel.read(
            {"main.cu": EXCHANGE.replace("int run(", 'void end() { puts("Success"); }\nint run(', 1)}, "main.cu"
        )
        for _ in range(2)
    )

    assert broken(rules.findings(program)) == {"verification text"}
    assert broken(rules.findings(program, original=original)) == set()
    plain = ProgramModel.read({"main.cu": EXCHANGE}, "main.cu")
    assert broken(rules.findings(program, original=plain)) == {"verification text"}


def test_a_group_that_another_function_ends_is_not_understood_and_one_that_none_ends_is_wrong():
    begin = "int begin() { return ncclGroupStart(); }\n"
    end = "int end() { return ncclGroupEnd(); }\n"

    assert broken(found(EXCHANGE.replace("int run(", f"{begin}{end}int run(", 1))) == set()
    assert broken(found(EXCHANGE.replace("int run(", f"{begin}int run(", 1))) == {"pairs"}


def test_a_window_without_the_flag_is_only_wrong_where_a_kernel_has_a_pointer_into_it():
    library = """#include <nccl.h>
__global__ void fill(float* p) { p[0] = 1; }
int main() {
  ncclWindow_t w; float* p; ncclComm_t comm;
  ncclMemAlloc((void**)&p, 4096);
  ncclCommWindowRegister(comm, p, 4096, &w, NCCL_WIN_DEFAULT);
  ncclCommWindowDeregister(comm, w);
  ncclMemFree(p);
  ncclCommDestroy(comm);
}
"""
    used = library.replace("p[0] = 1;", "((float*)ncclGetLocalPointer(w, 0))[0] = 1;").replace(
        "(float* p)", "(ncclWindow_t w)"
    )

    assert "windows" not in broken(found(library))
    assert "windows" in broken(found(used))


def test_the_collectives_of_another_spelling_are_the_originals_own():
    before = "void run() { pncclAllReduce(a, b, 4, ncclFloat, ncclSum, comm, s); ncclAllToAll(a, b, 4, ncclFloat, comm, s); }"
    after = before.replace("pncclAllReduce", "ncclx::AllReduce").replace("ncclAllToAll", "ncclx::AlltoAll")
    original, program = (ProgramModel.read({"m.cu": t}, "m.cu") for t in (before, after))

    assert broken(rules.findings(program, original=original)) == set()
    assert "collectives" in broken(
        rules.findings(ProgramModel.read({"m.cu": after.replace("4,", "5,", 1)}, "m.cu"), original=original)
    )


def test_requirements_that_a_caller_made_are_not_judged():
    given = found(
        "ncclResult_t make(ncclComm_t c, const R* reqs, ncclDevComm* made) { return ncclDevCommCreate(c, reqs, made); }"
    )

    assert [(f.severity, f.rule) for f in given if "comes from a caller" in f.text] == [("note", "requirements")]
    assert "requirements" not in broken(given)
