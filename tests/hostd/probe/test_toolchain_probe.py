"""Search for toolchains: the wheels of an interpreter come last, and are found."""

import glob
import os
import shutil
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.probe import host_probe, toolchain_probe
from gpu_mcp_server.hostd.probe.version_cache import VersionCache
from tests.laboratory import Folder, laboratory


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an environment whose site-packages hold the real nvcc, on a host that has no toolkit otherwise."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    folder = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13" / "bin"
    folder.mkdir(parents=True)
    (folder / "nvcc").write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
    (folder / "nvcc").chmod(0o755)
    found = glob.glob
    monkeypatch.setattr(glob, "glob", lambda p, **more: [f for f in found(p, **more) if not f.startswith("/usr/local")])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    if shutil.which("nvcc"):
        pytest.skip("nvcc lies below /usr/bin here")
    return tmp_path


def test_nvcc_is_found_in_the_wheels_of_an_interpreter(wheels: Path):
    assert host_probe._nvcc(VersionCache(), None, []) is None
    found = host_probe._nvcc(VersionCache(), None, [str(wheels / "bin" / "python")])
    assert found is not None and found["path"].startswith(str(wheels)) and "sm_90" in found["archs"]


def test_hiprtc_names_the_processors_that_its_libraries_were_built_for(tmp_path: Path):
    assert toolchain_probe._built_archs(str(tmp_path)) == []
    for name in ("oclc_isa_version_90a.bc", "oclc_isa_version_1030.bc", "ocml.bc"):
        (tmp_path / name).touch()
    assert sorted(toolchain_probe._built_archs(str(tmp_path))) == ["gfx1030", "gfx90a"]


def test_a_variable_names_a_tool_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "ncu"
    mine.write_text("#!/bin/sh\necho Version 2026.1.0\n")
    mine.chmod(0o755)
    monkeypatch.setenv("NCU", str(mine))
    tools = toolchain_probe._tools(VersionCache(), {}, None, [])
    assert tools["ncu"] == {"path": str(mine), "version": "2026.1.0", "roots": [str(tmp_path)]}
    assert os.access(tools["ncu"]["path"], os.X_OK)


def test_a_program_outside_of_usr_is_shown_with_its_prefix_and_never_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for path, root in (
        ("rocm/bin/hipify-perl", "rocm"),
        ("bin/hipify-perl", "bin"),
        (".local/bin/hipify-perl", ".local/bin"),
        ("tools/ncu", "tools"),
    ):
        assert toolchain_probe._roots_around(str(tmp_path / path)) == [str(tmp_path / root)]
    nothing = ("/home/ada/ncu", "/usr/local/cuda/bin/ncu", "/usr/bin/make", "/bin/make", "/ncu")
    for path in (str(tmp_path / "ncu"), *nothing):
        assert toolchain_probe._roots_around(path) == [], path
    assert toolchain_probe._roots_around("/home/ada/bin/ncu") == ["/home/ada/bin"], "another's home is one as well"
    assert toolchain_probe._roots_around("/opt/bin/tool") == ["/opt/bin"]
    (tmp_path / "rocm" / "bin").mkdir(parents=True)
    (tmp_path / "rocm" / "bin" / "tool").touch()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "tool").symlink_to(tmp_path / "rocm" / "bin" / "tool")
    assert toolchain_probe._roots_around(str(tmp_path / "link" / "tool")) == [
        str(tmp_path / "link"),
        str(tmp_path / "rocm"),
    ]


async def test_a_program_on_the_path_can_be_started_in_the_sandbox(monkeypatch: pytest.MonkeyPatch):
    with Folder() as folder:
        (folder / "bin").mkdir()
        program = folder / "bin" / "hipify-perl"
        program.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nsed s/cuda/hip/g "$3" >"$2"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        async with laboratory() as lab:
            if (await lab.hosts.probe("local")).toolchains.tools.get("hipify-clang"):
                pytest.skip("another converter comes first")
            result = await lab.builds.porter.port({"k.cu": "int main() { return cudaDeviceSynchronize(); }\n"})
        assert result.files == ["k.hip"] and (result.converter or "").startswith("hipify-perl"), result.summary()


DPCPP = """#!/bin/sh
case "$*" in
*--version*) echo "clang version 21.0.0 (DPC++)";;
*-###*) echo '"ld" "-lsycl" "-lstdc++"';;
*) exec cpp -P -DSYCL_LANGUAGE_VERSION=202012 -I {include} -;;
esac
"""


def test_a_clang_counts_for_sycl_only_with_headers_and_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    headers = tmp_path / "include" / "sycl"
    headers.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    mine = tmp_path / "bin" / "clang++"
    mine.write_text(DPCPP.format(include=headers.parent))
    mine.chmod(0o755)
    monkeypatch.setenv("CLANG_SYCL", str(mine))
    assert toolchain_probe._sycl_clang(VersionCache()) is None, "no headers"
    (headers / "sycl.hpp").touch()
    found = toolchain_probe._sycl_clang(VersionCache())
    assert found == {"path": str(mine), "version": "21.0.0", "roots": [str(tmp_path)]}
    monkeypatch.delenv("CLANG_SYCL")
    monkeypatch.setenv("CPATH", str(headers.parent))  # a distribution's clang, with somebody's headers beside it
    assert toolchain_probe._sycl_clang(VersionCache()) is None
