"""Search for inputs that a candidate writes, on copies that it may write to; and references that work in place."""

from pathlib import Path

import pytest

from tests.judge.harness import EXAMPLES, SOFTMAX, build, judge, torch_python

needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
ADD = "def softmax(x, w):\n    return x + w\n"
TWO = {
    "inputs": [*SOFTMAX["inputs"], {"name": "w", "dtype": "float32", "shape": ["rows", "cols"]}],
    "reference": ADD,
    "shapes": [{"rows": 8, "cols": 50}],
}
HEAD = "#include <stdint.h>\n#include <string.h>\nint launch(float *x, float *w, float *y, int64_t rows, int64_t cols{}) {{"
PYTHON = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, w):\n        {}\n"


@pytest.fixture
def search(tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch):
    def sit(body: str, device: str = "cpu", **task):
        if device == "cuda":
            monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
        (tmp_path / "candidate.c").write_text(HEAD.format(", void *stream" if device == "cuda" else "") + body + "}")
        whole = {**TWO, "mode": "writes", "device": device, **task}
        outcome = judge(tmp_path, whole.pop("reference"), build(tmp_path / "candidate.c"), **whole)
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()
        return outcome.verdict

    return sit


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("body", "writes"),
    [
        pytest.param("for (int i = 0; i < rows * cols; i++) w[i] = 1e9f; return 0;", ["w 400/400"], id="all of one"),
        pytest.param("x[3] = 1e9f; w[5] = w[7] = 1e9f; return 0;", ["x 1/400", "w 2/400"], id="some of both"),
        pytest.param("x[3] = 1e9f; *(volatile int *)0 = 1; return 0;", ["x 1/400"], id="and crashes"),
        pytest.param("x[0] = x[0]; return 0;", [], id="what was there"),
        pytest.param("*(volatile int *)0 = 1; return 0;", [], id="another crash"),
        pytest.param("memcpy(y, x, 8); return 7;", [], id="none"),
    ],
)
def test_the_inputs_that_were_written_to_are_named_with_how_many_elements(search, body, writes, device):
    found = search(body, device)

    assert found["mode"] == "writes" and "verdict" not in found
    assert ["{input} {elements}/{of}".format(**one) for one in found["writes"]] == writes
    assert ("SIGSEGV" in found["ended"]) == ("volatile" in body)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_write_at_a_hidden_shape_alone_is_found_too(search, device):
    found = search("if (rows != 8) x[0] = 1e9f; return 0;", device)

    assert [one["input"] for one in found["writes"]] == ["x"]


def test_what_a_candidate_writes_never_reaches_the_reference_or_the_next_shape(search):
    """The owner compares with memory that only it writes: a candidate cannot make its inputs look untouched."""
    body = "for (int i = 0; i < rows * cols; i++) x[i] = w[i]; return 0;"

    assert [one["input"] for one in search(body)["writes"]] == ["x"]


@needs_torch
@pytest.mark.parametrize(
    ("body", "writes"),
    [("return x.mul_(2) + w", ["x"]), ("w[:, 3] = 0; return x + w", ["w"]), ("return x + w", [])],
)
def test_a_python_file_that_works_in_place_is_found(tmp_path, body, writes):
    (tmp_path / "candidate.py").write_text(PYTHON.format(body))
    task = {**TWO, "mode": "writes", "candidate": "model", "prepare_s": 100}
    reference = task.pop("reference")
    outcome = judge(tmp_path, reference, tmp_path / "candidate.py", python=torch_python(), **task)

    assert [one["input"] for one in outcome.verdict["writes"]] == writes, outcome.stderr


IN_PLACE = """
import numpy as np
def softmax(x):
    x -= x.max(axis=1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=1, keepdims=True)
    return x
"""
IN_PLACE_TORCH = """
import torch
def softmax(x):
    x.sub_(x.amax(1, keepdim=True)).exp_()
    return x.div_(x.sum(1, keepdim=True))
"""


@pytest.mark.parametrize(
    "reference", [pytest.param(IN_PLACE, id="numpy"), pytest.param(IN_PLACE_TORCH, id="torch", marks=needs_torch)]
)
def test_a_reference_that_works_in_place_has_copies_of_its_own(tmp_path, reference):
    """Candidates see the inputs as they were drawn; a round's passes begin with what the first began with."""
    kind = "torch" if "torch" in reference else "numpy"
    more = {"framework": kind, "python": torch_python()} if kind == "torch" else {}
    (tmp_path / "registered").mkdir()
    (tmp_path / "judged").mkdir()
    registered = judge(tmp_path / "registered", reference, **more)
    task = {**more, "round_ms": 1, "max_rounds": 7}
    judged = judge(tmp_path / "judged", reference, build(EXAMPLES / "naive.c"), **task)

    assert registered.verdict["status"] == "ok", registered.verdict
    assert "the reference writes to its inputs: it works on copies" in str(registered.verdict["notes"])
    assert judged.verdict["verdict"] == "correct", judged.verdict["reason"]
    assert judged.verdict["shapes"][0]["reference"]["median_us"] > 0
    assert "whose making is not timed" in str(judged.verdict["shapes"][0]["notes"])


@pytest.mark.parametrize("kind", ["float64", "int32"])
def test_inputs_that_double_precision_leaves_as_they_are_may_be_written_to(tmp_path, kind):
    """Of these no copy is made on the way to double precision."""
    task = {
        "entry": "f", "tier": "correctness", "inputs": [{"name": "x", "dtype": kind, "shape": ["n"]}],
        "outputs": [{"name": "y", "dtype": "int64", "shape": ["n"]}], "shapes": [{"n": 500}],
    }  # fmt: skip
    reference = "import numpy as np\ndef f(x):\n    x *= 3\n    return (x > 1).astype(np.int64)\n"
    type_name = {"float64": "double", "int32": "int"}[kind]
    source = f"int launch(const {type_name} *x, long *y, long n) {{ for (long i = 0; i < n; i++) y[i] = 3 * x[i] > 1; return 0; }}"
    (tmp_path / "candidate.c").write_text(source.replace("return 0", "if (n == 500) y[0] = !y[0]; return 0"))
    found = judge(tmp_path, reference, build(tmp_path / "candidate.c"), **task).verdict

    assert found["verdict"] == "incorrect" and "1 of 500 elements are wrong" in found["reason"], found["reason"]
