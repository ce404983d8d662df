"""Target GPU of a build: `native`, architectures that nobody knows, and languages that have none."""

import shutil

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.services.builds.build_plans import resolve_arch
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.services.lab import Lab

KERNELS = {"cuda": "__global__ void k(int *x) { x[0] = 1; }", "hip": "__global__ void k(int *x) { x[0] = 1; }"}
MAKERS = {"cuda": "NVIDIA", "hip": "AMD"}


async def without_gpu(lab: Lab) -> HostProbe:
    probe = await lab.hosts.probe("local")
    if probe.gpus:
        pytest.skip("this host has a GPU")
    return probe


@pytest.mark.parametrize("language", list(KERNELS))
async def test_native_is_refused_without_a_gpu_of_that_maker(lab: Lab, language: str):
    probe = await without_gpu(lab)
    if language == "cuda" and probe.nvcc is None and probe.toolchains.nvrtc is None:
        pytest.skip("no compiler of CUDA")
    if language == "hip" and not probe.toolchains.hip:
        pytest.skip("no compiler of HIP")
    source = CandidateSource(KERNELS[language], language, "k.cu")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=rf"host 'local' has none from {MAKERS[language]}\. Name an architecture"):
        await lab.builds.compiler.compile(source, BuildOptions(arch="native", library=False))


async def test_native_is_the_hosts_own_gpu(lab: Lab):
    probe = await lab.hosts.probe("local")
    both = probe.model_copy(update={"gpus": [{"arch": "gfx942"}, {"arch": "sm_90"}]})
    assert resolve_arch("native", both, "local", "sm_") == "sm_90"
    assert resolve_arch("native", both, "local", "gfx") == resolve_arch("native", both, "local") == "gfx942"
    assert (resolve_arch("sm_80", both, "local"), resolve_arch(None, both, "local")) == ("sm_80", None)
    with pytest.raises(BadRequest, match="none from NVIDIA"):
        resolve_arch("native", probe.model_copy(update={"gpus": [{"arch": "gfx942"}]}), "local", "sm_")


@pytest.mark.parametrize("language", ["c", "cpp"])
async def test_a_language_of_the_processor_takes_no_architecture(lab: Lab, language: str):
    source = CandidateSource("int f(int x) { return x; }", language, "f.c")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"compiled for the processor.*-march="):
        await lab.builds.compiler.compile(source, BuildOptions(arch="sm_90", library=False))


async def test_a_block_that_cannot_be_is_refused_before_anything_is_compiled(lab: Lab):
    with pytest.raises(BadRequest, match="1 to 1024 threads, not 5000"):
        await lab.builds.compiler.compile(
            CandidateSource("int f( {", "c", "f.c"), BuildOptions(block=5000, library=False)
        )


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
async def test_a_project_is_asked_for_an_architecture_that_a_compiler_knows(lab: Lab):
    probe = await without_gpu(lab)
    lists = "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES CXX)\n"
    workspace = (await lab.store.workspaces.write(None, {"CMakeLists.txt": lists})).workspace_id
    with pytest.raises(BadRequest, match="host 'local' has none"):
        await lab.builds.projects.build(workspace, arch="native")
    if probe.nvcc is not None:
        with pytest.raises(BadRequest, match=r"nvcc .* does not generate code for 'sm_9999'.*sm_90"):
            await lab.builds.projects.build(workspace, arch="sm_9999")
    if probe.toolchains.hip:
        with pytest.raises(BadRequest, match=r"'gfx777'.*gfx90a"):
            await lab.builds.projects.build(workspace, arch="gfx777")
    makefile = (await lab.store.workspaces.write(None, {"Makefile": "all:\n"})).workspace_id
    with pytest.raises(BadRequest, match=r"make is not told an architecture.*ARCH=sm_90"):
        await lab.builds.projects.build(makefile, arch="sm_90")
