"""Facts read from a reference's text."""

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.problems.reference_source import ReferenceFacts, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def reference(x):\n    return x", ReferenceFacts("numpy", "reference", "")),
        ('import torch\n\ndef f(x):\n    "Twice."\n    return x', ReferenceFacts("torch", "f", "Twice.")),
        ("def f(x):\n    from torch.nn import functional\n    return x", ReferenceFacts("torch", "f", "")),
        ("import torchless\ndef _a(x): ...\ndef b(x): ...", ReferenceFacts("numpy", "b", "")),
        ("def a(x): ...\ndef reference(x): ...", ReferenceFacts("numpy", "reference", "")),
        ("import numpy as np\nreference = np.tanh", ReferenceFacts("numpy", "reference", "")),
    ],
)
def test_library_function_and_words_are_read(text: str, expected: ReferenceFacts):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [("def a(x): ...\ndef b(x): ...", "a, b"), ("x = 1", "no function"), ("def", "line 1"), ("\0", "Python")],
)
def test_what_cannot_be_read_says_why(text: str, words: str):
    with pytest.raises(BadRequest, match=words):
        read(text)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [("", "1 input, which it gets in order. Let it take x."), ("x, *, eps", "Let it take x; give eps a default.")],
)
def test_a_reference_that_cannot_take_its_inputs_is_told_what_to_change(parameters: str, words: str):
    x, y = (TensorSpec(name=name, dtype="float32", shape=["n"]) for name in "xy")
    with pytest.raises(BadRequest) as refused:
        Problems.make_problem(
            "p", "", "numpy", "f", [x], [y], [{"n": 8}], 0.0, 0.0, f"def f({parameters}): return 1",
        )  # fmt: skip

    assert words in str(refused.value)
