"""`-lNAME` of NVIDIA's libraries: where the host has them they link and load, where it has not the error says so."""

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.probe import nvidia_libraries
from gpu_mcp_server.models.build import BuildOptions, CompileResult
from gpu_mcp_server.models.toolchains import Libraries
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains.linking import linking_of
from tests.driver_stub import driver_stub
from tests.laboratory import Folder, settings_for

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
DRIVER = """
#include <cuda.h>
#include <cstdint>
extern "C" int launch(float *x, int64_t n, cudaStream_t stream) {
    CUtensorMap map;
    cuuint64_t size[1] = {(cuuint64_t)n};
    cuuint32_t box[1] = {64}, step[1] = {1};
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, x, size, nullptr, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
"""
VERSIONS = {
    "nvrtc": '#include <nvrtc.h>\nextern "C" int version() { int a = 0, b = 0; nvrtcVersion(&a, &b); return a; }\n',
    "nccl": '#include <nccl.h>\nextern "C" int version() { int v = 0; ncclGetVersion(&v); return v; }\n',
    "cudnn": '#include <cudnn.h>\nextern "C" int version() { return (int)cudnnGetVersion(); }\n',
    "cublas": '#include <cublas_v2.h>\nextern "C" int version() { int v = 0; '
    "cublasGetProperty(MAJOR_VERSION, &v); return v; }\n",
}
LOADS = "import ctypes; print('version', ctypes.CDLL('./kernel.so').version())"


@pytest.fixture(scope="module")
async def with_stub() -> AsyncIterator[Lab]:
    """A laboratory whose toolkit has a stub of libcuda."""
    with Folder() as folder:
        toolkit = folder / "cuda"
        driver_stub(toolkit / "lib64" / "stubs")
        (toolkit / "bin").mkdir()
        (toolkit / "bin" / "nvcc").write_text(f'#!/bin/sh\nexec {shutil.which("nvcc")} "$@"\n')
        (toolkit / "bin" / "nvcc").chmod(0o755)
        host = {"kind": "local", "cuda": str(toolkit), "roots": [str(toolkit)]}
        async with Lab.open(settings_for(folder / "data", hosts={"local": host})) as lab:
            yield lab


async def binary_of(lab: Lab, result: CompileResult, folder: Path) -> Path:
    assert result.artifact_id, result.summary()
    path = folder / "kernel.so"
    path.write_bytes(await lab.store.artifacts.read(result.artifact_id))
    return path


