"""Whole projects through their own build systems, in the sandbox."""

import os
import shutil

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound, ToolMissing
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import diagnostics
from gpu_mcp_server.toolchains.projects import Project, phases, system_of, validate_project
from tests.laboratory import laboratory

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
LISTS = """cmake_minimum_required(VERSION 3.20)
project(sum LANGUAGES CXX)
add_library(sum SHARED src/sum.cpp)
add_executable(check src/check.cpp)
target_link_libraries(check PRIVATE sum)
enable_testing()
add_test(NAME two COMMAND check 2)
add_test(NAME three COMMAND check 3)
"""
SUM = "int sum(int a, int b) { return a + b; }\n"
CHECK = """#include <cstdio>
#include <cstdlib>
int sum(int, int);
int main(int, char **arguments) {
  int wanted = std::atoi(arguments[1]), got = sum(1, 1);
  if (got != wanted) std::printf("wanted %d, got %d\\n", wanted, got);
  return got != wanted;
}
"""
FILES = {"CMakeLists.txt": LISTS, "src/sum.cpp": SUM, "src/check.cpp": CHECK}


async def built(lab: Lab, files: dict[str, str], **wish: object):
    workspace = (await lab.store.workspaces.write(None, files)).workspace_id
    return await lab.builds.projects.build(workspace, **wish)  # type: ignore[arg-type]


@needs_cmake
async def test_a_project_is_configured_built_and_tested(lab: Lab):
    result = await built(lab, FILES, tests=True)
    assert [p.name for p in result.phases] == ["configure", "build", "test"], result.summary()
    assert (result.status, result.stage, result.phases[-1].exit_code != 0) == ("failed", "test", True)
    assert result.tests and (result.tests.total, result.tests.failed) == (2, 1)
    assert result.tests.failures[0].name == "three::three" and "wanted 3, got 2" in result.tests.failures[0].message
    products = {p.path for p in result.products}
    assert {"build/check", "build/libsum.so", "build/junit.xml"} <= products
    assert not any(p.endswith(".o") for p in products)
    ran = await lab.commands.run(["build/check", "2"], workspace_id=result.workspace_id)
    assert ran.status == "ok", ran.summary()


@needs_cmake
async def test_a_build_of_the_same_files_is_not_run_again_and_lays_its_products(own_lab: Lab):
    lab = own_lab
    first = await built(lab, FILES)
    again = await lab.builds.projects.build(first.workspace_id)
    elsewhere = await built(lab, FILES)
    assert [r.cached for r in (first, again, elsewhere)] == [False, True, True], elsewhere.summary()
    assert elsewhere.products == first.products and elsewhere.workspace_id != first.workspace_id
    assert (await lab.commands.run(["build/check", "2"], workspace_id=elsewhere.workspace_id)).status == "ok"
    assert not (await lab.builds.projects.build(first.workspace_id, options=("CMAKE_BUILD_TYPE=Debug",))).cached
    assert not (await built(lab, {**FILES, "src/sum.cpp": SUM + "// other\n"})).cached
    for output in first.products:
        (await lab.store.artifacts.path(output.artifact_id or "")).unlink()
    assert not (await built(lab, FILES)).cached, "what was kept is gone"


async def test_a_build_that_fails_is_kept_too_and_tests_are_run_each_time(lab: Lab):
    broken = await built(lab, {"Makefile": "all:\n\t@echo a.c:1:2: error: no >&2; exit 1\n"})
    again = await built(lab, {"Makefile": "all:\n\t@echo a.c:1:2: error: no >&2; exit 1\n"})
    assert (broken.cached, again.cached, again.status) == (False, True, "failed")
    assert again.diagnostics == broken.diagnostics and again.diagnostics[0].message == "no"
    counting = {"Makefile": "all:\n\ttrue\ntest:\n\t@date +%N >> seen\n"}
    assert not (await built(lab, counting, tests=True)).cached and not (await built(lab, counting, tests=True)).cached


