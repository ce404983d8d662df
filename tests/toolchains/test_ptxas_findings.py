"""Information of ptxas reaches the caller as warnings: real compiles by nvcc and NVRTC, and junk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import resources
from gpu_mcp_server.toolchains.kernel_places import with_places
from gpu_mcp_server.toolchains.ptxas_findings import performance_warnings

DATA = Path(__file__).parent / "data" / "cuda"
SERIALIZED = (DATA / "serialized.cu").read_text(encoding="utf-8")
LOCAL_ARRAY = (DATA / "local_array.cu").read_text(encoding="utf-8")
LAUNCHER = """
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
    accumulate<<<1, 128, 0, stream>>>(y, 0, 0, n);
    return cudaGetLastError();
}
"""


async def compiled(lab: Lab, text: str, arch: str, compiler: str):
    probe = await lab.hosts.probe("local")
    if not (probe.nvcc if compiler == "nvcc" else probe.toolchains.nvrtc):
        pytest.skip(f"{compiler} is not here")
    wish = BuildOptions(arch=arch, compiler=compiler, library=False)
    return await lab.builds.compiler.compile(CandidateSource(text, "cuda", "kernel.cu"), wish)


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
async def test_serialized_wgmma_is_a_warning_with_code_line_and_advice(lab: Lab, compiler: str):
    text = SERIALIZED + LAUNCHER if compiler == "nvcc" else SERIALIZED
    result = await compiled(lab, text, "sm_90a", compiler)
    assert result.status == "ok", result.summary()
    (found,) = [d for d in result.diagnostics if "serialized" in d.message]
    assert (found.severity, found.file) == ("warning", "kernel.cu")
    assert found.code and found.code.startswith("C75") and "accumulate(float*" in found.message
    assert found.line and "wgmma" in "".join(text.splitlines()[found.line - 3 : found.line + 2])
    assert found.hint and "wgmma.wait_group" in found.hint


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
async def test_a_local_array_and_much_static_shared_memory_are_warnings_with_their_lines(lab: Lab, compiler: str):
    result = await compiled(lab, LOCAL_ARRAY, "sm_100a", compiler)
    assert result.status == "ok", result.summary()
    by_code = {d.code: d for d in result.diagnostics}
    array, shared = by_code["stack frame"], by_code["static shared memory"]
    assert "256 bytes" in array.message and array.line == 4 and array.hint
    assert "65536 bytes" in shared.message and shared.line in range(10, 16) and shared.hint


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
async def test_static_shared_memory_that_the_target_has_not_is_an_error(lab: Lab, compiler: str):
    result = await compiled(lab, LOCAL_ARRAY, "sm_90", compiler)
    assert (result.status, result.stage) == ("failed", "ptxas"), result.summary()
    assert "uses too much shared data" in result.diagnostics[0].message and result.diagnostics[0].hint
    assert not [d for d in result.diagnostics if d.code == "static shared memory"]


def test_spills_are_told_once_and_found_whatever_ptxas_is_called():
    lines = (
        "ptxas-blackwell info    : Compiling entry function 'k' for 'sm_90a'",
        "ptxas-blackwell info    : Function properties for k",
        "    400 bytes stack frame, 460 bytes spill stores, 608 bytes spill loads",
        "ptxas-blackwell info    : Used 255 registers, used 1 barriers, 400 bytes cumulative stack size",
    )
    (kernel,) = resources.parse("\n".join(lines))
    assert (kernel.registers_per_thread, kernel.spill_store_bytes, kernel.spill_load_bytes) == (255, 460, 608)
    (found,) = performance_warnings("\n".join(lines))
    assert found.code == "spills" and found.hint
    warned = "ptxas warning : Registers are spilled to local memory in function 'k', 460 bytes spill stores"
    assert performance_warnings("\n".join((warned, *lines))) == []


SOURCES = {
    "src/one.cu": "__global__ void first(float *x) {}",
    "src/two.cu": "\ntemplate <int N>\n__global__ void\nbig(float *x) {}",
}


@pytest.mark.parametrize(
    ("log", "place"),
    [
        ("ptxas error   : Entry function '_Z3bigPf' uses too much shared data (0x10000 bytes, 0xc000 max)", ("src/two.cu", 4)),
        ("FAILED: CMakeFiles/a.dir/src/one.cu.o\nptxas error   : Entry function 'made' uses too much shared data (0x10000 bytes, 0xc000 max)",
         ("src/one.cu", None)),
        ("ptxas error   : Entry function 'made' uses too much shared data (0x10000 bytes, 0xc000 max)\n"
         "make[2]: *** [CMakeFiles/a.dir/build.make:77: CMakeFiles/a.dir/src/one.cu.o] Error 255", ("src/one.cu", None)),
        ("ptxas error   : Entry function 'made' uses too much shared data (0x10000 bytes, 0xc000 max)", (None, None)),
        ("ptxas /tmp/tmpxft_0000abcd_00000000-6_two.compute_90.ptx, line 13; error   : Unknown symbol 'x'", ("src/two.cu", None)),
    ],
)  # fmt: skip
async def test_an_error_of_ptxas_in_a_project_has_its_file(log: str, place: tuple[str | None, int | None]):
    from gpu_mcp_server.services.builds.compiler import parse_log

    found = with_places(await parse_log(log), log, SOURCES)
    assert [(d.file, d.line) for d in found if "make" not in (d.code or "") and "***" not in d.message][:1] == [place]


@given(st.text(), st.text())
def test_junk_is_no_warning_and_no_exception(said: str, ptx: str):
    assert performance_warnings(said, ptx) == []
