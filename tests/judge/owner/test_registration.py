"""References on trial."""

import math
import re

import pytest

from tests.judge.harness import EXAMPLES, torch_python


def test_a_sound_reference_is_registered_with_the_trivial_answers_that_failed(register):
    verdict = register(EXAMPLES / "reference.py", shapes=[{"rows": 64, "cols": 1000}, {"rows": 3, "cols": 17}]).verdict

    assert (verdict["status"], verdict["reason"]) == ("ok", "")
    assert verdict["tried"] == ["zeros", "ones", "mean", "copy of x", "the answer to another seed"]
    assert len(verdict["reference_us"]) == 2


def test_a_tolerance_that_zeros_pass_is_refused(register):
    verdict = register(EXAMPLES / "reference.py", shapes=[{"rows": 4, "cols": 100000}], atol=1e-3).verdict

    assert verdict["status"] == "refused"
    assert verdict["reason"].startswith(
        "at rows=4,cols=100000: zeros passes as y: atol 0.001 is larger than the outputs"
    )


TRIVIAL = [
    ("return x * 0", "constant", "each of its elements is 0, so no tolerance helps", {}),
    ("return np.full_like(x, 7)", "constant", "each of its elements is 7, so no tolerance helps", {}),
    ("return x", "copy", "it is exactly that, so no tolerance helps", {}),
    ("return x * 1e-6", "constant", "atol 1e-05 is larger than the outputs", {"atol"}),
    ("return 5 + np.tanh(x) * 1e-4", "constant", "an answer without any work is right", {"atol", "rtol"}),
]


@pytest.mark.parametrize(("body", "kind", "said", "helps"), TRIVIAL)
def test_a_refusal_for_an_answer_without_work_names_only_tolerances_that_help(register, body, kind, said, helps):
    verdict = register(f"import numpy as np\ndef softmax(x):\n    {body}\n", rtol=1e-3, atol=1e-5).verdict

    assert (verdict["status"], verdict["trivial"], set(verdict["helps"])) == ("refused", True, set(helps)), verdict
    assert said in verdict["reason"]
    if helps == {"atol"}:
        assert verdict["helps"]["atol"] in (4e-8, 5e-8)


@pytest.mark.parametrize(("body", "kind", "said", "helps"), TRIVIAL)
def test_a_problem_with_an_answer_without_work_is_accepted_where_that_is_asked_for(register, body, kind, said, helps):
    reference = f"import numpy as np\ndef softmax(x):\n    {body}\n"
    verdict = register(reference, rtol=1e-3, atol=1e-5, accept_degenerate=True).verdict

    assert (verdict["status"], verdict["degenerate"]) == ("ok", kind), verdict
    assert any(said in note for note in verdict["notes"]) and len(verdict["tried"]) < 5


def test_the_tolerance_that_is_advised_helps(register):
    """The largest of 64,000 normal numbers is 4 to 5; a hundredth of that is advised."""
    verdict = register("def softmax(x):\n    return x * 1e-6\n", rtol=1e-3, atol=4e-8).verdict

    assert verdict["status"] == "ok", verdict


def test_what_is_no_question_of_an_answer_without_work_is_refused_all_the_same(register):
    reference = "import numpy as np\ndef softmax(x):\n    return np.full_like(x, np.nan)\n"
    verdict = register(reference, accept_degenerate=True).verdict

    assert (verdict["status"], verdict["trivial"], verdict["degenerate"]) == ("refused", False, "")