@needs_cmake
async def test_errors_of_all_files_come_at_once_and_each_once(lab: Lab):
    broken = {
        "src/sum.cpp": "int sum(int a, int b) { return a + c; }\n",
        "src/check.cpp": CHECK.replace("sum(1, 1)", "som(1, 1)"),
    }
    result = await built(lab, {**FILES, **broken})
    assert (result.status, result.stage) == ("failed", "build")
    assert [(d.file, d.line) for d in sorted(result.diagnostics, key=lambda d: d.file or "")] == [
        ("src/check.cpp", 5),
        ("src/sum.cpp", 1),
    ], result.summary()


@needs_cmake
async def test_an_error_of_cmake_has_its_words_and_place(lab: Lab):
    lists = LISTS + "find_package(NoSuchThing REQUIRED)\n"
    result = await built(lab, {**FILES, "CMakeLists.txt": lists})
    first = result.diagnostics[0]
    assert (result.stage, first.file, first.line, first.code) == ("configure", "CMakeLists.txt", 9, "find_package")
    assert first.message.startswith('By not providing "FindNoSuchThing.cmake"'), first
    assert first.message.endswith("CMake did not find one."), "the whole sentence, not its first line"


TRIED = """CMake Error at /usr/share/cmake-3.25/Modules/CMakeTestCUDACompiler.cmake:103 (message):
  The CUDA compiler

    "/usr/local/cuda/bin/nvcc"

  is not able to compile a simple test program.

  It fails with the following output:

    Change Dir: /job/build/CMakeFiles/CMakeTmp
    FAILED: CMakeFiles/cmTC_1.dir/main.cu.o
    nvcc fatal   : Unsupported gpu architecture 'compute_9999'
    ninja: build stopped: subcommand failed.

  CMake will not be able to correctly generate this project.
Call Stack (most recent call first):
  /usr/share/cmake-3.25/Modules/Other.cmake:7 (include)
  sub/CMakeLists.txt:2 (project)


-- Configuring incomplete, errors occurred!
"""


def test_a_compiler_that_cmake_tried_has_its_own_words_and_the_projects_line():
    (found,) = diagnostics.parse(TRIED)
    assert (found.file, found.line, found.code) == ("sub/CMakeLists.txt", 2, "project")
    assert found.message == (
        'The CUDA compiler "/usr/local/cuda/bin/nvcc" is not able to compile a simple test program. '
        "nvcc fatal   : Unsupported gpu architecture 'compute_9999'"
    )
    assert "too old or too new" in (found.hint or "")


@needs_cmake
async def test_two_megabytes_of_errors_become_ten_and_an_artifact(lab: Lab):
    lines = "\n".join(f"#error number {n} {'x' * 150}" for n in range(6000))
    result = await built(lab, {**FILES, "src/sum.cpp": lines}, options=("CMAKE_CXX_FLAGS=-fmax-errors=0",))
    assert (result.status, len(result.diagnostics)) == ("failed", 10)
    assert (result.diagnostics_left_out or 0) > 5000 and len(result.summary()) < 8000
    assert (await lab.store.artifacts.info(result.log_artifact_id or "")).size_bytes > 2_000_000


async def test_make_reports_what_it_cannot_make(lab: Lab):
    result = await built(lab, {"Makefile": "all: missing.o\n\tcc -o all missing.o\n"})
    assert (result.status, result.system, result.stage) == ("failed", "make", "build")
    assert "No rule to make target 'missing.o'" in result.diagnostics[0].message, result.summary()
    good = await built(lab, {"Makefile": "all: p\np: p.c\n\tgcc -o p p.c\n", "p.c": "int main(void) { return 0; }\n"})
    assert good.status == "ok" and [p.path for p in good.products] == ["p"]


async def test_a_build_that_hangs_is_ended_and_the_stage_named(lab: Lab):
    result = await built(lab, {"Makefile": "all:\n\tsleep 1000\n"}, timeout_s=1.0)
    assert (result.status, result.stage) == ("timeout", "build") and result.note


async def test_what_the_host_lacks_is_named_with_the_way_to_get_it(lab: Lab):
    workspace = (await lab.store.workspaces.write(None, {"a.cpp": "int main() {}\n"})).workspace_id
    if not {"icpx", "acpp", "clang-sycl"} & set((await lab.hosts.probe("local")).toolchains.tools):
        with pytest.raises(ToolMissing, match=r"icpx or acpp.*oneAPI"):
            await lab.builds.projects.build(workspace, system="sycl")
    with pytest.raises(BadRequest, match=r"no CMakeLists\.txt"):
        await lab.builds.projects.build(workspace)
    with pytest.raises(NotFound):
        await lab.builds.projects.build("w-nope")


