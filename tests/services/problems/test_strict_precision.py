"""Strict precision is refused exactly where the judge could hold it against nothing."""

import itertools
import re
from typing import get_args

import pytest
from gpu_mcp_judge.correctness import fp64_reference
from gpu_mcp_judge.numerics import tensors

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import DType, Problem, TensorSpec
from gpu_mcp_server.services.problems.problem_table import Problems

TYPES = get_args(DType)
ARRAYS = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "bool", "uint8")


def strict(framework: str, given: tuple[str, ...], answered: tuple[str, ...], precision: str = "strict") -> Problem:
    inputs = [
        TensorSpec.model_validate({"name": f"x{i}", "dtype": kind, "shape": ["n"]}) for i, kind in enumerate(given)
    ]
    outputs = [
        TensorSpec.model_validate({"name": f"y{i}", "dtype": kind, "shape": ["n"]}) for i, kind in enumerate(answered)
    ]
    reference = "def f(*x):\n    return x\n"
    rest = ([{"n": 8}], 1e-5, 1e-6, reference)
    return Problems.make_problem("p", "", framework, "f", inputs, outputs, *rest, precision=precision)


def declared(*, as_input: bool) -> list[str]:
    """Return the types that a problem can declare: those of suites' cases alone are refused, whatever its precision."""
    found: list[str] = []
    for kind in TYPES:
        try:
            strict("torch", (kind if as_input else "float32",), ("float32" if as_input else kind,), "tolerance")
        except BadRequest:
            continue
        found.append(kind)
    return found


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_it_is_refused_exactly_where_the_judge_has_no_double_precision(framework: str):
    refused = 0
    answers, types = [(kind,) for kind in declared(as_input=False)], declared(as_input=True)
    assert {*ARRAYS} <= {*types}
    for given, answered in itertools.product(itertools.product(types, types), [*answers, ("int32", "float32")]):
        task = {"framework": framework, "inputs": [{"dtype": kind} for kind in given]}
        outputs = [tensors.Tensor("y", kind, (8,), (1,), "normal") for kind in answered]
        try:
            strict(framework, given, answered)
            taken = True
        except BadRequest:
            taken, refused = False, refused + 1
        assert taken == fp64_reference.available(task, outputs), (given, answered)
    assert refused


@pytest.mark.parametrize(
    ("framework", "given", "answered", "says", "hint"),
    [
        ("numpy", "float64", "float64", "no input is of floats below float64", "declare inputs as float32"),
        ("torch", "int32", "float32", "no input is of floats below float64", "declare inputs as float32"),
        ("torch", "float32", "int64", "no output is of floats", "Leave precision out"),
        ("numpy", "bfloat16", "float32", "NumPy has no bfloat16", "with torch"),
    ],
)
def test_what_and_what_next_are_said(framework: str, given: str, answered: str, says: str, hint: str):
    with pytest.raises(BadRequest, match=re.escape(says)) as refusal:
        strict(framework, (given,), (answered,))

    assert hint in str(refusal.value.hint)
    assert strict(framework, (given,), (answered,), precision="tolerance")
