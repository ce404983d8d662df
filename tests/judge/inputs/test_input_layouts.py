"""Inputs keep what get_inputs gave them: strides, offset, memory in common, requires_grad; for all that are called."""

from pathlib import Path

import pytest

from tests.judge.harness import build, judge, torch_python

pytestmark = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, {names}):
        {look}
        {body}

def get_inputs():
    {inputs}

def get_init_inputs():
    return []
"""
COMMON = {"symbol": "launch", "shapes": [{}], "fixed_shapes": True, "problem": "module", "framework": "torch"}
COMMON |= {"entry": "Model", "tier": "correctness", "prepare_s": 100}


class Bench:
    """Registers a problem's file, and judges candidates by what was found out about it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder, self.text, self.number = folder, text, 0
        (folder / "registered").mkdir()
        task = {**COMMON, "describe": True, "inputs": [], "outputs": [], "rtol": None, "atol": None}
        found = judge(folder / "registered", text, python=torch_python(), **task)
        assert found.verdict.get("status") == "ok", (found.verdict, found.stderr)
        self.told = found.verdict["described"]

    def judge(self, source: str, kind: str = "model"):
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        path = folder / ("candidate.c" if kind == "library" else "candidate.py")
        path.write_text(source)
        about = {name: self.told[name] for name in ("inputs", "outputs", "state", "constants", "layouts")}
        about |= {"rtol": self.told["rtol"], "atol": self.told["atol"], "candidate": kind}
        path = build(path) if kind == "library" else path
        found = judge(
            folder,
            self.text,
            path,
            python=torch_python(),
            **{**COMMON, "prepare_s": 0 if kind == "library" else 100, **about},
        )
        assert found.exit_code == 0, found.stderr
        return found.verdict


def problem_text(names: str, body: str, inputs: str, look: str = "pass") -> str:
    return PROBLEM.format(names=names, body=body, inputs=inputs, look=look)


def candidate_text(problem: str, *changes: tuple[str, str]) -> str:
    text = problem.split("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    return text


def test_a_candidate_that_computes_addresses_from_the_shape_is_wrong_where_inputs_are_transposed(tmp_path):
    text = problem_text(
        "logits", "return torch.logsumexp(logits, -1)", "return [torch.randn(48, 6, 40).transpose(0, 1)]"
    )
    bench = Bench(tmp_path, text)
    plain = "rows = torch.as_strided(logits, (288, 40), (40, 1)); return torch.logsumexp(rows, -1).view(6, 48)"
    wrong = bench.judge(candidate_text(text, ("return torch.logsumexp(logits, -1)", plain)))
    right = "top = logits.amax(-1); return torch.log(torch.exp(logits - top[..., None]).sum(-1)) + top"
    honest = bench.judge(candidate_text(text, ("return torch.logsumexp(logits, -1)", right)))

    assert honest["verdict"] == "correct", honest["reason"]
    assert "distributions" in honest["trials_summary"], "the judge draws what lies under a single view"
    assert wrong["verdict"] == "incorrect"
    assert "logits has strides (40, 240, 1)" in wrong["reason"], wrong["reason"]


MANY = """
import torch

def look(turned, wide, cut, far, last, a, b, left, right, k, i, x, w):
    assert turned.stride() == (8, 48, 1) and wide.stride() == (0, 1)
    assert cut.stride() == (16, 1) and cut.storage_offset() == 25
    assert far.stride() == (8, 1) and far.storage_offset() % 256 == 2321 % 256
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert (a.stride(), b.stride(), k.stride(), i.stride()) == ((8, 1), (1, 8), (2,), (2,))
    assert x.requires_grad and x.is_leaf and not w.requires_grad
    if a.device.type != "meta":
        assert a.data_ptr() == b.data_ptr() and right.data_ptr() == left.data_ptr() + 80 * left.element_size()

class Model(torch.nn.Module):
    def forward(self, *given):
        look(*given)
        turned, wide, cut, far, last, a, b, left, right, k, i, x, w = given
        with torch.enable_grad():
            slope = torch.autograd.grad((x ** 3 * w).sum(), x)[0]
        return turned.sum(0), wide * 2, cut * 2, far * 2, last * 2, a @ b, left - 2 * right, k[i], slope

def get_inputs():
    m, halves, pairs = torch.randn(8, 8), torch.randn(40, 4), torch.randint(0, 8, (8, 2))
    return [torch.randn(4, 6, 8).transpose(0, 1), torch.randn(1, 40).expand(8, 40), torch.randn(20, 8)[3:17:2, 1:5],
            torch.randn(300, 8)[290:, 1:5], torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
            m, m.t(), *halves.chunk(2), pairs[:, 0], pairs[:, 1],
            torch.randn(16, requires_grad=True), torch.randn(16)]

def get_init_inputs():
    return []
"""


def test_everybody_is_given_inputs_as_the_problem_lays_them_out(tmp_path):
    """Reference and candidate look for themselves; the reference in double precision, too."""
    bench = Bench(tmp_path, MANY)
    found = bench.judge(candidate_text(MANY))

    assert found["verdict"] == "correct", found["reason"]
    assert found["evidence"]["errors"], "double precision was computed of the same layout"
    drawn = [spec["distribution"] for spec in bench.told["inputs"]]
    assert drawn == ["normal"] * 4 + ["uniform"] + ["made"] * 6 + ["normal"] * 2


LAUNCH = """
int launch(const float *a, const float *b, float *y) {
    for (int i = 0; i < 8; i++) for (int j = 0; j < 8; j++) {
        float sum = 0;
        for (int k = 0; k < 8; k++) sum += a[i * 8 + k] * b[%s];
        y[i * 8 + j] = sum;
    }
    return 0;
}
"""


@pytest.mark.parametrize(("at", "verdict"), [("k * 1 + j * 8", "correct"), ("k * 8 + j", "incorrect")])
def test_a_launcher_gets_the_first_element_and_is_told_the_strides(tmp_path, at, verdict):
    text = problem_text("a, b", "return a @ b", "m = torch.randn(9, 8); return [m[1:], m[1:].t()]")
    found = Bench(tmp_path, text).judge(LAUNCH % at, "library")

    assert found["verdict"] == verdict, found["reason"]
    assert verdict == "correct" or "b has strides (1, 8) and offset 8 in memory of a" in found["reason"]


def test_memory_in_common_as_two_types_is_refused_with_both_names(tmp_path):
    text = problem_text("x, bits", "return x + bits", "m = torch.randn(8); return [m, m.view(torch.int32)]")
    task = {**COMMON, "describe": True, "inputs": [], "outputs": [], "rtol": None, "atol": None}
    found = judge(tmp_path, text, python=torch_python(), **task)

    assert "inputs x and bits share memory as different types" in found.verdict["reason"]


def test_a_copy_of_a_transposed_input_is_a_trivial_answer_as_well(tmp_path):
    text = problem_text("x", "return x.clone()", "return [torch.randn(4, 6).t()]")
    task = {**COMMON, "describe": True, "inputs": [], "outputs": [], "rtol": None, "atol": None}
    found = judge(tmp_path, text, python=torch_python(), **task)

    assert found.verdict["status"] == "refused" and "copy of x passes" in found.verdict["reason"]
