"""C++ and CUDA extensions of torch as single files: compiled by the plain compilers, judged by the name of a function."""

import os
import re
import subprocess

import pytest
from mcp import Client

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import Problem, TensorSpec
from gpu_mcp_server.package_files import CANDIDATES, page
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.evaluation.candidate_preparation import binding_for
from gpu_mcp_server.toolchains.torch_bindings import MOST_BOUND, binding_of, binds_torch, bound_functions, is_extension
from tests.laboratory import PROBLEM, Folder, called, client_of, laboratory, refused

HEADER = "#include <torch/extension.h>\n"
TWICE = "torch::Tensor twice(torch::Tensor x) {\n    return 2 * torch::tanh(x) + 1;\n}\n"
START = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"
RETURNING = HEADER + TWICE + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice, "2 tanh(x) + 1"); }\n'
WRITING = """#include <ATen/core/Tensor.h>
#include <torch/library.h>
void fill(const at::Tensor &x, at::Tensor y) {
    const float *from = x.data_ptr<float>();
    float *to = y.data_ptr<float>();
#pragma omp parallel for
    for (int64_t n = 0; n < x.numel(); n++) to[n] = 2 * std::tanh(from[n]) + 1;
}
TORCH_LIBRARY(mine, m) {
    m.def("fill(Tensor x, Tensor(a!) y) -> ()");
    m.impl("fill", c10::kCPU, &fill);
}
"""


def test_a_source_is_an_extension_by_its_headers_and_its_macro():
    assert binds_torch(RETURNING) and binds_torch(WRITING)
    assert not binds_torch(TWICE) and not binds_torch("// PYBIND11_MODULE(a, m)\n" + HEADER)


def test_bound_functions_are_read_with_what_they_take_and_return():
    (twice,) = bound_functions(RETURNING)
    assert (twice.name, twice.place, twice.returns, twice.parameters) == ("twice", "extension.twice", True, 1)
    (fill,) = bound_functions(WRITING)
    assert (fill.name, fill.place, fill.returns, fill.parameters) == ("fill", "torch.ops.mine.fill", False, 2)
    several = HEADER + (
        "namespace ns {\nstd::vector<at::Tensor> both(const at::Tensor &x,\n    std::map<int, int> m) { return {x}; }\n"
        "static inline void\nwrite(at::Tensor x, at::Tensor y, int64_t n);\n}\n"
        'PYBIND11_MODULE(own_name, m) {\n  m.def("both", &ns::both);\n  m.def("write", ns::write, py::arg("x"));\n'
        '  m.def("other", [](at::Tensor x) { return x; });\n}\n'
    )
    found = {b.name: (b.returns, b.parameters) for b in bound_functions(several)}
    assert found == {"both": (True, 2), "write": (False, 3), "other": (True, None)}
    assert binding_of(several, "write", 1, 1, 1).module == "own_name"


TVM = """#include <cmath>
#include <tvm/ffi/tvm_ffi.h>
namespace mine {
void Fill(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t n) {
    const float *from = static_cast<const float *>(x.data_ptr());
    float *to = static_cast<float *>(y.data_ptr());
    for (int64_t at = 0; at < n; at++) to[at] = 2 * std::tanh(from[at]) + 1;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fill, mine::Fill)
}  // namespace mine
"""


def test_functions_that_tvm_ffi_exports_are_read_and_called_by_its_loader():
    (fill,) = bound_functions(TVM)
    assert (fill.name, fill.returns, fill.parameters) == ("fill", False, 3)
    assert is_extension(TVM) and not binds_torch(TVM) and not is_extension(TVM.replace("#include <tvm", "// <tvm"))
    writing = binding_of(TVM, "launch", 1, 1, 1)
    assert (writing.kind, writing.by) == ("launcher", "tvm_ffi") and "extension.fill(*given[:3])" in writing.text
    assert 'tvm_ffi.load_module(os.path.join(folder, "kernel_extension.so"))' in writing.text
    lambdas = TVM.replace("mine::Fill", "[](tvm::ffi::Tensor x) { return x; }")
    assert "torch.from_dlpack(extension.fill(*inputs))" in binding_of(lambdas, "fill", 1, 1, 1).text


