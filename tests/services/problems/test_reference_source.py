"""What is read from a reference's text."""

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.services.problems.reference_source import Reading, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def reference(x):\n    return x", Reading("numpy", "reference", "")),
        ('import torch\n\ndef f(x):\n    "Twice."\n    return x', Reading("torch", "f", "Twice.")),
        ("def f(x):\n    from torch.nn import functional\n    return x", Reading("torch", "f", "")),
        ("import torchless\ndef _a(x): ...\ndef b(x): ...", Reading("numpy", "b", "")),
        ("def a(x): ...\ndef reference(x): ...", Reading("numpy", "reference", "")),
        ("import numpy as np\nreference = np.tanh", Reading("numpy", "reference", "")),
    ],
)
def test_library_function_and_words_are_read(text: str, expected: Reading):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [("def a(x): ...\ndef b(x): ...", "a, b"), ("x = 1", "no function"), ("def", "line 1"), ("\0", "Python")],
)
def test_what_cannot_be_read_says_why(text: str, words: str):
    with pytest.raises(BadRequest, match=words):
        read(text)