@pytest.mark.parametrize(("atol", "notes"), [(1e-5, 1), (1e-7, 0)])
def test_a_tolerance_that_is_a_hundredth_of_the_output_is_noted_once(register, atol, notes):
    verdict = register(EXAMPLES / "reference.py", shapes=[{"rows": 64, "cols": 4000}], atol=atol).verdict

    assert (verdict["status"], len(verdict["notes"])) == ("ok", notes), verdict
    for note in verdict["notes"]:  # normal inputs: the root mean square of a softmax is e**.5 / cols, give or take 1 %
        share = re.match(r"atol 1e-05 is ([0-9.]+) % of the usual size of y", note)
        assert share and float(share[1]) == pytest.approx(100 * atol * 4000 / math.e**0.5, rel=0.08), note


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return x", "copy of x passes as y"),
        ("return np.full_like(x, 7)", "mean passes as y"),
        ("return np.ones_like(x)", "ones passes as y"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("return x.sum()", "output y has shape [], declared as [64, 1000]; declare that, or let the reference return"),
        ("return x[:1]", "output y has shape [1, 1000], declared as [64, 1000]; shapes that follow the inputs' values"),
        ("return x, x", "returned 2 values, the problem declares 1 outputs"),
        ("return x + 1j", "output y is complex64, declared as float32"),
        ("return np.log(x)", "the reference returns NaN in y: let it put numbers there, or draw inputs"),
        ("return np.random.rand(*x.shape)", "differently in y, beyond the tolerance: it may draw"),
        ("import os; os._exit(3)", "the reference exited with status 3"),
        ("return 'text'", "softmax returned str, not an array"),
        ("x + 1", "softmax returned NoneType, not an array: return what it computes, also what it writes in place"),
        ("raise ValueError('n' * 9999)", "ValueError: nnn"),
    ],
)
def test_an_unusable_reference_is_refused_and_the_reason_says_why(register, body, reason):
    verdict = register(f"import numpy as np\ndef softmax(x):\n    {body}\n").verdict

    assert verdict["status"] == "refused"
    assert reason in verdict["reason"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def softmax(x:\n", "SyntaxError"),
        ("def other(x): pass\n", "defines no function softmax"),
        ("1/0", "ZeroDivision"),
        ("import os; os._exit(0)", "exited with status 0 without finishing its calls, while it was loaded"),
    ],
)
def test_a_source_that_does_not_load_is_refused(register, source, reason):
    verdict = register(source).verdict

    assert verdict["status"] == "refused"
    assert reason in verdict["reason"]


def test_a_result_of_another_float_type_is_converted_and_noted(register):
    source = "import numpy as np\ndef softmax(x):\n    return np.sin(x.astype(np.float64))\n"
    verdict = register(source).verdict

    assert verdict["status"] == "ok"
    assert verdict["notes"] == ["the reference returns float64 for y; it is converted to float32"]


def test_shapes_at_which_the_reference_has_no_answer_are_noted(register):
    source = "import numpy as np\ndef softmax(x):\n    x.reshape(x.shape[0], -1, 8)\n    return np.sin(x)\n"
    verdict = register(source, rtol=1e-6, atol=1e-7).verdict

    assert verdict["status"] == "ok"
    assert "the reference fails at " in verdict["notes"][0]
    assert "ValueError: cannot reshape" in verdict["notes"][0]


@pytest.mark.parametrize("dies_at", [(1, 1), (65, 1001)], ids=["first", "last"])
def test_a_reference_that_dies_at_one_of_other_shapes_is_refused(register, dies_at):
    body = f"    if x.shape == {dies_at}:\n        os._exit(3)\n    return np.sin(x)\n"
    verdict = register("import os\nimport numpy as np\ndef softmax(x):\n" + body, rtol=1e-6, atol=1e-7).verdict

    assert verdict["status"] == "refused"
    assert verdict["reason"].startswith("the reference exited with status 3")


def test_a_function_that_only_one_run_of_its_file_may_have_is_the_first_one(register):
    """A second run may fail at its first call alone, as where an operator may be registered once."""
    source = """
import builtins, numpy as np
def softmax(x):
    if getattr(builtins, "registered", softmax) is not softmax:
        raise RuntimeError("registered twice")
    builtins.registered = softmax
    return np.sin(x)
"""
    verdict = register(source, fixed_shapes=True).verdict

    assert verdict["status"] == "ok", verdict["reason"]


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
def test_draws_of_torch_that_every_new_process_makes_alike_are_a_problem(register):
    """Each begins with the same seed; another one that the file sets later is not where it began."""
    source = (
        "import torch\nW = torch.randn(1000)\ntorch.manual_seed(0)\ndef softmax(x):\n    return x * W[: x.shape[1]]\n"
    )
    verdict = register(source, fixed_shapes=True, framework="torch", python=torch_python()).verdict

    assert verdict["status"] == "ok", verdict["reason"]


def test_constraints_that_no_other_shape_was_found_for_are_noted(register):
    alone = [{"left": ["*", "rows", "cols"], "operator": "==", "right": 64 * 1000 + 1}]
    note = "no other shape was found that complies with the constraints"

    assert any(note in each for each in register(EXAMPLES / "reference.py", constraints=alone).verdict["notes"])