def test_functions_that_a_macro_binds_are_read():
    source = HEADER + (
        "#define TEXT(word) #word\n#define CHECK(t) if (!t.defined()) throw 1;\n"
        "#define BIND(f)          \\\n    m.def(TEXT(f), &f, TEXT(f));\n#define BIND_TOO(f) m . def(#f, f);\n"
        "void rows(at::Tensor x, at::Tensor y, float eps) {}\n" + TWICE + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n"
        "    BIND(rows)\n    BIND_TOO(twice);\n    CHECK(m)\n}\n"
    )
    found = {b.name: (b.returns, b.parameters) for b in bound_functions(source)}
    assert found == {"rows": (False, 3), "twice": (True, 1)}
    endless = (
        HEADER + "".join(f"#define A{n}(x) A{n + 1}(x).def(x)\n" for n in range(99)) + "PYBIND11_MODULE(a, m){A0(A0)}"
    )
    assert bound_functions(endless) == []


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(
            "".join(f'#define A{n}(x) m.def("a", &x); {f"A{n + 1}(x) " * 50}\n' for n in range(16)) + START + "A0(f)}",
            id="macros that use the next fifty times",
        ),
        pytest.param("a*b " * 60 + "$\n" + START + 'm.def("f", &f);}', id="a type that can be read in two ways"),
        pytest.param(
            START + "".join(f'm.def("f{n}", &f{n});' for n in range(30_000)) + "}", id="thirty thousand functions"
        ),
        pytest.param("\nT f(" * 100_000 + START + 'm.def("f", &f);}', id="parentheses that never close"),
        pytest.param("TORCH_LIBRARY(a, m) {" * 40_000, id="libraries that never end"),
        pytest.param(
            "#include <tvm/ffi/a.h>\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(a, b" * 40_000, id="exports that never end"
        ),
        pytest.param('TORCH_LIBRARY(a, m) { m.def("f(' + ")->" * 200_000, id="a schema that never ends"),
    ],
)
def test_a_hostile_source_is_read_in_no_more_time_than_its_length_allows(hostile: str):
    """Each took minutes or all memory, in the server's own process."""
    assert len(bound_functions(HEADER + hostile)) <= 2 * MOST_BOUND


def test_a_function_is_called_by_what_fits_the_problem():
    assert binding_of(RETURNING, "launch", 1, 1, 2).kind == "model", "the only function is meant"
    writing = binding_of(WRITING, "fill", 1, 1, 2)
    assert writing.kind == "launcher" and "torch.ops.mine.fill(*given[:2])" in writing.text
    with pytest.raises(BadRequest, match="twice has 1 parameters; the problem gives 2 inputs, 1 outputs"):
        binding_of(RETURNING, "twice", 2, 1, 1)
    with pytest.raises(BadRequest, match="binds no function 'nothing'; it binds twice"):
        binding_of(RETURNING, "nothing", 1, 1, 1)


def test_a_parameter_with_a_default_may_be_left_out():
    bound = HEADER + TWICE.replace("(torch::Tensor x)", "(torch::Tensor x, bool fast, double eps = 1e-5)") + START
    bound += 'm.def("twice", &twice, "words; of it", py::arg("x"), py::arg("fast") = true, "eps"_a = 1e-5);\n'
    bound += 'm.def("later", [](at::Tensor x) { return x; }, py::arg("x") = 0);}\n'
    with pytest.raises(BadRequest, match="twice has 3 parameters; the problem gives 1 inputs"):
        binding_of(bound.replace(' = true, "eps"_a = 1e-5', ', "eps"_a'), "twice", 1, 1, 0)
    assert binding_of(bound, "twice", 1, 1, 1).kind == "model"
    with pytest.raises(
        BadRequest, match="twice has 3 parameters, 2 of them with a default; the problem gives 4 inputs"
    ):
        binding_of(bound, "twice", 4, 1, 0)
    schema = WRITING.replace(
        "fill(Tensor x, Tensor(a!) y)", "fill(Tensor x, Tensor(a!) y, int[2] at=[0, 1], *, float e=1)"
    )
    assert "torch.ops.mine.fill(*given[:2])" in binding_of(schema, "fill", 1, 1, 3).text
    sized = WRITING.replace("fill(Tensor x, Tensor(a!) y)", "fill(Tensor x, Tensor(a!) y, int n=1024)")
    assert "torch.ops.mine.fill(*given[:3])" in binding_of(sized, "fill", 1, 1, 1).text, "its size is given"
    assert "torch.ops.mine.fill(*given[:2])" in binding_of(sized, "fill", 1, 1, 0).text


async def test_a_source_with_torchs_headers_that_binds_nothing_is_told_what_to_add():
    kernel = CandidateSource("#include <ATen/ATen.h>\nvoid fill(at::Tensor y) {}\n", "cuda", "fill.cu")
    problem = Problem(**PROBLEM, problem_id="p", content_hash="", framework="numpy", entry="reference")
    with pytest.raises(BadRequest, match="includes torch's headers and binds no function") as said:
        binding_for(problem, kernel, "launch")
    assert "PYBIND11_MODULE" in said.value.hint