@pytest.mark.parametrize("option", ["--trace", "-DX", "X", "-G=y; rm", "@file", "A\n=b", ""])
def test_options_are_values_of_names(option):
    with pytest.raises(BadRequest):
        validate_project(Project("cmake", options=(option,)))


def test_native_means_nothing_to_a_build_and_targets_are_names():
    with pytest.raises(BadRequest, match=r"holds no GPU.*arch sm_90"):
        validate_project(Project("cmake", options=("CMAKE_CUDA_ARCHITECTURES=native",)))
    with pytest.raises(BadRequest, match="no target"):
        validate_project(Project("make", targets=("--eval=x",)))


def test_sycl_is_compiled_by_what_there_is():
    (phase,) = phases(Project("sycl"), {"acpp": "/opt/acpp"}, 4, ["a.cpp"])
    assert phase["argv"] == ["/opt/acpp", "--acpp-targets=generic", "-O2", "-o", "build/program", "a.cpp"]
    (phase,) = phases(Project("sycl"), {"icpx": "/opt/icpx"}, 4, ["a.cpp"])
    assert "-fsycl" in phase["argv"]  # type: ignore[operator]
    (phase,) = phases(Project("sycl"), {"clang-sycl": "/opt/dpcpp/bin/clang++", "make": "/bin/make"}, 4, ["a.cpp"])
    assert phase["argv"] == ["/opt/dpcpp/bin/clang++", "-fsycl", "-O2", "-o", "build/program", "a.cpp"]


def test_the_build_system_is_told_from_the_files():
    assert system_of(["sub/CMakeLists.txt", "Makefile"], "sub") == "cmake"
    assert system_of(["sub/CMakeLists.txt", "Makefile"], ".") == "make"


def test_messages_of_cmake_and_ninja():
    found = diagnostics.parse(
        "CMake Warning (dev) at CMakeLists.txt:3 (project):\n  Policy CMP0048 is not set.\n\n"
        "CMake Error: The source directory \"/job/x\" does not exist.\nninja: error: unknown target 'nope'\n"
        "make[2]: *** [Makefile:3: all] Error 1\nninja: build stopped: subcommand failed.\n"
    )
    assert [d.message for d in found] == [
        'The source directory "/job/x" does not exist.', "unknown target 'nope'", "Policy CMP0048 is not set.",
    ]  # fmt: skip


SYCL = """#include <sycl/sycl.hpp>
namespace ext = sycl::ext::oneapi::experimental;
extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((ext::nd_range_kernel<1>))
void twice(float *x) {
  size_t i = sycl::ext::oneapi::this_work_item::get_nd_item<1>().get_global_linear_id();
  x[i] = 2 * x[i];
}
"""


@pytest.mark.skipif(
    not os.environ.get("TEST_SYCL_PYTHON"), reason="TEST_SYCL_PYTHON names no Python with the extra [sycl]"
)
async def test_sycl_kernels_are_checked_by_the_runtime_where_no_compiler_is():
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": os.environ["TEST_SYCL_PYTHON"]}}) as lab:
        good = await built(lab, {"a.cpp": SYCL}, system="sycl")
        assert good.status == "ok" and "no program was made" in (good.note or ""), good.summary()
        assert [p.name for p in good.phases] == ["driver", "build"]
        files = [f.path for f in (await lab.store.workspaces.listing(good.workspace_id)).files]
        assert not any(p.startswith(".gpu-mcp") for p in files), files
        bad = await built(lab, {"a.cpp": SYCL, "sub/b.cpp": SYCL.replace("2 * x", "two * x")}, system="sycl")
        assert [p.name for p in bad.phases] == ["build"], "the program is built once"
        assert (bad.status, bad.stage) == ("failed", "build")
        assert [(d.file, d.line) for d in bad.diagnostics] == [("sub/b.cpp", 6)], bad.summary()
        assert "identifier 'two'" in bad.diagnostics[0].message
        assert (await built(lab, {"a.cpp": SYCL}, system="sycl")).cached
