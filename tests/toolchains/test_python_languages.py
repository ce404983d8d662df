"""In which language a Python file's kernels are, and what it needs, is read from its imports alone."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.candidate_source import launcher_language, python_kind
from gpu_mcp_server.services.builds.python_siblings import joined_python
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.evaluation.missing_equipment import error_of
from gpu_mcp_server.toolchains import launchers
from gpu_mcp_server.toolchains.base import Toolchain
from gpu_mcp_server.toolchains.hints import hint_for
from gpu_mcp_server.toolchains.python_languages import MOST_MODULES, imports_of
from gpu_mcp_server.workers import launcher_aot
from tests.judge.harness import torch_python
from tests.judge.launchers import compile_launcher

LAUNCH = "\ndef launch(x, y, n):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "languages", "kind"),
    [
        ("import triton.language as tl", ["Triton"], "triton"),
        ("from triton.experimental import gluon", ["Gluon"], "triton"),
        ("import cutlass.cute as cute\nimport triton", ["Triton", "CuTe DSL"], "launcher"),
        ("import tilelang", ["TileLang"], "launcher"),
        ("from numba import cuda", ["Numba CUDA"], "launcher"),
        ("from cuda import tile", ["cuTile"], "launcher"),
        ("import cuda.bindings, tritonclient, jaxtyping", [], "launcher"),
        ("'import triton'  # import triton", [], "launcher"),
        ("def f():\n    import warp", ["Warp"], "launcher"),
    ],
)
def test_a_language_is_known_from_what_is_imported(text: str, languages: list[str], kind: str):
    assert [one.name for one in imports_of(text).languages()] == languages
    assert launcher_language(text) == python_kind(text + LAUNCH) == kind


def test_only_what_nothing_catches_is_needed():
    text = (
        "import cupy, numpy\ntry:\n    import warp\nexcept ImportError:\n    warp = None\n"
        "def f():\n    import tilelang\nif True:\n    import jax\n"
    )
    assert imports_of(text).needed_modules() == ["cupy"]
    assert [one.package for one in imports_of(text).languages()] == ["tilelang", "cupy-cuda13x", "warp-lang", "jax"]


@pytest.mark.parametrize("text", ["(" * 5000, "import " + "a." * 5000 + "b", "x = " + "-" * 20000 + "1", "\0", "def"])
def test_hostile_text_has_no_imports(text: str):
    assert imports_of(text).needed_modules() == []


def test_only_so_many_modules_are_kept():
    names = ", ".join(f"m{number}" for number in range(10 * MOST_MODULES))
    assert len(imports_of(f"import {names}").named) == MOST_MODULES


def test_what_runs_without_a_gpu_is_said_by_the_language():
    def interpreter(text: str) -> str:
        return BuiltCandidate("launcher", text.encode()).interpreter

    assert interpreter("import triton") == "Triton's interpreter"
    assert interpreter("import helion, triton") == "Helion's interpreter"
    assert interpreter("from numba import cuda") == "Numba's simulator of CUDA"
    assert interpreter("import triton, cupy") == "Triton's interpreter", "CuPy may be for GPUs that have it"
    assert interpreter("import numba") == interpreter("import cupy") == interpreter("import torch") == ""
    assert BuiltCandidate("model", b"import triton").interpreter == "Triton's interpreter"
    assert BuiltCandidate("model", b"import triton, torch\nmade = torch.compile(torch.abs)").interpreter == ""
    assert BuiltCandidate("launcher", b"import cupy").needs()["wants_gpu"] == "CuPy"


def test_a_language_of_another_file_is_no_excuse_where_the_own_one_is_interpreted():
    def wants(own: str, beside: str) -> str:
        text = joined_python({"norms.py": own, "beside.py": beside}, "norms.py")
        return BuiltCandidate("launcher", text.encode()).needs()["wants_gpu"]

    assert wants("import triton, beside", "import cutlass") == ""
    assert wants("import triton, cutlass, beside", "") == wants("import beside", "import cutlass") == "CuTe DSL"


def test_a_missing_module_is_named_with_its_package():
    error = error_of({"kind": "module", "name": "cutlass.cute"}, "box", None)
    assert "the module 'cutlass.cute'" in str(error) and "Install nvidia-cutlass-dsl into" in str(error)
    assert "kernels in CuPy" in str(error_of({"kind": "gpu", "name": "CuPy"}, "box", None))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"signature": {"x": "fp32"}}, "no tensor type"),
        ({"signature": {"x": "fp32[100000,100000]"}}, "at most 1073741824 elements"),
        ({"arch": "gfx942"}, "for NVIDIA alone"),
        ({"flags": ("-O3",)}, "takes no compiler flags"),
    ],
)
def test_a_launcher_that_cannot_be_called_is_refused(given: dict[str, object], words: str):
    wish = BuildOptions.model_validate({key: value for key, value in given.items() if key != "arch"})
    python = Toolchain("launcher", "/usr/bin/python3", "3.11.2")
    with pytest.raises(BadRequest) as error:
        launchers.plan(
            LAUNCH, python, str(given.get("arch", "sm_90a")), wish, name="k.py", environment={}, roots=()
        )  # fmt: skip
    assert words in f"{error.value} {error.value.hint}"


def test_the_worker_is_python_that_runs_once():
    tree = ast.parse(worker_source("launcher_aot"))
    assert not [s for s in tree.body if isinstance(s, ast.If)], "its source goes to `python -c`, whose name is __main__"


def test_what_a_language_made_of_a_function_can_be_named_as_the_kernel():
    def matmul(block: int, stages: int, *, dtype: str = "f16") -> None: ...

    class Made:
        """As TileLang's jit gives it: a call of any arguments, without a name."""

        func = staticmethod(matmul)

        def __call__(self, *_: object, **__: object) -> None: ...

    request: dict[str, dict[str, int]] = {"signature": {}, "constants": {"stages": 3, "block": 64}}
    assert launcher_aot.arguments_of("matmul", Made(), request) == [64, 3]
    assert launcher_aot.arguments_of("matmul", matmul, request) == [64, 3]
    with pytest.raises(SystemExit, match="matmul takes block, stages; signature and constants lack stages"):
        launcher_aot.arguments_of("matmul", Made(), {"signature": {}, "constants": {"block": 64}})