@pytest.fixture
def torch_python(monkeypatch: pytest.MonkeyPatch) -> str:
    path = os.environ.get("TEST_TORCH_PYTHON", "")
    if not path:
        pytest.skip("TEST_TORCH_PYTHON names no Python with torch")
    monkeypatch.setenv("GPU_MCP_HOSTS__LOCAL__JUDGE_PYTHON", path)
    return path


@pytest.mark.timeout(900)
async def test_extensions_are_judged_on_the_processor(torch_python: str):
    async with laboratory() as lab:
        probe = await lab.hosts.probe("local")
        python = next(p for p in probe.toolchains.pythons if p.path == torch_python)
        if python.torch_build is None:
            pytest.skip("no Python.h beside torch's Python")
        source = CandidateSource(WRITING.replace("from[n])", "oops[n])"), "cpp", "fill.cpp")
        broken = await lab.builds.compiler.compile(source, BuildOptions(library=False))
        assert (broken.status, broken.diagnostics[0].file, broken.diagnostics[0].line) == ("failed", "fill.cpp", 7)
        unbound = CandidateSource("#include <c10/macros/Macros.h>\nC10_EXPORT int n;\n", "cpp", "part.cpp")
        kernel = await lab.builds.compiler.compile(unbound, BuildOptions(library=False))
        assert kernel.status == "ok", "what binds it may be another file"
    with Folder() as folder:
        async with client_of(folder) as client:
            await _judged(client)
            await _documented(client)


async def _documented(client: Client) -> None:
    """The example of docs/reference/candidates.md is correct."""
    (example,) = re.findall(r"```cpp\n(.*?)```", page(CANDIDATES), re.DOTALL)
    tensor = {"dtype": "float32", "shape": ["rows", "cols"]}
    reference = "import torch\ndef reference(x):\n    return torch.softmax(x, -1)\n"
    problem = {
        "name": "softmax",
        "reference": reference,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
        "shapes": [{"rows": 64, "cols": 100}],
        "rtol": 1e-5,
        "atol": 1e-7,
    }
    problem_id = (await called(client, "register_problem", **problem))["problem_id"]
    given = {"problem_id": problem_id, "language": "cpp", "source": example}
    found = await called(client, "evaluate_kernel", **given)
    assert found["verdict"] == "correct", found


@pytest.mark.timeout(1200)
async def test_an_extension_of_tvm_ffi_is_judged_on_the_processor(torch_python: str):
    if subprocess.run([torch_python, "-c", "import tvm_ffi"], capture_output=True).returncode:
        pytest.skip("no tvm-ffi beside torch: pip install apache-tvm-ffi")
    tensors = {side: [TensorSpec.model_validate(PROBLEM[side][0])] for side in ("inputs", "outputs")}
    async with laboratory() as lab:
        problem = await lab.evaluation.registry.register(**{**PROBLEM, **tensors, "shapes": [{"n": 4096}]})
        for text, verdict in ((TVM, "correct"), (TVM.replace("+ 1;", "+ 1.5f;"), "incorrect")):
            found = await lab.evaluation.evaluator.evaluate(
                problem.problem_id, CandidateSource(text, "cpp", "fill.cc"), timing=TimingOptions(tier="correctness"),
                wait_s=500,
            )  # fmt: skip
            assert found.verdict == verdict, found.summary()
            assert found.evidence["binding"] == "tvm_ffi, fill"


async def _judged(client: Client) -> None:
    problem = {**PROBLEM, "shapes": [{"n": 4096}]}
    problem_id = (await called(client, "register_problem", **problem))["problem_id"]
    given = {"problem_id": problem_id, "language": "cpp"}
    returned = await called(client, "evaluate_kernel", source=RETURNING, entry="twice", flags=["-O0"], **given)
    assert returned["verdict"] == "correct" and returned["shapes"][0]["speedup"], returned
    assert returned["evidence"]["binding"] == "torch, twice"
    written = await called(client, "evaluate_kernel", source=WRITING, entry="fill", **given)
    assert written["verdict"] == "correct" and written["shapes"][0]["speedup"], written
    wrong = WRITING.replace("+ 1;", "+ 1.5f;")
    assert (await called(client, "evaluate_kernel", source=wrong, entry="fill", **given))["verdict"] == "incorrect"
    said = await refused(client, "evaluate_kernel", source=RETURNING, entry="forward", **given)
    assert "binds no function 'forward'; it binds twice" in said
