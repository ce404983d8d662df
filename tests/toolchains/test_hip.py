"""HIP: what hipcc 5.2 (clang 15) and clang 19 said, and what they make of sources here."""

import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.toolchains import Toolchains
from gpu_mcp_server.services.builds.build_plans import build_of
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import diagnostics, hip, hiprtc, resources
from gpu_mcp_server.toolchains.base import Toolchain
from gpu_mcp_server.toolchains.object_files import MACHINE_AMD, machine_of
from gpu_mcp_server.workers.hip_clang import isa_version

DATA = Path(__file__).parent / "data" / "hip"
OLD = Toolchain("hipcc", "/usr/bin/hipcc", "5.2", archs=("gfx90a", "gfx1030"))
NEW = Toolchain(
    "clang++-19", "/usr/bin/clang++-19", "19.1", archs=("gfx90a", "gfx942"), device_libs="/d", libraries="/l"
)
needs_hipcc = pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed (make system)")


def said(name: str) -> str:
    return (DATA / f"{name}.stderr").read_text(encoding="utf-8")


@pytest.mark.parametrize("clang", ["clang15", "clang19"])
def test_each_error_of_a_source_comes_with_its_line_and_text(clang):
    found = diagnostics.parse(said(f"broken_{clang}"))
    assert [(d.severity, d.line) for d in found] == [("error", 4), ("error", 6), ("error", 9), ("error", 2)]
    assert found[2].context == [
        "__global__ void second(float* x) { x[0] = on_host(3); }",
        "note: candidate function not viable: call to __host__ function from __global__ function (broken.hip:8)",
    ]
    assert "instantiation of template class 'Tile<100>' requested here (broken.hip:10)" in found[3].context[-1]


@pytest.mark.parametrize("clang", ["clang15", "clang19"])
def test_registers_spills_and_lds_come_from_the_remarks_and_are_no_messages(clang):
    assert diagnostics.parse(said(f"spilled_{clang}")) == []
    spilled, plain = resources.parse_amd(said(f"spilled_{clang}"), "gfx90a")
    assert (spilled.kernel, spilled.registers_per_thread) == ("spilled(float const*, float*)", 64)
    assert (spilled.spilled_registers or 0) > 100 and spilled.stack_bytes > 500
    assert (plain.shared_bytes, plain.spilled_registers, plain.stack_bytes) == (1024, 0, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unlinked_clang15", "undefined hidden symbol: elsewhere(float)"),
        ("unlinked_clang19", "undefined hidden symbol: elsewhere(float)"),
        ("badflag_clang15", "unsupported option '--nosuchflag'"),
    ],
)
def test_what_linker_and_driver_say_is_one_message(name, message):
    (found,) = diagnostics.parse(said(name))
    assert (found.severity, found.message) == ("error", message)


def test_missing_device_libraries_are_hinted_at():
    found = diagnostics.parse(said("nogpulib_clang19"))
    assert len(found) == 5 and "rocm-device-libs" in (found[0].hint or "")


def test_a_forgotten_header_is_hinted_at():
    (found,) = diagnostics.parse("k.hip:2:11: error: use of undeclared identifier 'blockIdx'\n")
    assert found.hint == "Add #include <hip/hip_runtime.h>."


def test_the_first_compiler_that_knows_the_architecture_is_taken():
    assert hip.choose([OLD, NEW], "gfx90a:xnack-").name == "hipcc"
    assert hip.choose([OLD, NEW], "gfx942").name == "clang++-19"


@pytest.mark.parametrize("arch", ["native", "gfx777", "sm_90", "", "gfx90a -o x", "gfx90a:nope+"])
def test_an_unknown_architecture_is_refused_with_the_known_ones_of_each_compiler(arch):
    with pytest.raises(BadRequest, match=r"hipcc 5\.2: gfx90a, gfx1030; clang\+\+-19 19\.1: gfx90a, gfx942"):
        hip.choose([OLD, NEW], arch)


@pytest.mark.parametrize("flag", ["--offload-arch=gfx90a", "-Xclang", "-o", "@file", "-fplugin=x", "-mllvm"])
def test_flags_that_reach_past_the_source_are_refused(flag):
    with pytest.raises(BadRequest):
        hip.plan("", OLD, "gfx90a", [flag, "x"])


def test_the_plan_does_not_let_hipcc_become_nvcc():
    plan = hip.plan("", OLD, "gfx90a", ["-O2", "-munsafe-fp-atomics"])
    assert plan.env["HIP_PLATFORM"] == "amd" and "-O3" not in plan.argv and "-munsafe-fp-atomics" in plan.argv


@pytest.mark.parametrize(
    ("processor", "number"), [("gfx90a", 9010), ("gfx942", 9402), ("gfx1030", 10300), ("gfx803", 8003)]
)
def test_the_processors_number_is_that_of_the_device_libraries(processor, number):
    assert isa_version(processor) == number


def test_a_host_without_a_compiler_says_how_to_get_one():
    with pytest.raises(ToolMissing, match="apt-get install hipcc"):
        build_of(CandidateSource("", "hip", "k.hip"), Bare(), "box", BuildOptions())
    with pytest.raises(ToolMissing, match=r"Triton is not.*judge_python"):
        build_of(CandidateSource("", "triton", "k.py"), Bare(), "box", BuildOptions())


class Bare:
    """A probe that found nothing."""

    gpus: tuple[()] = ()
    toolchains = Toolchains()

    def model_dump(self) -> dict[str, object]:
        return {}


