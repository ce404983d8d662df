"""Indices among equals of whole numbers: any is right, and nothing else is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.correctness.named_equals import may_tie, name_equals
from gpu_mcp_judge.devices.device import Buffers
from gpu_mcp_judge.numerics.tensors import Tensor

from tests.judge.harness import judge, torch_python

MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {}
"""
AT = {"name": "at", "dtype": "int64", "shape": ["rows"]}
PLACES = {**AT, "shape": ["rows", "cols"]}
SORT = ("return tuple(torch.sort(x))", [{"name": "y", "dtype": "int8", "shape": ["rows", "cols"]}, PLACES])
TOP = ("return torch.topk(x, 4)[1]", [{**AT, "shape": ["rows", 4]}])
LARGEST = ("return x.argmax(1)", [AT])
OF_BITS = ("return x.int().argmax(1)", [AT])
COUNT = ("return (x != 0).sum(1)", [AT])
LAST = "return x.shape[1] - 1 - {}.flip(1).argmax(1)"
STABLE = "y, at = torch.sort(x, stable=True); "
BEFORE = "y, at = torch.sort(x.flip(1), stable=True); at = x.shape[1] - 1 - at; "
"""Of equals the last comes first."""


def decide(folder: Path, problem: tuple[str, list[Any]], dtype: str, body: str, **more: Any) -> dict[str, Any]:
    reference = "import torch\ndef f(x):\n    " + problem[0]
    path = folder / "candidate.py"
    path.write_text(MODEL.format(body))
    inputs = [{"name": "x", "dtype": dtype, "shape": ["rows", "cols"], "distribution": "normal"}]
    given = {
        "framework": "torch", "entry": "f", "inputs": inputs, "outputs": problem[1], "candidate": "model", "atol": 0,
        "shapes": [{"rows": 64, "cols": 64}], "tier": "correctness", "prepare_s": 100, "fixed_shapes": True, **more,
    }  # fmt: skip
    outcome = judge(folder, reference, path, python=torch_python(), **given)
    assert outcome.exit_code == 0, outcome.stderr + (folder / "noise.txt").read_text()[-2000:]
    return outcome.verdict


RIGHT = {
    "a stable order": (SORT, "int8", STABLE + "return y, at"),
    "the last of equals first": (SORT, "int8", BEFORE + "return y, at"),
    "the largest, the last of equals first": (TOP, "int8", BEFORE + "return at[:, -4:].flip(1)"),
    "the largest of bits, which are equals in half of a row": (
        ("return torch.topk(x.int(), 4)[1]", TOP[1]), "bool", BEFORE + "return at[:, -4:].flip(1)",
    ),
    "the last maximum of int32": (LARGEST, "int32", LAST.format("x")),
    "the last maximum of uint8": (LARGEST, "uint8", LAST.format("x")),
    "the last of bits": (OF_BITS, "bool", LAST.format("x.int()")),
    "one of all bits": (OF_BITS, "bool", "return torch.multinomial(x + 1e-20, 1)[:, 0]"),
    "the last of columns": (("return x.argmin(0)", [{**AT, "shape": ["cols"]}]), "int32", "return x.shape[0] - 1 - x.flip(0).argmin(0)"),
}  # fmt: skip


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize("name", RIGHT)
def test_any_index_among_equals_is_right(tmp_path, name):
    verdict = decide(tmp_path, *RIGHT[name])

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert any("as right: they tie" in note for note in verdict["shapes"][0]["notes"]), verdict["shapes"][0]


ONE = "at[7, 9]"
WRONG = {
    "an index twice": (SORT, "int8", STABLE + "at[:, 1:] = torch.where(y[:, 1:] == y[:, :-1], at[:, :-1], at[:, 1:]); return y, at"),
    "another index in one row": (SORT, "int8", STABLE + "at[7, [3, 40]] = at[7, [40, 3]]; return y, at"),
    "off by one": (LARGEST, "int32", "return (x.argmax(1) + 1) % x.shape[1]"),
    "off by one in one row": (LARGEST, "uint8", LAST.format("x") + " - (torch.arange(len(x)) == 9).long()"),
    "out of range": (LARGEST, "uint8", "at = x.argmax(1); at[3] = 99; return at"),
    "negative, of the same element": (LARGEST, "int32", "return x.argmax(1) - x.shape[1]"),
    "a zero in one row of bits": (OF_BITS, "bool", "at = x.int().argmax(1); at[5] = x[5].int().argmin(); return at"),
    "a value beside right indices": (SORT, "int8", STABLE + "y[3, 3] += 1; return y, at"),
    "the same of the largest bits twice": (
        ("return torch.topk(x.int(), 4)[1]", TOP[1]), "bool", BEFORE + "return at[:, [-1, -1, -2, -3]]",
    ),
    "the next to smallest of equals": (TOP, "int8", STABLE + "return at[:, -5:-1].flip(1)"),
    "one too few, which is no index": (COUNT, "bool", "n = (x != 0).sum(1); n[3] -= 1; return n"),
    "one of several in a mask": (
        ("return (x == x.max(1, keepdim=True)[0]).int()", [{**PLACES, "dtype": "int32"}]), "int8",
        "return torch.zeros(x.shape, dtype=torch.int32).scatter_(1, x.argmax(1, keepdim=True), 1)",
    ),
    "a sum that does not wrap": (
        ("return (x * x).argmax(1)", [AT]), "int8", "return (x.int() * x.int()).argmax(1)",
    ),
    "the other of equal masks": (
        ("return (x >= x.flip(1)).int()", [{**PLACES, "dtype": "int32"}]), "int8", "return (x > x.flip(1)).int()",
    ),
    "the place behind equals": (
        ("return torch.searchsorted(x.sort(1)[0], x)", [PLACES]), "int8",
        "return torch.searchsorted(x.sort(1)[0], x, right=True)",
    ),
}  # fmt: skip


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_is_not_among_equals_is_wrong(tmp_path, name):
    verdict = decide(tmp_path, *WRONG[name])

    assert verdict["verdict"] == "incorrect", verdict
    assert "elements are wrong" in verdict["reason"]


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(("order", "verdict"), [(STABLE, "correct"), (BEFORE, "incorrect")], ids=["stable", "reversed"])
def test_the_references_choice_among_equals_is_the_right_one_where_the_problem_wants_that(tmp_path, order, verdict):
    stable = ("return tuple(torch.sort(x, stable=True))", SORT[1])

    assert decide(tmp_path, stable, "int8", order + "return y, at", ties="reference")["verdict"] == verdict


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [([0, 2], [1, 2], True), ([0, 2], [0, 1], False), ([0, 2], [0, 3], False), ([0, 2], [-2, 2], False)],
)
def test_indices_into_rows_or_columns_name_equals(expected, got, right):
    rows = np.array([[5, 5, 3], [1, 2, 7]])
    for given, shape in ((rows, (2,)), (rows, (2, 1)), (rows.T.copy(), (1, 2))):
        item = Tensor("at", "int64", shape, ("n",) * len(shape), "")
        assert name_equals(given, item, np.array(expected), np.array(got)) is right