@pytest.mark.parametrize(("seed", "status"), [("", "refused"), ("7", "ok")], ids=["unseeded", "seeded"])
def test_weights_that_each_process_draws_otherwise_are_no_problem(register, seed, status):
    weights = f"import numpy as np\nWEIGHTS = np.random.RandomState({seed}).rand(1000).astype(np.float32)\n"
    verdict = register(weights + "def softmax(x):\n    return x * WEIGHTS[: x.shape[1]]\n", fixed_shapes=True).verdict

    assert verdict["status"] == status, verdict["reason"]
    assert ("each time that its file is run" in verdict["reason"]) == (status == "refused")


def test_a_constraint_spares_the_reference_shapes_that_it_cannot_do(register):
    source = "import numpy as np\ndef softmax(x):\n    x.reshape(x.shape[0], -1, 8)\n    return np.sin(x)\n"
    eights = {"left": ["%", "cols", 8], "operator": "==", "right": 0}
    verdict = register(source, rtol=1e-6, atol=1e-7, constraints=[eights]).verdict

    assert (verdict["status"], verdict["notes"]) == ("ok", [])


def test_inputs_that_are_always_the_same_are_refused(register):
    """A candidate that keeps the first answer would be right ever after."""
    same = {"name": "x", "dtype": "float32", "shape": ["rows", "cols"], "distribution": "zeros"}
    source = (
        "import numpy as np\ndef softmax(x):\n    return x + np.arange(x.size, dtype=np.float32).reshape(x.shape)\n"
    )
    verdict = register(source, inputs=[same]).verdict

    assert verdict["status"] == "refused"
    assert "the inputs are the same for every seed" in verdict["reason"]


MEANS = "import numpy as np\ndef softmax(x):\n    return np.stack([x.mean(), (x * x).mean()]).astype(np.float32)\n"
MANY = [{"name": "x", "dtype": "float32", "shape": ["n"], "distribution": "uniform"}]


def answered(dtype: str, *names: str, count: int = 1) -> list[dict[str, object]]:
    return [{"name": name, "dtype": dtype, "shape": [count]} for name in names]


@pytest.mark.parametrize(
    "task",
    [
        {"reference": MEANS, "outputs": answered("float32", "y", count=2)},
        {"reference": "def softmax(x):\n    return x.mean(keepdims=True)\n", "outputs": answered("float32", "y")},
        {
            "reference": "def softmax(x):\n    return x[:100], x.mean(keepdims=True)\n",
            "outputs": answered("float32", "first", count=100) + answered("float32", "y"),
        },
        {
            "reference": "import numpy as np\ndef softmax(x):\n    return (x > 0.5).sum(keepdims=True, dtype=np.int32)\n",
            "outputs": answered("int32", "y"),
            "atol": 20000,
        },
    ],
    ids=["two", "scalar", "one of two", "whole"],
)
def test_answers_that_are_the_same_for_every_seed_within_the_tolerance_are_refused(register, task):
    """A constant would be right for all inputs."""
    given = {"inputs": MANY, "shapes": [{"n": 1 << 18}], "rtol": 1e-2, "atol": 1e-4, **task}
    verdict = register(**given).verdict

    assert verdict["status"] == "refused"
    assert "n=262144: the answer to another seed passes as y: with rtol 0.01" in verdict["reason"]
    assert "another distribution, declare other shapes" in verdict["reason"]


@pytest.mark.parametrize(
    ("body", "dtype", "rtol"),
    [
        ("(x[:1] > 0.5) + 3", "int32", 0),
        ("np.argmax(x[:3], keepdims=True) + 3", "int64", 0),
        ("x.mean(keepdims=True)", "float32", 5e-4),
    ],
    ids=["bit", "index", "loss"],
)
def test_answers_that_two_seeds_share_by_chance_are_registered(register, body, dtype, rtol):
    """One pair in two, in three, and in three where a mean's deviation is twice the tolerance."""
    reference = f"import numpy as np\ndef softmax(x):\n    return ({body}).astype(np.{dtype})\n"
    shapes = [{"n": 400000 + more} for more in range(4)]
    verdict = register(reference, inputs=MANY, outputs=answered(dtype, "y"), shapes=shapes, rtol=rtol, atol=0).verdict

    assert (verdict["status"], verdict["reason"]) == ("ok", "")