@needs_hipcc
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1030", "gfx1100"])
async def test_a_library_is_built_for_each_generation(lab: Lab, arch: str):
    known = {a for c in (await lab.hosts.probe("local")).toolchains.hip for a in c.archs}
    if arch not in known:
        pytest.skip(f"no compiler here knows {arch}")
    result = await lab.builds.compiler.compile(
        CandidateSource((DATA / "spilled.hip").read_text(), "hip", "spilled.hip"), BuildOptions(arch=arch)
    )
    assert result.status == "ok", result.summary()
    assert [(k.kernel, k.arch) for k in result.resources] == [
        ("spilled(float const*, float*)", arch),
        ("plain(float*)", arch),
    ]
    assert (await lab.store.artifacts.read(result.artifact_id or ""))[:4] == b"\x7fELF"


@needs_hipcc
async def test_errors_are_a_result_and_kept(lab: Lab):
    source = CandidateSource((DATA / "broken.hip").read_text(), "hip", "broken.hip")
    first, second = await lab.builds.compiler.compile(source), await lab.builds.compiler.compile(source)
    assert (first.status, second.cached) == ("failed", True)
    assert [d.line for d in second.diagnostics] == [4, 6, 9, 2]


@needs_hipcc
async def test_a_named_compiler_is_used_and_an_unknown_one_lists_what_there_is(lab: Lab):
    source = CandidateSource("int launch(void) { return 0; }", "c", "a.c")
    if "clang" in (await lab.hosts.probe("local")).compilers:
        assert (await lab.builds.compiler.compile(source, BuildOptions(compiler="clang"))).compiler.startswith("clang ")
    with pytest.raises(BadRequest, match="There are gcc"):
        await lab.builds.compiler.compile(source, BuildOptions(compiler="tcc"))


KERNEL = """#include <hip/hip_runtime.h>
#include <cstdint>
#include <math.h>
#include <cfloat>
__global__ void turn(const float *a, float *b, int32_t n) {
  __shared__ float s[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x & 127] = a[i];
  __syncthreads();
  if (i < n) b[i] = fmaxf(s[127 - (threadIdx.x & 127)], -INFINITY) * FLT_MAX;
}
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (KERNEL, True),
        ("#include <hip/hip_fp16.h>\n__global__ void k(__half *x) {}", True),
        ("__global__ void k() {}\nint main() { k<<<1, 1>>>(); }", False),
        ("__global__ void k() {}\nvoid f(void *p) { hipFree(p); }", False),
        ("#include <vector>\n__global__ void k() {}", False),
        ('#include "mine.h"\n__global__ void k() {}', False),
        ("__device__ int f() { return 1; }", False),
    ],
)
def test_sources_for_hiprtc_are_recognised(source, expected):
    assert hiprtc.device_only(source) is expected


@pytest.fixture
async def quick(lab: Lab) -> Lab:
    found = (await lab.hosts.probe("local")).toolchains.hiprtc
    if found is None or "gfx90a" not in found.archs:
        pytest.skip("HIPRTC is not installed (apt-get install libamdhip64-5)")
    return lab


async def test_kernels_alone_become_a_code_object_by_hiprtc(quick: Lab):
    source = CandidateSource(KERNEL, "hip", "turn.hip")
    result = await quick.builds.compiler.compile(source, BuildOptions(arch="gfx90a", library=False))
    assert result.status == "ok" and result.compiler.startswith("hiprtc "), result.summary()
    (kernel,) = result.resources
    assert kernel.kernel == "turn(float const*, float*, int)" and kernel.shared_bytes == 512
    assert kernel.registers_per_thread and kernel.arch == "gfx90a"
    assert machine_of(await quick.store.artifacts.read(result.artifact_id or "")) == MACHINE_AMD
    assert (await quick.builds.compiler.compile(source, BuildOptions(arch="gfx90a", library=False))).cached
    if "llvm-objdump" in (await quick.hosts.probe("local")).toolchains.tools:
        listing = await quick.builds.inspector.inspect(result.attempt_id or "")
        assert "global_load_dword" in listing.text, listing.summary()


async def test_hiprtcs_errors_are_at_the_sources_own_name_and_line(quick: Lab):
    broken = KERNEL.replace("fmaxf(s", "fmaxf(t")
    result = await quick.builds.compiler.compile(
        CandidateSource(broken, "hip", "turn.hip"), BuildOptions(arch="gfx90a", library=False)
    )
    assert (result.status, result.compiler.split()[0]) == ("failed", "hiprtc")
    assert (result.diagnostics[0].file, result.diagnostics[0].line) == ("turn.hip", 10), result.summary()
    with pytest.raises(BadRequest, match="not allowed"):
        await quick.builds.compiler.compile(
            CandidateSource(KERNEL, "hip", "k.hip"), BuildOptions(flags=("-nosuch",), library=False)
        )


@needs_hipcc
async def test_what_is_beyond_hiprtc_goes_to_hipcc(quick: Lab):
    host = CandidateSource(KERNEL + "int f() { return 1; }\nsize_t other(uint128_t x);\n", "hip", "k.hip")
    result = await quick.builds.compiler.compile(host, BuildOptions(arch="gfx90a", library=False))
    assert result.compiler.startswith("hipcc "), result.summary()
    probe, kernel = await quick.hosts.probe("local"), CandidateSource(KERNEL, "hip", "k.hip")
    assert build_of(kernel, probe, "local", BuildOptions(arch="gfx90a")).toolchain.name == "hipcc", (
        "a library is asked for"
    )
    if any("gfx942" in c.archs for c in probe.toolchains.hip):
        assert build_of(kernel, probe, "local", BuildOptions(arch="gfx942", library=False)).toolchain.name.startswith(
            "clang"
        )