class Given(Buffers):
    """One call with one input."""

    def __init__(self, given, outputs):
        self.given, self.outputs, self.sets = given, outputs, 1
        self.inputs = [Tensor("x", "float32", given.shape, ("n",) * given.ndim, "")]

    def pieces(self, number, calls, first, count):
        return self.given.reshape(1, -1)


ROW = np.array([4, 1, 7, 7, 5, 2], dtype=np.float32)


def told_of(outputs, output, wrong, expected, got, given=ROW):
    return may_tie(Given(given, outputs), (0, output), np.array(wrong), np.array(expected), np.array(got))


@pytest.mark.parametrize(
    ("output", "wrong", "got", "told"),
    [
        (1, [[0, 1]], [0, 2, 5], "; values is right: where values are equal, let the reference choose by a rule"),
        (1, [[1, 1]], [0, 3, 2], "; it has the same numbers in another order: where values are equal"),
        (1, [[0, 1], [1, 0]], [0, 2, 5], ""),
        (0, [[1, 1]], [0, 3, 2], ""),
        (1, [[0, 3]], [1, 3, 4], ""),
    ],
)
def test_a_wrong_index_that_equals_may_explain_is_told_so(output, wrong, got, told):
    outputs = [Tensor("values", "float32", (3,), ("n",), ""), Tensor("at", "int64", (3,), ("n",), "")]
    said = told_of(outputs, output, wrong, [0, 2, 3], got)

    assert said.startswith(told) and bool(said) == bool(told)


@pytest.mark.parametrize(("wrong", "told"), [([[0, 1]], "; values is right: where values are equal"), ([[1, 1]], "")])
def test_a_wrong_index_beside_whole_numbers_is_told_of_ties_too(wrong, told):
    outputs = [Tensor("values", "int8", (3,), ("n",), ""), Tensor("at", "int64", (3,), ("n",), "")]
    said = told_of(outputs, 1, wrong, [0, 2, 3], [0, 2, 5])

    assert said.startswith(told) and bool(said) == bool(told)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_a_rounded_number_or_a_mask_beside_right_floats_is_told_of_no_ties(dtype):
    outputs = [Tensor("scale", "float32", (), (), ""), Tensor("codes", dtype, (3,), ("n",), "")]
    assert not told_of(outputs, 1, [[0, 2]], [0, 1, 1], [1, 0, 1])


def test_a_mask_in_another_order_is_told_of_no_ties():
    assert not told_of([Tensor("mask", "bool", (3,), ("n",), "")], 0, [[2]], [0, 0, 1], [1, 0, 0])


@pytest.mark.parametrize(
    ("wrong", "got", "told"),
    [
        ([[0, 2]], [0.5, 3.5, 2.5], "; it has the same numbers in another order: where values are equal"),
        ([[1, 2]], [0.5, 3.5, 2.5], ""),
        ([[0, 2]], [0.5, 3.5, 9.5], ""),
    ],
    ids=["beside right keys", "beside wrong ones", "other numbers"],
)
def test_values_beside_sorted_keys_are_told_of_equal_keys(wrong, got, told):
    outputs = [Tensor("keys", "int32", (3,), ("n",), ""), Tensor("values", "float32", (3,), ("n",), "")]
    said = told_of(outputs, 1, wrong, [0.5, 2.5, 3.5], got)

    assert said.startswith(told) and bool(said) == bool(told)


@pytest.mark.parametrize(
    ("got", "told"),
    [([1, 7, 1, 7], True), ([1, 3, 1, 3], False), ([2, 3, 2, 7], False), ([2, 99, 1, -1], False)],
    ids=["other equals", "within a window", "few of them", "outside"],
)
def test_indices_of_pooling_are_told_of_ties_where_most_name_equals(got, told):
    """Two planes of two windows each; an index counts within its plane."""
    plane = np.array([[9, 9, 0, 0], [2, 2, 5, 5]], dtype=np.float32)
    shape = (2, 1, 1, 2)
    outputs = [Tensor("y", "float32", shape, tuple("ncij"), ""), Tensor("at", "int64", shape, tuple("ncij"), "")]

    assert bool(told_of(outputs, 1, [[0, 4]], [0, 6, 0, 6], got, np.stack([plane, plane])[:, None])) is told
