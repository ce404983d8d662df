"""CUDA kernels by NVRTC, and when nvcc has to do it."""

from collections.abc import AsyncIterator

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import diagnostics, nvrtc, resources
from gpu_mcp_server.toolchains.base import Toolchain
from tests.laboratory import laboratory

FOUND = Toolchain("nvrtc", "/n/libnvrtc.so.13", "13.0", ("/n",), ("sm_80", "sm_90"), builtins=("/n/b.so",))
KERNEL = """#include <cstdint>
#include <math.h>
__global__ void add(const float *a, float *b, std::int32_t n) {
  __shared__ float s[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x & 127] = a[i];
  __syncthreads();
  if (i < n) b[i] = fmaxf(s[127 - (threadIdx.x & 127)], -INFINITY) * (float)M_PI;
}
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (KERNEL, True),
        ("#include <cuda_fp16.h>\n#include <mma.h>\n__global__ void k(__half *x) {}", True),
        ('__global__ void k() { printf("main( <<<"); } // cudaMalloc(', True),
        ("__global__ void k() {}\nint main() { k<<<1, 1>>>(); }", False),
        ('__global__ void k() {}\nextern "C" int launch(float *x) { return 0; }', False),
        ("#include <vector>\n__global__ void k() {}", False),
        ("__global__ void k(cudaTextureObject_t t) {}", False),
        ("__device__ int f() { return 1; }", False),
    ],
)
def test_sources_without_host_code_are_recognised(source, expected):
    assert nvrtc.device_only(source) is expected


def test_textures_and_headers_keep_what_minimal_leaves_out():
    assert "-minimal" in nvrtc.plan("__global__ void k() {}", FOUND, "sm_90").argv
    assert "-minimal" not in nvrtc.plan("#include <mma.h>\n__global__ void k() {}", FOUND, "sm_90").argv


def test_flags_of_nvcc_are_those_of_nvrtc_and_the_rest_is_refused_as_by_nvcc():
    argv = nvrtc.plan("", FOUND, "sm_90a", ["--use_fast_math", "-Xptxas", "-warn-spills", "-O3", "-lcublas"]).argv
    assert "--use_fast_math" in argv and "--ptxas-options=-warn-spills" in argv
    assert not {"-O3", "-lcublas"} & set(argv)
    with pytest.raises(BadRequest):
        nvrtc.plan("", FOUND, "sm_90", ["--pch-dir=/x"])
    with pytest.raises(BadRequest, match="Known are sm_80, sm_90"):
        nvrtc.plan("", FOUND, "native")


def test_the_log_of_nvrtc_is_understood():
    log = (
        "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'add' for 'sm_90'\n"
        "ptxas info    : Function properties for add\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 10 registers, used 0 barriers, 512 bytes smem\nptxas info    : Compile time = 4.839 ms\n\n"
        "File name, phase name, metric, unit\nk.cu, CUDA C++ Frontend, 4, ms\nk.cu, PTX Translation, 6.5, ms\n"
    )
    (kernel,) = resources.parse(log)
    assert (kernel.registers_per_thread, kernel.shared_bytes, kernel.stack_bytes) == (10, 512, 8)
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (4, 12)
    assert nvrtc.phases_ms(log) == {"CUDA C++ Frontend": 4.0, "PTX Translation": 6.5}
    assert diagnostics.parse(log) == []


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        if (await lab.hosts.probe("local")).toolchains.nvrtc is None:
            pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
        yield lab


async def compiled(lab: Lab, source: str, **wish: object):
    return await lab.builds.compiler.compile(
        CandidateSource(source, "cuda", "k.cu"),
        BuildOptions.model_validate({"library": False, "arch": "sm_90", **wish}),
    )


async def test_kernels_alone_become_a_cubin_with_resources_ptx_and_phases(lab: Lab):
    result = await compiled(lab, KERNEL)
    assert result.status == "ok" and result.compiler.startswith("nvrtc "), result.summary()
    assert result.resources[0].kernel == "add(float const*, float*, int)" and result.resources[0].shared_bytes == 512
    assert (await lab.store.artifacts.read(result.artifact_id or ""))[:4] == b"\x7fELF"
    assert b".visible .entry _Z3addPKfPfi" in await lab.store.artifacts.read(result.listing_artifact_id or "")
    assert set(result.phases_ms) == {"CUDA C++ Frontend", "NVVM Optimizer", "PTX Translation"}
    assert (await compiled(lab, KERNEL)).cached


async def test_errors_of_both_stages_are_at_their_line_of_the_source(lab: Lab):
    front = await compiled(lab, KERNEL.replace("fmaxf(s", "fmaxf(t"))
    assert (front.status, front.diagnostics[0].line) == ("failed", 8)
    assert front.compiler.startswith("nvrtc ") and 'identifier "t" is undefined' in front.diagnostics[0].message
    ptxas = await compiled(
        lab, '__global__ void k(int *x) {\n  int r;\n  asm("nosuch.s32 %0;" : "=r"(r));\n  x[0] = r;\n}'
    )
    assert (ptxas.diagnostics[0].file, ptxas.diagnostics[0].line) == ("k.cu", 3), ptxas.summary()


async def test_what_ptxas_says_behind_its_figures_is_the_first_cause(lab: Lab):
    source = "__global__ void k(float *x) { __shared__ float s[20000]; s[threadIdx.x] = x[0]; x[0] = s[3]; }"
    result = await compiled(lab, source)
    assert (result.status, result.stage) == ("failed", "ptxas") and result.compiler.startswith("nvrtc ")
    assert "uses too much shared data (0x13880 bytes, 0xc000 max)" in result.diagnostics[0].message, result.summary()
    assert "extern __shared__" in (result.diagnostics[0].hint or "")
    assert "at ptxas in" in result.summary() or "at ptxas (" in result.summary()


async def test_what_is_beyond_nvrtc_goes_to_nvcc_unless_nvrtc_was_asked_for(lab: Lab):
    source = "__global__ void k(int *x) { x[0] = 1; }\nint on_host(int x) { return x; }\n"
    forced = await compiled(lab, source, compiler="nvrtc")
    assert (forced.status, forced.compiler.split()[0]) == ("failed", "nvrtc")
    if (await lab.hosts.probe("local")).nvcc is None:
        pytest.skip("nvcc is not installed")
    assert (await compiled(lab, source)).compiler.startswith("nvcc ")
    assert (await compiled(lab, KERNEL, compiler="nvcc")).compiler.startswith("nvcc ")
    assert (await lab.builds.compiler.build(CandidateSource(KERNEL, "cuda", "k.cu"), host="local")).compiler.startswith(
        "nvcc "
    )


async def test_a_compiler_that_crashes_or_eats_memory_is_a_result(lab: Lab):
    bomb = "template <int N> struct T { T<N - 1> a; T<N - 2> b; };\n__global__ void k() { T<1000000> t; }"
    result = await compiled(lab, bomb)
    assert result.status in ("failed", "timeout", "oom") and (result.diagnostics or result.note), result.summary()
    assert (await compiled(lab, KERNEL)).status == "ok"