PTX = ".version {}\n.target sm_90\n.address_size 64\n.visible .entry k()\n{{\nret;\n}}\n"


@pytest.mark.skipif(not shutil.which("ptxas"), reason="no ptxas here")
@pytest.mark.parametrize("has_binary", [True, False])
def test_a_language_newer_than_every_ptxas_has_compiled_where_its_own_binary_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, has_binary: bool
):
    cubin, said = launcher_aot.assemble(PTX.format("8.0"), "sm_90")
    assert cubin.startswith(b"\x7fELF") and "registers" in said

    def launch(_: object, made: launcher_aot.KernelCollection) -> None:
        made.add("Language 1.0", "k", cubin if has_binary else b"", PTX.format("99.0"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(launcher_aot, "launch", launch)
    request = json.dumps({"file": "k.py", "arch": "sm_90"})
    if has_binary:
        launcher_aot.main([request])
        assert (tmp_path / "kernel.cubin").read_bytes() == cubin
        assert "Unsupported" not in capsys.readouterr().err
    else:
        with pytest.raises(SystemExit):
            launcher_aot.main([request])
        assert re.search("(?s)Unsupported .version 99.0.*no ptxas here takes it", capsys.readouterr().err)


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_the_error_behind_a_generated_source_is_what_is_told(tmp_path: Path):
    source = "def launch():\n    raise RuntimeError('int line;\\n' * 200 + 'a.h(3): error: needs sm_90a')\n"
    (tmp_path / "k.py").write_text(source)
    request: dict[str, object] = {"file": "k.py", "entry": "", "arch": "sm_90", "signature": {}, "constants": {}}
    program = f"{worker_source('launcher_aot')}\nmain([{json.dumps(request)!r}])"
    done = subprocess.run([torch_python(), "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "a.h(3): error: needs sm_90a" in done.stderr and "int line" not in done.stderr


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_a_launchers_error_in_tritons_compiler_is_told_at_its_line(tmp_path: Path):
    source = "import torch, triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x):\n    tl.store(x, nope)\n\n"
    (tmp_path / "k.py").write_text(source + "def launch():\n    k[(1,)](torch.empty(1, device='cuda'))\n")
    request: dict[str, object] = {"file": "k.py", "entry": "", "arch": "sm_90", "signature": {}, "constants": {}}
    program = f"{worker_source('launcher_aot')}\nmain([{json.dumps(request)!r}])"
    done = subprocess.run([torch_python(), "-c", program], cwd=tmp_path, capture_output=True, text=True)
    if "No module named 'triton'" in done.stderr:
        pytest.skip("no Triton in TEST_TORCH_PYTHON")
    assert "k.py:6:1: error: CompilationError: NameError('nope is not defined')" in done.stderr, done.stderr[-2000:]


ASKS_FOR_A_GPU = """
import torch, triton
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
import triton.language as tl
DEVICE = triton.runtime.driver.active.get_active_torch_device()
SEED, OFFSET = torch.cuda.default_generators[torch.cuda.current_device()].get_state().view(torch.int64)
MANY = torch.cuda.get_device_properties(DEVICE).multi_processor_count
@triton.jit
def double(x, y, n, MANY: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, MANY * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def twice(x):
    assert torch.cuda.is_available() and x.is_cuda and x.device.type == "cuda"
    y = torch.empty_like(x, device=x.device)
    with torch.cuda.device(x.device):
        double[(MANY,)](x, y, x.numel(), MANY, BLOCK=128)
    return y + torch.zeros(x.shape, device="cuda").to("cuda:0").cuda()
raise RuntimeError("no display")
"""


def test_a_launcher_that_asks_for_its_gpu_compiles_without_one(tmp_path: Path):
    made = compile_launcher(tmp_path, ASKS_FOR_A_GPU, {"x": "fp32[1000]"}, {}, entry="twice")
    assert made["kernels"] == ["double"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("cublas_v2.h: No such file or directory", "libcublas-dev"),
        ('cannot open source file "cudnn.h"', "NVIDIA's libraries"),
        ("ModuleNotFoundError: No module named 'liger_kernel'", "a person installs it"),
        ("common.h: No such file or directory", "write_files both"),
        ("common.h: No such file or directory", "for a program problem send the folder"),
        ("cannot find crt1.o: No such file or directory", "-LFOLDER"),
        ("cannot start gfortran: No such file or directory", "a person installs it there"),
        ("common.h: No such file or directory", "evaluate_kernel judges one file: put the header's text into it"),
        ("undefined reference to `cuTensorMapEncodeTiled'", "-lcuda"),
        ("Instruction 'mma with block scale' not supported on .target 'sm_120'", "sm_120a"),
        ("Feature '.kind::mxf4' not supported on .target 'sm_120'", "sm_120a"),
        ("CompilationError: arange's arguments must be of type tl.constexpr", "SIZE: tl.constexpr"),
        ('ValueError("arange\'s range must be a power of 2")', "next_power_of_2"),
        ("Loop-carried variable acc has initial type int32 but is re-assigned to fp32", "tl.zeros"),
        ('no instance of overloaded function "atomicAdd" matches the argument list', "__half from sm_70"),
    ],
)
def test_a_frequent_message_gets_the_hint_that_helps(message: str, words: str):
    assert words in (hint_for(message) or "")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not here")
@pytest.mark.parametrize(
    ("instruction", "missing", "there"),
    [
        ("wgmma.fence.sync.aligned;", ("sm_90", "sm_100a", "sm_120"), "sm_90a"),
        ("tcgen05.wait::ld.sync.aligned;", ("sm_90a", "sm_120a"), "sm_100a"),
        ("setmaxnreg.inc.sync.aligned.u32 232;", ("sm_90", "sm_120"), "sm_120a"),
    ],
)
def test_the_hint_for_an_instruction_names_an_architecture_that_has_it(instruction, missing, there, tmp_path: Path):
    (tmp_path / "k.cu").write_text(f'__global__ void k() {{ asm volatile("{instruction}"); }}')

    def said(arch: str) -> str:
        command = ["nvcc", f"-arch={arch}", "-cubin", "-o", "/dev/null", "k.cu"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    assert "error" not in said(there)
    for arch in missing:
        assert there in (hint_for(said(arch)) or ""), arch


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not here")
def test_options_of_a_raw_kernel_are_nvccs_too():
    kernel = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] = SCALE * x[0]; }'
    cubin, ptx = launcher_aot.compile_cuda(kernel, "sm_90", [], ("-DSCALE=2.0f", "--std=c++14", "-lineinfo"))
    assert cubin.startswith(b"\x7fELF") and ".visible .entry k(" in ptx
    with pytest.raises(RuntimeError, match='identifier "SCALE" is undefined'):
        launcher_aot.compile_cuda(kernel, "sm_90", [])