async def test_the_driver_links_by_the_toolkits_stub_which_no_program_looks_for(with_stub: Lab, tmp_path: Path):
    result = await with_stub.builds.compiler.compile(
        CandidateSource(DRIVER, "cuda", "tma.cu"), BuildOptions(flags=("-lcuda",))
    )
    assert result.status == "ok", result.summary()
    made = await binary_of(with_stub, result, tmp_path)
    dynamic = subprocess.run(["readelf", "-d", made], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in dynamic and "stubs" not in dynamic and "RUNPATH" not in dynamic, dynamic


async def test_a_function_that_no_library_has_is_still_an_error(with_stub: Lab):
    missing = DRIVER.replace("cuTensorMapEncodeTiled", "cuTensorMapEncodeRound").replace(
        "extern", 'extern "C" CUresult cuTensorMapEncodeRound(...);\nextern', 1
    )
    result = await with_stub.builds.compiler.compile(
        CandidateSource(missing, "cuda", "k.cu"), BuildOptions(flags=("-lcuda",))
    )
    assert (result.status, result.stage) == ("failed", "link"), result.summary()


@pytest.mark.parametrize("name", list(VERSIONS))
async def test_a_library_of_a_wheel_or_toolkit_links_and_loads_in_the_sandbox(lab: Lab, name: str):
    probe = await lab.hosts.probe("local")
    found = probe.toolchains.libraries.found.get(name)
    source = CandidateSource(VERSIONS[name], "cuda", "k.cu")
    if found is None:
        with pytest.raises(ToolMissing, match=rf"lib{name}, which -l{name} links, is not installed on host 'local'"):
            await lab.builds.compiler.compile(source, BuildOptions(flags=(f"-l{name}",)))
        return
    result = await lab.builds.compiler.build(source, host="local", flags=(f"-l{name}",))
    assert result.status == "ok", result.summary()
    program = await lab.store.artifacts.read(result.artifact_id or "")
    workspace = (await lab.store.workspaces.write(None, {"kernel.so": program})).workspace_id
    ran = await lab.commands.run(["python3", "-c", LOADS], workspace_id=workspace)
    assert ran.status == "ok" and re.search(r"version [1-9]", ran.stdout), (ran.stdout, ran.stderr)


def known_in(folder: Path, *files: str) -> Libraries:
    """Return what is found in the wheels of a Python with these files in its site-packages."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Libraries.model_validate(
        nvidia_libraries.probe_libraries([], [{"site": str(folder), "roots": [str(folder.parent)]}])
    )


def test_names_with_numbers_alone_and_headers_beside_them_are_found(tmp_path: Path):
    site = tmp_path / "site"
    known = known_in(
        site, "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn/lib/libcudnn.so.9.1.0", "nvidia/cudnn/include/cudnn.h",
        "nvidia/cudnn/lib/libcudnn_ops.so.9", "nvidia/cu13/lib/libcublas.so.13", "nvidia/cu13/lib/libcublas.so",
    )  # fmt: skip
    linking = linking_of(("-lm", "-lcudnn", "-lcublas"), known, "local", "13.0.88")
    cudnn, cublas = f"{site}/nvidia/cudnn/lib", f"{site}/nvidia/cu13/lib"
    assert linking.include == (f"-isystem={site}/nvidia/cudnn/include",) and linking.roots == (str(tmp_path),)
    assert linking.libraries == (
        "-lm",
        *(f"-L{cudnn}", "-l:libcudnn.so.9", "-Xlinker", "-rpath", "-Xlinker", cudnn),
        *(f"-L{cublas}", "-l:libcublas.so", "-Xlinker", "-rpath", "-Xlinker", cublas),
    )


@pytest.mark.parametrize(
    ("name", "cuda", "said"),
    [
        ("cudnn", "13.0.88", "pip install nvidia-cudnn-cu13"),
        ("nccl", "12.8.93", "pip install nvidia-nccl-cu12"),
        ("nvrtc", "12.8.93", "pip install nvidia-cuda-nvrtc-cu12"),
        ("cublas", "13.0.88", r"pip install nvidia-cublas for"),
        ("cuda", "13.0.88", r"stub \(apt-get install cuda-driver-dev-13-0\) or NVIDIA's driver"),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_places_and_what_brings_it(
    tmp_path: Path, name: str, cuda: str, said: str
):
    known = known_in(tmp_path, "nvidia/other/lib/libother.so.1")
    if name in known.found:
        pytest.skip(f"this machine has lib{name} for all")
    with pytest.raises(ToolMissing, match=rf"lib{name}, which -l{name} links.*looked for in.*other/lib.*{said}"):
        linking_of((f"-l{name}",), known, "local", cuda)


def test_a_folder_of_ld_library_path_counts_where_sandboxes_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "own" / "lib"
    own.mkdir(parents=True)
    (own / "libcudnn.so.9").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{own}/:relative")
    assert str(own) not in nvidia_libraries.probe_libraries([], [])["places"]
    found = nvidia_libraries.probe_libraries([], [], [str(tmp_path / "own")])
    assert found["places"][0] == str(own) and found["found"]["cudnn"]["path"] == f"{own}/libcudnn.so.9"


def test_a_stub_comes_before_the_driver_and_needs_no_run_path(tmp_path: Path):
    stubs = tmp_path / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").touch()
    about = nvidia_libraries.probe_libraries([str(tmp_path)], [])["found"]["cuda"]
    assert about == {"path": f"{stubs}/libcuda.so", "run": "", "include": about["include"], "roots": [str(tmp_path)]}
