"""Hints at compile errors in the bindings that load_inline writes: what a candidate must declare."""

import pytest

from gpu_mcp_server.models.build import CompileResult, Diagnostic
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.services.evaluation.extension_builds import with_binding_hint

MODULE = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"
BOUND = f'#include <torch/extension.h>\n\n{MODULE}\nm.def("relu", torch::wrap_pybind_function(relu), "relu");\n}}'
UNDECLARED = "\u2018relu\u2019 was not declared in this scope"
TWICE = "redefinition of \u2018PyObject* PyInit_fused()\u2019"


def hint_at(message: str, text: str, file: str = "main.cpp") -> str:
    request = {"arguments": {"name": "fused"}, "sources": [["main.cpp", text], ["cuda.cu", ""]], "environment": {}}
    error = Diagnostic(severity="error", message=message, file=file, line=4)
    failed = CompileResult(status="failed", language="cpp", compiler="g++", host="local", diagnostics=[error])
    return with_binding_hint(failed, request).diagnostics[0].hint or ""


@pytest.mark.parametrize(
    ("message", "text", "hint"),
    [
        pytest.param(UNDECLARED, BOUND, "declare it in cpp_sources", id="bound and not declared"),
        pytest.param(UNDECLARED.replace("\u2018", "'").replace("\u2019", "'"), BOUND, "declare it in cpp_sources", id="in the C locale"),
        pytest.param(UNDECLARED, "int f() { return relu; }", "", id="a name of the candidate's own"),
        pytest.param(UNDECLARED.replace("relu", "elu"), BOUND, "", id="part of a bound name"),
        pytest.param(TWICE, f"{MODULE}}}\n{BOUND}", "leave out yours, or leave out `functions`", id="two modules"),
        pytest.param(TWICE, BOUND, "", id="one module"),
    ],
)  # fmt: skip
def test_bindings_that_load_inline_wrote_have_a_hint(message: str, text: str, hint: str):
    found = hint_at(message, text)

    assert hint in found and bool(found) == bool(hint)
    assert hint_at(message, text, file="cuda.cu") == ""


def test_what_the_compiler_said_stands_high_where_torch_computed_instead():
    said = "extension fused does not compile: main.cpp:4: error: \u2018relu\u2019 was not declared in this scope; load_inline"
    found = Evaluation(
        status="judged", verdict="correct", attempt_id="a-1", problem_id="p-1", problem_hash="0", language="python",
        host="local", fallback="its extension did not compile; it computed with torch",
        evidence={"extensions": said, "memory": "memfd"},
    )  # fmt: skip
    lines = found.summary().splitlines()

    assert lines[1] == said and "evidence: memory memfd" in lines
    built = found.model_copy(update={"fallback": ""}).summary()
    assert f"evidence: extensions {said}, memory memfd" in built
