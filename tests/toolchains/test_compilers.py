"""Plans carried out by the real compilers."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains import cc, diagnostics, nvcc, resources
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain, host_compiler_of, source_name, toolchains_of


def carry_out(plan: CompilePlan, folder: Path) -> subprocess.CompletedProcess[str]:
    for name, text in plan.files.items():
        (folder / name).write_text(text)
    return subprocess.run(
        plan.argv, cwd=folder, env={"PATH": "/usr/local/bin:/usr/bin:/bin", **plan.env}, capture_output=True, text=True
    )


def compiler(name: str) -> Toolchain:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return Toolchain(name, path, "any")


@pytest.fixture(scope="session")
def cuda() -> Toolchain:
    found = compiler("nvcc")
    known = subprocess.run([found.path, "--list-gpu-code"], capture_output=True, text=True).stdout.split()
    return Toolchain("nvcc", found.path, "any", archs=tuple(known))


C = """
#include <math.h>
#include <stdint.h>
int launch(const double *x, double *y, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i++) y[i] = sin(x[i]) * SCALE;
  return 0;
}
"""

CUDA = """
#include <cstdint>
__global__ void doubled(const float *x, float *y, int64_t n) {
  __shared__ float tile[256];
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  if (i < n) y[i] = 2.f * tile[255 - threadIdx.x];
}
extern "C" int launch(const float *x, float *y, int64_t n, cudaStream_t stream) {
  doubled<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
  return (int)cudaGetLastError();
}
"""


def test_a_c_library_is_built_and_runs(tmp_path):
    plan = cc.plan(C, compiler("gcc"), ["-DSCALE=3.0", "-O2"])
    done = carry_out(plan, tmp_path)
    assert done.returncode == 0, done.stderr
    y = (ctypes.c_double * 2)()
    launch = ctypes.CDLL(str(tmp_path / plan.output)).launch
    assert launch((ctypes.c_double * 2)(0.0, 1.5707963267948966), y, ctypes.c_int64(2)) == 0
    assert list(y) == [0.0, 3.0]


def test_a_cpp_library_is_built(tmp_path):
    source = '#include <ranges>\nextern "C" int launch(float *x) { for (int i : std::views::iota(0, 3)) x[i] = i; return 0; }'
    done = carry_out(cc.plan(source, compiler("g++"), language="cpp"), tmp_path)
    assert done.returncode == 0, done.stderr


def test_errors_of_gcc_come_back_with_plain_quotes(tmp_path):
    done = carry_out(cc.plan("int launch(void) { return nope; }", compiler("gcc")), tmp_path)
    assert done.returncode != 0
    first = diagnostics.parse(done.stderr)[0]
    assert (first.file, first.line, first.column) == ("kernel.c", 1, 27)
    assert first.message.startswith("'nope' undeclared")
    assert first.context[0] == "int launch(void) { return nope; }"


def test_what_nothing_defines_fails_at_the_build_not_at_the_load(tmp_path):
    done = carry_out(cc.plan("int nope(int); int launch(void) { return nope(1); }", compiler("gcc")), tmp_path)
    (found,) = [d for d in diagnostics.parse(done.stderr) if d.severity == "error"]
    assert found.message == "undefined reference to `nope'"
    assert found.hint


def test_template_errors_of_gpp_name_the_users_line(tmp_path):
    source = (
        "#include <algorithm>\n#include <vector>\nstruct S { int a; };\n"
        'extern "C" int launch() { std::vector<S> v(3);\n  std::sort(v.begin(), v.end()); return 0; }\n'
    )
    done = carry_out(cc.plan(source, compiler("g++"), language="cpp"), tmp_path)
    errors = [d for d in diagnostics.parse(done.stderr) if d.severity == "error"]
    assert any("required from kernel.cpp:5" in d.context for d in errors)


def test_a_flag_of_the_user_replaces_the_default():
    gcc = Toolchain("gcc", "/usr/bin/gcc", "12")
    argv = cc.plan("", gcc, ["-O1", "-std=c11", "-march=x86-64", "-lm"]).argv
    assert not {"-O3", "-std=gnu17", "-march=native"} & set(argv)
    assert argv[-1] == "-lm"
    assert argv.index("kernel.c") < argv.index("-lm")


def test_a_cuda_library_is_built_with_its_resources(cuda, tmp_path):
    plan = nvcc.plan(CUDA, cuda, "sm_90a", ["--use_fast_math", "-Xptxas", "-warn-spills"], shutil.which("g++"))
    done = carry_out(plan, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / plan.output).stat().st_size > 0
    (kernel,) = resources.parse(done.stderr)
    assert kernel.kernel.startswith("doubled(float const*, float*, ")
    assert (kernel.shared_bytes, kernel.arch) == (1024, "sm_90a")
    assert kernel.registers_per_thread > 0
    assert [d for d in diagnostics.parse(done.stderr) if d.severity == "error"] == []


def test_errors_of_the_cuda_front_end_come_back_with_their_line(cuda, tmp_path):
    done = carry_out(nvcc.plan(CUDA.replace("float tile", "flaot tile"), cuda, "sm_90"), tmp_path)
    first = diagnostics.parse(done.stderr)[0]
    assert (first.severity, first.file, first.line) == ("error", "kernel.cu", 4)
    assert "flaot" in first.message


def test_bad_inline_assembly_is_traced_to_its_line(cuda, tmp_path):
    source = '__global__ void k(int *x) {\n  int r;\n  asm("nosuch.s32 %0;" : "=r"(r));\n  x[0] = r;\n}\n'
    plan = nvcc.plan(source, cuda, "sm_90", name="mine.cu")
    done = carry_out(plan, tmp_path)
    assert plan.listings == ("mine.ptx",)
    first = diagnostics.parse(done.stderr, (tmp_path / "mine.ptx").read_text())[0]
    assert (first.file, first.line) == ("mine.cu", 3)


def test_undefined_host_functions_fail_at_the_build(cuda, tmp_path):
    done = carry_out(nvcc.plan('int nope(int);\nextern "C" int launch() { return nope(1); }', cuda, "sm_90"), tmp_path)
    (found,) = [d for d in diagnostics.parse(done.stderr) if d.severity == "error"]
    assert found.message == "undefined reference to `nope(int)'"


@pytest.mark.parametrize("arch", ["native", "sm_10", "compute_90", "sm_90x", "", "sm_90 -o x", "all", "sm_9"])
def test_an_unknown_architecture_is_refused_with_the_known_ones(arch):
    toolchain = Toolchain("nvcc", "/nvcc", "13.0", archs=("sm_100", "sm_75", "sm_90"))
    with pytest.raises(BadRequest, match="Known are sm_75, sm_90, sm_100"):
        nvcc.plan(CUDA, toolchain, arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100f"])
def test_known_architectures_pass_with_their_suffix(arch):
    toolchain = Toolchain("nvcc", "/nvcc", "13.0", archs=("sm_90", "sm_100"))
    short, exact = f"-arch={arch}", f"code={arch}"  # the short form makes PTX too, for the plain name
    argv = " ".join(nvcc.plan(CUDA, toolchain, arch).argv)
    assert (short in argv, argv.count(exact)) == ((True, 0) if arch == "sm_90" else (False, 1))


def test_the_toolkit_is_shown_to_the_job_and_first_on_its_path():
    plan = nvcc.plan("", Toolchain("nvcc", "/opt/cuda/bin/nvcc", "13.0", roots=("/opt/cuda",)), "sm_90")
    assert plan.roots == ("/opt/cuda",)
    assert plan.env["PATH"].startswith("/opt/cuda/bin:")


@pytest.mark.parametrize(
    ("name", "language", "kept"),
    [
        ("softmax.cu", "cuda", "softmax.cu"),
        ("a/b/x.cc", "cpp", "x.cc"),
        ("softmax.cu", "c", "kernel.c"),
        ("-x.c", "c", "kernel.c"),
        ("@x.c", "c", "kernel.c"),
        ("my file.c", "c", "kernel.c"),
        ("..c", "c", "kernel.c"),
        ("x" * 200 + ".c", "c", "kernel.c"),
    ],
)
def test_a_source_keeps_its_name_if_no_compiler_can_misread_it(name, language, kept):
    assert source_name(name, language) == kept


def test_toolchains_are_taken_from_the_probe():
    probe = {
        "compilers": {"gcc": {"path": "/usr/bin/gcc", "version": "12.2.0"}, "clang++": {"path": "/c", "version": "19"}},
        "nvcc": {"path": "/n", "version": "13.0.88", "root": "/r", "archs": ["sm_90"]},
    }
    assert [t.title for t in toolchains_of(probe, "c")] == ["gcc 12.2.0"]
    assert [t.name for t in toolchains_of(probe, "cpp")] == ["clang++"]
    assert toolchains_of(probe, "cuda") == [Toolchain("nvcc", "/n", "13.0.88", ("/r",), ("sm_90",))]
    assert toolchains_of({"compilers": {}, "nvcc": None}, "cuda") == []
    assert host_compiler_of({}) is None
