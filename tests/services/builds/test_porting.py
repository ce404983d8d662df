"""CUDA to HIP and SYCL: what converters do not see, and a converter at work where there is one."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest, ToolMissing
from gpu_mcp_server.services.builds.porting import converter_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains.porting import findings, hip_name, remaining_cuda_names
from tests.judge.harness import torch_python
from tests.laboratory import laboratory

REDUCE = """#include <cuda_runtime.h>
__global__ void reduce(const float *x, float *y) {
  float v = x[threadIdx.x];
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = v;  // wmma:: in a comment
}
extern "C" int launch(const float *x, float *y, cudaStream_t stream) {
  reduce<<<1, 256, 0, stream>>>(x, y);
  return (int)cudaGetLastError();
}
"""


def kinds(text: str, target: str = "hip") -> dict[str, int]:
    return {f.kind: f.count for f in findings({"k.cu": text}, target)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('asm volatile("mov.u32 %0, %%laneid;" : "=r"(l));', "inline PTX"),
        ("int lane = threadIdx.x & 31;", "warp size 32"),
        ("#define WARP_SIZE 32", "warp size 32"),
        ("for (int offset = 16; offset > 0; offset /= 2)", "warp size 32"),
        ("unsigned mask = __ballot_sync(0xFFFFFFFF, p);", "32-bit lane mask"),
        ("unsigned active = __activemask();", "32-bit lane mask"),
        ("wmma::fragment<wmma::matrix_a, 16, 16, 16, half> a;", "wmma"),
        ("const __grid_constant__ CUtensorMap map", "tensor memory accelerator"),
        ("__pipeline_memcpy_async(a, b, 16);", "asynchronous copy"),
        ("#if __CUDA_ARCH__ >= 800", "architecture test"),
        ("if (threadIdx.x < 32) total = partial[lane];", "warp size 32"),
        ("for (int k = 16; k; k = k >> 1) v += shuffled(v, k);", "warp size 32"),
        ("for (int step = 1; step <= 16; step *= 2)", "warp size 32"),
        ("texture<float, 2> image;", "texture or surface"),
        ("float v = tex2D<float>(image, x, y);", "texture or surface"),
        ("auto tile = cg::tiled_partition<32>(block);", "cooperative groups"),
        ("namespace cg = cooperative_groups;", "cooperative groups"),
        ("cub::BlockReduce<float, 128> r;", "libcu++ or CUB"),
        ("float total = cg::reduce(warp, sum, cg::plus<float>{});", "cooperative groups"),
        ("value += __shfl_down(value, 16);", "warp size 32"),
        ("#define THREADS_PER_WARP 32", "warp size 32"),
        ("int warps = (blockDim.x + 31) / 32;", "warp size 32"),
        ("if (laneId == 31) last[warpId] = v;", "warp size 32"),
        ("#define TX threadIdx.x\nif ((TX % 32) == 0) out[0] = v;", "warp size 32"),
        ("__cluster_dims__(2, 1, 1) cluster_dims", "thread block cluster"),
    ],
)
def test_what_means_something_else_on_amd_is_found(text, kind):
    assert kind in kinds(text)


@pytest.mark.parametrize(
    "text",
    [
        "float x = a[i & 63];",
        "// asm volatile(\n/* wmma:: */",
        "int n = 0xff;",
        "hipMalloc(&p, 32);",
        "shfl(a, 16)",
        "f<4, 32>",
    ],
)
def test_what_is_harmless_is_not(text):
    assert kinds(text) == {}


def test_places_are_lines_of_the_source():
    found = {f.kind: f.places for f in findings({"a.cu": REDUCE}, "hip")}
    assert found["warp size 32"] == ["a.cu:4", "a.cu:5"] and found["32-bit lane mask"] == ["a.cu:4"]
    assert "wmma" not in found
    many = findings({"a.cu": "if (threadIdx.x < 32) f();\n" * 30}, "hip")[0]
    assert many.count == 30 and many.places == [f"a.cu:{line}" for line in range(1, 21)]


def test_names_of_cuda_that_are_left_have_their_places():
    assert remaining_cuda_names({"k.hip": "hipMalloc(&p);\ncudaFooBar(1);\n// cudaMalloc\nCUtensorMap m;"}) == {
        "cudaFooBar": ["k.hip:2"],
        "CUtensorMap": ["k.hip:4"],
    }


def test_a_checklist_for_sycl_goes_by_construct():
    found = kinds(REDUCE, "sycl")
    assert {"kernel", "launch", "index", "warp function", "stream or event"} <= set(found)


def test_names_of_converted_files():
    assert [hip_name(p) for p in ("a/k.cu", "k.cuh", "k.cpp")] == ["a/k.hip", "k.cuh", "k.cpp"]


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_no_text_makes_the_search_raise(text):
    findings({"k.cu": text}, "hip")
    findings({"k.cu": text}, "sycl")
    remaining_cuda_names({"k.cu": text})


@pytest.fixture(scope="module")
async def lab() -> AsyncIterator[Lab]:
    python = {"judge_python": torch_python()} if torch_python() else {}
    async with laboratory(hosts={"local": python}) as lab:
        yield lab


async def test_a_host_without_a_converter_says_how_to_get_one_and_sycl_gets_its_list():
    async with laboratory() as lab:
        probe = await lab.hosts.probe("local")
        if converter_of(probe) is None:
            with pytest.raises(ToolMissing, match="hipify-clang or hipify-perl"):
                await lab.builds.porter.port({"k.cu": REDUCE})
        if not {"dpct", "c2s"} & set(probe.toolchains.tools):
            result = await lab.builds.porter.port({"k.cu": REDUCE}, target="sycl")
            assert result.converter is None and "nothing was converted" in result.summary() and result.findings
        with pytest.raises(BadRequest, match="0 C or CUDA sources"):
            await lab.builds.porter.port({"read.me": "words"})


LAUNCHES = """
if (a) k<<<1, 2, 0, s>>>(p); else k<<<1, 2>>>(p);
if (a) k<<<1, 2, 0, s>>>(p); else
k<<<1, 3>>>(p);
do t<Two<int>, 3> <<<1, 2>>>(p); while (a); else ns::t<4><<<dim3(1), 2>>>(p);
// a comment
case 3: k<<<1, 2>>>(p); done: k<<<1, 3>>>(p);{k<<<1, 2>>>(p);
p->k<<<1, 2>>>(p); fs[3]<<<1, 2>>>(p); (*f)<<<1, 2>>>(p); kt<(a > 1)><<<1, 2>>>(p);
kt<int, (A >> 1), sizeof(T) <= 4> <<<grid, cudaThreads>>>(p);
printf("k<<<%d>>>", n); a<b;x;
"""


@pytest.mark.skipif(not torch_python(), reason="torch has the converter")
def test_torchs_converter_renames_and_leaves_launches_as_they_are(tmp_path: Path):
    files = {
        "all.cu": b"#include <cuda_runtime.h>\n" + LAUNCHES.encode(),
        "alone.cu": b"void f() { k<<<cudaWarpSize(), 2>>>(p); }\n",
        "windows.cu": b"int main()\r\n{k<<<1, 2>>>(p); cudaFree(p);\r\n}\r\n// \xc3\xa9\r\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0] + '/utils')"
    utils = subprocess.run([torch_python(), "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    request: dict[str, object] = {
        "kind": "torch",
        "path": utils,
        "files": {name: name for name in files},
        "include": [],
    }
    program = f"import sys; from gpu_mcp_server.workers import hipify; hipify.main([{json.dumps(request)!r}])"
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin"}
    subprocess.run([torch_python(), "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True)

    made = {name: (tmp_path / "converted" / name).read_bytes() for name in files}
    assert LAUNCHES.encode() in made["all.cu"] and b"<hip/hip_runtime.h>" in made["all.cu"]
    assert made["alone.cu"].endswith(b'#include "hip/hip_runtime.h"\n' + files["alone.cu"])
    assert made["windows.cu"].endswith(b"int main()\n{k<<<1, 2>>>(p); hipFree(p);\n}\n// \xc3\xa9\n")


async def test_a_folder_is_converted_compiled_and_what_needs_a_hand_is_named(lab: Lab):
    probe = await lab.hosts.probe("local")
    if converter_of(probe) is None or not probe.toolchains.hip:
        pytest.skip("no converter (hipify-clang, hipify-perl, PyTorch) or no hipcc on this host")
    header = "#pragma once\n#include <cuda_runtime.h>\ninline cudaError_t check(cudaError_t e) { return e; }\n"
    files = {
        "src/reduce.cu": '#include "check.cuh"\n' + REDUCE.replace("__shfl_down_sync(0xffffffff, v, offset)", "v"),
        "src/check.cuh": header,
        "README": "words\n",
    }
    result = await lab.builds.porter.port(files, arch="gfx90a")
    assert result.files == ["src/check.cuh", "src/reduce.hip"], result.summary()
    assert [b.status for b in result.builds] == ["ok"], result.summary()
    assert not any("WARNINGS: 0" in line for line in result.converter_said), "figures are no warnings"
    assert result.left_over == {} and {f.kind for f in result.findings} == {"warp size 32"}
    text = (await lab.store.workspaces.read(result.workspace_id or "", "src/reduce.hip")).text
    assert "hipStream_t" in text and "cudaStream_t" not in text
    assert (await lab.store.workspaces.read(result.workspace_id or "", "README")).text == "words"
    assert len(result.summary()) < 8000


async def test_a_port_that_does_not_compile_says_why(lab: Lab):
    probe = await lab.hosts.probe("local")
    if converter_of(probe) is None or not probe.toolchains.hip:
        pytest.skip("no converter or no hipcc on this host")
    result = await lab.builds.porter.port(
        {"k.cu": REDUCE + '__global__ void p(int *x) { asm("mov.u32 %0, 1;" : "=r"(*x)); }\n'}
    )
    assert result.builds[0].status == "failed" and result.builds[0].diagnostics, result.summary()
    assert {"inline PTX", "32-bit lane mask", "warp size 32"} <= {f.kind for f in result.findings}


async def test_a_missing_header_hides_no_later_error(lab: Lab):
    probe = await lab.hosts.probe("local")
    if not probe.toolchains.hip:
        pytest.skip("no hipcc on this host")
    kernel = (
        '#include <hip/hip_runtime.h>\n#include <cub/cub.cuh>\n#include "own/missing.h"\n'
        "__global__ void k(float *x) { x[0] = wrong_name; }\n__global__ void l(float *x) { x[0] = also_wrong; }\n"
    )
    builds, left = await lab.builds.porter._built({"k.hip": kernel}, "gfx90a", "local")
    (found,) = builds
    said = [d.message for d in found.diagnostics]
    assert (found.status, left) == ("failed", 0) and [d.line for d in found.diagnostics] == [2, 3, 4, 5], said
    assert "cub/cub.cuh" in said[0] and "own/missing.h" in said[1] and "wrong_name" in said[2]
    assert found.note and "with empty files for cub/cub.cuh, own/missing.h it fails too" in found.note
