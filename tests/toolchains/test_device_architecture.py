"""Builds for a host's own GPU: all instructions that it has, where the compiler knows its own name."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.probe import host_probe as hostd_probe
from gpu_mcp_server.hostd.probe import python_probe
from gpu_mcp_server.hostd.probe.version_cache import VersionCache
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.build_plans import build_of, compiling_environment
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.hosts.host_connections import HostProbe, JudgePython, Nvcc
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.nccl.host_support import Install, NcclHost
from gpu_mcp_server.services.nccl.rank_jobs import NcclBuild, command
from gpu_mcp_server.toolchains import nvcc
from gpu_mcp_server.toolchains.architectures import device_target, torch_list
from gpu_mcp_server.toolchains.base import Toolchain
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, settings_for

KERNELS = (Path(__file__).parent / "data" / "cuda" / "wgmma.cu").read_text(encoding="utf-8")
LAUNCHER = """
extern "C" int launch(const __half *a, const __half *b, float *c, cudaStream_t stream) {
    product<<<1, 128, 0, stream>>>(a, b, c);
    return (int)cudaGetLastError();
}
"""
NEW = ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_120", "sm_120a")
OLD = ("sm_80", "sm_90")
H100 = {"uuid": "GPU-a", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "memory_total_bytes": 80 << 30}
CMAKE = "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES CXX CUDA)\nadd_library(k SHARED k.cu)\n"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture
async def with_h100() -> AsyncIterator[Lab]:
    """A laboratory whose own host says that it has an H100."""
    with Folder() as folder:
        (folder / "gpus.json").write_text(json.dumps([H100]))
        env = {"GPU_MCP_HOSTD_GPUS": str(folder / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(folder / "locks")}
        host = {"kind": "local", "python": str(wrapped(folder / "state", env)), "state_dir": str(folder / "state")}
        async with Lab.open(settings_for(folder, hosts={"local": host})) as lab:
            yield lab


@needs_nvcc
async def test_wgmma_compiles_for_a_host_with_an_h100_by_tool_and_as_a_candidate(with_h100: Lab):
    whole = CandidateSource(KERNELS + LAUNCHER, "cuda", "wgmma.cu")
    candidate = await with_h100.builds.compiler.build(whole, host="local")
    assert (candidate.status, candidate.arch, candidate.note) == ("ok", "sm_90a", None), candidate.summary()
    for wish in (
        BuildOptions(library=False),
        BuildOptions(library=False, arch="native"),
        BuildOptions(library=False, arch="sm_90a"),
    ):
        result = await with_h100.builds.compiler.compile(whole, wish)
        assert (result.status, result.arch, result.cached) == ("ok", "sm_90a", True), result.summary()
    kernels = await with_h100.builds.compiler.compile(
        CandidateSource(KERNELS, "cuda", "kernels.cu"), BuildOptions(library=False)
    )
    assert (kernels.status, kernels.arch) == ("ok", "sm_90a"), kernels.summary()
    assert kernels.resources[0].arch == "sm_90a" and kernels.artifact_id != candidate.artifact_id


@needs_nvcc
async def test_an_architecture_that_was_named_stays_what_it_is(with_h100: Lab):
    named = await with_h100.builds.compiler.compile(
        CandidateSource(KERNELS + LAUNCHER, "cuda", "wgmma.cu"), BuildOptions(arch="sm_90")
    )
    assert (named.status, named.arch, named.stage) == ("failed", "sm_90", "ptxas"), named.summary()
    assert "not supported on .target 'sm_90'" in named.diagnostics[0].message


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_120a"])
async def test_names_with_a_suffix_compile_host_and_device(lab: Lab, arch: str):
    probe = await lab.hosts.probe("local")
    if probe.nvcc is None or arch not in probe.nvcc.archs:
        pytest.skip(f"this nvcc does not know {arch}")
    macro = "__CUDA_ARCH_FAMILY_SPECIFIC__" if arch.endswith("f") else "__CUDA_ARCH_SPECIFIC__"
    asks = f"#if defined(__CUDA_ARCH__) && !defined({macro})\n#error plain\n#endif\n"
    source = asks + "__global__ void k(int *x) { x[0] = 1; }\n"
    launcher = 'extern "C" int launch(int *x) { k<<<1, 1>>>(x); return 0; }\n'
    result = await lab.builds.compiler.compile(
        CandidateSource(source + launcher, "cuda", "k.cu"), BuildOptions(arch=arch)
    )
    assert (result.status, result.arch) == ("ok", arch), result.summary()


@needs_nvcc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
async def test_a_project_for_the_hosts_own_gpu_is_told_its_suffix(with_h100: Lab):
    files = {"CMakeLists.txt": CMAKE, "k.cu": KERNELS + LAUNCHER}
    workspace = (await with_h100.store.workspaces.write(None, files)).workspace_id
    assert (await with_h100.builds.projects.build(workspace, arch="sm_90")).status == "failed"
    built = await with_h100.builds.projects.build(workspace, arch="native")
    assert built.status == "ok", built.summary()


@pytest.mark.parametrize(
    ("own", "known", "arch", "said"),
    [
        (["sm_80"], NEW, "sm_80", ""),
        (["sm_90"], NEW, "sm_90a", ""),
        (["sm_120"], NEW, "sm_120a", ""),
        (["sm_90", "sm_80"], NEW, "sm_90a", ""),
        (["sm_90"], OLD, "sm_90", "nvcc 11.8 does not know sm_90a"),
        (["sm_90"], (), "sm_90", "nvcc 11.8 does not know sm_90a"),
        (["sm_130"], (*NEW, "sm_130"), "sm_130", "nvcc 11.8 does not know sm_130a"),
        (["sm_90", "sm_100"], NEW, "sm_90", "sm_100 too, which run no code of sm_90a"),
    ],
)
def test_the_suffix_is_taken_where_the_compiler_knows_it_and_all_devices_run_it(
    own: list[str], known: tuple[str, ...], arch: str, said: str
):
    target = device_target(own, known, "nvcc 11.8")
    assert target.arch == arch and (said in target.note if said else not target.note), target


async def test_an_old_toolkit_compiles_for_the_plain_name_and_the_answer_says_so(lab: Lab):
    probe = await lab.hosts.probe("local")
    if probe.nvcc is None:
        pytest.skip("nvcc is not installed")
    old = probe.nvcc.model_copy(update={"version": "11.8.89", "archs": list(OLD)})
    plain = probe.model_copy(update={"gpus": [H100], "nvcc": old})
    source = CandidateSource('extern "C" int launch(int *x) { cudaMemset(x, 0, 4); return 0; }', "cuda", "k.cu")
    build = build_of(source, plain, "local", BuildOptions())
    assert build.arch == "sm_90" and "-arch=sm_90" in build.plan.argv
    lab.hosts._probes["local"] = (lab.hosts._probes["local"][0], plain)
    try:
        answers = [
            (await lab.builds.compiler.compile(source, BuildOptions(arch=a))).note or ""
            for a in (None, "sm_90", "native")
        ]
    finally:
        lab.hosts._probes["local"] = (lab.hosts._probes["local"][0], probe)
    assert [("nvcc 11.8.89 does not know sm_90a" in note) for note in answers] == [True, False, True], answers


def test_names_that_do_not_exist_are_refused_with_those_that_do():
    toolchain = Toolchain("nvcc", "/nvcc", "13.0", archs=NEW)
    for arch in ("sm_90a", "sm_100f", "sm_80"):
        assert nvcc.checked_arch(arch, toolchain) == arch
    for arch in ("sm_80a", "sm_90f", "sm_130a"):
        with pytest.raises(BadRequest, match=rf"does not generate code for '{arch}'.*sm_100a"):
            nvcc.checked_arch(arch, toolchain)


@needs_nvcc
def test_the_compilers_are_asked_which_names_they_know():
    found = hostd_probe._nvcc(VersionCache(), None, [])
    assert found is not None
    new = tuple(map(int, found["version"].split(".")[:2])) >= (12, 0)
    assert ("sm_90a" in found["archs"]) == new and not {"sm_80a", "sm_90f"} & set(found["archs"])


async def test_nvrtc_is_asked_too(lab: Lab):
    found = (await lab.hosts.probe("local")).toolchains.nvrtc
    if found is None:
        pytest.skip("NVRTC is not installed")
    assert ("sm_90a" in found.archs) == (int(found.version.partition(".")[0]) >= 12) and "sm_80a" not in found.archs


def test_torch_is_told_the_suffix_where_it_and_nvcc_know_it():
    assert torch_list(["sm_90", "sm_80"], NEW, ["8.0", "9.0", "9.0a"]) == "8.0;9.0a"
    assert torch_list(["sm_90"], NEW, ["9.0"]) == torch_list(["sm_90"], OLD, ["9.0", "9.0a"]) == "9.0"
    assert torch_list(["sm_120", "sm_100"], NEW, ["10.0a", "12.0a"]) == "10.0a;12.0a"
    assert torch_list([], NEW, ["9.0a"]) == ""


async def test_extensions_of_torch_and_programs_of_nccl_are_built_for_the_device(lab: Lab):
    probe: HostProbe = await lab.hosts.probe("local")
    cuda = Nvcc(path="/nvcc", version="13.0", root="/cuda", archs=list(NEW), build="b")
    python = JudgePython(path="/python", version="3.12.0", roots=[], torch="2.9.0", torch_archs=("9.0", "9.0a"))
    own = probe.model_copy(update={"gpus": [H100], "nvcc": cuda, "judge": python})
    assert compiling_environment(own)["TORCH_CUDA_ARCH_LIST"] == "9.0a"
    install = Install("/nccl/include", "/nccl/lib/libnccl.so.2", "2.28.3", "2.28.3", device_api=True)
    program = NcclBuild({"main.cu": ""}, "main.cu")
    assert "arch=compute_90a,code=sm_90a" in command(NcclHost("local", own, install, (), (), ()), program)
    without = own.model_copy(update={"gpus": []})
    assert "-arch=sm_90" in command(NcclHost("local", without, install, (), (), ()), program)


def test_the_judges_python_says_which_names_its_torch_takes(tmp_path: Path):
    site = tmp_path / "torch" / "utils"
    site.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch takes seconds to import')\n")
    listed = "def flags():\n    supported_arches = ['8.0', '9.0', '9.0a',\n                        '10.0', '10.0a']\n"
    (site / "cpp_extension.py").write_text(listed)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{python_probe.ABOUT}"
    said = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(said)["torch_archs"] == ["8.0", "9.0", "9.0a", "10.0", "10.0a"]
